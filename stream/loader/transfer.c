/* SPDX-License-Identifier: MIT */
/* What both transfers share: reaping reads and the traffic of drives and link. */
#include "stream/loader/transfer.h"

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

void transfer_prepare_reread(struct transfer *t, const struct extent_plan *plan)
{
	for (unsigned i = 0; i < plan->n_reads; i++)
		reader_drop_cached(
			t->config.reader, plan->reads[i].file, plan->reads[i].offset, plan->reads[i].bytes);
	t->config.check->figures.reread++;
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
