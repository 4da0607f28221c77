/* SPDX-License-Identifier: MIT */
/*
 * How the answers of a step are cut into micro-batches, which follow each other through the stages
 * (pipeline.h). Pure arithmetic; who computes asks here and nowhere else.
 *
 * There are as many micro-batches as stages, so that every stage has one, and more where they would
 * have more rows than a device computes in the way of a single row. They are of equal size, but for
 * one row. Fewer answers than stages: one each.
 */
#ifndef GLM_ENGINE_MICRO_BATCHES_H
#define GLM_ENGINE_MICRO_BATCHES_H

#include <stdint.h>

/* Micro-batches in flight of so many answers with `rows` >= answers rows in all. most: rows of one;
 * n_stages, most >= 1. With one stage as many as `most` demands. */
uint32_t micro_batches_count(uint32_t answers, uint32_t rows, uint32_t n_stages, uint32_t most);

/* How many of the n >= 1 answers that wait make the next micro-batch: the first ones. rows [n]: of
 * each, at most `most`; all_rows: of these answers and of those in flight; count: as
 * micro_batches_count. At least 1. */
uint32_t micro_batches_take(
	const uint32_t *rows, uint32_t n, uint32_t all_rows, uint32_t count, uint32_t most);

#endif
