/* SPDX-License-Identifier: MIT */
/*
 * Graphics cards by what their makers publish, and how long one computes: a step of one or several
 * rows, a prompt step. GB/s are 10^9 bytes a second.
 *
 * Computing is bytes over the bandwidth that ops of each class and type reach on an H200
 * (card_op_rates), in proportion to the card's memory; what further rows add is in proportion to
 * its arithmetic (matrix_tflops).
 */
#ifndef GLM_TOOLS_CARDS_H
#define GLM_TOOLS_CARDS_H

#include "src/base/err.h"
#include "src/format/gguf.h"
#include "src/model/config.h"

struct card {
	const char *name;
	double sold_gb;     /* memory, GiB, as it is sold */
	double memory_gb_s; /* bandwidth by the maker */
	double link_gb_s; /* host to card: PCIe 5.0 x16 as measured on an H200, others in proportion */
	double matrix_tflops; /* dense BF16 products with float32 sums, by the maker, 10^12 / s */
	const char *sheet;    /* where the maker publishes that */
};

/* The card whose name stands in `text` ("NVIDIA GeForce RTX 4060 Ti"), the longest such name; else
 * the only card in whose name `text` stands ("4090"). The case does not matter. NULL: no card, or
 * several. */
const struct card *card_find(const char *text);
/* The same; ERR_USAGE with the names of all cards for none or several. */
int card_find_named(const char *text, const struct card **out, struct err *e);
/* The first card of this size in the table (of 16 GB an RTX 4080); memory_gb_s above 0: and of this
 * bandwidth. Where the table has none: a card without a name, with the link of the first card of
 * the size, or none. */
struct card card_of_size(double sold_gb, double memory_gb_s);
/* Its name; of a card without one, its size and bandwidth. */
void card_print_name(const struct card *k, char *out, size_t size);
/* ERR_USAGE when its bandwidths are not known. sold_gb: for the sentence. */
int card_check_rates(const struct card *k, double sold_gb, struct err *e);

/* A card that the table lacks, with as much arithmetic for its bandwidth as an H200. Name, size and
 * link are not set. */
struct card card_unknown(double memory_gb_s);

/* Bytes that a program finds free on a card of this size: driver and context take some. */
uint64_t card_free_bytes(double sold_gb);

/* ---- computing ---- */

/* What ops of a class and type reach with one row. */
struct card_op_rate {
	const char *name;
	enum dtype type; /* the one that was measured; others are assumed to be as slow */
	double percent;  /* of a copy on the same card */
	const char *row; /* the row of tests/bench/RESULTS.md that has the figure; NULL: not measured */
	const char *why; /* ... where it is from then; NULL with a row */
};
/* The one for this tensor. NULL: no step computes with it. */
const struct card_op_rate *card_op_rate_of(
	const struct model_config *c, const struct gguf_tensor *t);

/* The part of a card's bandwidth that a copy reaches, and what the H200's copy was measured at. */
#define CARD_COPY_GB_S 4240.0
#define CARD_COPY_PART (CARD_COPY_GB_S / 4800)
/* Milliseconds of a step that are no product: launches, waits, drawing; of each further row. */
#define CARD_OTHER_MS     0.10
#define CARD_OTHER_ROW_MS 0.03
/* What each further row adds to the products with resident weights, in parts of the first row's
 * time on an H200. Fitted to the steps of card_check_steps. */
#define CARD_ROW_PART 0.115
/* Most rows of a step that is forecast: CARD_ROW_PART is fitted to steps of up to so many. */
#define CARD_STEP_ROWS 64

/* Work of a step of one row, as bytes that a copy would move in the same time. */
struct card_work {
	double dense;  /* with resident weights */
	double expert; /* with one routed expert in each layer that has some */
};
/* layers [c->n_layers], *head: the output head. */
void card_work_of(const struct gguf *file, const struct model_config *c, struct card_work *layers,
	struct card_work *head);

/* Milliseconds of w->dense with one row; what each further row adds; of w->expert. */
struct card_times {
	double dense_ms, row_ms, expert_ms;
};
struct card_times card_times_of(const struct card *k, const struct card_work *w, double row_part);

/* Milliseconds that the card computes for a token whose experts are all in its memory. */
double card_token_ms(const struct card *k, const struct gguf *file, const struct model_config *c);

/* Distinct experts of a layer that so many rows use when each chooses at random. */
double card_distinct_experts(const struct model_config *c, double rows);

/* Steps measured on an H200 with random routing and all experts in its memory, and what this model
 * says of them. */
struct card_step {
	const char *recipe;
	uint32_t layers, rows; /* the model's first layers, with the head */
	double measured_ms;    /* tests/bench/RESULTS.md */
	double model_ms;
};
/* Sets *n; the steps are static and stay. ERR_INPUT never but for a fault of the program. */
int card_check_steps(const struct card_step **steps, int *n, struct err *e);

/* Milliseconds that computing adds to the transfers of a prompt step of so many rows; measured with
 * GLM-5.2 on an H200, scaled by matrix_tflops and by the products of the model. */
double card_prompt_ms(
	const struct card *k, const struct gguf *file, const struct model_config *c, uint32_t rows);

#endif
