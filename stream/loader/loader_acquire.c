/* SPDX-License-Identifier: MIT */
/*
 * The compute thread's side of the loader: the operations of an expert_source. Each takes the lock,
 * asks the cache, queues what it decides, and leaves the bytes to the I/O thread.
 */
#include "stream/loader/loader_internal.h"

#include "src/base/host/cond.h"
#include "src/base/log.h"
#include "src/base/num.h"

#include <sched.h>
#include <stdlib.h>

#define CANCEL_POLL_MS 50           /* how often a wait looks at the cancel flag */
#define SILENCE_NS     30000000000u /* of waiting, after which it is said */
/* Until so many bytes have come to the card: PCIe 4 x16, in bytes per second. */
#define LINK_MEASURED_BYTES ((uint64_t)64 << 20)
#define LINK_ASSUMED_RATE   25e9

/* ---- refs of the model and of the cache ---- */

/* The model's refs as the cache takes them, in l->refs. */
static struct cache_ref *cache_refs(struct loader *l, const struct expert_ref *refs, int n)
{
	for (int i = 0; i < n; i++)
		l->refs[i] = (struct cache_ref){
			.expert = refs[i].id,
			.provisional = refs[i].draft_rows != 0,
			.stay = refs[i].on_host,
			.state = refs[i].ready ? CACHE_REF_READY : CACHE_REF_IN_FLIGHT,
			.slot = refs[i].handle,
			.load_id = refs[i].serial,
		};
	return l->refs;
}

/* Points the views of a ref at its slot, which is READY and pinned. In the second tier the
 * processor computes it. */
static void set_views(struct loader *l, int layer, struct expert_ref *r)
{
	const struct layer_views *v = &l->views[layer];
	struct weight *w[EXTENT_MATRICES] = {&r->gate, &r->up, &r->down};
	struct extent_plan p;
	if (!v->same && extent_plan(l->table, (uint32_t)layer, (uint32_t)r->id, &p))
		bug("no extents for expert %d of layer %d", r->id, layer);
	const struct cache_slot at = cache_slot_get(l->shared.cache, r->handle);
	const uint8_t *slot = l->tier_memory[at.tier] + at.offset;
	r->on_host = at.tier == 1;
	r->node = numa_node_at(&l->division[at.tier], at.offset);
	for (int k = 0; k < EXTENT_MATRICES; k++) {
		const int scales = k + EXTENT_MATRICES;
		*w[k] = v->w[k];
		w[k]->data = slot + (v->same ? v->offset[k] : p.parts[k].dst_offset);
		if (v->scaled[k])
			w[k]->scales = slot + (v->same ? v->offset[scales] : p.parts[scales].dst_offset);
	}
	r->ready = true;
}

/* ---- waiting ---- */

static bool is_cancelled(const struct loader *l)
{
	return l->base.cancel && atomic_load_explicit(l->base.cancel, memory_order_relaxed);
}

/* Polls until something completes, without the lock, for some milliseconds. A card's thread has
 * nothing better to do, and waking up takes longer than many a copy. The caller holds the lock. It
 * must check again what it waits for when this returns false: a completion between the last poll
 * and the lock has signalled already. */
static bool poll_completed(struct loader *l)
{
	const unsigned before = atomic_load(&l->signals.n_completed);
	uint64_t start = clock_ns();
	pthread_mutex_unlock(&l->shared.lock);
	bool completed;
	while (!(completed = atomic_load(&l->signals.n_completed) != before) &&
		   clock_ns() - start < READER_POLL_NS)
		sched_yield();
	pthread_mutex_lock(&l->shared.lock);
	return completed;
}

/* Sleeps until something completes, for a moment at most. The caller holds the lock. */
static void sleep_until_completed(struct loader *l)
{
	struct timespec until = cond_deadline(CANCEL_POLL_MS * 1000000u);
	pthread_cond_timedwait(&l->shared.completed, &l->shared.lock, &until);
}

/* A wait of the compute thread; zero: it has not begun. */
struct wait {
	uint64_t start_ns, warned_ns;
};

static void wait_begin(struct wait *w)
{
	w->start_ns = w->warned_ns = clock_ns();
}

/* A drive that does not answer has no timeout of its own: say what is waited for. */
static void warn_silence(struct wait *w, int layer, int expert)
{
	const uint64_t now = clock_ns();
	if (now - w->warned_ns <= SILENCE_NS)
		return;
	w->warned_ns = now;
	log_warn("expert %d of layer %d has not come for %llu s; the drive may not answer, and an "
			 "interrupt ends the wait",
		expert, layer, (unsigned long long)((now - w->start_ns) / 1000000000));
}

/* ---- acquire ---- */

static void copy_stats(struct loader *l)
{
	const struct loader_shared *shared = &l->shared;
	const struct cache_stats *c = cache_stats(shared->cache);
	struct expert_stats *s = &l->base.stats;
	s->hit_vram = c->hits[0] + c->prefill_hits[0];
	s->hit_ram = c->hits[1] + c->prefill_hits[1];
	s->miss = c->misses + c->prefill_misses;
	s->on_host = shared->n_on_host;
	s->bytes_read = shared->bytes_read;
	s->prefetch_useful = c->prefetch_used;
	s->prefetch_wasted = c->prefetch_wasted + c->prefetch_cancelled;
	s->bytes_read_wasted = c->prefetch_wasted_bytes;
	s->disk_busy_ns = shared->traffic.disk.ns;
	s->bytes_in = shared->traffic.bytes_in;
	s->bytes_promoted = shared->bytes_promoted;
	s->in_busy_ns = shared->traffic.in.ns;
	s->bytes_out = shared->traffic.bytes_out;
	s->out_busy_ns = shared->traffic.out.ns;
	s->checked = shared->traffic.checks.checked;
	s->reread = shared->traffic.checks.reread;
	s->wrong = shared->traffic.checks.wrong;
	s->check_ns = shared->traffic.checks.ns;
	s->io_depth = shared->traffic.setting.depth;
	s->io_slice_bytes = (uint32_t)shared->traffic.setting.slice_bytes;
	s->ram_refused_bytes = loader_ram_refused_bytes(l);
}

static enum cache_use cache_use_of(enum expert_use use)
{
	return use == EXPERT_PREFILL ? CACHE_PREFILL : CACHE_DECODE;
}

/* What this request waits for goes first from now on, also where an earlier plan started it. A ref
 * of a prompt has no slot while its expert is on its way into the second tier. */
static void boost_refs(struct loader *l, const struct cache_request *q)
{
	for (int i = 0; i < q->n; i++) {
		const struct cache_ref *r = &q->refs[i];
		if (r->state == CACHE_REF_IN_FLIGHT || r->state == CACHE_REF_NONE)
			loader_queue_boost(
				l, r->slot >= 0 ? r->slot : cache_find(l->shared.cache, q->layer, r->expert));
	}
}

/* Waits until a slot may have come free. 0, or a negative code: none will, or cancelled. */
static int wait_for_slot(
	struct loader *l, const struct cache_request *q, struct wait *w, struct err *e)
{
	if (!w->start_ns)
		wait_begin(w);
	if (!l->shared.n_in_flight) {
		if (loader_queue_clear_read_ahead(l))
			return 0; /* prefill slots held for later give way */
		return err_set(e, ERR_MEMORY,
			"the expert cache has no room for expert %d of layer %d: every slot is in use",
			q->refs[q->next].expert, q->layer);
	}
	if (is_cancelled(l))
		return err_set(e, ERR_INTERRUPTED, "interrupted");
	atomic_store(&l->transfer->under_pressure, true);
	loader_wake(l);
	sleep_until_completed(l);
	atomic_store(&l->transfer->under_pressure, q->use == CACHE_PREFILL);
	warn_silence(w, q->layer, q->refs[q->next].expert);
	return 0;
}

/* Pins all refs of the request and queues what must be loaded. A negative code: nothing is pinned.
 */
static int acquire_slots(struct loader *l, struct cache_request *q, struct err *e)
{
	struct cache_plan plan;
	struct wait w = {0};
	int rc;
	enum cache_result result = cache_acquire(l->shared.cache, q, &plan);
	for (;;) {
		loader_queue_plan(l, &plan, TRANSFER_DEMAND);
		boost_refs(l, q);
		if (result == CACHE_OK) {
			rc = 0;
			break;
		}
		rc = wait_for_slot(l, q, &w, e);
		if (rc) {
			cache_release(l->shared.cache, q->refs, q->n, &plan);
			loader_queue_plan(l, &plan, TRANSFER_DEMOTION);
			break;
		}
		result = cache_acquire_resume(l->shared.cache, q, &plan);
	}
	if (w.start_ns)
		l->base.stats.wait_ns += clock_ns() - w.start_ns;
	return rc;
}

static const uint8_t expert_tier_of_cache[] = {EXPERT_VRAM, EXPERT_RAM, EXPERT_DISK};

/* Gives the model its refs. Returns how many are not ready. */
static int take_refs(struct loader *l, const struct cache_request *q, struct expert_ref *refs)
{
	int missing = 0;
	for (int i = 0; i < q->n; i++) {
		struct cache_ref *c = &q->refs[i];
		struct expert_ref *r = &refs[i];
		r->handle = c->slot;
		r->serial = c->load_id;
		r->tier = expert_tier_of_cache[c->tier];
		r->ready = r->on_host = false;
		if (cache_ref_poll(l->shared.cache, c) == CACHE_REF_READY)
			set_views(l, q->layer, r);
		else
			missing++;
	}
	return missing;
}

/* Notes which refs are provisional, for keep_rows. Without memory for the list the rest stays
 * unnoted: the policy then takes these accesses for predictions. */
static void note_draft_uses(
	struct loader_shared *s, int layer, const struct expert_ref *refs, int n)
{
	for (int i = 0; i < n; i++) {
		if (!refs[i].draft_rows)
			continue;
		if (s->n_draft_uses == s->cap_draft_uses) {
			size_t cap = MAX(2 * s->cap_draft_uses, 256);
			void *more = realloc(s->draft_uses, cap * sizeof *s->draft_uses);
			if (!more)
				return;
			s->draft_uses = more;
			s->cap_draft_uses = cap;
		}
		s->draft_uses[s->n_draft_uses++] =
			(struct draft_use){layer, refs[i].id, refs[i].draft_rows};
	}
}

static void loader_keep_rows(struct expert_source *source, int first, int n)
{
	struct loader *l = loader_of(source);
	struct loader_shared *s = &l->shared;
	bool work = false;
	uint64_t kept = 0; /* bits as in expert_ref.draft_rows */
	for (int r = first; r < MIN(first + n, 64); r++)
		kept |= UINT64_C(1) << r;
	pthread_mutex_lock(&s->lock);
	for (size_t i = 0; i < s->n_draft_uses; i++) {
		struct draft_use *u = &s->draft_uses[i];
		struct cache_plan plan;
		if (!(u->rows & kept))
			continue;
		u->rows = 0; /* used once, however many rows stay */
		cache_note_used(s->cache, u->layer, u->expert, &plan);
		loader_queue_plan(l, &plan, TRANSFER_DEMOTION);
		work |= plan.n > 0;
	}
	pthread_mutex_unlock(&s->lock);
	if (work)
		loader_wake(l);
}

/* Bytes that come to the card in a second, as measured since the start. */
static double link_rate(const struct transfer_traffic *t)
{
	return t->bytes_in < LINK_MEASURED_BYTES || !t->in.ns
			   ? LINK_ASSUMED_RATE
			   : 1e9 * (double)t->bytes_in / (double)t->in.ns;
}

/* Sets on_host of refs in the second tier that the processor shall compute. */
static void choose_host(struct loader *l, int layer, struct expert_ref *refs, int n)
{
	const struct loader_shared *s = &l->shared;
	const double rate = link_rate(&s->traffic);
	int n_misses = 0;
	for (int i = 0; i < n; i++) {
		refs[i].on_host = false;
		int32_t at = refs[i].host_ns ? cache_find(s->cache, layer, refs[i].id) : -1;
		if (at < 0)
			continue;
		struct cache_slot slot = cache_slot_get(s->cache, at);
		if (slot.tier != 1 || slot.state != CACHE_READY || slot.pins)
			continue;
		/* without times of nodes one group of threads computes them all, one after the other */
		const int node = refs[i].node_ns ? numa_node_at(&l->division[1], slot.offset) : 0;
		l->misses[n_misses++] = (struct miss){.ref = i,
			.node = node,
			.host_ns = node ? refs[i].node_ns[node] : refs[i].host_ns,
			.link_ns = (double)slot.bytes * 1e9 / rate};
	}
	/* Of loads that are no demands one is copied at a time, and on average half of it has been, but
	 * link_bytes counts all of it until it completes. */
	const double busy = (double)s->link_bytes[0] + 0.5 * (double)s->link_bytes[1];
	miss_split(l->misses, n_misses, busy * 1e9 / rate);
	for (int i = 0; i < n_misses; i++)
		refs[l->misses[i].ref].on_host = l->misses[i].on_host;
}

/* How experts are used from now on. */
static void note_use(struct loader *l, enum expert_use use)
{
	l->shared.in_prompt = use == EXPERT_PREFILL;
	atomic_store(&l->transfer->under_pressure, use == EXPERT_PREFILL);
}

static int loader_acquire(struct expert_source *source, int layer, enum expert_use use,
	struct expert_ref *refs, int n, struct err *e)
{
	struct loader *l = loader_of(source);
	struct loader_shared *s = &l->shared;
	pthread_mutex_lock(&s->lock);
	note_use(l, use); /* drafts behind a prompt have no step of their own */
	loader_limit_tier1(l);
	choose_host(l, layer, refs, n);
	struct cache_request q = {
		.layer = layer, .use = cache_use_of(use), .refs = cache_refs(l, refs, n), .n = n};
	if (layer != s->layer) { /* else a further group of the same layer */
		s->layer = layer;
		s->layer_clock++;
		loader_queue_drop_stale(l);
	}
	int rc = acquire_slots(l, &q, e);
	if (!rc && use == EXPERT_DECODE)
		note_draft_uses(s, layer, refs, n);
	if (!rc)
		rc = take_refs(l, &q, refs);
	for (int i = 0; i < n && rc >= 0; i++)
		s->n_on_host += refs[i].on_host;
	loader_judge_prefetch(l);
	if (rc)
		copy_stats(l);
	s->flush_due = !l->base.lookahead; /* else predictions come first */
	bool work = s->queue.n || s->queue.n_boosted || s->flush_due;
	pthread_mutex_unlock(&s->lock);
	if (work)
		loader_wake(l);
	return rc;
}

/* ---- wait_ready ---- */

/* The sentence of a failed ref. */
static int failure_of(
	const struct loader_shared *s, int layer, const struct expert_ref *r, struct err *e)
{
	for (int k = 0; k < LOADER_FAILURES; k++)
		if (s->failures[k].load_id == r->serial) {
			if (e)
				*e = s->failures[k].err;
			return s->failures[k].err.code;
		}
	return err_set(e, ERR_RUN, "expert %d of layer %d could not be read", r->id, layer);
}

/* Sets the views of refs whose bytes have come. Returns how many have not, or the code of the first
 * failure. */
static int poll_refs(struct loader *l, int layer, struct expert_ref *refs, int n, struct err *e)
{
	struct cache_ref *c = cache_refs(l, refs, n);
	int missing = 0;
	for (int i = 0; i < n; i++)
		if (cache_ref_poll(l->shared.cache, &c[i]) == CACHE_REF_FAILED)
			return failure_of(&l->shared, layer, &refs[i], e);
	for (int i = 0; i < n; i++) {
		if (c[i].state == CACHE_REF_READY && !refs[i].ready)
			set_views(l, layer, &refs[i]);
		missing += !refs[i].ready;
	}
	return missing;
}

static int loader_poll_ready(
	struct expert_source *source, int layer, struct expert_ref *refs, int n, struct err *e)
{
	struct loader *l = loader_of(source);
	const unsigned completed = atomic_load(&l->signals.n_completed);
	int missing = 0;
	/* The caller computes meanwhile: it neither waits for the lock nor takes it for nothing. */
	if (completed == l->polled_completed || pthread_mutex_trylock(&l->shared.lock)) {
		for (int i = 0; i < n; i++)
			missing += !refs[i].ready;
		return missing;
	}
	l->polled_completed = completed;
	missing = poll_refs(l, layer, refs, n, e);
	pthread_mutex_unlock(&l->shared.lock);
	return missing;
}

static int first_missing(const struct expert_ref *refs)
{
	while (refs->ready)
		refs++;
	return refs->id;
}

static int loader_wait_ready(
	struct expert_source *source, int layer, struct expert_ref *refs, int n, struct err *e)
{
	struct loader *l = loader_of(source);
	struct wait w;
	int before = 0, missing;
	/* The call returns as soon as one ref becomes ready, so this holds for all of its time. */
	bool only_drafts = true, poll = l->card;
	wait_begin(&w);
	for (int i = 0; i < n; i++) {
		before += !refs[i].ready;
		only_drafts &= refs[i].ready || refs[i].draft_rows;
	}
	pthread_mutex_lock(&l->shared.lock);
	l->shared.flush_due = cache_has_pending(l->shared.cache);
	for (;;) {
		missing = poll_refs(l, layer, refs, n, e);
		if (missing < before || !missing) /* a negative code, too */
			break;
		if (is_cancelled(l)) {
			missing = err_set(e, ERR_INTERRUPTED, "interrupted");
			break;
		}
		if (poll) {
			poll = poll_completed(l);
		} else {
			sleep_until_completed(l);
			poll = l->card;
		}
		warn_silence(&w, layer, first_missing(refs));
	}
	const uint64_t waited = clock_ns() - w.start_ns;
	l->base.stats.wait_ns += waited;
	if (only_drafts)
		l->base.stats.wait_draft_ns += waited;
	pthread_mutex_unlock(&l->shared.lock);
	return missing;
}

/* ---- release ---- */

static void loader_release(
	struct expert_source *source, int layer, const struct expert_ref *refs, int n)
{
	struct loader *l = loader_of(source);
	struct loader_shared *s = &l->shared;
	struct cache_plan plan;
	struct cache_ref *c = cache_refs(l, refs, n);
	pthread_mutex_lock(&s->lock);
	cache_release(s->cache, c, n, &plan);
	loader_queue_plan(l, &plan, TRANSFER_DEMOTION);
	for (int i = 0; i < n; i++)
		if (refs[i].on_host)
			loader_queue_promotion(l, layer, refs[i].id);
	loader_judge_prefetch(l);
	copy_stats(l);
	const struct read_ahead_list *a = s->queue.read_ahead;
	bool work = plan.n || a[0].next < a[0].n || a[1].next < a[1].n || s->queue.n_prefetch ||
				s->queue.n_promote;
	pthread_mutex_unlock(&s->lock);
	if (work)
		loader_wake(l); /* slots have come free */
}

/* ---- prefetch, read-ahead, steps ---- */

static void loader_prefetch(
	struct expert_source *source, int layer, const int32_t *ids, int n, int distance)
{
	struct loader *l = loader_of(source);
	struct loader_shared *s = &l->shared;
	pthread_mutex_lock(&s->lock);
	int taken = (int)(s->prefetch_share * n + 0.999);
	loader_queue_prefetch(l, layer, ids, taken, s->layer_clock + (uint64_t)distance);
	cache_note_predicted(s->cache, layer, ids, n);
	s->flush_due = true;
	pthread_mutex_unlock(&s->lock);
	loader_wake(l);
}

static void loader_read_ahead(struct expert_source *source, int layer, const int32_t *ids, int n)
{
	struct loader *l = loader_of(source);
	pthread_mutex_lock(&l->shared.lock);
	loader_flush_accesses(l);
	loader_queue_read_ahead(l, layer, ids, n);
	pthread_mutex_unlock(&l->shared.lock);
	loader_wake(l);
}

/* A new step begins: what was read ahead for the last one is over. */
static void loader_step(struct expert_source *source, enum expert_use use, int rows, int position)
{
	(void)rows;
	(void)position;
	struct loader *l = loader_of(source);
	struct cache_plan plan;
	pthread_mutex_lock(&l->shared.lock);
	l->shared.n_draft_uses = 0;
	l->shared.layer = -1;
	note_use(l, use);
	cache_begin_step(l->shared.cache, cache_use_of(use), &plan);
	loader_queue_plan(l, &plan, TRANSFER_DEMOTION);
	loader_queue_clear_read_ahead(l);
	const bool work = plan.n || l->shared.queue.next_warm < l->shared.queue.n_warm;
	pthread_mutex_unlock(&l->shared.lock);
	if (work)
		loader_wake(l);
}

const struct expert_source_ops loader_ops = {
	.name = "stream",
	.close = loader_close,
	.step = loader_step,
	.acquire = loader_acquire,
	.wait_ready = loader_wait_ready,
	.poll_ready = loader_poll_ready,
	.release = loader_release,
	.prefetch = loader_prefetch,
	.keep_rows = loader_keep_rows,
	.read_ahead = loader_read_ahead,
};
