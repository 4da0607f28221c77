/* SPDX-License-Identifier: MIT */
/*
 * The speed of stages: consecutive layers of a model on several cards, through which every row
 * passes in turn. Pure arithmetic over the costs of each stage.
 *
 *   one stream      each token takes the sum over all stages.
 *   many streams    their rows are divided into micro-batches of equal size (the last ones may be
 *                   smaller), which follow each other through the stages. A round gives every
 *                   stream one token. It takes the longer of: the slowest stage, once for each
 *                   micro-batch; one micro-batch through all stages.
 *
 * A step of r rows in a stage takes
 *   computing   fixed_ms + (r - 1) row_ms + distinct(r) expert_ms
 *   misses      r drive_ms on the drive, r link_ms on the link, put together with computing by
 *               forecast_card_ms
 *   hand-over   hop_ms + r hop_row_ms, during which the stage waits.
 */
#ifndef GLM_TOOLS_FORECAST_CLUSTER_H
#define GLM_TOOLS_FORECAST_CLUSTER_H

#include <stdbool.h>
#include <stdint.h>

struct stage_cost {
	double fixed_ms, row_ms;   /* computing without routed experts: the first row, each further */
	double expert_ms;          /* computing one distinct expert in each of its MoE layers */
	double drive_ms, link_ms;  /* what a row misses, mean */
	bool lookahead;            /* experts are predicted and read ahead */
	double hop_ms, hop_row_ms; /* handing over to the next stage */
};

struct cluster_speed {
	uint32_t streams, micro_batches, rows; /* rows: of a micro-batch, at most */
	double distinct;                       /* experts that a layer computes in such a step */
	double round_ms, tok_s;                /* tok_s: of all streams */
	/* of one micro-batch on its way through all stages; waits: what misses add */
	double compute_ms, waits_ms, hops_ms;
	uint32_t slowest; /* stage */
	double slowest_ms;
	double busy;         /* share of the round in which a stage works, mean over the stages */
	double serial_tok_s; /* the highest rate when only one micro-batch is in flight */
};

/* Tries every number of micro-batches of at most max_rows rows; the highest rate counts, of equal
 * ones the fewest micro-batches. distinct [max_rows]: experts of a layer in a step of 1, 2, ...
 * rows. n, streams, max_rows >= 1. */
void cluster_schedule(const struct stage_cost *stages, uint32_t n, uint32_t streams,
	uint32_t max_rows, const double *distinct, struct cluster_speed *out);

#endif
