/* SPDX-License-Identifier: MIT */
/*
 * What the server looks like right now, as JSON for pages and tools.
 *
 * GET /v1/glmstream/state       one object
 * GET /v1/glmstream/events      SSE: "event: state" with the same object as data, every `interval`
 *                               ms of the query (100 to 10000; 500)
 * Query of both: map=0 leaves out cache.map.
 *
 *   version, model, backend ("cpu", "cuda"), io ("mmap", "uring", "threads")     strings
 *   time          unix time in seconds, with fraction
 *   uptime_s      seconds since the start
 *   context       tokens one session holds
 *   healthy       false: the last step of the model failed
 *   sessions      { n, active, list: [ { state: "idle" | "reading" | "writing", tokens: on its
 *                 timeline, prompt, done: tokens of the prompt and how many of them are computed,
 *                 new: tokens written } ] }
 *   queue         { waiting, limit }
 *   connections   open now
 *   rate          over the last two seconds: { prefill_tok_s, decode_tok_s, read_bytes_s }
 *   totals        since the start: { answers, cancelled, failed, refused, prompt_tokens,
 *                 cached_tokens, prefill_tokens, new_tokens, step_rows, step_cpu_ms, host_cpu_ms,
 *                 hit_cache, hit_ram, miss, bytes_read, prefetch_useful, prefetch_wasted,
 *                 wait_ms, wait_drafts_ms: of it, for experts that only drafts need }; hits and
 *                 misses count requested experts by where they were found; the others are
 *                 explained in metrics.h
 *   drafts        zeros with --draft off: { steps: of single answers, rows, tried, accepted: drafts
 *                 by position, saved_s: time gained, by the measured costs of steps }
 *   cache         { streaming: false when every expert is resident, policy, lookahead,
 *                 cache_bytes and ram_bytes: memory of the two tiers, ram_refused_bytes: of the
 *                 latter, what the system refused to pin, so that it is not used,
 *                 everything_bytes: a first tier that holds every expert, expert_bytes (average),
 *                 layers, mtp_layers (the last of them), experts: in each layer, map }
 *   stages        [ { first, end: layers first .. end - 1; mtp: whether the MTP layer is one of
 *                 them; rank, card: where they lie } ], in the order of the layers
 *   memory        { resident_bytes, kv_bytes, workspace_bytes }, taken beside the cache
 *   store         of --session-dir: { bytes, files, tokens_read: prompt tokens that came from it };
 *                 zeros without
 *   cache.map     a string of layers * experts characters, layer after layer: "-" no expert (dense
 *                 layer), "." on the drive, "r" in RAM, "~" being read, "#" in the cache's
 *                 first tier (memory of the card, if there is one)
 */
#ifndef GLM_SERVE_LIVE_H
#define GLM_SERVE_LIVE_H

#include "src/base/buf.h"
#include "src/engine/engine.h"
#include "src/serve/metrics.h"
#include "src/serve/compute/scheduler.h"

#include <stdbool.h>

struct live_source {
	const struct engine *engine;
	struct scheduler *scheduler;
	struct metrics *metrics;
	const char *version, *model;
	uint64_t started_ns; /* clock_ns */
	uint32_t connections;
};

/* Appends the object. Any thread. */
void live_write(const struct live_source *s, bool map, struct buf *out);

/* What /metrics asks for besides the counters. */
void live_gauges(const struct live_source *s, struct metrics_gauges *g);

#endif
