/* SPDX-License-Identifier: MIT */
/*
 * What a cluster of equal hosts would make of a model: which layers lie on which card
 * (stages_balance), the memory plan of each card (src/engine/plan.h), and the speed
 * (tools/forecast). Needs neither the model's weights nor the cluster.
 *
 * Order of use: cluster_plan_memory, cluster_plan_speed once for each number of streams.
 */
#ifndef GLM_TOOLS_CLUSTER_PLAN_H
#define GLM_TOOLS_CLUSTER_PLAN_H

#include "src/engine/plan.h"
#include "src/engine/stages/stage.h"
#include "tools/forecast/cluster.h"
#include "tools/forecast/forecast.h"
#include "tools/plan/cards.h"
#include "tools/plan/model_headers.h"

struct cluster {
	uint32_t hosts, cards; /* cards: of each host */
	struct card card;      /* all are of this kind */
	double drive_gb_s;     /* of each host; its cards share it */
	double hop_us;         /* latency of a hand-over between two cards of a host */
	double net_us;         /* ... between two hosts, in addition */
	double net_gb_s;
	double token_ms;    /* computing of a token on one such card; < 0: as card_token_ms says */
	double row_part;    /* see CARD_ROW_PART */
	uint32_t step_rows; /* see CARD_STEP_ROWS */
	uint32_t streams, context; /* caches are planned for so many streams of so many tokens */
	uint64_t cache_bytes;      /* of each card; ENGINE_CACHE_AUTO: what its memory leaves */
	uint64_t ram_bytes;        /* second tier of each host */
	const char *policy;
	int lookahead;
};

struct cluster_stage {
	uint32_t first_layer, end_layer, host;
	struct plan plan;
	uint64_t experts_bytes; /* of its layers */
	double experts_part;    /* of its experts that its card holds, 0 .. 1 */
	struct stage_cost cost; /* set by cluster_plan_speed, with the streams of its last call */
};

struct cluster_plan {
	uint32_t n; /* stages: one a card */
	struct cluster_stage stages[STAGES_MAX];
	bool everything;  /* every card holds all experts of its layers */
	double token_ms;  /* of one card that held all layers */
	double row_bytes; /* of the residual stream, which is handed over for each row */
	/* reading from the drives what the cards hold at first; experts included */
	double load_seconds;
};

/* Cuts and plans. ERR_USAGE for more cards than layers or STAGES_MAX; ERR_MEMORY when a card cannot
 * hold what must be resident there, with the least number of such cards that could as a hint. */
int cluster_plan_memory(const struct model_headers *model, const struct cluster *k,
	struct cluster_plan *p, struct err *e);

/* The speed with so many streams at once. f: the routing (machine_plan_forecast); NULL: each token
 * chooses its experts at random, and p->everything must be true. Errors of forecast_run. */
int cluster_plan_speed(const struct model_headers *model, const struct cluster *k,
	const struct forecast *f, uint32_t streams, struct cluster_plan *p, struct cluster_speed *out,
	struct err *e);

#endif
