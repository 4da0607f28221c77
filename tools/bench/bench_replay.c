/* SPDX-License-Identifier: MIT */
/*
 * Decoding with the routing of a trace: one engine, one long answer that starts with an empty
 * cache, reported in intervals of tokens. The router of a model with random weights chooses as no
 * real one does, so the experts of a trace take the place of its choice (replayed_routing.h). Every
 * figure of this part is one of replayed routing.
 *
 * The least time of a token is the largest of three, all measured in the same run:
 * - computing it: after the run, in the same engine, with routing confined to experts that are
 *   resident in the first tier;
 * - bytes copied to the card / the measured rate of the link; with --cpu-experts these bytes and
 *   those of experts that the processor computed / the rate of link and processor together;
 * - bytes missed, less those of useless prefetches / what the drive reaches with the same reader on
 *   the same file.
 *
 * With assumed acceptance a step drafts with the MTP layer, verifies all drafts, and keeps as many
 * as random numbers of a fixed seed say. What is computed and read for the others is paid for. The
 * tokens of a step are done at the same moment.
 *
 * With stages on several cards the limit is the link of the first card alone, so more than 100 % is
 * possible.
 *
 * A shared drive is not the same a second later. While its reads are the bound, decoding pauses now
 * and then and the drive is measured (SAMPLE_S). An interval is held against the samples in it, and
 * its time is that of decoding alone. Without samples the drive is measured before and after.
 */
#include "tools/bench/bench.h"

#include "cache/trace/expert_profile.h"
#include "kernels/backend.h"
#include "src/base/host/clock.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/base/rng.h"
#include "src/engine/generate.h"
#include "src/engine/session/session_fill.h"
#include "tools/bench/limits.h"
#include "tools/bench/replayed_routing.h"
#include "tools/options/common_opts.h"
#include "tools/output/interrupt.h"
#include "tools/output/stats.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COLD          64  /* tokens of the cold start */
#define WARM          512 /* an interval of COLD tokens begins here */
#define RESIDENT_RUN  64  /* tokens of computing alone ... */
#define RESIDENT_SKIP 16  /* ... of which so many are skipped */
#define USAGE_RUN     32  /* tokens with profile events on the card */
#define MORE          (RESIDENT_RUN + 2 * USAGE_RUN + 4) /* tokens beyond the run itself */
#define MORE_NS       3000000000u                        /* time limit of each of these intervals */

/* The drive, while decoding pauses: so many seconds (or 4 x --seconds), a tenth of the time at
 * most, if it was busy for as long since the last one */
#define SAMPLE_S 0.2

/* Steps with assumed drafts: how many, and what drafting took. */
struct drafted_steps {
	uint32_t n;
	uint64_t ns;
	struct expert_stats stats; /* hits, misses and waits of the MTP layer's experts */
};

struct replay {
	struct bench *b;
	struct common_opts c;
	struct bench_replay_options o;
	struct engine *g;
	struct replayed_routing *routing; /* NULL until the engine opens its first stage */
	struct session *s;
	const char *what; /* section of the figures */
	char backend[BENCH_BACKEND_MAX];
	uint64_t stop_ns; /* when decoding ends, 0: never */
	/* of the token being decoded and all before it: [most + 1] */
	uint64_t *at_ns;
	struct expert_stats *stats;
	uint32_t n, most;
	/* assumed drafts, since decode_tokens began */
	struct rng rng;
	struct drafted_steps drafted;
	int ahead;                     /* layers that the lookahead reaches */
	double compute_ms;             /* of a token without misses; 0: unknown */
	struct bench_stages *resident; /* computing alone: at token RESIDENT_SKIP; else NULL */
	struct limits limits;
	/* samples of the drive */
	struct measure_drive *drive;          /* NULL: none are taken */
	double *drive_bytes_s;                /* [most + 1] behind that token; 0: none */
	uint64_t sampled_ns, sampled_busy_ns; /* when, and how long the drive had been busy by then */
	uint64_t paused_ns;                   /* for --fill, and for samples since the first token */
	struct err failure;                   /* of a sample */
};

/* Between two tokens */
static bool sample_drive(struct replay *j, const struct expert_stats *now)
{
	const uint64_t began = clock_ns();
	const double seconds = MIN(SAMPLE_S, 4 * j->b->seconds), ns = seconds * 1e9;
	if (!j->drive || (double)(began - j->sampled_ns) < 9 * ns ||
		(double)(now->disk_busy_ns - j->sampled_busy_ns) < ns)
		return true;
	if (measure_drive_sample(j->drive, seconds, &j->drive_bytes_s[j->n], &j->failure))
		return false;
	j->sampled_ns = clock_ns();
	j->sampled_busy_ns = now->disk_busy_ns;
	j->paused_ns += j->sampled_ns - began;
	return true;
}

/* A token has been sampled: the one before it is complete. */
static bool on_token(void *user, int32_t id)
{
	struct replay *j = user;
	(void)id;
	const uint64_t now = clock_ns();
	j->at_ns[j->n] = now - j->paused_ns;
	j->stats[j->n] = engine_expert_stats(j->g);
	if (j->resident && j->n == RESIDENT_SKIP)
		bench_stages_read(j->resident, j->g);
	bool late = j->stop_ns && now > j->stop_ns && j->n; /* one token there must be */
	bool last = late || j->n == j->most;
	return (last || sample_drive(j, &j->stats[j->n])) && ++j->n <= j->most && !late;
}

/* Rows of the next step that count: the first one, and those whose drafts are assumed right. */
static uint32_t draw_kept(struct replay *j)
{
	int right = 0;
	while (right < j->o.n_accept && rng_unit(&j->rng) < (double)j->o.accept[right])
		right++;
	return 1 + (uint32_t)right;
}

/* k drafts behind `next`. */
static int draft(struct replay *j, int32_t next, uint32_t k, int32_t *ids, struct err *e)
{
	struct drafted_steps *d = &j->drafted;
	const struct expert_stats before = engine_expert_stats(j->g);
	const uint64_t start = clock_ns();
	const int rc = session_mtp_draft(j->s, next, k, ids, NULL, e);
	d->ns += clock_ns() - start;
	d->n++;
	const struct expert_stats of = stats_between(before, engine_expert_stats(j->g));
	d->stats.hit_vram += of.hit_vram;
	d->stats.hit_ram += of.hit_ram;
	d->stats.miss += of.miss;
	d->stats.wait_ns += of.wait_ns;
	return rc;
}

/* The tokens of decode_tokens in steps with drafts. Every step begins with the token that the last
 * row kept says. */
static int decode_drafted(struct replay *j, const int32_t *ids, uint32_t n, struct err *e)
{
	const struct session_watch watch = {.cancel = interrupt_flag()};
	int rc = session_sync(j->s, ids, n, &watch, NULL, e);
	if (rc)
		return rc;
	j->rng = (struct rng){1};
	j->drafted = (struct drafted_steps){0};
	const uint32_t k = (uint32_t)j->o.n_accept;
	static const struct draw_request likeliest[1 + BENCH_DRAFTS_MAX];
	struct draw_result drawn[1 + BENCH_DRAFTS_MAX];
	const struct session_draws draws = {likeliest, drawn};
	struct sampler greedy = {0};
	int32_t tokens[1 + BENCH_DRAFTS_MAX] = {
		sampler_draw(&greedy, session_logits(j->s), engine_n_valid(j->g), NULL, n)};
	sampler_fini(&greedy);
	bool more = on_token(j, tokens[0]);
	while (more) {
		uint32_t kept = draw_kept(j);
		if ((rc = draft(j, tokens[0], k, tokens + 1, e)))
			return rc;
		replayed_routing_keep(j->routing, kept, j->o.far);
		if ((rc = session_verify(j->s, tokens, 1 + k, &draws, &watch, e)))
			return rc;
		session_keep_rows(j->s, kept);
		for (uint32_t row = 0; row < kept && more; row++) {
			tokens[0] = drawn[row].id;
			more = on_token(j, tokens[0]);
		}
	}
	return 0;
}

static int decode_plain(
	struct replay *j, const int32_t *ids, uint32_t n, uint32_t n_new, struct err *e)
{
	struct generate_result r;
	struct generate_options o = {.max_new = n_new + 1,
		.ignore_stop = true,
		.on_token = on_token,
		.user = j,
		.watch = {.cancel = interrupt_flag()}};
	o.sampler.top_p = 1;
	return generate(j->s, ids, n, &o, &r, e);
}

/* n_new tokens after ids; j->n - 1 of them are then known in j->at_ns and j->stats. */
static int decode_tokens(
	struct replay *j, const int32_t *ids, uint32_t n, uint32_t n_new, struct err *e)
{
	j->n = 0;
	int rc = j->o.n_accept ? decode_drafted(j, ids, n, e) : decode_plain(j, ids, n, n_new, e);
	if (!rc && j->failure.code) {
		*e = j->failure;
		rc = e->code;
	}
	if (!rc && atomic_load(interrupt_flag()))
		rc = err_set(e, ERR_INTERRUPTED, "interrupted");
	if (!rc && j->n < 2)
		rc = err_set(e, ERR_RUN, "no token was decoded in the time given");
	return rc;
}

/* Some more tokens, or as many as there is time for, as what came before goes on; j->at_ns and
 * j->stats then hold them. */
static int decode_more(struct replay *j, uint32_t n_new, struct err *e)
{
	const uint32_t n = session_length(j->s);
	int32_t *ids = NEW_ARRAY(int32_t, n);
	memcpy(ids, session_tokens(j->s), n * sizeof *ids);
	j->stop_ns = clock_ns() + MORE_NS;
	j->most = n_new;
	int rc = decode_tokens(j, ids, n, n_new, e);
	free(ids);
	return rc;
}

/* Busy time of the card, measured apart because profile events cost time. */
static int card_usage(struct replay *j, const char *section, struct err *e)
{
	struct bench_stages from, to;
	if (!strcmp(j->backend, "cpu"))
		return 0;
	engine_measure(j->g, true);
	bench_stages_read(&from, j->g);
	int rc = decode_more(j, USAGE_RUN, e);
	bench_stages_read(&to, j->g);
	engine_measure(j->g, false);
	if (!rc)
		bench_usage(j->b, section, &from, &to, j->n);
	return rc;
}

/* ---- the routing ---- */

static int wrap_source(void *user, const struct model_config *c, struct expert_source *inner,
	struct expert_source **out, struct err *e)
{
	struct replay *j = user;
	const struct replayed_routing_options o = {.path = j->o.routing,
		.confine = j->o.confine,
		.n_layers = c->n_layers,
		.n_dense = c->n_dense,
		.n_experts = c->n_experts,
		.n_used = c->n_used};
	int rc = j->routing ? 0 : replayed_routing_new(&o, &j->routing, e);
	if (!rc)
		*out = replayed_routing_wrap(j->routing, inner);
	return rc;
}

/* Reads the experts to which routing is confined before the first step. */
static void warm_confined(struct replay *j)
{
	const struct model_config *c = engine_config(j->g);
	size_t n = 0;
	struct profile_key *keys =
		NEW_ARRAY(struct profile_key, (size_t)(c->n_layers - c->n_dense) * j->o.confine);
	for (uint32_t l = c->n_dense; l < c->n_layers; l++)
		for (uint32_t x = 0; x < j->o.confine; x++)
			keys[n++] = (struct profile_key){(int32_t)l, (int32_t)x};
	engine_cache_warm(j->g, keys, n);
	free(keys);
}

/* From now on decode steps use only experts that are in the first tier at this moment. Layers that
 * have fewer of them than a token uses keep all. Returns the least number of a layer, 0 if one has
 * too few. Without streaming nothing changes. */
static uint32_t confine_to_resident(struct replay *j)
{
	const struct model_config *c = engine_config(j->g);
	struct engine_cache k;
	engine_cache_snapshot(j->g, &k, NULL);
	uint32_t least = c->n_experts;
	if (!k.streaming)
		return least;
	uint8_t *map = NEW_ARRAY(uint8_t, (size_t)k.n_layers * k.n_experts);
	int32_t *ids = NEW_ARRAY(int32_t, c->n_experts);
	engine_cache_snapshot(j->g, &k, map);
	const uint32_t end = c->n_layers + (j->o.n_accept > 0); /* drafts use the MTP layer */
	for (uint32_t l = c->n_dense; l < end; l++) {
		uint32_t n = 0;
		for (uint32_t x = 0; x < c->n_experts; x++)
			if (map[(size_t)l * c->n_experts + x] == ENGINE_IN_VRAM)
				ids[n++] = (int32_t)x;
		n = n < c->n_used ? 0 : n;
		replayed_routing_confine(j->routing, l, ids, n);
		least = MIN(least, n);
	}
	free(map);
	free(ids);
	return least;
}

/* ---- computing alone ---- */

static int measure_compute(struct replay *j, struct err *e)
{
	int rc = card_usage(j, j->what, e);
	if (rc)
		return rc;
	const uint32_t least = confine_to_resident(j);
	struct bench_stages from = {0}, to;
	j->resident = &from;
	rc = decode_more(j, RESIDENT_RUN, e);
	j->resident = NULL;
	if (rc)
		return rc;
	bench_stages_read(&to, j->g);
	uint32_t first = MIN((uint32_t)RESIDENT_SKIP, (j->n - 1) / 2);
	double ms[RESIDENT_RUN + 1];
	int count = 0;
	for (uint32_t i = first; i + 1 < j->n; i++)
		ms[count++] = (double)(j->at_ns[i + 1] - j->at_ns[i]) * 1e-6;
	struct expert_stats d = stats_between(j->stats[first], j->stats[j->n - 1]);
	struct bench_spread t = bench_spread_of(ms, count);
	if (j->o.n_accept) /* tokens come several at a time */
		t = bench_one((double)(j->at_ns[j->n - 1] - j->at_ns[first]) * 1e-6 / count);
	j->compute_ms = t.median;
	bench_add(j->b, j->what, "ms/tok", t, 0, NULL,
		"computing alone (all hits: %u or more of a layer)", least);
	if (from.n && count)
		bench_stages_time(j->b, j->what, "computing alone", &from, &to, count);
	if (d.miss)
		bench_add_value(
			j->b, j->what, "/tok", (double)d.miss / count, "computing alone: missed all the same");
	return card_usage(j, "computing", e);
}

/* ---- intervals ---- */

/* ms a token that `bytes` in `tokens` take at the limit; 0: there is no such link. */
static double at_limit(uint64_t bytes, double tokens, struct bench_spread bytes_s)
{
	return bytes_s.median > 0 ? (double)bytes / tokens / bytes_s.median * 1e3 : 0;
}

static void add_value(
	struct replay *j, const char *name, const char *unit, double value, const char *what)
{
	bench_add_value(j->b, j->what, unit, value, "%s: %s", name, what);
}

/* What moved over one link. */
static void add_link(struct replay *j, const char *name, const char *link, uint64_t bytes,
	uint64_t busy_ns, double tokens, double limit_ms)
{
	if (!bytes)
		return;
	bench_add_value(j->b, j->what, "MB/tok", (double)bytes * 1e-6 / tokens, "%s: %s", name, link);
	bench_add_value(
		j->b, j->what, "ms/tok", (double)busy_ns * 1e-6 / tokens, "%s: %s, busy", name, link);
	bench_add_value(j->b, j->what, "ms/tok", limit_ms, "%s: %s, at its limit", name, link);
}

/* Drive bandwidth during the tokens [first, end), where it was sampled. */
static struct bench_spread drive_during_run(
	struct replay *j, const char *name, uint32_t first, uint32_t end)
{
	double *v = NEW_ARRAY(double, end - first);
	int n = 0;
	for (uint32_t i = first; i < end; i++)
		if (j->drive_bytes_s[i] > 0)
			v[n++] = j->drive_bytes_s[i];
	struct bench_spread s = n ? bench_spread_of(v, n) : j->limits.disk.bytes_s;
	free(v);
	if (n)
		bench_add(j->b, j->what, "GB/s", bench_scale(s, 1e-9), 0, NULL,
			"%s: limit: drive, during the run (%d samples)", name, n);
	return s;
}

/* The figures of the tokens [first, end). */
static void add_interval(struct replay *j, const char *name, uint32_t first, uint32_t end)
{
	const struct limits *l = &j->limits;
	const struct bench_spread drive = drive_during_run(j, name, first, end);
	const struct expert_stats d = stats_between(j->stats[first], j->stats[end]);
	const double tokens = end - first,
				 ms = (double)(j->at_ns[end] - j->at_ns[first]) * 1e-6 / tokens;
	const double accesses = MAX((double)(d.hit_vram + d.hit_ram + d.miss), 1.0);
	const double disk_ms = at_limit(d.bytes_read, tokens, drive);
	const double in_ms = at_limit(d.bytes_in, tokens, l->card.in_bytes_s);
	const double out_ms = at_limit(d.bytes_out, tokens, l->card.out_bytes_s);
	/* useless prefetches do not count towards the bound */
	const uint64_t wasted = d.prefetch_wasted * (uint64_t)l->disk.expert_bytes,
				   read = d.bytes_read - MIN(d.bytes_read, d.bytes_read_wasted);
	const double read_ms = at_limit(read, tokens, drive);
	/* nor what was copied after the processor had computed it */
	const double moved_ms = limits_link_ms(
		l, d.bytes_in - MIN(d.bytes_in, wasted + d.bytes_promoted), d.host_bytes, tokens);
	const double bound = MAX(MAX(j->compute_ms, read_ms), moved_ms);
	const char *by = bound == read_ms    ? "drive"
					 : bound != moved_ms ? "computing"
					 : l->host.there     ? "link + processor"
										 : "link";
	bench_add(j->b, j->what, "tok/s", bench_one(1e3 / ms), 1e3 / bound, by, "%s (tokens %u to %u)",
		name, first, end);
	add_value(j, name, "%", 100 * (double)d.hit_vram / accesses,
		j->ahead ? "experts in tier 0, or loading" : "experts in tier 0");
	if (j->c.ram_bytes)
		add_value(j, name, "%", 100 * (double)d.hit_ram / accesses, "experts in tier 1");
	if (j->c.cpu_experts)
		add_value(
			j, name, "%", 100 * (double)d.on_host / accesses, "... that the processor computed");
	add_value(j, name, "%", 100 * (double)d.miss / accesses, "experts missed");
	if (j->ahead) {
		add_value(j, name, "%", 100 * (double)read / l->disk.expert_bytes / accesses,
			"experts that had to be read");
		add_value(j, name, "/tok", (double)d.prefetch_useful / tokens, "useful prefetches");
		add_value(j, name, "/tok", (double)d.prefetch_wasted / tokens, "useless prefetches");
	}
	add_link(j, name, "read", d.bytes_read, d.disk_busy_ns, tokens, disk_ms);
	add_link(j, name, "host to card", d.bytes_in, d.in_busy_ns, tokens, in_ms);
	if (d.host_bytes) {
		add_value(j, name, "MB/tok", (double)d.host_bytes * 1e-6 / tokens, "by the processor");
		add_value(j, name, "ms/tok", (double)d.host_ns * 1e-6 / tokens, "by the processor, busy");
		add_value(j, name, "MB/tok", (double)d.bytes_promoted * 1e-6 / tokens,
			"of it promoted to the card afterwards");
	}
	add_link(j, name, "card to host", d.bytes_out, d.out_busy_ns, tokens, out_ms);
	add_value(j, name, "ms/tok", ms, "a token");
	add_value(j, name, "ms/tok", (double)d.wait_ns * 1e-6 / tokens, "waited for experts");
	if (j->o.n_accept)
		add_value(j, name, "ms/tok", (double)d.wait_draft_ns * 1e-6 / tokens,
			"... that only drafts need");
	if (d.checked) {
		add_value(j, name, "/tok", (double)d.checked / tokens, "experts hashed for --verify");
		add_value(j, name, "ms/tok", (double)d.check_ns * 1e-6 / tokens, "hashing them");
	}
	add_value(j, name, "ms/tok", ms - j->compute_ms, "beyond computing alone");
	/* the part of the links' busy time in which nobody waited for them */
	const double busy_ms = (double)MAX(d.disk_busy_ns, d.in_busy_ns) * 1e-6 / tokens;
	if (busy_ms > 0)
		add_value(j, name, "%", 100 * MIN(MAX(0, 1 - (ms - j->compute_ms) / busy_ms), 1),
			"of the busier link's time overlapped");
}

/* Of the long run: n - 1 tokens. */
static void add_drafts(struct replay *j, const struct drafted_steps *d)
{
	const double steps = MAX(d->n, 1);
	const struct expert_stats *x = &d->stats;
	const double accesses = MAX((double)(x->hit_vram + x->hit_ram + x->miss), 1.0);
	char assumed[64] = "";
	for (int i = 0; i < j->o.n_accept; i++)
		snprintf(assumed + strlen(assumed), sizeof assumed - strlen(assumed), "%s%.3g",
			i ? ", " : "", (double)j->o.accept[i]);
	bench_add_value(j->b, j->what, "tok/step", (double)(j->n - 1) / steps,
		"accept length, assumed: %s", assumed);
	bench_add_value(
		j->b, j->what, "/step", 1 + j->o.n_accept, "rows, those that are dropped included");
	bench_add_value(j->b, j->what, "ms/step", (double)d->ns * 1e-6 / steps,
		"of it drafting, %d drafts", j->o.n_accept);
	if (!j->c.cache_bytes)
		return;
	add_value(j, "MTP layer", "/step", accesses / steps, "experts used by drafts");
	add_value(j, "MTP layer", "%", 100 * (double)x->hit_vram / accesses, "of them in tier 0");
	add_value(j, "MTP layer", "%", 100 * (double)x->hit_ram / accesses, "of them in tier 1");
	add_value(j, "MTP layer", "%", 100 * (double)x->miss / accesses, "of them missed");
	add_value(j, "MTP layer", "ms/step", (double)x->wait_ns * 1e-6 / steps, "waited for them");
}

static void add_intervals(struct replay *j)
{
	const uint32_t n = j->n - 1, quarter = MAX(n / 4, 1);
	add_interval(j, "cold start", 0, MIN((uint32_t)COLD, n));
	if (n >= WARM + COLD)
		add_interval(j, "after 512", WARM, WARM + COLD);
	if (n > COLD)
		add_interval(j, "steady state", n - quarter, n);
}

/* ---- start-up ---- */

/* From the command to the first token, and where the time went. */
static void add_start(struct replay *j, const struct common_loading *l, uint64_t opened_ns,
	uint64_t first_ns, uint32_t n_prompt)
{
	struct bench *b = j->b;
	const double s = 1e-9;
	bench_add_value(b, "start", "s", (double)(first_ns - b->start_ns) * s,
		"from the command to the first token after %u", n_prompt);
	if (l->first_ns) {
		const double seconds = MAX((double)(l->last_ns - l->first_ns) * s, 1e-9),
					 size = (double)l->bytes * 1e-9;
		bench_add_value(b, "start", "s", (double)(l->first_ns - b->start_ns) * s,
			"of which before the weights: headers, backend, plan");
		bench_add_value(b, "start", "s", seconds, "of which resident weights, %.4g GB", size);
		bench_add(b, "start", "GB/s", bench_one(size / seconds),
			j->limits.disk.bytes_s.median * 1e-9, "drive", "resident weights loaded");
		bench_add_value(b, "start", "s", (double)(opened_ns - l->last_ns) * s,
			"of which caches and the rest of opening");
	}
	bench_add_value(b, "start", "s", (double)(first_ns - opened_ns) * s, "of which the prompt");
	const uint32_t later[] = {COLD, WARM};
	for (size_t i = 0; i < ARRAY_LEN(later) && later[i] <= j->n; i++)
		bench_add_value(b, "start", "s", (double)(j->at_ns[later[i] - 1] - b->start_ns) * s,
			"from the command to token %u", later[i]);
}

/* ---- all of it ---- */

static int run_replay(
	struct replay *j, struct common_loading *loading, uint64_t *opened_ns, struct err *e)
{
	const struct bench_replay_options *o = &j->o;
	j->c.loading = loading;
	j->c.wrap_source = wrap_source;
	j->c.wrap_user = j;
	int rc = common_opts_open(&j->c, &j->g, e);
	if (!rc && o->confine)
		warm_confined(j);
	*opened_ns = clock_ns();
	if (rc)
		return rc;
	struct engine_cache k;
	engine_cache_snapshot(j->g, &k, NULL);
	j->ahead = k.lookahead;
	if ((rc = bench_check_context(
			 j->g, o->n_fill + o->n_prompt, (uint64_t)o->n_new + MORE + BENCH_DRAFTS_MAX, e)))
		return rc;
	snprintf(j->backend, sizeof j->backend, "%s", engine_backend_name(j->g));
	bench_begin(j->b, j->backend);
	if (j->b->format == BENCH_TEXT && o->routing)
		printf("routing replayed from %s: not the choice of this model\n", ERR_PLAIN(o->routing));
	if (j->b->format == BENCH_TEXT && o->n_accept)
		printf("acceptance of drafts is assumed, not that of this model; rows that are dropped use "
			   "the trace's %s\n",
			o->far ? "tokens half a trace further" : "next tokens");
	j->at_ns = NEW_ARRAY(uint64_t, MAX(j->most, RESIDENT_RUN) + 2);
	j->stats = mem_new(MAX(j->most, RESIDENT_RUN) + 2, sizeof *j->stats);
	j->drive_bytes_s = NEW_ARRAY(double, j->most + 2);
	const uint32_t n_ids = o->n_fill + o->n_prompt;
	int32_t *ids = bench_random_ids(n_ids, (uint32_t)engine_n_valid(j->g));
	rc = session_new(j->g, &j->s, e);
	if (!rc && o->n_accept)
		rc = session_enable_mtp(j->s, e);
	if (!rc && o->n_fill) {
		const uint64_t began = clock_ns();
		rc = session_fill_random(j->s, ids, o->n_fill, interrupt_flag(), e);
		if (!rc)
			bench_add_context(j->b, j->what, j->g, o->n_fill);
		j->paused_ns += clock_ns() - began; /* filling is no part of the start-up */
	}
	if (o->seconds > 0)
		j->stop_ns = clock_ns() + (uint64_t)((double)o->seconds * 1e9);
	if (!rc && j->limits.before)
		rc = measure_drive_open(&j->drive, &j->c, engine_gguf(j->g), &j->limits.disk, e);
	j->sampled_ns = clock_ns();
	if (!rc)
		rc = decode_tokens(j, ids, n_ids, o->n_new, e);
	free(ids);
	measure_drive_close(j->drive);
	j->drive = NULL; /* what follows is of the card */
	return rc;
}

int bench_replay(struct bench *b, const struct common_opts *c, const struct bench_replay_options *o,
	struct err *e)
{
	struct replay *j = NEW(struct replay);
	struct common_loading loading = {0};
	uint64_t opened_ns = 0, first_ns = 0;
	*j = (struct replay){.b = b, .c = *c, .o = *o, .most = o->n_new};
	j->what = o->routing ? "replay" : "confined";
	const uint64_t began_ns = clock_ns();
	int rc = limits_measure_before(b, c, &j->limits, e);
	b->start_ns += clock_ns() - began_ns; /* no part of the start-up */
	if (!rc)
		rc = run_replay(j, &loading, &opened_ns, e);
	uint64_t *at_ns = j->at_ns;
	struct expert_stats *stats = j->stats;
	uint32_t n = j->n;
	const struct drafted_steps drafted = j->drafted;
	if (!rc) { /* the figures of the long run stay while computing alone is measured */
		first_ns = at_ns[0];
		j->at_ns = NEW_ARRAY(uint64_t, RESIDENT_RUN + 2);
		j->stats = mem_new(RESIDENT_RUN + 2, sizeof *j->stats);
		rc = measure_compute(j, e);
		free(j->at_ns);
		free(j->stats);
		j->at_ns = at_ns;
		j->stats = stats;
		j->n = n;
	}
	session_free(j->s);
	rc = common_opts_close(j->g, rc, e);
	replayed_routing_free(j->routing);
	snprintf(o->backend, BENCH_BACKEND_MAX, "%s", j->backend);
	if (!rc)
		rc = limits_measure(b, c, j->what, j->backend, &j->limits, e);
	if (!rc) {
		add_start(j, &loading, opened_ns, first_ns, o->n_prompt);
		if (o->n_accept)
			add_drafts(j, &drafted);
		add_intervals(j);
	}
	free(j->at_ns);
	free(j->stats);
	free(j->drive_bytes_s);
	free(j);
	return rc;
}
