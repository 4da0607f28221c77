/* SPDX-License-Identifier: MIT */
/* Counters, histograms, and their text. */
#include "src/serve/metrics.h"

#include "src/base/mem.h"
#include "src/base/num.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define N_SAMPLES 9 /* ticks that the rates look back */

static const double bounds[] = {
	0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600};
enum { N_BOUNDS = sizeof bounds / sizeof *bounds };

struct histogram {
	uint64_t counts[N_BOUNDS + 1]; /* the last: longer than all bounds */
	uint64_t sum_ns;
};

struct response {
	const char *route;
	unsigned status;
	uint64_t n;
};

struct sample {
	uint64_t at_ns, prefill, decode, bytes;
};

struct metrics {
	atomic_uint_fast64_t counters[METRICS_N_COUNTERS];
	pthread_mutex_t lock; /* guards what follows; no other lock is taken under it */
	struct histogram histograms[METRICS_N_HISTOGRAMS];
	struct response *responses; /* [n_responses] */
	size_t n_responses;
	struct sample samples[N_SAMPLES]; /* a ring */
	unsigned n_samples;               /* ever taken */
};

static const struct {
	const char *name, *help;
} counter_texts[METRICS_N_COUNTERS] = {
	[METRICS_PROMPT_TOKENS] = {"prompt_tokens", "Tokens of the prompts of all answers begun"},
	[METRICS_CACHED_TOKENS] = {"cached_tokens", "Prompt tokens that were found computed"},
	[METRICS_PREFILL_TOKENS] = {"prefill_tokens", "Prompt tokens computed"},
	[METRICS_NEW_TOKENS] = {"generated_tokens", "Tokens generated"},
	[METRICS_ANSWERS] = {"answers", "Answers finished"},
	[METRICS_CANCELLED] = {"answers_cancelled", "Answers whose client left"},
	[METRICS_FAILED] = {"answers_failed", "Answers ended by an error"},
	[METRICS_REFUSED] = {"answers_refused",
		"Answers refused because the queue or their client's share of it was full"},
	[METRICS_STEPS] = {"steps", "Steps of the model"},
	[METRICS_ROWS] = {"step_rows", "Rows of all steps"},
	[METRICS_PREFILL_NS] = {"prefill_seconds", "Time in steps that read prompts"},
	[METRICS_DECODE_NS] = {"decode_seconds", "Time in steps that write answers"},
	[METRICS_STEP_CPU_NS] = {"step_cpu_seconds",
		"Processor time of the compute thread in steps of the model"},
	[METRICS_HOST_CPU_NS] = {"host_cpu_seconds",
		"Processor time of the compute thread between steps: masks, choosing tokens, their texts"},
	[METRICS_REPLAYED] = {"replayed_turns", "Assistant turns whose own tokens were used again"},
	[METRICS_CUT_CONNECTIONS] = {"connections_cut", "Connections ended for being too slow"},
	[METRICS_PREEMPTED] = {"answers_preempted", "Times an answer was paused for another client"},
	[METRICS_NOT_FINITE] = {"answers_not_finite", "Answers ended by logits that are not finite"},
};

static const struct {
	const char *name, *help;
} histogram_texts[METRICS_N_HISTOGRAMS] = {
	[METRICS_FIRST_TOKEN] = {"first_token_seconds",
		"Time from a request to the first token of its answer"},
	[METRICS_DURATION] = {"answer_seconds", "Time from a request to the end of its answer"},
	[METRICS_QUEUED] = {"queue_seconds", "Time from a request to a session"},
};

struct metrics *metrics_new(void)
{
	struct metrics *m = NEW(struct metrics);
	pthread_mutex_init(&m->lock, NULL);
	return m;
}

void metrics_free(struct metrics *m)
{
	if (!m)
		return;
	pthread_mutex_destroy(&m->lock);
	free(m->responses);
	free(m);
}

void metrics_add(struct metrics *m, enum metrics_counter c, uint64_t n)
{
	atomic_fetch_add_explicit(&m->counters[c], n, memory_order_relaxed);
}

uint64_t metrics_get(const struct metrics *m, enum metrics_counter c)
{
	return atomic_load_explicit(&m->counters[c], memory_order_relaxed);
}

void metrics_observe(struct metrics *m, enum metrics_histogram h, uint64_t ns)
{
	size_t i = 0;
	while (i < N_BOUNDS && (double)ns > bounds[i] * 1e9)
		i++;
	pthread_mutex_lock(&m->lock);
	m->histograms[h].counts[i]++;
	m->histograms[h].sum_ns += ns;
	pthread_mutex_unlock(&m->lock);
}

void metrics_response(struct metrics *m, const char *route, unsigned status)
{
	pthread_mutex_lock(&m->lock);
	size_t i = 0;
	while (i < m->n_responses &&
		   (m->responses[i].status != status || strcmp(m->responses[i].route, route)))
		i++;
	if (i == m->n_responses) {
		struct mem_scope scope; /* without memory a new status is not counted */
		mem_scope_begin(&scope);
		bool good = mem_grow_array(&m->responses, i + 1, sizeof *m->responses);
		mem_scope_end(&scope);
		if (!good) {
			pthread_mutex_unlock(&m->lock);
			return;
		}
		m->n_responses++;
		m->responses[i] = (struct response){.route = route, .status = status};
	}
	m->responses[i].n++;
	pthread_mutex_unlock(&m->lock);
}

void metrics_tick(struct metrics *m, uint64_t now_ns, uint64_t bytes_read)
{
	struct sample s = {.at_ns = now_ns,
		.prefill = metrics_get(m, METRICS_PREFILL_TOKENS),
		.decode = metrics_get(m, METRICS_NEW_TOKENS),
		.bytes = bytes_read};
	pthread_mutex_lock(&m->lock);
	m->samples[m->n_samples++ % N_SAMPLES] = s;
	pthread_mutex_unlock(&m->lock);
}

struct metrics_rates metrics_rates(struct metrics *m)
{
	struct metrics_rates r = {0};
	pthread_mutex_lock(&m->lock);
	if (m->n_samples > 1) {
		struct sample last = m->samples[(m->n_samples - 1) % N_SAMPLES];
		struct sample first = m->samples[m->n_samples < N_SAMPLES ? 0 : m->n_samples % N_SAMPLES];
		double s = (double)(last.at_ns - first.at_ns) / 1e9;
		if (s > 0)
			r = (struct metrics_rates){(double)(last.prefill - first.prefill) / s,
				(double)(last.decode - first.decode) / s, (double)(last.bytes - first.bytes) / s};
	}
	pthread_mutex_unlock(&m->lock);
	return r;
}

/* ---- text ---- */

static void put_head(
	struct buf *out, const char *name, const char *unit, const char *help, const char *type)
{
	buf_printf(out, "# HELP glmstream_%s%s %s\n# TYPE glmstream_%s%s %s\n", name, unit, help, name,
		unit, type);
}

static void put_label(struct buf *out, const char *s)
{
	for (; s && *s; s++) {
		if (*s == '"' || *s == '\\')
			buf_putc(out, '\\');
		if (*s == '\n')
			buf_puts(out, "\\n");
		else
			buf_putc(out, *s);
	}
}

static void put_histogram(
	struct buf *out, const char *name, const char *help, const struct histogram *h)
{
	uint64_t sum = 0;
	put_head(out, name, "", help, "histogram");
	for (size_t i = 0; i < N_BOUNDS; i++) {
		sum += h->counts[i];
		buf_printf(
			out, "glmstream_%s_bucket{le=\"%g\"} %llu\n", name, bounds[i], (unsigned long long)sum);
	}
	sum += h->counts[N_BOUNDS];
	buf_printf(out,
		"glmstream_%s_bucket{le=\"+Inf\"} %llu\nglmstream_%s_sum %.6f\nglmstream_%s_count %llu\n",
		name, (unsigned long long)sum, name, (double)h->sum_ns / 1e9, name,
		(unsigned long long)sum);
}

static void put_gauge(struct buf *out, const char *name, const char *help, double value)
{
	put_head(out, name, "", help, "gauge");
	buf_printf(out, "glmstream_%s %.10g\n", name, value);
}

static void put_counter(struct buf *out, const char *name, const char *help, uint64_t value)
{
	put_head(out, name, "_total", help, "counter");
	buf_printf(out, "glmstream_%s_total %llu\n", name, (unsigned long long)value);
}

static void put_clients(struct buf *out, const struct client_stats *s)
{
	static const char *const names[CLIENT_N_HOLDINGS] = {[CLIENT_CONNECTIONS] = "connections",
		[CLIENT_PLACES] = "places",
		[CLIENT_MEMORY] = "memory",
		[CLIENT_BODIES] = "bodies"};
	put_gauge(
		out, "clients", "Clients (addresses or keys) with a connection or a request", s->clients);
	put_head(out, "client_refused", "_total",
		"What was refused because its client held its share of it", "counter");
	for (int i = 0; i < CLIENT_N_HOLDINGS; i++)
		if (names[i])
			buf_printf(out, "glmstream_client_refused_total{what=\"%s\"} %llu\n", names[i],
				(unsigned long long)s->refused[i]);
}

static void put_drafts(struct buf *out, const struct draft_stats *d)
{
	put_counter(out, "draft_steps", "Steps of answers that could have drafts", d->steps);
	put_counter(out, "draft_rows", "Rows that these computed", d->rows);
	put_head(out, "drafts", "_total", "Drafts of tokens that were verified", "counter");
	for (uint32_t i = 0; i < DRAFT_MAX; i++)
		buf_printf(out, "glmstream_drafts_total{position=\"%u\"} %llu\n", i + 1,
			(unsigned long long)d->tried[i]);
	put_head(out, "drafts_accepted", "_total", "Verified drafts that were right", "counter");
	for (uint32_t i = 0; i < DRAFT_MAX; i++)
		buf_printf(out, "glmstream_drafts_accepted_total{position=\"%u\"} %llu\n", i + 1,
			(unsigned long long)d->accepted[i]);
	put_gauge(out, "draft_saved_seconds", "Time gained by drafts, by the measured costs of steps",
		d->saved_ns / 1e9);
}

static void put_experts(struct buf *out, const struct metrics_gauges *g)
{
	const struct {
		const char *tier;
		uint64_t n;
	} tiers[] = {{"cache", g->hit_vram}, {"ram", g->hit_ram}, {"disk", g->miss}};
	uint64_t all = g->hit_vram + g->hit_ram + g->miss;
	put_head(out, "experts", "_total", "Experts asked for, by where they stood", "counter");
	for (size_t i = 0; i < ARRAY_LEN(tiers); i++)
		buf_printf(out, "glmstream_experts_total{tier=\"%s\"} %llu\n", tiers[i].tier,
			(unsigned long long)tiers[i].n);
	put_head(out, "expert_ratio", "",
		"Part of the experts asked for that stood in a tier, since the start", "gauge");
	for (size_t i = 0; i < ARRAY_LEN(tiers); i++)
		buf_printf(out, "glmstream_expert_ratio{tier=\"%s\"} %.6f\n", tiers[i].tier,
			all ? (double)tiers[i].n / (double)all : 0.0);
	put_counter(out, "read_bytes", "Bytes of experts read from storage", g->bytes_read);
	put_counter(out, "prefetch_useful", "Experts read ahead and then used", g->prefetch_useful);
	put_counter(out, "prefetch_wasted", "Experts read ahead and never used", g->prefetch_wasted);
	put_head(
		out, "expert_wait_seconds", "_total", "Time the computation waited for experts", "counter");
	buf_printf(out, "glmstream_expert_wait_seconds_total %.6f\n", (double)g->wait_ns / 1e9);
	put_head(out, "expert_wait_drafts_seconds", "_total", "Of it for experts that only drafts need",
		"counter");
	buf_printf(
		out, "glmstream_expert_wait_drafts_seconds_total %.6f\n", (double)g->wait_draft_ns / 1e9);
	put_counter(out, "experts_verified", "Experts compared with check values", g->checked);
	put_counter(out, "experts_reread", "Experts that were read wrong, and read again", g->reread);
	put_counter(out, "experts_wrong", "Experts that were wrong again", g->wrong);
	put_drafts(out, &g->drafts);
	put_counter(out, "store_tokens", "Prompt tokens whose cache rows came from the session folder",
		g->store_tokens);
	put_gauge(out, "kept_responses",
		"Responses kept in memory for previous_response_id, at most 1000",
		(double)g->kept_responses);
	put_gauge(out, "kept_response_bytes", "Memory that they take", (double)g->kept_bytes);
	put_gauge(out, "kept_response_bytes_limit", "The most that they take, half of --remember-gb",
		(double)g->kept_bytes_limit);
	put_counter(out, "kept_responses_forgotten", "Responses forgotten to keep these bounds",
		g->kept_forgotten);
	put_gauge(out, "remembered_answer_bytes",
		"Memory of answers' tokens, for clients that send these back", (double)g->turn_bytes);
	put_gauge(out, "remembered_answer_bytes_limit",
		"The most that they take, half of --remember-gb", (double)g->turn_bytes_limit);
	put_gauge(out, "request_bytes",
		"Memory that requests hold beside their bodies, and responses until they were taken",
		(double)g->request_bytes);
	put_gauge(out, "request_bytes_peak", "The most so far", (double)g->request_bytes_peak);
	put_gauge(out, "request_bytes_limit", "What they may hold; one request half of it",
		(double)g->request_bytes_limit);
	put_counter(out, "requests_over_budget",
		"Requests refused because of this limit, not of their client's share",
		g->requests_over_budget);
	put_gauge(out, "store_bytes", "Size of the session folder", (double)g->store_bytes);
	put_gauge(out, "cache_bytes", "First tier of the expert cache", (double)g->cache_bytes[0]);
	put_gauge(out, "cache_ram_bytes", "Second tier of the expert cache", (double)g->cache_bytes[1]);
	put_gauge(out, "ram_refused_bytes", "Bytes of the second tier that could not be pinned",
		(double)g->ram_refused_bytes);
}

void metrics_text(struct metrics *m, const struct metrics_gauges *g, struct buf *out)
{
	put_head(out, "info", "", "What runs here", "gauge");
	buf_puts(out, "glmstream_info{version=\"");
	put_label(out, g->version);
	buf_puts(out, "\",model=\"");
	put_label(out, g->model);
	buf_puts(out, "\",backend=\"");
	put_label(out, g->backend);
	buf_puts(out, "\"} 1\n");
	put_gauge(out, "uptime_seconds", "Time since the start", g->uptime_s);
	put_gauge(out, "sessions", "Timelines that exist", g->sessions);
	put_gauge(out, "sessions_active", "Timelines that compute", g->active);
	put_gauge(out, "queue_depth", "Answers that wait for a session", g->waiting);
	put_gauge(out, "preempted_answers", "Answers paused for another client; in queue_depth too",
		g->preempted);
	put_gauge(out, "preempted_bytes", "Memory of paused answers", (double)g->preempted_bytes);
	put_gauge(out, "preempted_bytes_limit", "The most that they take; 0: answers are not paused",
		(double)g->preempted_bytes_limit);
	put_gauge(out, "connections", "Open connections", g->connections);
	put_gauge(out, "resident_bytes", "Weights that every token needs", (double)g->resident_bytes);
	put_gauge(out, "kv_bytes", "Caches of all sessions", (double)g->kv_bytes);
	struct metrics_rates r = metrics_rates(m);
	put_gauge(out, "prefill_tokens_per_second", "Over the last two seconds", r.prefill_tok_s);
	put_gauge(out, "decode_tokens_per_second", "Over the last two seconds", r.decode_tok_s);
	put_gauge(out, "read_bytes_per_second", "Over the last two seconds", r.read_bytes_s);
	for (int i = 0; i < METRICS_N_COUNTERS; i++) {
		uint64_t v = metrics_get(m, (enum metrics_counter)i);
		bool seconds = i == METRICS_PREFILL_NS || i == METRICS_DECODE_NS ||
					   i == METRICS_STEP_CPU_NS || i == METRICS_HOST_CPU_NS;
		if (!seconds) {
			put_counter(out, counter_texts[i].name, counter_texts[i].help, v);
			continue;
		}
		put_head(out, counter_texts[i].name, "_total", counter_texts[i].help, "counter");
		buf_printf(out, "glmstream_%s_total %.6f\n", counter_texts[i].name, (double)v / 1e9);
	}
	put_clients(out, &g->clients);
	put_experts(out, g);
	pthread_mutex_lock(&m->lock);
	put_head(out, "responses", "_total", "Responses by path and status", "counter");
	for (size_t i = 0; i < m->n_responses; i++)
		buf_printf(out, "glmstream_responses_total{path=\"%s\",status=\"%u\"} %llu\n",
			m->responses[i].route, m->responses[i].status, (unsigned long long)m->responses[i].n);
	for (int i = 0; i < METRICS_N_HISTOGRAMS; i++)
		put_histogram(out, histogram_texts[i].name, histogram_texts[i].help, &m->histograms[i]);
	pthread_mutex_unlock(&m->lock);
}
