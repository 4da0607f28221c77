/* SPDX-License-Identifier: MIT */
/* The commands of rank 0. */
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/engine/ranks/engine_ranks.h"

#include <stdlib.h>
#include <string.h>

#define STEP_ROW_BYTES (3 * sizeof(int32_t) + 1) /* at most: token, position, base, draft */

_Static_assert(sizeof(struct rank_answer) <= sizeof(struct rank_command),
	"an answer's head takes no more than a command's");

int engine_ranks_reserve(struct engine *g, struct err *e)
{
	struct engine_ranks *k = g->ranks;
	const size_t experts = (size_t)g->cache.n_layers * g->cache.n_experts;
	const size_t data[] = {g->chunk * STEP_ROW_BYTES, engine_most_row_bytes(g),
		experts * sizeof(struct profile_key), experts * sizeof(double), sizeof(struct rank_stats),
		sizeof(struct err)};
	for (size_t i = 0; i < ARRAY_LEN(data); i++)
		k->capacity = MAX(k->capacity, data[i] + sizeof(struct rank_command));
	k->message = mem_try_new(k->capacity, 1);
	return k->message ? 0 : err_set(e, ERR_MEMORY, "no memory for the messages of ranks");
}

/* The message: head, then `bytes` of room. */
static uint8_t *begin_message(struct engine_ranks *k, const struct rank_command *c, size_t bytes)
{
	if (sizeof *c + bytes > k->capacity)
		bug("a message of %zu bytes to other ranks, at most %zu", bytes, k->capacity);
	memcpy(k->message, c, sizeof *c);
	return k->message + sizeof *c;
}

static int send_to_all(struct engine_ranks *k, size_t bytes, struct err *e)
{
	int rc = 0;
	for (uint32_t i = 1; i < ranks_count(k->ranks) && !rc; i++)
		rc = ranks_send(k->ranks, i, k->message, sizeof(struct rank_command) + bytes, e);
	return rc;
}

static size_t step_bytes(const struct forward_rows *rows)
{
	return rows->n * (3 * sizeof(int32_t) + (rows->draft != NULL));
}

/* What follows the command. */
static void write_step(const struct forward_rows *rows, uint8_t *data)
{
	const size_t numbers = rows->n * sizeof(int32_t);
	memcpy(data, rows->tokens, numbers);
	memcpy(data + numbers, rows->pos, numbers);
	memcpy(data + 2 * numbers, rows->base, numbers);
	for (size_t i = 0; rows->draft && i < rows->n; i++)
		data[3 * numbers + i] = rows->draft[i];
}

static struct rank_command step_command(const struct forward_rows *rows)
{
	if (rows->taps)
		bug("taps of layers of other ranks");
	return (struct rank_command){.code = RANK_STEP,
		.n = rows->n,
		.draft = rows->draft != NULL,
		.long_prompt = rows->long_prompt,
		.answers = rows->answers};
}

int engine_ranks_step(struct engine_ranks *k, const struct forward_rows *rows, struct err *e)
{
	const struct rank_command c = step_command(rows);
	if (ranks_check(k->ranks, e))
		return ERR_RUN;
	write_step(rows, begin_message(k, &c, step_bytes(rows)));
	return send_to_all(k, step_bytes(rows), e);
}

/* ---- steps in flight ---- */

struct rank_posted {
	uint8_t *message;
	size_t capacity;
	struct ranks_posted *to[RANKS_MAX]; /* under way; NULL: not */
};

static bool posted_reserve(struct rank_posted *p, size_t bytes)
{
	if (bytes <= p->capacity)
		return true;
	free(p->message);
	p->message = mem_try_new(bytes, 1);
	p->capacity = p->message ? bytes : 0;
	return p->message;
}

int engine_ranks_post_step(struct engine_ranks *k, const struct forward_rows *rows,
	struct rank_posted **sent, struct err *e)
{
	struct rank_command c = step_command(rows);
	const size_t bytes = sizeof c + step_bytes(rows);
	struct rank_posted *p = *sent;
	int rc = ranks_check(k->ranks, e);
	if (rc)
		return rc;
	if (!p)
		p = *sent = mem_try_new(1, sizeof *p);
	if (!p || !posted_reserve(p, bytes))
		return err_set(e, ERR_MEMORY, "no memory for the command of %u rows", rows->n);
	c.in_flight = true;
	memcpy(p->message, &c, sizeof c);
	write_step(rows, p->message + sizeof c);
	for (uint32_t i = 1; i < ranks_count(k->ranks) && !rc; i++)
		rc = ranks_post(k->ranks, i, p->message, bytes, &p->to[i], e);
	return rc;
}

int engine_ranks_posted_end(struct engine_ranks *k, struct rank_posted *sent, struct err *e)
{
	int rc = 0;
	for (uint32_t i = 1; i < ranks_count(k->ranks) && !rc; i++) {
		if (!sent->to[i])
			continue;
		rc = ranks_posted_wait(k->ranks, sent->to[i], e);
		sent->to[i] = NULL;
	}
	return rc;
}

void engine_ranks_posted_free(struct engine_ranks *k, struct rank_posted *sent)
{
	if (!k || !sent || ranks_check(k->ranks, NULL))
		return;
	free(sent->message);
	free(sent);
}

/* ---- rows of caches ---- */

/* The rank that has a layer; 0: this one. */
static uint32_t rank_of_layer(const struct engine_ranks *k, uint32_t layer)
{
	for (uint32_t i = 1; i < ranks_count(k->ranks); i++)
		if (layer >= k->figures[i].first_layer && layer < k->figures[i].end_layer)
			return i;
	return 0;
}

bool engine_ranks_has(const struct engine_ranks *k, uint32_t layer)
{
	return k->ready && rank_of_layer(k, layer);
}

/* An answer of `bytes`; what the rank failed with instead. */
static int receive_answer(
	struct engine_ranks *k, uint32_t rank, void *data, size_t bytes, struct err *e)
{
	struct rank_answer head;
	size_t got;
	if (ranks_check(k->ranks, e)) /* MPI may still use the message */
		return ERR_RUN;
	int rc = ranks_receive(k->ranks, rank, k->message, k->capacity, &got, e);
	if (rc)
		return rc;
	memcpy(&head, k->message, sizeof head);
	if (got == sizeof head + sizeof(struct err) && head.code) {
		struct err why = ranks_received_error(k->message + sizeof head);
		err_prefix(&why, "%s", ranks_name(k->ranks, rank));
		if (e)
			*e = why;
		return head.code;
	}
	if (got != sizeof head + bytes)
		return err_set(e, ERR_RUN, "%s answered with %zu bytes, expected %zu",
			ranks_name(k->ranks, rank), got, sizeof head + bytes);
	memcpy(data, k->message + sizeof head, bytes);
	return 0;
}

int engine_ranks_read_rows(struct engine_ranks *k, const struct rank_command *which,
	size_t row_bytes, void *data, struct err *e)
{
	const uint32_t rank = rank_of_layer(k, which->layer);
	struct rank_command c = *which;
	c.code = RANK_READ_ROWS;
	if (ranks_check(k->ranks, e))
		return ERR_RUN;
	begin_message(k, &c, 0);
	int rc = ranks_send(k->ranks, rank, k->message, sizeof c, e);
	return rc ? rc : receive_answer(k, rank, data, which->n * row_bytes, e);
}

int engine_ranks_write_rows(struct engine_ranks *k, const struct rank_command *which,
	size_t row_bytes, const void *data, struct err *e)
{
	struct rank_command c = *which;
	const size_t bytes = which->n * row_bytes;
	c.code = RANK_WRITE_ROWS;
	if (ranks_check(k->ranks, e))
		return ERR_RUN;
	memcpy(begin_message(k, &c, bytes), data, bytes);
	return ranks_send(k->ranks, rank_of_layer(k, which->layer), k->message, sizeof c + bytes, e);
}

/* ---- caches of experts ---- */

void engine_ranks_command(struct engine_ranks *k, const struct rank_command *c)
{
	struct err ignored;
	if (!k->ready || ranks_check(k->ranks, NULL))
		return;
	begin_message(k, c, 0);
	send_to_all(k, 0, &ignored);
}

void engine_ranks_warm(struct engine_ranks *k, const struct profile_key *keys, size_t n)
{
	struct err ignored;
	if (!n)
		return;
	if (!k->ready) {
		k->warm = mem_grow(k->warm, n, sizeof *keys);
		memcpy(k->warm, keys, n * sizeof *keys);
		k->n_warm = n;
		return;
	}
	if (ranks_check(k->ranks, NULL))
		return;
	const struct rank_command c = {.code = RANK_WARM, .n = (uint32_t)n};
	memcpy(begin_message(k, &c, n * sizeof *keys), keys, n * sizeof *keys);
	send_to_all(k, n * sizeof *keys, &ignored);
}

static uint64_t add_stats(
	struct engine_ranks *k, struct expert_stats *experts, struct engine_stage_usage *stages)
{
	struct rank_stats s;
	struct err ignored;
	uint64_t computing_ns = 0;
	engine_ranks_command(k, &(struct rank_command){.code = RANK_STATS});
	for (uint32_t i = 1; k->ready && i < ranks_count(k->ranks); i++) {
		const uint32_t *first = &k->cuts.first_stage[rank_place(k->ranks, i)],
					   n = first[1] - *first;
		if (receive_answer(k, i, &s, rank_stats_bytes(n), &ignored))
			continue; /* the answers of the others must not stay in the queue */
		if (experts)
			engine_add_expert_stats(experts, &s.experts);
		if (stages)
			memcpy(stages + *first, s.stages, n * sizeof *stages);
		computing_ns += s.computing_ns;
	}
	return computing_ns;
}

void engine_ranks_stats(
	struct engine_ranks *k, struct expert_stats *experts, struct engine_stage_usage *stages)
{
	add_stats(k, experts, stages);
}

uint64_t engine_ranks_computing_ns(struct engine_ranks *k)
{
	return add_stats(k, NULL, NULL);
}

/* Places of a layer whose rank has not sent a status yet. */
static uint8_t first_place(const struct engine *g, uint32_t layer, bool streaming)
{
	if (!config_is_moe(&g->config, layer))
		return ENGINE_NO_EXPERT;
	return streaming ? ENGINE_ON_DISK : ENGINE_IN_VRAM;
}

void engine_ranks_snapshot(const struct engine *g, struct expert_stats *experts, uint8_t *places)
{
	const struct engine_ranks *k = g->ranks;
	const size_t row = g->cache.n_experts,
				 bytes = sizeof(struct rank_status) + g->cache.n_layers * row;
	struct rank_status *s = k->ready ? mem_try_new(bytes, 1) : NULL;
	for (uint32_t i = 1; s && i < ranks_count(k->ranks); i++) {
		const struct rank_figures *f = &k->figures[i];
		const bool there = ranks_status(k->ranks, i, s, bytes);
		if (there)
			engine_add_expert_stats(experts, &s->experts);
		for (uint32_t l = f->first_layer; places && l < f->end_layer; l++) {
			if (there)
				memcpy(places + l * row, s->places + l * row, row);
			else
				memset(places + l * row, first_place(g, l, f->streaming), row);
		}
	}
	free(s);
}

/* ---- the end ---- */

void engine_ranks_stop(struct engine_ranks *k)
{
	engine_ranks_command(k, &(struct rank_command){.code = RANK_STOP});
}

bool engine_ranks_take_counts(struct engine *g)
{
	struct engine_ranks *k = g->ranks;
	struct err ignored;
	bool all = true;
	if (!k->ready)
		return true;
	const size_t n = (size_t)g->cache.n_layers * g->cache.n_experts;
	double *counts = k->counts ? NEW_ARRAY(double, n) : NULL;
	for (uint32_t i = 1; counts && i < ranks_count(k->ranks); i++) {
		if (receive_answer(k, i, counts, n * sizeof *counts, &ignored)) {
			all = false;
			continue;
		}
		for (size_t j = 0; g->profile.count && j < n; j++)
			g->profile.count[j] += counts[j];
	}
	free(counts);
	k->ready = false;
	if (!ranks_check(k->ranks, NULL))
		ranks_set_orderly(k->ranks);
	return all;
}
