/* SPDX-License-Identifier: MIT */
/* The scheduler, the counters and the cache are read one after the other: each part is a snapshot,
 * the object as a whole is not. */
#include "src/serve/live.h"

#include "src/base/host/clock.h"
#include "src/base/mem.h"
#include "src/serve/api/json_write.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void write_sessions(struct json_write *w, const struct scheduler_snapshot *snapshot)
{
	static const char *const states[] = {"idle", "reading", "writing"};
	json_write_open(w, "sessions", '{');
	json_write_int(w, "n", snapshot->n_sessions);
	json_write_int(w, "active", snapshot->active);
	json_write_open(w, "list", '[');
	for (uint32_t i = 0; i < snapshot->n_sessions; i++) {
		const struct scheduler_session *x = &snapshot->sessions[i];
		json_write_open(w, NULL, '{');
		json_write_string(w, "state", states[x->state]);
		json_write_int(w, "tokens", x->tokens);
		json_write_int(w, "prompt", x->prompt);
		json_write_int(w, "done", x->done);
		json_write_int(w, "new", x->new_tokens);
		json_write_close(w, '}');
	}
	json_write_close(w, ']');
	json_write_close(w, '}');
	json_write_open(w, "queue", '{');
	json_write_int(w, "waiting", snapshot->waiting);
	json_write_int(w, "limit", snapshot->queue_limit);
	json_write_close(w, '}');
}

static void write_totals(
	struct json_write *w, const struct metrics *m, const struct expert_stats *x)
{
	json_write_open(w, "totals", '{');
	json_write_int(w, "answers", (int64_t)metrics_get(m, METRICS_ANSWERS));
	json_write_int(w, "cancelled", (int64_t)metrics_get(m, METRICS_CANCELLED));
	json_write_int(w, "failed", (int64_t)metrics_get(m, METRICS_FAILED));
	json_write_int(w, "refused", (int64_t)metrics_get(m, METRICS_REFUSED));
	json_write_int(w, "prompt_tokens", (int64_t)metrics_get(m, METRICS_PROMPT_TOKENS));
	json_write_int(w, "cached_tokens", (int64_t)metrics_get(m, METRICS_CACHED_TOKENS));
	json_write_int(w, "prefill_tokens", (int64_t)metrics_get(m, METRICS_PREFILL_TOKENS));
	json_write_int(w, "new_tokens", (int64_t)metrics_get(m, METRICS_NEW_TOKENS));
	json_write_int(w, "step_rows", (int64_t)metrics_get(m, METRICS_ROWS));
	json_write_real(w, "step_cpu_ms", (double)metrics_get(m, METRICS_STEP_CPU_NS) / 1e6);
	json_write_real(w, "host_cpu_ms", (double)metrics_get(m, METRICS_HOST_CPU_NS) / 1e6);
	json_write_int(w, "hit_cache", (int64_t)x->hit_vram);
	json_write_int(w, "hit_ram", (int64_t)x->hit_ram);
	json_write_int(w, "miss", (int64_t)x->miss);
	json_write_int(w, "bytes_read", (int64_t)x->bytes_read);
	json_write_int(w, "prefetch_useful", (int64_t)x->prefetch_useful);
	json_write_int(w, "prefetch_wasted", (int64_t)x->prefetch_wasted);
	json_write_real(w, "wait_ms", (double)x->wait_ns / 1e6);
	json_write_real(w, "wait_drafts_ms", (double)x->wait_draft_ns / 1e6);
	json_write_close(w, '}');
}

static void write_drafts(struct json_write *w, const struct draft_stats *d)
{
	json_write_open(w, "drafts", '{');
	json_write_int(w, "steps", (int64_t)d->steps);
	json_write_int(w, "rows", (int64_t)d->rows);
	json_write_open(w, "tried", '[');
	for (uint32_t i = 0; i < DRAFT_MAX; i++)
		json_write_int(w, NULL, (int64_t)d->tried[i]);
	json_write_close(w, ']');
	json_write_open(w, "accepted", '[');
	for (uint32_t i = 0; i < DRAFT_MAX; i++)
		json_write_int(w, NULL, (int64_t)d->accepted[i]);
	json_write_close(w, ']');
	json_write_real(w, "saved_s", d->saved_ns / 1e9);
	json_write_close(w, '}');
}

static void write_cache(struct json_write *w, const struct engine_cache *c, const uint8_t *map)
{
	static const char letters[] = {[ENGINE_NO_EXPERT] = '-',
		[ENGINE_ON_DISK] = '.',
		[ENGINE_IN_RAM] = 'r',
		[ENGINE_LOADING] = '~',
		[ENGINE_IN_VRAM] = '#'};
	json_write_open(w, "cache", '{');
	json_write_bool(w, "streaming", c->streaming);
	json_write_string(w, "policy", c->policy);
	json_write_int(w, "lookahead", c->lookahead);
	json_write_int(w, "cache_bytes", (int64_t)c->tier_bytes[0]);
	json_write_int(w, "ram_bytes", (int64_t)c->tier_bytes[1]);
	json_write_int(w, "ram_refused_bytes", (int64_t)c->stats.ram_refused_bytes);
	json_write_int(w, "everything_bytes", (int64_t)c->everything_bytes);
	json_write_int(w, "expert_bytes", (int64_t)c->expert_bytes);
	json_write_int(w, "layers", c->n_layers);
	json_write_int(w, "mtp_layers", c->n_mtp);
	json_write_int(w, "experts", c->n_experts);
	if (map) {
		size_t n = (size_t)c->n_layers * c->n_experts;
		char *text = mem_new(n + 1, 1);
		for (size_t i = 0; text && i < n; i++)
			text[i] = map[i] < sizeof letters ? letters[map[i]] : '.';
		json_write_text(w, "map", text ? text : "", text ? n : 0);
		free(text);
	}
	json_write_close(w, '}');
}

static void write_stages(struct json_write *w, const struct engine *g)
{
	json_write_open(w, "stages", '[');
	for (uint32_t i = 0; i < engine_n_stages(g); i++) {
		const struct engine_stage s = engine_stage(g, i);
		json_write_open(w, NULL, '{');
		json_write_int(w, "first", s.first_layer);
		json_write_int(w, "end", s.end_layer);
		json_write_bool(w, "mtp", s.has_mtp);
		json_write_int(w, "rank", s.rank);
		json_write_int(w, "card", s.card);
		json_write_close(w, '}');
	}
	json_write_close(w, ']');
}

static void write_memory(struct json_write *w, struct engine_sizes sizes)
{
	json_write_open(w, "memory", '{');
	json_write_int(w, "resident_bytes", (int64_t)sizes.resident_bytes);
	json_write_int(w, "kv_bytes", (int64_t)sizes.kv_bytes);
	json_write_int(w, "workspace_bytes", (int64_t)sizes.workspace_bytes);
	json_write_close(w, '}');
}

void live_write(const struct live_source *s, bool map, struct buf *out)
{
	struct engine_cache cache = {0};
	engine_cache_snapshot(s->engine, &cache, NULL);
	uint8_t *places = map ? mem_new((size_t)cache.n_layers * cache.n_experts + 1, 1) : NULL;
	if (places)
		engine_cache_snapshot(s->engine, &cache, places);
	struct scheduler_snapshot snapshot;
	scheduler_snapshot(s->scheduler, &snapshot);
	struct metrics_rates rates = metrics_rates(s->metrics);
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	struct json_write w = {.out = out};
	json_write_open(&w, NULL, '{');
	json_write_string(&w, "version", s->version);
	json_write_string(&w, "model", s->model);
	json_write_string(&w, "backend", engine_backend_name(s->engine));
	json_write_string(&w, "io", engine_io_name(s->engine));
	char time_text[48];
	snprintf(
		time_text, sizeof time_text, "%lld.%03ld", (long long)now.tv_sec, now.tv_nsec / 1000000);
	json_write_raw(&w, "time", time_text, strlen(time_text));
	json_write_real(&w, "uptime_s", (double)(clock_ns() - s->started_ns) / 1e9);
	json_write_int(&w, "context", engine_context(s->engine));
	json_write_bool(&w, "healthy", snapshot.healthy);
	write_sessions(&w, &snapshot);
	json_write_int(&w, "connections", s->connections);
	json_write_open(&w, "rate", '{');
	json_write_real(&w, "prefill_tok_s", rates.prefill_tok_s);
	json_write_real(&w, "decode_tok_s", rates.decode_tok_s);
	json_write_real(&w, "read_bytes_s", rates.read_bytes_s);
	json_write_close(&w, '}');
	write_totals(&w, s->metrics, &cache.stats);
	write_drafts(&w, &snapshot.drafts);
	write_cache(&w, &cache, places);
	write_stages(&w, s->engine);
	json_write_open(&w, "store", '{');
	json_write_int(&w, "bytes", (int64_t)snapshot.store.bytes);
	json_write_int(&w, "files", (int64_t)snapshot.store.files);
	json_write_int(&w, "tokens_read", (int64_t)snapshot.store.tokens_read);
	json_write_close(&w, '}');
	write_memory(&w, engine_sizes(s->engine));
	json_write_close(&w, '}');
	free(places);
}

void live_gauges(const struct live_source *s, struct metrics_gauges *g)
{
	struct engine_cache cache = {0};
	struct scheduler_snapshot snapshot;
	engine_cache_snapshot(s->engine, &cache, NULL);
	scheduler_snapshot(s->scheduler, &snapshot);
	struct engine_sizes sizes = engine_sizes(s->engine);
	*g = (struct metrics_gauges){.sessions = snapshot.n_sessions,
		.active = snapshot.active,
		.waiting = snapshot.waiting,
		.preempted = snapshot.preempted,
		.preempted_bytes = snapshot.preempted_bytes,
		.preempted_bytes_limit = snapshot.preempted_bytes_limit,
		.connections = s->connections,
		.hit_vram = cache.stats.hit_vram,
		.hit_ram = cache.stats.hit_ram,
		.miss = cache.stats.miss,
		.bytes_read = cache.stats.bytes_read,
		.prefetch_useful = cache.stats.prefetch_useful,
		.prefetch_wasted = cache.stats.prefetch_wasted,
		.wait_ns = cache.stats.wait_ns,
		.wait_draft_ns = cache.stats.wait_draft_ns,
		.checked = cache.stats.checked,
		.reread = cache.stats.reread,
		.wrong = cache.stats.wrong,
		.store_bytes = snapshot.store.bytes,
		.store_tokens = snapshot.store.tokens_read,
		.drafts = snapshot.drafts,
		.cache_bytes = {cache.tier_bytes[0], cache.tier_bytes[1]},
		.ram_refused_bytes = cache.stats.ram_refused_bytes,
		.resident_bytes = sizes.resident_bytes,
		.kv_bytes = sizes.kv_bytes,
		.uptime_s = (double)(clock_ns() - s->started_ns) / 1e9,
		.version = s->version,
		.model = s->model,
		.backend = engine_backend_name(s->engine)};
}
