/* SPDX-License-Identifier: MIT */
/* Why a plan does not fit, and what would. */
#include "src/base/log.h"
#include "src/base/num.h"
#include "src/engine/plan_internal.h"

#include <stdio.h>
#include <string.h>

/* A recipe for small cards keeps its matrices in about so many bytes a value (Q4_K and a little
 * Q8_0); its resident weights are estimated by that. */
#define SMALL_VALUE_BYTES 0.5914
/* iq2-t in about so many; it helps a file whose matrices are at least Q4_K. */
#define TINY_VALUE_BYTES 0.4326
#define TINY_FROM_BYTES  0.5
/* Bisection for the least memory of a card ends with so many bytes. */
#define LEAST_STEP ((size_t)100000)

const double plan_card_sizes[PLAN_CARD_SIZES] = {8, 12, 16, 24, 32, 48, 80, 96, 141, 192, 256, 288};

size_t plan_card_bytes(double sold_gib)
{
	return (size_t)(sold_gib * 1073741824.0 * 0.97);
}

/* GB in tenths, rounded up: what is printed is enough. */
static double tenths_up(size_t bytes)
{
	return (double)((bytes + 99999999) / 100000000) / 10;
}

/* ", a card of 16 GB" into out: the first of plan_card_sizes that has so much free; empty: none. */
static const char *print_card_size(size_t bytes, char *out, size_t size)
{
	out[0] = 0;
	for (size_t i = 0; i < PLAN_CARD_SIZES && !out[0]; i++)
		if (plan_card_bytes(plan_card_sizes[i]) >= bytes)
			snprintf(out, size, ", a card of %g GB", plan_card_sizes[i]);
	return out;
}

/* The resident weights as recipes for smaller cards would keep them, estimated by the type that
 * most of their matrices have. */
struct smaller_weights {
	double value_bytes; /* of a value now */
	bool can_shrink;
	size_t small, tiny; /* bytes by iq2-s or q2-s, by iq2-t */
};

static struct smaller_weights estimate_smaller(const struct plan_inputs *in, const struct plan *p)
{
	const struct weight *m = &in->weights->layers[in->config->first_layer].attn_out;
	const double value_bytes = (double)m->row_bytes / (double)m->n_in;
	struct smaller_weights s = {.value_bytes = value_bytes,
		.can_shrink = value_bytes > SMALL_VALUE_BYTES,
		.small = p->resident};
	if (s.can_shrink)
		s.small = (size_t)((double)p->resident * SMALL_VALUE_BYTES / value_bytes);
	s.tiny = (size_t)((double)p->resident * TINY_VALUE_BYTES / MAX(value_bytes, SMALL_VALUE_BYTES));
	return s;
}

/* Neither a shorter context nor another recipe is enough. need: bytes with both. */
static void hint_more_memory(const struct plan *p, bool can_shrink, size_t need, struct err *e)
{
	const uint32_t shortest = MIN(p->context, CONTEXT_STEP);
	char sold[40], how[80] = "";
	if (can_shrink)
		snprintf(how, sizeof how, " (with -c %u and --recipe iq2-s or q2-s)", shortest);
	else if (p->context > shortest)
		snprintf(how, sizeof how, " (with -c %u)", shortest);
	err_hint(e, "this model needs a card with more memory: at least %.1f GB free%s%s",
		tenths_up(need), print_card_size(need, sold, sizeof sold), how);
}

/* Hints at what would make room on the card: a shorter context, a file with smaller resident
 * weights, or both. `least`: bytes that experts and their staging buffers need at least. */
static void hint_smaller(
	const struct plan_inputs *in, const struct plan *p, size_t least, struct err *e)
{
	const struct model_config *c = in->config;
	const size_t fixed = p->workspace + least, usable = plan_usable_bytes(p);
	const size_t kv_least = plan_kv_bytes(c, p, MIN(p->context, CONTEXT_STEP)).device;
	const struct smaller_weights s = estimate_smaller(in, p);
	const bool small_fits = s.can_shrink && s.small + fixed + p->kv <= usable;
	char weights[80];
	snprintf(weights, sizeof weights, "about %.1f GB of weights in place of %.1f",
		gigabytes(s.small), gigabytes(p->resident));
	if (p->context > CONTEXT_STEP && p->resident + fixed + kv_least <= usable) {
		uint32_t n = plan_fitting_context(c, p, usable - p->resident - fixed);
		if (small_fits)
			err_hint(e, "-c %u would fit, or a file of --recipe iq2-s or q2-s (%s)", n, weights);
		else
			err_hint(e, "-c %u would fit", n);
	} else if (s.value_bytes > TINY_FROM_BYTES && s.small + fixed + kv_least > usable &&
			   s.tiny + fixed + kv_least <= usable) {
		err_hint(e,
			"a file of --recipe iq2-t (about %.1f GB of weights in place of %.1f) would fit with "
			"-c %u",
			gigabytes(s.tiny), gigabytes(p->resident),
			MIN(p->context, plan_fitting_context(c, p, usable - s.tiny - fixed)));
	} else if (!s.can_shrink || s.small + fixed + kv_least > usable) {
		hint_more_memory(
			p, s.can_shrink, s.small + fixed + kv_least + CARD_RESERVE + p->scratch, e);
	} else if (small_fits) {
		err_hint(e, "a file of --recipe iq2-s or q2-s would fit: %s", weights);
	} else {
		err_hint(e, "a file of --recipe iq2-s or q2-s (%s) would fit with -c %u", weights,
			plan_fitting_context(c, p, usable - s.small - fixed));
	}
}

int plan_refuse_first_tier(
	const struct plan_inputs *in, const struct plan *p, size_t left, struct err *e)
{
	const size_t staging = p->tiers.device_staging_bytes;
	err_set(e, ERR_MEMORY,
		"%.2f GB of the card are free: %.2f for weights, %.2f for the caches of %u tokens, "
		"%.2f for workspace and %.2f left free leave %.2f for experts, at least %.2f are "
		"needed",
		gigabytes(p->available), gigabytes(p->resident), gigabytes(p->kv), p->context * p->sessions,
		gigabytes(p->workspace + staging), gigabytes(p->scratch + CARD_RESERVE), gigabytes(left),
		gigabytes(p->tiers.floor_bytes));
	hint_smaller(in, p, p->tiers.floor_bytes + staging, e);
	return ERR_MEMORY;
}

static int plan_check_host(const struct plan *p, struct err *e)
{
	const struct loader_plan *t = &p->tiers;
	size_t pinned = t->tier_bytes[1] + t->host_staging_bytes + p->kv_host;
	size_t need = pinned + (t->tier_bytes[1] || p->kv_host ? p->host_margin : 0);
	char latents[64] = "";
	if ((!t->on_card && !p->kv_host) || !p->host_available || need <= p->host_available)
		return 0;
	if (p->kv_host)
		snprintf(latents, sizeof latents, ", %.2f GB of latents of %u tokens",
			gigabytes(p->kv_host), p->context * p->sessions);
	err_set(e, ERR_MEMORY,
		"the plan pins %.2f GB of host memory (%.2f of them --ram-gb%s) beside %.3g GB for "
		"everything else, and %.2f GB are available%s",
		gigabytes(pinned), gigabytes(t->tier_bytes[1]), latents, gigabytes(p->host_margin),
		gigabytes(p->host_available), p->part ? " to this stage" : "");
	size_t fits =
		bytes_left(p->host_available, t->host_staging_bytes + p->kv_host + p->host_margin);
	if (t->tier_bytes[1] && p->part)
		err_hint(e, "a smaller --ram-gb, which all stages share, would fit");
	else if (t->tier_bytes[1] && fits)
		err_hint(e, "--ram-gb %.2f would fit", (double)(fits / 10000000) / 100);
	else if (p->kv_host)
		err_hint(e, "a smaller -c needs less");
	return e ? e->code : ERR_MEMORY;
}

int plan_check(const struct plan_inputs *in, const struct plan *p, struct err *e)
{
	const struct loader_plan *t = &p->tiers;
	size_t second = t->on_card ? t->device_staging_bytes : t->tier_bytes[1];
	size_t experts = t->tier_bytes[0] + second + p->experts, fixed = p->resident + p->workspace;
	size_t need = fixed + p->kv + experts;
	if (!p->available || need <= plan_usable_bytes(p))
		return plan_check_host(p, e);
	char beside[64] = "";
	if (p->on_card)
		snprintf(beside, sizeof beside, " beside %.2f GB scratch and %.1f GB left free,",
			gigabytes(p->scratch), gigabytes(CARD_RESERVE));
	else if (p->scratch)
		snprintf(beside, sizeof beside, " beside %.2f GB scratch,", gigabytes(p->scratch));
	err_set(e, ERR_MEMORY,
		"the plan needs %.2f GB (%.2f weights, %.2f caches, %.2f workspace, %.2f experts)%s and %s "
		"has %.2f GB free",
		gigabytes(need), gigabytes(p->resident), gigabytes(p->kv), gigabytes(p->workspace),
		gigabytes(experts), beside, in->backend->ops->name, gigabytes(p->available));
	size_t least = plan_kv_bytes(in->config, p, CONTEXT_STEP).device;
	if (experts && fixed + p->kv + second + t->floor_bytes <= plan_usable_bytes(p))
		err_hint(e, "--cache-gb %.2f would fit",
			(double)((plan_usable_bytes(p) - fixed - p->kv - second) / 10000000) / 100);
	else if (!experts && fixed + least <= plan_usable_bytes(p))
		err_hint(e, "-c %u would fit",
			plan_fitting_context(in->config, p, plan_usable_bytes(p) - fixed));
	else if (p->on_card)
		hint_smaller(in, p, experts ? second + t->floor_bytes : 0, e);
	return e ? e->code : ERR_MEMORY;
}

/* ---- the least card ---- */

static bool fits_card(const struct plan_inputs *in, size_t card_bytes, size_t host_bytes)
{
	const struct plan_machine m = {.card_bytes = card_bytes, .host_bytes = host_bytes};
	struct plan p;
	struct err e = {0};
	return !plan_once(in, &m, &p, &e);
}

/* The least free bytes of a card on which this fits, where those of m are too few, and *size: the
 * first of plan_card_sizes that has them. 0: none has. */
static size_t find_least_card(
	const struct plan_inputs *in, const struct plan_machine *m, double *size)
{
	size_t too_few = m->card_bytes;
	size_t fits = 0;
	for (size_t i = 0; i < PLAN_CARD_SIZES && !fits; i++) {
		const size_t bytes = plan_card_bytes(*size = plan_card_sizes[i]);
		if (bytes <= too_few)
			continue;
		if (fits_card(in, bytes, m->host_bytes))
			fits = bytes;
		else
			too_few = bytes;
	}
	while (fits && fits - too_few > LEAST_STEP) {
		const size_t middle = too_few + (fits - too_few) / 2;
		if (fits_card(in, middle, m->host_bytes))
			fits = middle;
		else
			too_few = middle;
	}
	return fits;
}

size_t plan_hint_card(const struct plan_inputs *in, const struct plan_machine *m, struct err *e)
{
	struct engine_options options = *in->options;
	struct plan_inputs other = *in;
	char before[ERR_HINT_MAX], need[60];
	double size = 0;
	const char *what = "the options as they are need";
	other.options = &options;
	if (fits_card(in, m->card_bytes, 0)) /* only the host has too little */
		return 0;
	size_t least = find_least_card(in, m, &size);
	if (!least && options.cache_bytes && options.cache_bytes != ENGINE_CACHE_AUTO) {
		options.cache_bytes = ENGINE_CACHE_AUTO;
		if (fits_card(&other, m->card_bytes, m->host_bytes)) {
			err_hint(e, "--cache-gb auto would fit");
			return 0;
		}
		what = "with the smallest cache the model needs";
		least = find_least_card(&other, m, &size);
	}
	if (!least)
		return 0;
	snprintf(need, sizeof need, "%.1f GB free, a card of %g GB", tenths_up(least), size);
	snprintf(before, sizeof before, "%s", e->hint);
	if (!strstr(before, need)) /* hint_smaller may have said it */
		err_hint(e, "%s%s%s %s", before, before[0] ? "; " : "", what, need);
	return least;
}
