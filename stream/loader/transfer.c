/* SPDX-License-Identifier: MIT */
/* What both transfers share: reaping reads, check values, and the traffic of drives and link. */
#include "stream/loader/transfer.h"

#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/num.h"

#include <stdlib.h>

#define REAP_MAX 64

static void set_disk_busy(struct transfer *t)
{
	busy_clock_set(&t->traffic.disk, reader_pending(t->config.reader) > 0);
}

int transfer_reap(struct transfer *t, unsigned min, int timeout_ms)
{
	struct reader_completion done[REAP_MAX];
	int n = reader_reap(t->config.reader, done, min, REAP_MAX, timeout_ms);
	for (int i = 0; i < n; i++)
		t->ops->read_done(t, &done[i]);
	set_disk_busy(t);
	return n;
}

void transfer_flush_reads(struct transfer *t)
{
	reader_flush(t->config.reader);
	set_disk_busy(t);
}

struct extent_plan transfer_plan(const struct transfer *t, const struct transfer_request *q)
{
	struct extent_plan p;
	if (extent_plan(t->config.table, (uint32_t)q->layer, (uint32_t)q->expert, &p))
		bug("no extents for expert %d of layer %d", q->expert, q->layer);
	return p;
}

static struct err no_memory = {
	.code = ERR_MEMORY, .text = "it has failed, and there is no memory for the reason"};

void transfer_keep_failure(struct err **failure, const struct err *e)
{
	if (*failure)
		return;
	*failure = mem_try_new(1, sizeof **failure);
	if (*failure)
		**failure = *e;
	else
		*failure = &no_memory;
}

struct load_check *transfer_acquire_check(struct transfer *t, struct load_check_pool *p,
	const struct transfer_request *q, struct err **failure)
{
	const struct extent_plan plan = transfer_plan(t, q);
	struct load_check *check =
		load_check_acquire(p, t->config.check_pool, t->config.check, &plan, q->layer, q->expert);
	if (!check) {
		struct err why = {0};
		err_set(&why, ERR_MEMORY, "no memory to compare its bytes");
		transfer_keep_failure(failure, &why);
	}
	return check;
}

bool transfer_judge_load(struct transfer *t, const struct transfer_request *q,
	const struct load_check *check, bool reread, struct err **failure)
{
	struct expert_check *c = t->config.check;
	const struct checked_span *wrong = load_check_wrong(check);
	c->figures.checked += !reread;
	if (!wrong) {
		expert_check_passed(c, q->layer, q->expert);
		return true;
	}
	const struct extent_plan p = transfer_plan(t, q);
	if (!reread) {
		for (unsigned i = 0; i < p.n_reads; i++)
			reader_drop_cached(
				t->config.reader, p.reads[i].file, p.reads[i].offset, p.reads[i].bytes);
		c->figures.reread++;
		return false;
	}
	c->figures.wrong++;
	struct err why = {0};
	expert_check_err(
		c, &p, q->layer, q->expert, (unsigned)(wrong - check->spans), wrong->found, &why);
	transfer_keep_failure(failure, &why);
	return true;
}

void transfer_drop_failure(struct err **failure)
{
	if (*failure != &no_memory)
		free(*failure);
	*failure = NULL;
}

struct transfer_traffic transfer_traffic_now(const struct transfer *t)
{
	struct transfer_traffic now = t->traffic;
	now.checks = t->config.check->figures;
	now.setting = reader_setting(t->config.reader);
	struct busy_clock *clocks[] = {&now.disk, &now.in, &now.out};
	uint64_t ns = clock_ns();
	for (size_t i = 0; i < ARRAY_LEN(clocks); i++)
		clocks[i]->ns += clocks[i]->busy ? ns - clocks[i]->since_ns : 0;
	return now;
}
