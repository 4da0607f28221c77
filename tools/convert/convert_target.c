/* SPDX-License-Identifier: MIT */
#include "tools/convert/convert_target.h"

#include "src/base/mem.h"
#include "src/base/num.h"

#include <stdlib.h>

/* One step up a group's hull. */
struct target_upgrade {
	size_t group;
	uint32_t rank, to; /* order within the group; option */
	uint64_t bytes;    /* more than the option before */
	double saved;      /* loss per byte */
};

static double saved_per_byte(const struct target_option *from, const struct target_option *to)
{
	return (from->loss - to->loss) / (double)(to->bytes - from->bytes);
}

/* Ids of the options on the lower convex hull, ascending in bytes. Returns their number. */
static uint32_t find_hull(const struct target_group *g, uint32_t hull[TARGET_OPTIONS_MAX + 1])
{
	uint32_t n = 1;
	hull[0] = 0;
	for (uint32_t i = 1; i < g->n; i++) {
		const struct target_option *o = &g->option[i], *least = &g->option[hull[0]];
		if (o->bytes < least->bytes || (o->bytes == least->bytes && o->loss < least->loss))
			hull[0] = i;
	}
	for (;; n++) { /* from the last option on the hull to the one that saves most per byte */
		const struct target_option *last = &g->option[hull[n - 1]];
		double best = 0;
		hull[n] = 0;
		for (uint32_t i = 0; i < g->n; i++) {
			const struct target_option *o = &g->option[i];
			if (o->bytes <= last->bytes || o->loss >= last->loss)
				continue;
			const double saved = saved_per_byte(last, o);
			if (saved > best ||
				(saved == best && best > 0 && o->bytes > g->option[hull[n]].bytes)) {
				best = saved;
				hull[n] = i;
			}
		}
		if (best == 0)
			return n;
	}
}

static int compare_upgrades(const void *a, const void *b)
{
	const struct target_upgrade *x = a, *y = b;
	if (x->saved != y->saved)
		return x->saved > y->saved ? -1 : 1;
	if (x->group != y->group)
		return x->group < y->group ? -1 : 1;
	return x->rank < y->rank ? -1 : x->rank > y->rank;
}

bool convert_target_choose(
	const struct target_group *groups, size_t n, uint64_t budget, uint32_t *choice, uint64_t *bytes)
{
	struct target_upgrade *upgrades = NEW_ARRAY(struct target_upgrade, n * TARGET_OPTIONS_MAX);
	size_t n_upgrades = 0;
	*bytes = 0;
	for (size_t i = 0; i < n; i++) {
		uint32_t hull[TARGET_OPTIONS_MAX + 1];
		const struct target_option *o = groups[i].option;
		const uint32_t n_hull = find_hull(&groups[i], hull);
		choice[i] = hull[0];
		*bytes += o[hull[0]].bytes;
		for (uint32_t k = 1; k < n_hull; k++) {
			struct target_upgrade u = {i, k, hull[k], o[hull[k]].bytes - o[hull[k - 1]].bytes,
				saved_per_byte(&o[hull[k - 1]], &o[hull[k]])};
			if (k > 1) /* a rounding must not turn the order round */
				u.saved = MIN(u.saved, upgrades[n_upgrades - 1].saved);
			upgrades[n_upgrades++] = u;
		}
	}
	const bool fits = *bytes <= budget;
	if (n_upgrades)
		qsort(upgrades, n_upgrades, sizeof *upgrades, compare_upgrades);
	for (size_t k = 0; fits && k < n_upgrades; k++) {
		if (upgrades[k].bytes > budget - *bytes)
			break;
		*bytes += upgrades[k].bytes;
		choice[upgrades[k].group] = upgrades[k].to;
	}
	free(upgrades);
	return fits;
}
