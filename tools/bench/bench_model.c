/* SPDX-License-Identifier: MIT */
/*
 * The whole model: prefill of a prompt and decode after it. Token ids are random but the same in
 * every run, so that experts are used as by no particular text. Prefill is held against the
 * multiply-adds of the weights, on a card against all products of a prompt at the rate of one large
 * product of halves; decode, on the CPU, against the bytes of weights that a token must read.
 * Limits are measured on this machine in the same run.
 */
#include "tools/bench/bench.h"

#include "src/base/num.h"
#include "kernels/library.h"
#include "src/engine/batch.h"
#include "src/engine/generate.h"
#include "src/engine/session/session_fill.h"
#include "tools/options/common_opts.h"
#include "tools/output/interrupt.h"
#include "tools/output/stats.h"
#include "tools/trace/model_sizes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct bench_prompt {
	struct session *session;
	int32_t *ids; /* [n] */
	uint32_t n;
	struct model_sizes sizes;
	bool cpu;
};

static int new_prompt(
	struct bench_prompt *p, struct engine *g, uint32_t n_prompt, uint32_t n_new, struct err *e)
{
	int rc = bench_check_context(g, n_prompt, n_new, e);
	if (rc)
		return rc;
	model_sizes_count(engine_gguf(g), engine_config(g), &p->sizes);
	p->cpu = !strcmp(engine_backend_name(g), "cpu");
	p->n = n_prompt;
	p->ids = bench_random_ids(p->n, (uint32_t)engine_n_valid(g));
	return session_new(g, &p->session, e);
}

static void free_prompt(struct bench_prompt *p)
{
	session_free(p->session);
	free(p->ids);
}

static int prefill_work(void *user, struct err *e)
{
	struct bench_prompt *p = user;
	const struct session_watch watch = {.cancel = interrupt_flag()};
	session_rewind(p->session, 0);
	return session_sync(p->session, p->ids, p->n, &watch, NULL, e);
}

void bench_measure_flops(struct bench *b, const struct common_opts *c)
{
	struct backend *card;
	struct err e;
	const char *name = common_opts_backend(c);
	if (name && !strcmp(name, "cpu"))
		return;
	const struct backend_options options = {.name = "cuda", .card = common_opts_first_card(c)};
	if (backend_open(&options, &card, &e))
		return;
	b->device_flop_s = backend_library_flops(card);
	snprintf(b->card_limit, sizeof b->card_limit, "product of halves on card %u", options.card);
	card->ops->close(card);
}

double bench_prompt_flops(const struct engine *g, uint64_t n)
{
	const struct model_config *c = engine_config(g);
	struct model_sizes sizes;
	model_sizes_count(engine_gguf(g), c, &sizes);
	/* means over the positions 0 to n - 1: rows attended, and rows scored where not all are */
	const double few = (double)MIN(n, (uint64_t)c->index_top_k), all = (double)n;
	const double attended = (few * (few + 1) / 2 + (all - few) * few) / all,
				 scored = (all * (all + 1) - few * (few + 1)) / 2 / all;
	const double attend = attended * c->n_heads * (double)(config_cache_width(c) + c->kv_rank),
				 score = scored * c->index_heads * (double)c->index_dim;
	double macs = (double)sizes.macs_per_token;
	for (uint32_t i = 0; i < c->n_layers; i++)
		macs += attend + (c->index_full[i] ? score : 0);
	return 2 * macs;
}

int bench_prefill(struct bench *b, struct engine *g, uint32_t n_prompt, struct err *e)
{
	struct bench_prompt p = {0};
	struct bench_spread s = {0};
	struct engine_overlap from, to;
	int rc = new_prompt(&p, g, n_prompt, 0, e);
	engine_overlap(g, &from);
	if (!rc)
		rc = bench_time(b, prefill_work, &p, &s, e);
	engine_overlap(g, &to);
	if (!rc && p.cpu)
		bench_add(b, "prefill", "tok/s", bench_rate(s, p.n),
			b->mac_s / (double)MAX(p.sizes.macs_per_token, 1), "FMA", "%u tokens, %.4g MMAC each",
			p.n, (double)p.sizes.macs_per_token * 1e-6);
	else if (!rc) {
		const double flops = bench_prompt_flops(g, p.n);
		bench_add(b, "prefill", "tok/s", bench_rate(s, p.n), b->device_flop_s / flops,
			b->card_limit, "%u tokens, %.4g GFLOP each", p.n, flops * 1e-9);
	}
	char what[48];
	snprintf(what, sizeof what, "%u tokens in chunks of %u", n_prompt, batch_max_rows(g));
	if (!rc)
		bench_overlap(b, "prefill", what, &from, &to, engine_n_ranks(g) > 1);
	free_prompt(&p);
	return rc;
}

/* One more decode, during which the card notes when it has something to do. */
static int decode_usage(struct bench *b, struct engine *g, struct bench_prompt *p,
	const struct generate_options *o, struct err *e)
{
	struct generate_result r;
	struct bench_stages from, to;
	int rc = session_sync(p->session, p->ids, p->n, &o->watch, NULL, e);
	if (rc)
		return rc;
	engine_measure(g, true);
	bench_stages_read(&from, g);
	rc = generate(p->session, p->ids, p->n, o, &r, e);
	bench_stages_read(&to, g);
	engine_measure(g, false);
	if (!rc && r.new_tokens)
		bench_usage(b, "decode", &from, &to, r.new_tokens);
	return rc;
}

void bench_add_context(struct bench *b, const char *section, const struct engine *g, uint32_t n)
{
	const struct engine_sizes s = engine_sizes(g);
	const struct model_config *c = engine_config(g);
	bench_add_value(b, section, "GB", (double)s.kv_bytes * 1e-9,
		"context of %u positions, %u of them filled: on the card", engine_context(g), n);
	if (!s.kv_host_bytes)
		return;
	const uint64_t row = s.kv_host_bytes / engine_context(g) / (c->n_layers + engine_has_mtp(g)),
				   rows = (uint64_t)MIN(n, c->index_top_k) * c->n_layers;
	bench_add_value(
		b, section, "GB", (double)s.kv_host_bytes * 1e-9, "context: latents in host memory");
	bench_add_value(
		b, section, "MB/tok", (double)(rows * row) * 1e-6, "context: latents over the link");
}

int bench_decode(struct bench *b, struct engine *g, uint32_t n_fill, uint32_t n_prompt,
	uint32_t n_new, struct err *e)
{
	struct bench_prompt p = {0};
	double tok_s[BENCH_MAX_REPEATS], gb_s[BENCH_MAX_REPEATS];
	struct bench_stages from, to;
	uint64_t steps = 0;
	const struct expert_stats before = engine_expert_stats(g);
	int rc = new_prompt(&p, g, n_fill + n_prompt, n_new, e);
	if (!rc && n_fill) {
		rc = session_fill_random(p.session, p.ids, n_fill, interrupt_flag(), e);
		if (!rc)
			bench_add_context(b, "decode", g, n_fill);
	}
	struct generate_options o = {
		.max_new = n_new, .ignore_stop = true, .watch = {.cancel = interrupt_flag()}};
	o.sampler.top_p = 1;
	for (int i = -1; i < b->repeats && !rc; i++) { /* the first run is not measured */
		struct generate_result r;
		if (!i)
			bench_stages_read(&from, g);
		rc = bench_generate(p.session, p.ids, p.n, &o, &r, e);
		if (rc || i < 0)
			continue;
		steps += r.new_tokens;
		tok_s[i] = (double)r.new_tokens * 1e9 / (double)r.decode_ns;
		gb_s[i] = tok_s[i] * (double)p.sizes.weights_per_token * 1e-9;
	}
	if (!rc) {
		double limit = p.cpu ? b->read_bytes_s : 0, per_token = (double)p.sizes.weights_per_token;
		bench_add(b, "decode", "tok/s", bench_spread_of(tok_s, b->repeats), limit / per_token,
			"read", "%u tokens after %u, %.4g MB of weights each", n_new, p.n, per_token * 1e-6);
		bench_add(b, "decode", "GB/s", bench_spread_of(gb_s, b->repeats), limit * 1e-9, "read",
			"weights read");
		bench_stages_read(&to, g);
		bench_stages_time(b, "decode", "a token", &from, &to, (double)steps);
		const struct expert_stats d = stats_between(before, engine_expert_stats(g));
		if (d.checked) /* with the first run, in which most are seen first */
			bench_add_value(b, "decode", "ms", (double)d.check_ns * 1e-6,
				"hashing %llu experts for --verify, all runs", (unsigned long long)d.checked);
		if (!p.cpu)
			rc = decode_usage(b, g, &p, &o, e);
	}
	free_prompt(&p);
	return rc;
}
