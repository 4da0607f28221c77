/* SPDX-License-Identifier: MIT */
/*
 * The experts of a layer are acquired in groups no larger than the source can pin; what is ready is
 * computed while the rest is read.
 *
 * The host waits for the device in three places only:
 * - for the expert ids, while the device has the shared expert to compute;
 * - for the fences of groups, when their pins are needed;
 * - for the input of experts that the processor computes, which comes with the ids.
 */
#include "src/forward/moe/moe.h"

#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/forward/ffn.h"
#include "src/forward/model.h"

#include <stdlib.h>
#include <string.h>

_Static_assert(PREFILL_ROWS <= ANSWER_ROWS && ANSWER_ROWS <= 64,
	"a bit of draft_rows for each row of EXPERT_DECODE");

#define GROUP_MIN 8 /* experts that fill a card together */

int moe_plan_init(struct moe_plan *p, const struct model_config *c, uint32_t max_rows)
{
	*p = (struct moe_plan){
		.ids = mem_try_new((size_t)max_rows * c->n_used, sizeof(int32_t)),
		.first = NEW_ARRAY(int32_t, c->n_experts + 1),
		.token_slots = mem_try_new((size_t)max_rows * c->n_used, sizeof(int32_t)),
		.refs = NEW_ARRAY(struct expert_ref, c->n_experts),
		.enqueued = NEW_ARRAY(bool, c->n_experts),
		.jobs = NEW_ARRAY(struct expert_job, c->n_experts),
		.host_jobs = NEW_ARRAY(struct expert_job, c->n_experts),
		.ahead = NEW_ARRAY(int32_t, c->n_experts),
	};
	return p->token_slots && p->ids ? 0 : ERR_MEMORY;
}

void moe_plan_fini(struct moe_plan *p)
{
	free(p->ids);
	free(p->first);
	free(p->token_slots);
	free(p->refs);
	free(p->enqueued);
	free(p->jobs);
	free(p->host_jobs);
	free(p->ahead);
	*p = (struct moe_plan){0};
}

enum expert_use moe_step_use(const struct model *m, int rows)
{
	return m->plan.long_prompt || (rows >= PREFILL_ROWS && !m->plan.answers) ? EXPERT_PREFILL
																			 : EXPERT_DECODE;
}

bool moe_host_covers(const struct model *m, uint32_t layer)
{
	if (!config_is_moe(&m->config, layer))
		return false;
	const struct expert_job shape = expert_job_shape(m, layer);
	return host_experts_covers(&shape);
}

int moe_host_prepare(
	const struct model *m, struct host_experts *h, double link_bytes_s, struct err *e)
{
	const struct model_config *c = &m->config;
	int rc = 0;
	for (uint32_t i = c->first_layer; i < c->end_layer && !rc; i++)
		if (config_is_moe(c, i)) {
			const struct expert_job shape = expert_job_shape(m, i);
			rc = host_experts_prepare(h, &shape, link_bytes_s, e);
		}
	return rc;
}

/* ---- which rows use which expert ---- */

/* Counts the (token, rank) slots of expert i in first[i + 1], and lists the distinct experts of the
 * layer in refs. The order of refs:
 * - decode: of their first slot, those that only draft rows use last. A trace lists them so, and a
 *   simulated cache then sees what the live one does;
 * - prefill: ascending, the order of the file. */
static void list_experts(struct moe_plan *p, uint32_t n_experts, int n_slots, int n_used)
{
	p->n_refs = 0;
	memset(p->first, 0, (n_experts + 1) * sizeof *p->first);
	for (int draft = 0, passes = p->draft ? 2 : 1; draft < passes; draft++)
		for (int i = 0; i < n_slots; i++) {
			if (p->draft && p->draft[i / n_used] != draft)
				continue;
			if (!p->first[p->ids[i] + 1]++ && p->use == EXPERT_DECODE)
				p->refs[p->n_refs++] = (struct expert_ref){.id = p->ids[i],
					.draft_rows = (uint64_t)draft}; /* a mark that list_draft_rows replaces */
		}
	for (uint32_t i = 0; i < n_experts && p->use == EXPERT_PREFILL; i++)
		if (p->first[i + 1])
			p->refs[p->n_refs++] = (struct expert_ref){.id = (int32_t)i};
}

/* Sorts the slots by expert: those of expert i are token_slots[first[i] .. first[i + 1]). */
static void sort_slots(struct moe_plan *p, uint32_t n_experts, int n_slots)
{
	for (uint32_t i = 0; i < n_experts; i++)
		p->first[i + 1] += p->first[i];
	/* filling moves first[i] to the end of the slots of i, where i + 1 begins */
	for (int i = 0; i < n_slots; i++)
		p->token_slots[p->first[p->ids[i]]++] = i;
	for (uint32_t i = n_experts; i > 0; i--)
		p->first[i] = p->first[i - 1];
	p->first[0] = 0;
}

/* draft_rows of the experts that only draft rows use. */
static void list_draft_rows(struct moe_plan *p, int n_used)
{
	for (int i = 0; i < p->n_refs; i++) {
		struct expert_ref *r = &p->refs[i];
		if (!r->draft_rows)
			continue;
		r->draft_rows = 0;
		for (int32_t at = p->first[r->id]; at < p->first[r->id + 1]; at++)
			r->draft_rows |= UINT64_C(1) << p->token_slots[at] / n_used;
	}
}

/* Hands the read-ahead list of a prefill layer to the source. A chunk that uses most experts of
 * this layer will use most of the next one too: these are listed as well, so that the drive does
 * not pause between layers. */
static void moe_read_ahead(struct model *m)
{
	struct moe_plan *p = &m->plan;
	struct expert_source *s = m->source;
	if (!s->ops->read_ahead)
		return;
	for (int i = 0; i < p->n_refs; i++)
		p->ahead[i] = p->refs[i].id;
	s->ops->read_ahead(s, (int)p->layer, p->ahead, p->n_refs);
	uint32_t next = p->layer + 1;
	if (next >= m->config.end_layer || 4 * (uint32_t)p->n_refs < 3 * m->config.n_experts)
		return;
	for (uint32_t i = 0; i < m->config.n_experts; i++)
		p->ahead[i] = (int32_t)i;
	s->ops->read_ahead(s, (int)next, p->ahead, (int)m->config.n_experts);
}

/* ---- pins ---- */

/* Gives back the pins of refs[0 .. end): the device has passed them. */
static void unpin_to(struct model *m, int end)
{
	struct moe_plan *p = &m->plan;
	int first = p->first_pinned;
	if (end > first)
		m->source->ops->release(m->source, (int)p->layer, p->refs + first, end - first);
	p->first_pinned = MAX(first, end);
}

static void unpin_all(struct model *m)
{
	struct moe_plan *p = &m->plan;
	unpin_to(m, p->end_pinned);
	p->first_pinned = p->end_pinned = p->n_groups = 0;
}

/* Unpins the groups that the device has passed. Waits for the oldest ones as long as more than
 * `limit` refs would stay pinned. */
static int unpin_passed(struct model *m, int limit, struct err *e)
{
	struct moe_plan *p = &m->plan;
	struct backend *b = m->backend;
	while (p->n_groups) {
		const struct moe_group *oldest = &p->groups[p->first_group];
		int rc = 0;
		if (p->end_pinned - p->first_pinned > limit)
			rc = b->ops->fence_wait(b, oldest->fence, e);
		else if (!b->ops->fence_signaled(b, oldest->fence))
			break;
		if (rc)
			return rc;
		unpin_to(m, oldest->end);
		p->first_group = (p->first_group + 1) % MOE_GROUPS;
		p->n_groups--;
	}
	return 0;
}

/* ---- groups ---- */

/* Fills jobs with experts of the group that are ready and not yet taken, the processor's if
 * on_host, else the card's, and marks them as taken (enqueued). Returns the number of jobs. */
static int group_take_jobs(struct moe_plan *p, bool on_host, struct expert_job *jobs)
{
	int n_jobs = 0;
	for (int i = p->group_first; i < p->end_pinned; i++) {
		const struct expert_ref *ref = &p->refs[i];
		if (p->enqueued[i] || !ref->ready || ref->on_host != on_host)
			continue;
		p->enqueued[i] = true;
		int32_t at = p->first[ref->id];
		jobs[n_jobs++] = (struct expert_job){
			.gate = ref->gate,
			.up = ref->up,
			.down = ref->down,
			.token_slots = p->token_slots + at,
			.n_token_slots = p->first[ref->id + 1] - at,
			.layer = p->layer,
			.expert = (uint32_t)ref->id,
			.node = ref->node,
		};
	}
	return n_jobs;
}

/* Enqueues every expert of the group that is ready for the card and has not been enqueued. */
static void group_enqueue_ready(struct model *m, const struct batch *rows)
{
	struct moe_plan *p = &m->plan;
	int n_jobs = group_take_jobs(p, false, p->jobs);
	if (n_jobs)
		m->backend->ops->expert_ffn(
			m->backend, m->ws.h, p->jobs, n_jobs, rows->n, (int)m->config.n_used, m->ws.expert_out);
}

/* Whether to enqueue what is ready now. While the device has earlier groups to compute, a group
 * waits until it is complete: a call with several experts takes hardly longer than with one. */
static bool group_should_enqueue(const struct moe_plan *p)
{
	return !p->n_missing || !p->n_groups;
}

static int moe_check_cancel(const struct model *m, struct err *e)
{
	const atomic_bool *cancel = m->source->cancel;
	return cancel && atomic_load_explicit(cancel, memory_order_relaxed)
			   ? err_set(e, ERR_INTERRUPTED, "interrupted")
			   : 0;
}

/* Tells the source how long the processor would take for each expert of a group. */
static void offer_to_host(struct model *m, int first, int n, const struct batch *rows)
{
	struct moe_plan *p = &m->plan;
	if (p->use != EXPERT_DECODE || !host_experts_words(m->host, rows->n))
		return;
	const struct expert_job shape = expert_job_shape(m, p->layer);
	for (int i = first; i < first + n; i++) {
		int32_t id = p->refs[i].id;
		const int n_slots = p->first[id + 1] - p->first[id];
		p->refs[i].host_ns = host_experts_ns(m->host, &shape, n_slots);
		p->refs[i].node_ns = host_experts_node_ns(m->host, &shape, n_slots);
	}
}

/* Acquires the group that begins with refs[first] and enqueues what is ready. */
static int group_request(struct model *m, int first, const struct batch *rows, struct err *e)
{
	struct moe_plan *p = &m->plan;
	struct expert_source *s = m->source;
	int n = MIN(p->n_refs - first, p->group_size);
	int rc = unpin_passed(m, p->pin_limit - n, e);
	if (rc)
		return rc;
	if (p->use == EXPERT_PREFILL && (rc = moe_check_cancel(m, e)))
		return rc;
	for (int i = first; i < first + n; i++)
		p->enqueued[i] = false;
	offer_to_host(m, first, n, rows);
	int missing = s->ops->acquire(s, (int)p->layer, p->use, p->refs + first, n, e);
	if (missing < 0)
		return missing;
	p->group_first = first;
	p->end_pinned = first + n;
	p->n_missing = missing;
	if (!first && !m->backend->ops->async) /* computed while the drive reads */
		shared_expert_run(m, p->layer, rows);
	if (group_should_enqueue(p))
		group_enqueue_ready(m, rows);
	return 0;
}

/* What enqueue_arrivals is called with, and its error. */
struct arrivals {
	struct model *m;
	const struct batch *rows;
	int rc; /* the first error; later callbacks return at once */
	struct err e;
};

/* The progress callback of the processor: enqueues arrivals of the group for the card. */
static void enqueue_arrivals(void *arrivals)
{
	struct arrivals *a = arrivals;
	struct moe_plan *p = &a->m->plan;
	struct expert_source *s = a->m->source;
	const int before = p->n_missing;
	if (a->rc || !before)
		return;
	const int now = s->ops->poll_ready(
		s, (int)p->layer, p->refs + p->group_first, p->end_pinned - p->group_first, &a->e);
	if (now < 0) {
		a->rc = now;
		return;
	}
	p->n_missing = now;
	if (now < before && group_should_enqueue(p))
		group_enqueue_ready(a->m, a->rows);
}

/* Computes the experts of the group that are the processor's. */
static int group_compute_on_host(struct model *m, const struct batch *rows, struct err *e)
{
	struct moe_plan *p = &m->plan;
	struct arrivals a = {.m = m, .rows = rows};
	const struct host_progress progress = {enqueue_arrivals, &a};
	const int n_jobs = m->host ? group_take_jobs(p, true, p->host_jobs) : 0;
	if (!n_jobs)
		return 0;
	int rc = host_experts_compute(
		m->host, p->fence, m->ws.h, p->host_jobs, n_jobs, rows->n, m->ws.expert_out, &progress, e);
	if (!rc && a.rc)
		*e = a.e;
	return rc ? rc : a.rc;
}

/* Enqueues the rest of the group as it comes. */
static int group_complete(struct model *m, const struct batch *rows, struct err *e)
{
	struct moe_plan *p = &m->plan;
	struct expert_source *s = m->source;
	int n = p->end_pinned - p->group_first, rc = group_compute_on_host(m, rows, e);
	if (rc)
		return rc;
	while (p->n_missing > 0) {
		p->n_missing = s->ops->wait_ready(s, (int)p->layer, p->refs + p->group_first, n, e);
		if (p->n_missing < 0)
			return p->n_missing;
		if ((rc = unpin_passed(m, INT32_MAX, e)))
			return rc;
		if (group_should_enqueue(p))
			group_enqueue_ready(m, rows);
	}
	return 0;
}

/* ---- a layer ---- */

int moe_experts_request(
	struct model *m, uint32_t layer, uint64_t fence, const struct batch *rows, struct err *e)
{
	struct moe_plan *p = &m->plan;
	struct backend *b = m->backend;
	int n_slots = rows->n * (int)m->config.n_used, rc;
	if ((rc = unpin_passed(m, 0, e)) ||
		(rc = b->ops->wait_expert_ids(b, fence, m->ws.expert_ids, n_slots, p->ids, e)))
		return rc;
	unpin_all(m); /* the ids were written behind the experts of the layer before */

	p->layer = layer;
	p->fence = fence;
	p->use = moe_step_use(m, rows->n);
	list_experts(p, m->config.n_experts, n_slots, (int)m->config.n_used);
	sort_slots(p, m->config.n_experts, n_slots);
	list_draft_rows(p, (int)m->config.n_used);
	if (p->use == EXPERT_PREFILL)
		moe_read_ahead(m);
	int at_once = MIN(m->source->max_pinned[p->use], p->n_refs);
	p->pin_limit = 2 * at_once;
	p->group_size = at_once;
	/* In prefill these are several groups with a fence each: what the device has passed makes room
	 * for what is read ahead. */
	p->fence_groups = p->use == EXPERT_PREFILL && b->ops->async;
	if (p->fence_groups)
		p->group_size = MAX((2 * at_once + MOE_GROUPS - 1) / MOE_GROUPS, MIN(at_once, GROUP_MIN));
	return group_request(m, 0, rows, e);
}

int moe_experts_complete(struct model *m, const struct batch *rows, struct err *e)
{
	struct moe_plan *p = &m->plan;
	struct backend *b = m->backend;
	for (;;) {
		int rc = group_complete(m, rows, e), end = p->end_pinned;
		if (rc)
			return rc;
		if (p->fence_groups || end < p->n_refs)
			p->groups[(p->first_group + p->n_groups++) % MOE_GROUPS] =
				(struct moe_group){.fence = b->ops->fence(b), .end = end};
		if (end == p->n_refs)
			return 0;
		if ((rc = group_request(m, end, rows, e)))
			return rc;
	}
}

int moe_drain(struct model *m, struct err *e)
{
	int rc = m->backend->ops->wait(m->backend, e);
	unpin_all(m);
	m->prediction.fence = 0;
	return rc;
}
