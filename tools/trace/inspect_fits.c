/* SPDX-License-Identifier: MIT */
/* A plan for each size of card, without host memory. */
#include "tools/trace/inspect_fits.h"

#include "src/base/num.h"
#include "src/model/weights.h"
#include "tools/output/json_out.h"
#include "tools/plan/machine_plan.h"

#include <stdio.h>

#define CONTEXT_DEFAULT 32768u

static void find_one(struct inspect_fits *f, const struct model_headers *h, double card_gb)
{
	struct inspect_fit *x = &f->of[f->n++];
	struct machine_plan p;
	const struct machine m = {
		.memory = {.card_bytes = card_free_bytes(card_gb)}, .tier_bytes = {ENGINE_CACHE_AUTO, 0}};
	*x = (struct inspect_fit){.card_gb = card_gb};
	x->fits = !machine_plan_memory(h, &m, f->context, &p, &x->why);
	x->everything = x->fits && p.everything;
	x->bytes = x->fits ? p.plan.tiers.tier_bytes[0] : 0;
	x->n_fit = x->fits ? p.plan.tiers.n_fit[0] : 0;
	x->n_experts = p.plan.tiers.n_experts;
}

void inspect_fits_find(struct inspect_fits *f, const struct gguf *file,
	const struct model_config *c, double card_gb, uint32_t context)
{
	static const double sizes[INSPECT_FITS_MAX] = {16, 24, 32, 48, 80, 96, 141, 192, 288};
	struct model_headers h = {.config = *c, .fd = -1};
	*f = (struct inspect_fits){.context = context ? context : MIN(c->n_context, CONTEXT_DEFAULT)};
	h.file = (struct gguf *)(uintptr_t)file; /* lent, only read */
	if (weights_bind(file, c, c->n_mtp > 0, &h.weights, &h.resident, &f->cannot))
		return;
	for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
		if (card_gb > 0 && i)
			break;
		find_one(f, &h, card_gb > 0 ? card_gb : sizes[i]);
		if (f->of[f->n - 1].everything)
			break;
	}
	weights_free(&h.weights, NULL);
}

void inspect_fits_print(const struct inspect_fits *f)
{
	printf("\nwhat fits (context %u; of a card as it is sold, with 3 %% less for its driver)\n",
		f->context);
	if (f->cannot.code)
		printf("  cannot be loaded: %s\n", f->cannot.text);
	for (int i = 0; i < f->n; i++) {
		const struct inspect_fit *x = &f->of[i];
		printf("  %4g GB         ", x->card_gb);
		if (x->everything)
			printf("everything\n");
		else if (x->fits)
			printf("%.2f GB for experts: %d of %d (%.1f %%)\n", (double)x->bytes * 1e-9, x->n_fit,
				x->n_experts, 100.0 * x->n_fit / MAX(x->n_experts, 1));
		else if (f->n > 1)
			printf("too small\n");
		else
			printf("too small: %s%s%s\n", x->why.text, x->why.hint[0] ? "; " : "", x->why.hint);
	}
}

json_t *inspect_fits_json(const struct inspect_fits *f)
{
	json_t *list = json_array();
	for (int i = 0; i < f->n; i++) {
		const struct inspect_fit *x = &f->of[i];
		json_t *o = json_object();
		json_out_real(o, "memory_gb", x->card_gb);
		json_out_uint(o, "context", f->context);
		json_out_uint(o, "experts_budget_bytes", x->bytes);
		json_out_uint(o, "experts_that_fit", (uint64_t)x->n_fit);
		json_out_real(
			o, "experts_share", x->everything ? 1 : (double)x->n_fit / MAX(x->n_experts, 1));
		json_object_set_new(o, "fits", json_boolean(x->fits));
		json_array_append_new(list, o);
	}
	return list;
}
