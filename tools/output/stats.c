/* SPDX-License-Identifier: MIT */
/* Rates are of the work really done: reused prompt tokens cost nothing and do not count. */
#include "tools/output/stats.h"

#include "src/base/mem.h"
#include "src/base/num.h"
#include "tools/output/json_out.h"

#include <math.h>
#include <stdlib.h>

static const char *const stop_names[] = {
	[GENERATE_STOP_TOKEN] = "stop",
	[GENERATE_LIMIT] = "limit",
	[GENERATE_CONTEXT_FULL] = "context",
	[GENERATE_COMPLETE] = "stop",
	[GENERATE_CANCELLED] = "cancelled",
};

struct expert_stats stats_between(struct expert_stats before, struct expert_stats after)
{
	return (struct expert_stats){
		.hit_vram = after.hit_vram - before.hit_vram,
		.hit_ram = after.hit_ram - before.hit_ram,
		.on_host = after.on_host - before.on_host,
		.host_bytes = after.host_bytes - before.host_bytes,
		.host_ns = after.host_ns - before.host_ns,
		.bytes_promoted = after.bytes_promoted - before.bytes_promoted,
		.miss = after.miss - before.miss,
		.bytes_read = after.bytes_read - before.bytes_read,
		.prefetch_useful = after.prefetch_useful - before.prefetch_useful,
		.prefetch_wasted = after.prefetch_wasted - before.prefetch_wasted,
		.bytes_read_wasted = after.bytes_read_wasted - before.bytes_read_wasted,
		.wait_ns = after.wait_ns - before.wait_ns,
		.wait_draft_ns = after.wait_draft_ns - before.wait_draft_ns,
		.disk_busy_ns = after.disk_busy_ns - before.disk_busy_ns,
		.bytes_in = after.bytes_in - before.bytes_in,
		.in_busy_ns = after.in_busy_ns - before.in_busy_ns,
		.bytes_out = after.bytes_out - before.bytes_out,
		.out_busy_ns = after.out_busy_ns - before.out_busy_ns,
		.checked = after.checked - before.checked,
		.reread = after.reread - before.reread,
		.wrong = after.wrong - before.wrong,
		.check_ns = after.check_ns - before.check_ns,
		.ram_refused_bytes = after.ram_refused_bytes,
		.io_depth = after.io_depth,
		.io_slice_bytes = after.io_slice_bytes,
	};
}

uint8_t *stats_residency(const struct engine *g)
{
	struct engine_cache c;
	engine_cache_snapshot(g, &c, NULL);
	uint8_t *map = c.streaming ? NEW_ARRAY(uint8_t, (size_t)c.n_layers * c.n_experts) : NULL;
	if (map)
		engine_cache_snapshot(g, &c, map);
	return map;
}

void stats_count_kept(
	const struct engine *g, const uint8_t *before, uint32_t *cached, uint32_t *kept)
{
	struct engine_cache k;
	uint8_t *now = before ? stats_residency(g) : NULL;
	engine_cache_snapshot(g, &k, NULL);
	*cached = *kept = 0;
	for (size_t i = 0; now && i < (size_t)k.n_layers * k.n_experts; i++) {
		const bool was = before[i] == ENGINE_IN_VRAM;
		*cached += was;
		*kept += was && now[i] == ENGINE_IN_VRAM;
	}
	free(now);
}

static double per_second(uint64_t n, uint64_t ns)
{
	return ns ? (double)n * 1e9 / (double)ns : 0;
}

static double prefill_rate(const struct stats *s)
{
	return per_second(s->result.prompt_tokens - s->result.reused_tokens, s->result.prefill_ns);
}

static double read_gb_s(const struct stats *s)
{
	return per_second(s->experts.bytes_read, s->result.prefill_ns + s->result.decode_ns) * 1e-9;
}

static double ms_per_token(const struct stats *s, uint64_t ns)
{
	uint64_t tokens = s->result.prompt_tokens - s->result.reused_tokens + s->result.new_tokens;
	return tokens ? (double)ns * 1e-6 / (double)tokens : 0;
}

static uint64_t sum_of(const uint64_t *v, size_t n)
{
	uint64_t sum = 0;
	for (size_t i = 0; i < n; i++)
		sum += v[i];
	return sum;
}

/* A step yields one token, and one more for each verified draft that was right. */
static double tokens_per_step(const struct draft_stats *d)
{
	return d->steps ? 1 + (double)sum_of(d->accepted, DRAFT_MAX) / (double)d->steps : 0;
}

static double rows_per_step(const struct draft_stats *d)
{
	return d->steps ? (double)d->rows / (double)d->steps : 0;
}

void stats_print_drafts(FILE *f, const struct draft_stats *d)
{
	if (!d->steps)
		return;
	fprintf(f, "%.2f tokens a step of %.2f rows", tokens_per_step(d), rows_per_step(d));
	for (int i = 0; i < DRAFT_MAX && d->tried[i]; i++)
		fprintf(f, "%s %.0f %%",
			i ? "," : ", drafts right:", 100 * (double)d->accepted[i] / (double)d->tried[i]);
	if (d->tried[0])
		fprintf(f, "; %.3g s %s", fabs(d->saved_ns) * 1e-9, d->saved_ns < 0 ? "lost" : "saved");
}

void stats_print(FILE *f, const struct stats *s, bool colours, bool hash)
{
	const struct generate_result *r = &s->result;
	uint64_t accesses = s->experts.hit_vram + s->experts.hit_ram + s->experts.miss;
	fprintf(f, "%s%u prompt", colours ? "\033[2m" : "", r->prompt_tokens);
	if (r->reused_tokens)
		fprintf(f, " (%u reused)", r->reused_tokens);
	fprintf(f, " at %.1f tok/s, %u new at %.1f tok/s", prefill_rate(s), r->new_tokens,
		per_second(r->new_tokens, r->decode_ns));
	if (accesses && s->streaming)
		fprintf(f, "; experts %.1f %% cache", 100 * (double)s->experts.hit_vram / (double)accesses);
	if (s->experts.hit_ram)
		fprintf(f, ", %.1f %% RAM", 100 * (double)s->experts.hit_ram / (double)accesses);
	if (s->experts.on_host)
		fprintf(
			f, " (%.1f %% computed there)", 100 * (double)s->experts.on_host / (double)accesses);
	if (s->experts.miss)
		fprintf(f, ", %.1f %% read", 100 * (double)s->experts.miss / (double)accesses);
	if (s->experts.bytes_read)
		fprintf(f, " (%.2f GB at %.2f GB/s, %.1f ms wait a token)",
			(double)s->experts.bytes_read * 1e-9, read_gb_s(s),
			ms_per_token(s, s->experts.wait_ns));
	if (s->experts.checked)
		fprintf(f, "; %llu experts verified in %.1f ms", (unsigned long long)s->experts.checked,
			(double)s->experts.check_ns * 1e-6);
	if (s->experts.reread)
		fprintf(f, ", %llu read again", (unsigned long long)s->experts.reread);
	if (sum_of(r->drafts.tried, DRAFT_MAX)) {
		fprintf(f, "; ");
		if (hash)
			stats_print_drafts(f, &r->drafts);
		else
			fprintf(f, "%.2f tokens a step", tokens_per_step(&r->drafts));
	}
	if (hash && s->cached_before)
		fprintf(f, "; the prompt left %u of %u cached experts", s->cached_kept, s->cached_before);
	if (hash)
		fprintf(f, "; logits %016llx", (unsigned long long)r->logits_hash);
	fprintf(f, "; %s", s->backend);
	if (r->stop == GENERATE_LIMIT && s->max_new)
		fprintf(f, "; cut off by -n %u", s->max_new);
	fprintf(f, "%s\n", colours ? "\033[0m" : "");
}

void stats_print_experts(FILE *f, struct expert_stats s)
{
	uint64_t accesses = s.hit_vram + s.hit_ram + s.miss;
	if (!accesses)
		return;
	double part = 100 / (double)accesses;
	fprintf(f,
		"experts in all: %llu accesses, %.1f %% in the cache, %.1f %% in RAM, %.1f %% read (%.3f "
		"GB)",
		(unsigned long long)accesses, part * (double)s.hit_vram, part * (double)s.hit_ram,
		part * (double)s.miss, (double)s.bytes_read * 1e-9);
	if (s.on_host)
		fprintf(f, ", %.1f %% computed by the processor", part * (double)s.on_host);
	if (s.io_depth)
		fprintf(f, ", %u reads of %u KiB in flight", s.io_depth, s.io_slice_bytes >> 10);
	if (s.ram_refused_bytes)
		fprintf(f, "; %.2f GB of --ram-gb could not be pinned", (double)s.ram_refused_bytes * 1e-9);
	if (s.prefetch_useful || s.prefetch_wasted)
		fprintf(f, "; prefetches: %llu useful, %llu useless", (unsigned long long)s.prefetch_useful,
			(unsigned long long)s.prefetch_wasted);
	fprintf(f, "; waited %.2f s", (double)s.wait_ns * 1e-9);
	if (s.wait_draft_ns)
		fprintf(f, ", %.2f s of it for drafts alone", (double)s.wait_draft_ns * 1e-9);
	fputc('\n', f);
	if (!s.checked)
		return;
	fprintf(f, "verified: %llu experts in %.3f s", (unsigned long long)s.checked,
		(double)s.check_ns * 1e-9);
	if (s.reread)
		fprintf(f, "; %llu were wrong, %llu of them also when they were read again",
			(unsigned long long)s.reread, (unsigned long long)s.wrong);
	fputc('\n', f);
}

static json_t *json_counts(const uint64_t *v, size_t n)
{
	json_t *list = json_array();
	for (size_t i = 0; i < n; i++)
		json_array_append_new(list, json_integer((json_int_t)v[i]));
	return list;
}

json_t *stats_drafts_json(const struct draft_stats *d)
{
	static const char *const sources[DRAFT_SOURCES] = {
		[DRAFT_LOOKUP] = "lookup", [DRAFT_COMPUTED] = "mtp"};
	json_t *o = json_object();
	json_out_uint(o, "steps", d->steps);
	json_out_real(o, "rows_per_step", rows_per_step(d));
	json_out_real(o, "tokens_per_step", tokens_per_step(d));
	json_object_set_new(o, "tried", json_counts(d->tried, DRAFT_MAX));
	json_object_set_new(o, "accepted", json_counts(d->accepted, DRAFT_MAX));
	for (int i = 0; i < DRAFT_SOURCES; i++) {
		json_t *source = json_object();
		json_out_uint(source, "tried", d->tried_by[i]);
		json_out_uint(source, "accepted", d->accepted_by[i]);
		json_object_set_new(o, sources[i], source);
	}
	json_out_real(o, "saved_s", d->saved_ns * 1e-9);
	return o;
}

json_t *stats_json(const struct stats *s)
{
	const struct generate_result *r = &s->result;
	json_t *o = json_object();
	char hash[17];
	snprintf(hash, sizeof hash, "%016llx", (unsigned long long)r->logits_hash);
	json_out_uint(o, "prompt_tokens", r->prompt_tokens);
	json_out_uint(o, "new_tokens", r->new_tokens);
	json_out_real(o, "prefill_tok_s", prefill_rate(s));
	json_out_real(o, "decode_tok_s", per_second(r->new_tokens, r->decode_ns));
	json_out_uint(o, "hit_cache", s->experts.hit_vram);
	json_out_uint(o, "hit_ram", s->experts.hit_ram);
	json_out_uint(o, "on_host", s->experts.on_host);
	json_out_uint(o, "miss", s->experts.miss);
	json_out_uint(o, "bytes_read", s->experts.bytes_read);
	json_out_real(o, "read_gb_s", read_gb_s(s));
	json_out_uint(o, "prefetch_useful", s->experts.prefetch_useful);
	json_out_uint(o, "prefetch_wasted", s->experts.prefetch_wasted);
	json_out_real(o, "wait_ms_per_token", ms_per_token(s, s->experts.wait_ns));
	json_out_real(o, "wait_drafts_ms_per_token", ms_per_token(s, s->experts.wait_draft_ns));
	json_out_uint(o, "experts_verified", s->experts.checked);
	json_out_uint(o, "experts_reread", s->experts.reread);
	json_out_real(o, "verify_ms", (double)s->experts.check_ns * 1e-6);
	json_out_str(o, "logits_hash", hash);
	json_out_str(o, "backend", s->backend);
	json_out_uint(o, "ranks", s->ranks);
	json_out_str(o, "io", s->io);
	json_out_uint(o, "io_depth", s->experts.io_depth);
	json_out_uint(o, "io_slice_bytes", s->experts.io_slice_bytes);
	json_out_uint(o, "ram_refused_bytes", s->experts.ram_refused_bytes);
	json_out_uint(o, "reused_tokens", r->reused_tokens);
	json_out_uint(o, "cached_before_prompt", s->cached_before);
	json_out_uint(o, "cached_kept", s->cached_kept);
	json_out_uint(o, "seed", s->seed);
	json_out_str(o, "stop", (unsigned)r->stop < ARRAY_LEN(stop_names) ? stop_names[r->stop] : "?");
	json_object_set_new(o, "drafts", s->drafts ? stats_drafts_json(&r->drafts) : json_null());
	return o;
}
