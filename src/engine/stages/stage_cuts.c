/* SPDX-License-Identifier: MIT */
/*
 * Dynamic programming over (stages, layers), twice: for the least possible largest load, then,
 * among the cuts that keep to it, for the fewest in front of layers that share a selection.
 * best[end] is of the first k stages with the first `end` layers; from[k][end] is where the last of
 * them begins.
 */
#include "src/engine/stages/stage_cuts.h"

#include "src/base/mem.h"
#include "src/base/num.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ROUNDING 1e-9 /* loads that differ by less are equal */

/* Prefix sums over the layers, as parts of the sum over all. */
struct load_sums {
	double *held, *read; /* [n_layers + 1] */
};

static struct load_sums sum_loads(const struct layer_cost *layers, uint32_t n)
{
	struct load_sums s = {NEW_ARRAY(double, n + 1), NEW_ARRAY(double, n + 1)};
	for (uint32_t i = 0; i < n; i++) {
		s.held[i + 1] = s.held[i] + (double)layers[i].held;
		s.read[i + 1] = s.read[i] + (double)layers[i].read;
	}
	double held = fmax(s.held[n], 1), read = fmax(s.read[n], 1);
	for (uint32_t i = 0; i <= n; i++) {
		s.held[i] /= held;
		s.read[i] /= read;
	}
	return s;
}

/* Room and bandwidth of each stage, as parts of the sum over all. */
struct stage_parts {
	double *room, *speed; /* [n] */
};

static struct stage_parts share_capacity(const struct stage_capacity *stages, uint32_t n)
{
	struct stage_parts p = {NEW_ARRAY(double, n), NEW_ARRAY(double, n)};
	double room = 0, speed = 0;
	bool room_known = true, speed_known = true;
	for (uint32_t k = 0; k < n; k++) {
		room_known &= stages[k].room > 0;
		speed_known &= stages[k].bytes_s > 0;
		room += (double)stages[k].room;
		speed += (double)stages[k].bytes_s;
	}
	for (uint32_t k = 0; k < n; k++) {
		p.room[k] = room_known ? (double)stages[k].room / room : 1.0 / n;
		p.speed[k] = speed_known ? (double)stages[k].bytes_s / speed : 1.0 / n;
	}
	return p;
}

struct cut_search {
	const struct layer_cost *layers;
	uint32_t n_layers, n;
	struct load_sums sums;
	struct stage_parts parts;
	uint32_t *from; /* [n][n_layers + 1] */
};

static double stage_load(const struct cut_search *c, uint32_t k, uint32_t begin, uint32_t end)
{
	const struct load_sums *s = &c->sums;
	return (s->held[end] - s->held[begin]) / c->parts.room[k] +
		   (s->read[end] - s->read[begin]) / c->parts.speed[k];
}

/* What is minimised: the number of cuts in front of sharing layers, then the largest load. */
struct cut_cost {
	uint32_t shared;
	double load;
};

static bool is_less(struct cut_cost a, struct cut_cost b)
{
	return a.shared != b.shared ? a.shared < b.shared : a.load < b.load;
}

/* Returns the least cost of cuts whose loads are at most `limit`, and leaves these cuts in c->from.
 * counts: false: cuts in front of sharing layers cost nothing. */
static struct cut_cost search_cuts(struct cut_search *c, double limit, bool counts)
{
	const uint32_t n_layers = c->n_layers;
	const struct cut_cost none = {UINT32_MAX, INFINITY};
	struct cut_cost *best = NEW_ARRAY(struct cut_cost, n_layers + 1),
					*next = NEW_ARRAY(struct cut_cost, n_layers + 1);
	for (uint32_t end = 1; end <= n_layers; end++)
		best[end] = none; /* no stages have no layers */
	for (uint32_t k = 0; k < c->n; k++) {
		for (uint32_t end = 0; end <= n_layers; end++) {
			next[end] = none;
			for (uint32_t begin = k; begin < end; begin++) {
				const double load = stage_load(c, k, begin, end);
				const struct cut_cost cost = {
					best[begin].shared + (counts && begin && c->layers[begin].shares),
					fmax(load, best[begin].load)};
				if (isinf(best[begin].load) || load > limit || !is_less(cost, next[end]))
					continue;
				next[end] = cost;
				c->from[(size_t)k * (n_layers + 1) + end] = begin;
			}
		}
		memcpy(best, next, (n_layers + 1) * sizeof *best);
	}
	const struct cut_cost all = best[n_layers];
	free(best);
	free(next);
	return all;
}

void stage_cuts_balance(const struct layer_cost *layers, uint32_t n_layers,
	const struct stage_capacity *stages, uint32_t n, uint32_t *first)
{
	struct cut_search c = {.layers = layers,
		.n_layers = n_layers,
		.n = n,
		.sums = sum_loads(layers, n_layers),
		.parts = share_capacity(stages, n),
		.from = NEW_ARRAY(uint32_t, (size_t)n * (n_layers + 1))};
	const double least = search_cuts(&c, INFINITY, false).load;
	search_cuts(&c, least * (1 + ROUNDING), true);
	for (uint32_t k = n, end = n_layers; k--;)
		end = first[k] = c.from[(size_t)k * (n_layers + 1) + end];
	free(c.sums.held);
	free(c.sums.read);
	free(c.parts.room);
	free(c.parts.speed);
	free(c.from);
}
