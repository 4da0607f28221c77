/* SPDX-License-Identifier: MIT */
/* The figures of one answer: a line for people, an object with fixed keys for programs. */
#ifndef GLM_TOOLS_STATS_H
#define GLM_TOOLS_STATS_H

#include "src/engine/generate.h"

#include <jansson.h>
#include <stdio.h>

struct stats {
	struct generate_result result;
	struct expert_stats experts; /* of this answer alone */
	const char *backend, *io;
	uint32_t ranks; /* processes that computed */
	uint64_t seed;
	uint32_t max_new; /* what -n allowed */
	bool streaming;   /* there is an expert cache */
	/* Experts in the first tier when the prompt began, and those of them still there at its end. */
	uint32_t cached_before, cached_kept;
	bool drafts; /* they were not off */
};

/* What happened between two readings of engine_expert_stats. */
struct expert_stats stats_between(struct expert_stats before, struct expert_stats after);

/* Where each expert is now: [layers][experts] of enum engine_residency, as engine_cache_snapshot
 * gives it. Free it with free(). NULL without an expert cache. */
uint8_t *stats_residency(const struct engine *g);

/* *cached: experts that were in the first tier by `before` (stats_residency, or NULL: none);
 * *kept: those of them that still are. */
void stats_count_kept(
	const struct engine *g, const uint8_t *before, uint32_t *cached, uint32_t *kept);

/* One line with a line feed; dimmed when `colours`; with `hash` also that of the logits, and
 * all about drafts. */
void stats_print(FILE *f, const struct stats *s, bool colours, bool hash);

/* One line with a line feed: where experts were found since the engine was opened, what was read,
 * how useful prefetches were; another line when experts were compared with check values. Nothing
 * before the first access. */
void stats_print_experts(FILE *f, struct expert_stats s);

/* prompt_tokens, new_tokens, prefill_tok_s, decode_tok_s, hit_cache, hit_ram, on_host (of hit_ram:
 * computed by the processor), miss, bytes_read, read_gb_s, prefetch_useful, prefetch_wasted,
 * wait_ms_per_token, wait_drafts_ms_per_token (of it: for experts that only drafts need),
 * experts_verified, experts_reread, verify_ms, logits_hash, backend, io, io_depth, io_slice_bytes,
 * ram_refused_bytes (of the second tier, so far: the system refused to pin them); and
 * reused_tokens, seed, stop; cached_before_prompt, cached_kept (experts); drafts: null or
 * stats_drafts_json. */
json_t *stats_json(const struct stats *s);

/* What drafts did in steps for single timelines: steps, rows_per_step, tokens_per_step, tried and
 * accepted: drafts by position; lookup and mtp: { tried, accepted }; saved_s: the time gained
 * against no drafts, by the measured costs of steps. */
json_t *stats_drafts_json(const struct draft_stats *d);

/* "1.84 tokens a step of 2.10 rows, drafts right: 71 %, 60 %; 1.2 s saved"; nothing of no steps. */
void stats_print_drafts(FILE *f, const struct draft_stats *d);

#endif
