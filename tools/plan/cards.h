/* SPDX-License-Identifier: MIT */
/*
 * Graphics cards by what their makers publish, and how long one computes: a token, a prompt step.
 * GB/s are 10^9 bytes a second.
 */
#ifndef GLM_TOOLS_CARDS_H
#define GLM_TOOLS_CARDS_H

#include "src/format/gguf.h"
#include "src/model/config.h"

struct card {
	const char *name;
	double sold_gb;     /* memory, GiB, as it is sold */
	double memory_gb_s; /* bandwidth by the maker */
	double link_gb_s; /* host to card: PCIe 5.0 x16 as measured on an H200, others in proportion */
	double matrix_tflops; /* dense BF16 products with float32 sums, by the maker, 10^12 / s */
};

/* The card whose name stands in `text` ("NVIDIA GeForce RTX 4060 Ti"), the longest such name; else
 * the only card in whose name `text` stands ("4090"). The case does not matter. NULL: no card, or
 * several. */
const struct card *card_find(const char *text);
/* The first card of this size, NULL: none. */
const struct card *card_of_size(double sold_gb);
/* The i-th card, NULL past the end. */
const struct card *card_at(int i);

/* A card that the table lacks, with as much arithmetic for its bandwidth as an H200. Name, size and
 * link are not set. */
struct card card_unknown(double memory_gb_s);

/* Bytes that a program finds free on a card of this size: driver and context take some. */
uint64_t card_free_bytes(double sold_gb);

/* Milliseconds that the card computes for a token whose experts are all in its memory, from the
 * tensors of the file: bytes over the bandwidth that ops of each type reach on an H200
 * (tests/bench/RESULTS.md, Operations). */
double card_token_ms(const struct card *k, const struct gguf *file, const struct model_config *c);

/* Milliseconds that computing adds to the transfers of a prompt step of so many rows; measured with
 * GLM-5.2 on an H200, scaled by matrix_tflops and by the products of the model. */
double card_prompt_ms(
	const struct card *k, const struct gguf *file, const struct model_config *c, uint32_t rows);

#endif
