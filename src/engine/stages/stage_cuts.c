/* SPDX-License-Identifier: MIT */
/*
 * Dynamic programming over (stages, layers): best[end] is the least possible largest load when the
 * first k stages have the first `end` layers; from[k][end] is where the last of them begins.
 */
#include "src/engine/stages/stage_cuts.h"

#include "src/base/mem.h"
#include "src/base/num.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* Sums of the layers before each, as parts of the whole. */
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

void stage_cuts_balance(const struct layer_cost *layers, uint32_t n_layers, const uint64_t *room,
	uint32_t n, uint32_t *first)
{
	struct load_sums s = sum_loads(layers, n_layers);
	double *best = NEW_ARRAY(double, n_layers + 1), *next = NEW_ARRAY(double, n_layers + 1);
	uint32_t *from = NEW_ARRAY(uint32_t, (size_t)n * (n_layers + 1));
	double all_room = 0;
	bool known = true;
	for (uint32_t k = 0; k < n; k++) {
		known &= room[k] > 0;
		all_room += (double)room[k];
	}
	for (uint32_t end = 1; end <= n_layers; end++)
		best[end] = INFINITY; /* no stages have no layers */
	for (uint32_t k = 0; k < n; k++) {
		double part = known ? (double)room[k] / all_room : 1.0 / n;
		for (uint32_t end = 0; end <= n_layers; end++) {
			next[end] = INFINITY;
			for (uint32_t begin = k; begin < end; begin++) {
				double load = (s.held[end] - s.held[begin]) / part +
							  (s.read[end] - s.read[begin]) * (double)n;
				load = fmax(load, best[begin]);
				if (load < next[end]) {
					next[end] = load;
					from[(size_t)k * (n_layers + 1) + end] = begin;
				}
			}
		}
		memcpy(best, next, (n_layers + 1) * sizeof *best);
	}
	for (uint32_t k = n, end = n_layers; k--;)
		end = first[k] = from[(size_t)k * (n_layers + 1) + end];
	free(s.held);
	free(s.read);
	free(best);
	free(next);
	free(from);
}
