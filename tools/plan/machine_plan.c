/* SPDX-License-Identifier: MIT */
/* The planner of a run and the forecast, asked about a machine that is only described. */
#include "tools/plan/machine_plan.h"

#include "src/base/num.h"

/* zai-org/GLM-5.2-FP8 (tests/e2e/convert/convert.sh reads its headers) */
#define SOURCE_BYTES 755617140416u

/* Weights converted per second (tests/bench/results/convert.md). Core: a Xeon with AVX-512; 36e6 is
 * q4, and q2 has 41.6e6. Card: the quantise stage on an H200; 4.5e9 is q2. Other types are not
 * measured and take these rates. */
#define IQ2_VALUES_S      7.1e6
#define Q2_VALUES_S       36e6
#define CARD_IQ2_VALUES_S 2.0e9
#define CARD_Q2_VALUES_S  4.5e9

uint64_t machine_host_bytes(double sold_gb)
{
	const double bytes = sold_gb * 1073741824.0, left = bytes - MAX(2e9, bytes / 32);
	return left > 0 ? (uint64_t)left : 0; /* a negative one has no value as an integer */
}

int machine_plan_memory(const struct model_headers *model, const struct machine *m,
	uint32_t context, struct machine_plan *out, struct err *e)
{
	const struct engine_options o = {.context = context,
		.sessions = m->sessions,
		.no_mtp = model->no_mtp,
		.cache_bytes = m->tier_bytes[0],
		.ram_bytes = m->tier_bytes[1],
		.lookahead = ENGINE_LOOKAHEAD_AUTO};
	*out = (struct machine_plan){.source_bytes = SOURCE_BYTES};
	for (uint32_t i = 0; i < model->file->n_files; i++)
		out->file_bytes += model->file->files[i].size;
	const struct plan_inputs in = {
		&model->config, &o, model->file, &model->weights, model->resident, NULL};
	int rc = plan_for_machine(&in, &m->memory, &out->plan, e);
	out->everything = !rc && out->plan.tiers.n_fit[0] >= out->plan.tiers.n_experts;
	return rc;
}

int machine_plan_forecast(
	const struct model_headers *model, const char *trace, struct forecast *f, struct err *e)
{
	const struct model_config *c = &model->config;
	const struct loader_options o = {
		.file = model->file, .n_layers = (int)(c->n_layers + c->n_mtp), .n_used = (int)c->n_used};
	return forecast_open(f, trace, model->file, &o, c->n_mtp, e);
}

/* A prompt of one step with an empty cache: every expert is read from the drive and copied over the
 * link at the rate of the slower, and computing adds to that (card_prompt_ms). */
static void plan_prompt(
	const struct model_headers *model, const struct machine *m, struct machine_plan *out)
{
	const struct plan *p = &out->plan;
	const double bytes = (double)plan_expert_bytes(&model->weights, model->config.n_layers);
	const double rate = MIN(m->drive_gb_s, m->card.link_gb_s) * 1e9;
	out->prompt_seconds =
		bytes / rate + 1e-3 * card_prompt_ms(&m->card, model->file, &model->config, p->chunk);
	out->prompt_tok_s = p->chunk / out->prompt_seconds;
}

void machine_plan_times(const struct model_headers *model, const struct machine *m,
	const struct forecast *f, struct machine_plan *out)
{
	const struct plan *p = &out->plan;
	out->compute_ms = card_token_ms(&m->card, model->file, &model->config);
	/* latents in host memory: each layer waits for those that it reads */
	out->compute_ms += (double)p->kv_host / ((double)p->context * p->sessions) *
					   MIN(p->context, model->config.index_top_k) / (m->card.link_gb_s * 1e6);
	struct forecast_machine rates =
		forecast_machine_of(m->drive_gb_s * 1e9, m->card.link_gb_s * 1e9, out->compute_ms);
	rates.card = true;
	rates.host_bytes_s = m->cpu_gb_s * 1e9;
	forecast_times(f, &rates, &out->steady);
	if (out->cold.window)
		forecast_times(f, &rates, &out->cold);
	plan_prompt(model, m, out);
	const struct gguf_tensor *x = model->weights.experts[model->config.n_dense].gate;
	const bool iq2 = x->type == DTYPE_IQ2_XXS;
	const double values = (double)model->values,
				 drive_s = (double)(SOURCE_BYTES + out->file_bytes) / (m->drive_gb_s * 1e9),
				 card_s = values / (iq2 ? CARD_IQ2_VALUES_S : CARD_Q2_VALUES_S),
				 cpu_s = values / (iq2 ? IQ2_VALUES_S : Q2_VALUES_S) / MAX(m->cores, 1u);
	out->convert_hours = MAX(card_s, drive_s) / 3600;
	out->convert_cpu_hours = MAX(cpu_s, drive_s) / 3600;
}

int machine_plan_speed(const struct model_headers *model, const struct machine *m,
	const struct forecast *f, bool with_cold, struct machine_plan *out, struct err *e)
{
	const struct plan *p = &out->plan;
	out->steady = out->cold = (struct forecast_point){.cache_bytes = p->tiers.tier_bytes[0],
		.ram_bytes = p->tiers.tier_bytes[1],
		.policy = POLICY_DEFAULT,
		.lookahead = p->loader.lookahead};
	out->steady.skip = forecast_steady_skip(f);
	out->cold.window = with_cold ? MACHINE_PLAN_COLD : 0;
	int rc = forecast_replay(f, true, &out->steady, e);
	if (!rc && with_cold)
		rc = forecast_replay(f, true, &out->cold, e);
	if (!rc)
		machine_plan_times(model, m, f, out);
	return rc;
}
