/* SPDX-License-Identifier: MIT */
#include "src/engine/ranks/rank_worker.h"

#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/engine/ranks/engine_ranks.h"
#include "src/engine/ranks/rank_link.h"
#include "src/forward/moe/moe.h"

#include <stdlib.h>
#include <string.h>

static int unexpected(const struct rank_command *c, struct err *e)
{
	return err_set(
		e, ERR_RUN, "rank 0 sent command %u of %u rows, which makes no sense here", c->code, c->n);
}

/* Are there cache rows from first to first + n - 1? */
static bool rows_exist(const struct engine *g, uint32_t first, uint32_t n)
{
	return (uint64_t)first + n <= g->stages->kv.capacity;
}

/* data: `bytes` behind the command, and so in all of these. */
static int worker_step(struct engine *g, const struct rank_command *c, const uint8_t *data,
	size_t bytes, struct err *e)
{
	const size_t numbers = c->n * sizeof(int32_t);
	if (!c->n || c->n > g->chunk || (c->answers && c->n > ANSWER_ROWS) ||
		bytes != 3 * numbers + (c->draft ? c->n : 0))
		return unexpected(c, e);
	bool draft[c->n];
	for (uint32_t i = 0; i < c->n && c->draft; i++)
		draft[i] = data[3 * numbers + i];
	const struct forward_rows rows = {.n = c->n,
		.tokens = (const int32_t *)(const void *)data,
		.pos = (const int32_t *)(const void *)(data + numbers),
		.base = (const int32_t *)(const void *)(data + 2 * numbers),
		.draft = c->draft ? draft : NULL,
		.long_prompt = c->long_prompt,
		.answers = c->answers};
	for (uint32_t i = 0; i < rows.n; i++)
		if (rows.tokens[i] < 0 || (uint32_t)rows.tokens[i] >= g->config.n_vocab ||
			rows.pos[i] < 0 || rows.base[i] < 0 ||
			!rows_exist(g, (uint32_t)rows.base[i], (uint32_t)rows.pos[i] + 1))
			return unexpected(c, e);
	struct err why = {0};
	g->n_steps++;
	g->ranks->counts_time = c->in_flight;
	if (engine_forward(g, &rows, rows.n, &why) && !ranks_check(g->ranks->ranks, e))
		return rank_link_send_error(g->ranks->out, &why, rank_link_received_error(g->ranks->in), e);
	return ranks_check(g->ranks->ranks, e);
}

/* data [bytes], or the error. */
static int send_answer(struct engine_ranks *k, int rc, const struct err *why, const void *data,
	size_t bytes, struct err *e)
{
	const struct rank_answer head = {.code = rc};
	const void *body = rc ? (const void *)why : data;
	const size_t n = rc ? sizeof *why : bytes;
	if (sizeof head + n > k->capacity)
		bug("an answer of %zu bytes to rank 0, at most %zu", n, k->capacity);
	memcpy(k->message + sizeof head, body, n);
	memcpy(k->message, &head, sizeof head);
	return ranks_send(k->ranks, 0, k->message, sizeof head + n, e);
}

static int worker_rows(struct engine *g, const struct rank_command *c, const uint8_t *data,
	size_t bytes, struct err *e)
{
	const struct stage *first = g->stages;
	const bool mine =
		c->layer >= first->config.first_layer && c->layer < engine_last(g)->config.end_layer;
	const size_t row = mine ? engine_row_bytes(g, c->layer, c->is_index_key) : 0;
	const size_t all = c->n * row;
	struct err why = {0};
	int rc = 0;
	if (!row || all > engine_most_row_bytes(g) || !rows_exist(g, c->row, c->n) ||
		bytes != (c->code == RANK_WRITE_ROWS ? all : 0))
		return unexpected(c, e);
	if (c->code == RANK_WRITE_ROWS)
		return engine_write_rows(g, c->layer, c->is_index_key, c->row, c->n, data, e);
	uint8_t *rows = mem_try_new(MAX(all, 1u), 1);
	if (!rows)
		rc = err_set(&why, ERR_MEMORY, "no memory for %u cache rows", c->n);
	else
		rc = engine_read_rows(g, c->layer, c->is_index_key, c->row, c->n, rows, &why);
	rc = send_answer(g->ranks, rc, &why, rows, all, e);
	free(rows);
	return rc;
}

static int worker_stats(struct engine *g, struct err *e)
{
	struct rank_stats s = {
		.experts = engine_expert_stats(g), .computing_ns = g->ranks->computing_ns};
	engine_stages_here(g, s.stages);
	return send_answer(g->ranks, 0, NULL, &s, rank_stats_bytes(g->n_stages), e);
}

static int worker_execute(struct engine *g, const struct rank_command *c, const uint8_t *data,
	size_t bytes, struct err *e)
{
	switch (c->code) {
	case RANK_STEP:
		return worker_step(g, c, data, bytes, e);
	case RANK_READ_ROWS:
	case RANK_WRITE_ROWS:
		return worker_rows(g, c, data, bytes, e);
	case RANK_COPY_ROWS:
		if (!rows_exist(g, c->row, c->n) || !rows_exist(g, c->from, c->n))
			return unexpected(c, e);
		return engine_copy_rows(g, c->row, c->from, c->n, 0, e);
	case RANK_KEEP_ROWS:
		if ((uint64_t)c->row + c->n > g->chunk)
			return unexpected(c, e);
		engine_keep_rows(g, c->row, c->n);
		return 0;
	case RANK_STATS:
		return worker_stats(g, e);
	case RANK_MEASURE:
		engine_measure(g, c->on);
		return 0;
	case RANK_WARM:
		if (bytes != c->n * sizeof(struct profile_key))
			return unexpected(c, e);
		engine_cache_warm(g, (const struct profile_key *)(const void *)data, c->n);
		return 0;
	case RANK_POPULATE:
		engine_populate(g);
		return 0;
	default:
		return unexpected(c, e);
	}
}

/* For the thread of the heartbeats. */
static void fill_status(void *user, void *out)
{
	const struct engine *g = user;
	struct rank_status *s = out;
	struct engine_cache c;
	memset(s->places, 0, (size_t)g->cache.n_layers * g->cache.n_experts);
	engine_cache_snapshot(g, &c, s->places);
	s->experts = c.stats;
}

static int send_counts(struct engine *g, struct err *e)
{
	const size_t n = (size_t)g->cache.n_layers * g->cache.n_experts;
	stages_stop(g->stages, g->n_stages); /* sources record until then */
	return g->ranks->counts
			   ? send_answer(g->ranks, 0, NULL, g->profile.count, n * sizeof *g->profile.count, e)
			   : 0;
}

int engine_run_worker(struct engine *g, struct err *e)
{
	struct engine_ranks *k = g->ranks;
	uint8_t *message = mem_try_new(k->capacity, 1);
	struct rank_command c = {0};
	int rc = message ? 0 : err_set(e, ERR_MEMORY, "no memory for the commands of rank 0");
	if (!rc)
		ranks_publish(k->ranks,
			sizeof(struct rank_status) + (size_t)g->cache.n_layers * g->cache.n_experts,
			fill_status, g);
	while (!rc && c.code != RANK_STOP) {
		size_t got = 0;
		if ((rc = ranks_receive(k->ranks, 0, message, k->capacity, &got, e)))
			break;
		if (got < sizeof c) {
			rc = err_set(e, ERR_RUN, "rank 0 sent a command of %zu bytes", got);
			break;
		}
		memcpy(&c, message, sizeof c);
		if (c.code != RANK_STOP)
			rc = worker_execute(g, &c, message + sizeof c, got - sizeof c, e);
	}
	ranks_publish(k->ranks, 0, NULL, NULL);
	if (!rc)
		rc = send_counts(g, e);
	if (!rc)
		ranks_set_orderly(k->ranks);
	if (!ranks_check(k->ranks, NULL)) /* else MPI may still write to it */
		free(message);
	return rc;
}
