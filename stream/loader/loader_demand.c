/* SPDX-License-Identifier: MIT */
/*
 * The compute side of the loader: what the model calls. Everything here takes the lock, decides,
 * queues commands, and leaves the bytes to the I/O thread.
 */
#include "stream/loader/loader_internal.h"

#include "src/base/clock.h"
#include "src/base/cond.h"
#include "src/base/log.h"
#include "src/base/num.h"

#include <errno.h>
#include <sched.h>

#define AWAIT_POLL_MS 50           /* how often a wait looks at the cancel flag */
#define SILENCE_NS    30000000000u /* of waiting, after which it is said */

/* The self-throttle: after so many prefetched experts met their fate, look at the useful share. */
#define JUDGE_EVERY 64
#define SHARE_MIN   0.125
#define USEFUL_POOR 0.25
#define USEFUL_GOOD 0.5

/* Queues the moves of a plan. */
static void enqueue_moves(struct loader *l, const struct cache_plan *plan)
{
	if (l->n_commands + (size_t)plan->n_demotions + 1 > l->cap_commands)
		bug("%zu commands are queued, the ring holds %zu", l->n_commands, l->cap_commands);
	for (int i = 0; i < plan->n_demotions; i++) {
		const struct cache_demotion *m = &plan->demotions[i];
		l->commands[(l->first_command + l->n_commands++) % l->cap_commands] = (struct command){
			.kind = COMMAND_MOVE,
			.slot = m->slot,
			.layer = m->layer,
			.expert = m->expert,
			.from_offset = m->from_offset,
			.to_offset = m->to_offset,
			.bytes = m->bytes,
		};
		l->fills[m->slot] = (struct fill){.serial = ++l->serial};
		l->n_under_way++;
	}
}

void loader_enqueue(struct loader *l, const struct cache_plan *plan, int layer, int expert,
	bool wanted, bool prefetch)
{
	enqueue_moves(l, plan);
	l->commands[(l->first_command + l->n_commands++) % l->cap_commands] = (struct command){
		.kind = COMMAND_FILL,
		.slot = plan->slot,
		.layer = layer,
		.expert = expert,
		.source = plan->source,
	};
	l->fills[plan->slot] = (struct fill){.serial = ++l->serial,
		.wanted = wanted,
		.prefetch = prefetch,
		.from_ram = plan->source >= 0};
	l->n_under_way++;
	l->n_wanted += wanted;
	if (wanted && plan->source < 0)
		l->drive_free = l->moment + LOADER_REST;
	l->n_prefetch += prefetch;
	l->n_prefetch_ram += prefetch && plan->source >= 0;
}

void loader_unpin(struct loader *l, int32_t slot)
{
	if (cache_slot_get(l->cache, slot).state == CACHE_FILLING)
		l->fills[slot].drop_pins++;
	else
		cache_unpin(l->cache, slot);
}

/* ---- announcements ---- */

/* Staged slots of announcements that have been replaced lose the announcement's pin. */
static void drop_announced(struct loader *l)
{
	for (int k = l->n_staging - 1; k >= 0; k--) {
		int32_t slot = cache_staging_slot(l->cache, k);
		if (slot < 0 || !l->fills[slot].ahead)
			continue;
		struct cache_slot s = cache_slot_get(l->cache, slot);
		bool wanted = false;
		for (int a = 0; a < 2 && !wanted; a++)
			for (int i = 0; s.layer == l->ahead[a].layer && i < l->ahead[a].n && !wanted; i++)
				wanted = l->ahead[a].ids[i] == s.expert;
		if (wanted)
			continue;
		l->fills[slot].ahead = false;
		loader_unpin(l, slot);
	}
}

/* Forgets all announcements. */
static void clear_announced(struct loader *l)
{
	for (int i = 0; i < 2; i++) {
		l->ahead[i].layer = -1;
		l->ahead[i].n = l->ahead[i].next = 0;
	}
	drop_announced(l);
}

/* ---- acquire ---- */

static enum cache_use cache_use_of(enum expert_use use)
{
	return use == EXPERT_PREFILL ? CACHE_PREFILL : CACHE_DECODE;
}

/* Points the views of a READY ref at its slot, which is pinned: needs no lock. */
static void publish(struct loader *l, int layer, struct expert_ref *r)
{
	const struct layer_views *v = &l->views[layer];
	struct weight *w[EXTENT_PARTS] = {&r->gate, &r->up, &r->down};
	struct extent_plan p;
	if (!v->same && extent_plan(l->table, (uint32_t)layer, (uint32_t)r->id, &p))
		bug("no extents for expert %d of layer %d", r->id, layer);
	const uint8_t *slot = loader_slot_memory(l, cache_slot_get(l->cache, r->handle));
	for (int k = 0; k < EXTENT_PARTS; k++) {
		*w[k] = v->w[k];
		w[k]->data = slot + (v->same ? v->offset[k] : p.parts[k].dst_offset);
	}
	r->ready = true;
}

/* The filling that this ref waits for has failed; its slot is somebody else's by now and the pin is
 * void. */
static bool failed(const struct loader *l, const struct expert_ref *r)
{
	return !r->ready && r->handle >= 0 && l->fills[r->handle].serial != r->serial;
}

/* Marks the refs whose bytes have landed. Returns how many have not. */
static int look(struct loader *l, int layer, struct expert_ref *refs, int n)
{
	int missing = 0;
	for (int i = 0; i < n; i++) {
		if (refs[i].ready)
			continue;
		if (!failed(l, &refs[i]) && cache_slot_get(l->cache, refs[i].handle).state == CACHE_READY)
			publish(l, layer, &refs[i]);
		else
			missing++;
	}
	return missing;
}

static void give_back(struct loader *l, const struct expert_ref *refs, int n)
{
	for (int i = 0; i < n; i++)
		if (refs[i].handle >= 0 && !failed(l, &refs[i]))
			loader_unpin(l, refs[i].handle);
}

static bool cancelled(const struct loader *l)
{
	return l->base.cancel && atomic_load_explicit(l->base.cancel, memory_order_relaxed);
}

/* Watches for something to land, without the lock. A card's thread has nothing better to do, and
 * waking up from sleep takes longer than many a copy. Caller holds the lock. */
static bool watch_landed(struct loader *l, unsigned before)
{
	uint64_t start = clock_ns();
	pthread_mutex_unlock(&l->lock);
	bool landed;
	while (!(landed = atomic_load(&l->n_landed) != before) && clock_ns() - start < READER_POLL_NS)
		sched_yield();
	pthread_mutex_lock(&l->lock);
	return landed;
}

/* Sleeps until something lands, for a moment at most. Caller holds the lock. */
static void wait_landed(struct loader *l)
{
	struct timespec until = cond_deadline(AWAIT_POLL_MS * 1000000u);
	pthread_cond_timedwait(&l->landed, &l->lock, &until);
}

/* The ref has a pin on this slot; if the slot is being filled on a guess, somebody waits for it
 * now. */
static void hold(struct loader *l, struct expert_ref *r, int32_t slot)
{
	struct fill *f = &l->fills[slot];
	r->handle = slot;
	r->serial = f->serial;
	if (f->wanted || cache_slot_get(l->cache, slot).state != CACHE_FILLING)
		return;
	f->wanted = true;
	l->n_wanted++;
	if (!l->card)
		return;
	if (l->n_commands == l->cap_commands)
		bug("%zu commands are queued", l->n_commands);
	l->commands[(l->first_command + l->n_commands++) % l->cap_commands] =
		(struct command){.kind = COMMAND_URGE, .slot = slot};
}

/* First pass of an acquire: count the access, pin what is there. */
static void find(struct loader *l, int layer, enum expert_use use, struct expert_ref *r)
{
	int32_t slot = cache_access(l->cache, layer, r->id, cache_use_of(use));
	r->ready = false;
	r->tier = EXPERT_DISK;
	r->handle = -1;
	if (slot < 0)
		return;
	struct cache_slot s = cache_slot_get(l->cache, slot);
	r->tier = s.tier == 0 ? EXPERT_VRAM : EXPERT_RAM;
	if (s.tier == 1 && use == EXPERT_PREFILL)
		return; /* a staged copy is made; the reservation pins its source */
	if (s.prefill && l->fills[slot].ahead)
		l->fills[slot].ahead = false; /* the announcement's pin becomes ours */
	else
		cache_pin(l->cache, slot);
	r->handle = slot;
	if (s.tier == 0 && s.state == CACHE_READY)
		publish(l, layer, r);
	else
		hold(l, r, slot);
}

/* Second pass: room in the first tier for a ref that is not there. Waits while slots are in motion.
 */
static int reserve(
	struct loader *l, int layer, enum expert_use use, struct expert_ref *r, struct err *e)
{
	for (;;) {
		if (r->ready || (r->handle >= 0 && cache_slot_get(l->cache, r->handle).tier == 0))
			return 0;
		struct cache_plan plan;
		switch (cache_reserve(l->cache, layer, r->id, cache_use_of(use), &plan)) {
		case CACHE_OK:
			loader_enqueue(l, &plan, layer, r->id, true, false);
			hold(l, r, plan.slot);
			return 0;
		case CACHE_PRESENT: /* arrived or was staged meanwhile */
			cache_pin(l->cache, plan.slot);
			hold(l, r, plan.slot);
			return 0;
		default: /* CACHE_BUSY, CACHE_FULL: what is under way will make room */
			if (!l->n_under_way && l->ahead[0].n + l->ahead[1].n > 0) {
				clear_announced(l); /* staging slots held for later give way */
				continue;
			}
			if (!l->n_under_way)
				return err_set(e, ERR_MEMORY,
					"the expert cache has no room for expert %d of layer %d: every slot is in use",
					r->id, layer);
			if (cancelled(l))
				return err_set(e, ERR_INTERRUPTED, "interrupted");
			atomic_store(&l->hurry, true);
			loader_poke(l);
			wait_landed(l);
			atomic_store(&l->hurry, use == EXPERT_PREFILL);
		}
	}
}

/* Hints for layers that have begun are either demands by now or were wrong. */
static void drop_stale_wants(struct loader *l)
{
	int kept = 0;
	for (int i = 0; i < l->n_wants; i++)
		if (l->wants[i].due > l->moment)
			l->wants[kept++] = l->wants[i];
	l->n_wants = kept;
}

static void copy_stats(struct loader *l)
{
	const struct cache_stats *c = cache_stats(l->cache);
	struct expert_stats *s = &l->base.stats;
	s->hit_vram = c->hits[0] + c->prefill_hits[0];
	s->hit_ram = c->hits[1] + c->prefill_hits[1];
	s->miss = c->misses + c->prefill_misses;
	s->bytes_read = l->bytes_read;
	s->prefetch_useful = c->prefetch_used;
	s->prefetch_wasted = c->prefetch_wasted + c->prefetch_cancelled;
	s->bytes_read_wasted = c->prefetch_wasted_bytes;
	s->disk_busy_ns = l->io.disk_busy.ns;
	s->bytes_in = l->io.bytes_in;
	s->in_busy_ns = l->io.in_busy.ns;
	s->bytes_out = l->io.bytes_out;
	s->out_busy_ns = l->io.out_busy.ns;
}

/* Takes less of each hint while prefetching does not pay, and more again when it does. */
static void judge_prefetch(struct loader *l)
{
	const struct cache_stats *c = cache_stats(l->cache);
	uint64_t used = c->prefetch_used - l->judged_used,
			 wasted = c->prefetch_wasted - l->judged_wasted;
	if (used + wasted < JUDGE_EVERY)
		return;
	l->judged_used = c->prefetch_used;
	l->judged_wasted = c->prefetch_wasted;
	double useful = (double)used / (double)(used + wasted);
	if (useful < USEFUL_POOR)
		l->hint_share = MAX(l->hint_share / 2, SHARE_MIN);
	else if (useful > USEFUL_GOOD)
		l->hint_share = MIN(l->hint_share * 2, 1.0);
}

void loader_account(struct loader *l)
{
	bool moved = false;
	l->account = false;
	if (!l->n_owed)
		return;
	for (size_t i = 0; i < l->n_owed; i++) {
		const struct owed *o = &l->owed[i];
		struct cache_plan plan;
		if (o->kind == OWED_ACCESS) {
			cache_access(l->cache, o->layer, o->expert, CACHE_DECODE);
		} else if (o->kind == OWED_HINT) {
			cache_note_predicted(l->cache, o->layer, o->expert);
		} else { /* room for the next ones, when this layer's bytes are under way */
			cache_keep_free(l->cache, o->layer, &plan);
			enqueue_moves(l, &plan);
			moved |= plan.n_demotions > 0;
		}
	}
	l->n_owed = 0;
	judge_prefetch(l);
	if (moved)
		loader_poke(l);
}

static void owe(struct loader *l, int kind, int layer, int expert)
{
	if (l->n_owed == l->cap_owed)
		loader_account(l);
	struct owed *o = &l->owed[l->n_owed++];
	o->kind = kind;
	o->layer = layer;
	o->expert = expert;
}

/* The answer when all refs stand in the first tier: nothing has to be decided, so the cache hears
 * of it later. False: they do not. Caller holds the lock. */
static bool all_there(struct loader *l, int layer, struct expert_ref *refs, int n)
{
	for (int i = 0; i < n; i++) {
		refs[i].handle = cache_find(l->cache, layer, refs[i].id);
		if (refs[i].handle < 0 || !cache_is_ready(l->cache, refs[i].handle))
			return false;
	}
	for (int i = 0; i < n; i++) {
		cache_pin(l->cache, refs[i].handle);
		refs[i].tier = EXPERT_VRAM;
		publish(l, layer, &refs[i]);
		owe(l, OWED_ACCESS, layer, refs[i].id);
	}
	return true;
}

/* Pins what is there, starts the rest. 0, or a negative code: nothing is pinned then. Caller holds
 * the lock. */
static int start_missing(
	struct loader *l, int layer, enum expert_use use, struct expert_ref *refs, int n, struct err *e)
{
	int rc = 0;
	for (int i = 0; i < n; i++)
		find(l, layer, use, &refs[i]);
	for (int i = 0; i < n && !rc; i++)
		rc = reserve(l, layer, use, &refs[i], e);
	if (rc)
		give_back(l, refs, n);
	return rc;
}

static int loader_acquire(struct expert_source *s, int layer, enum expert_use use,
	struct expert_ref *refs, int n, struct err *e)
{
	struct loader *l = loader_of(s);
	int rc = 0;
	if (l->card && loader_card_refused(l, e))
		return ERR_MEMORY;
	pthread_mutex_lock(&l->lock);
	loader_account(l);
	l->moment++;
	drop_stale_wants(l);
	if (use != EXPERT_DECODE || !all_there(l, layer, refs, n)) {
		rc = start_missing(l, layer, use, refs, n, e);
		rc = rc ? rc : look(l, layer, refs, n);
		copy_stats(l);
	}
	if (use == EXPERT_DECODE && rc >= 0)
		owe(l, OWED_SPARE, layer, 0);
	l->account = !l->base.lookahead; /* else hints come first */
	bool work = l->n_commands > 0 || l->account;
	pthread_mutex_unlock(&l->lock);
	if (work)
		loader_poke(l);
	return rc;
}

/* The sentence of the first failed ref; 0 when none has failed. */
static int first_failure(
	const struct loader *l, int layer, const struct expert_ref *refs, int n, struct err *e)
{
	int i = 0;
	while (i < n && !failed(l, &refs[i]))
		i++;
	if (i == n)
		return 0;
	for (int k = 0; k < LOADER_FAILURES_MAX; k++)
		if (l->failures[k].serial == refs[i].serial) {
			if (e)
				*e = l->failures[k].err;
			return l->failures[k].err.code;
		}
	return err_set(e, ERR_RUN, "expert %d of layer %d could not be read", refs[i].id, layer);
}

/* A drive that does not answer has no end of its own: whoever sits there learns at least what is
 * waited for. */
static void say_silence(int layer, const struct expert_ref *refs, uint64_t waited_ns)
{
	while (refs->ready)
		refs++;
	log_warn("expert %d of layer %d has not come for %llu s; the drive may not answer, and an "
			 "interrupt ends "
			 "the wait",
		refs->id, layer, (unsigned long long)(waited_ns / 1000000000));
}

static int loader_wait_ready(
	struct expert_source *s, int layer, struct expert_ref *refs, int n, struct err *e)
{
	struct loader *l = loader_of(s);
	uint64_t start = clock_ns(), said = start;
	pthread_mutex_lock(&l->lock);
	l->account = l->n_owed > 0;
	int before = 0;
	for (int i = 0; i < n; i++)
		before += !refs[i].ready;
	int missing;
	for (;;) {
		int code = first_failure(l, layer, refs, n, e);
		if (code) {
			missing = code;
			break;
		}
		missing = look(l, layer, refs, n);
		if (missing < before || !missing)
			break;
		if (cancelled(l)) {
			missing = err_set(e, ERR_INTERRUPTED, "interrupted");
			break;
		}
		if (!l->card || !watch_landed(l, atomic_load(&l->n_landed)))
			wait_landed(l);
		uint64_t now = clock_ns();
		if (now - said > SILENCE_NS) {
			say_silence(layer, refs, now - start);
			said = now;
		}
	}
	l->base.stats.wait_ns += clock_ns() - start;
	pthread_mutex_unlock(&l->lock);
	return missing;
}

static void loader_release(struct expert_source *s, int layer, const struct expert_ref *refs, int n)
{
	(void)layer;
	struct loader *l = loader_of(s);
	pthread_mutex_lock(&l->lock);
	loader_account(l);
	give_back(l, refs, n);
	copy_stats(l);
	bool ahead = l->ahead[0].next < l->ahead[0].n || l->ahead[1].next < l->ahead[1].n || l->n_wants;
	pthread_mutex_unlock(&l->lock);
	if (ahead)
		loader_poke(l); /* staging slots came free */
}

/* ---- hints ---- */

static void loader_prefetch(
	struct expert_source *s, int layer, const int32_t *ids, int n, int distance)
{
	struct loader *l = loader_of(s);
	pthread_mutex_lock(&l->lock);
	int take = (int)(l->hint_share * n + 0.999);
	uint64_t due = l->moment + (uint64_t)distance;
	for (int i = 0; i < take && l->n_wants < LOADER_WANTS_MAX; i++) {
		int32_t slot = cache_find(l->cache, layer, ids[i]);
		if (slot >= 0 && cache_slot_get(l->cache, slot).tier == 0)
			continue;
		int k = 0;
		while (k < l->n_wants && (l->wants[k].layer != layer || l->wants[k].expert != ids[i]))
			k++;
		if (k < l->n_wants)
			continue;
		l->wants[l->n_wants++] =
			(struct want){.due = due, .layer = (int16_t)layer, .expert = (int16_t)ids[i]};
	}
	for (int i = 0; i < n; i++)
		owe(l, OWED_HINT, layer, ids[i]);
	l->account = true;
	pthread_mutex_unlock(&l->lock);
	loader_poke(l);
}

static void loader_read_ahead(struct expert_source *s, int layer, const int32_t *ids, int n)
{
	struct loader *l = loader_of(s);
	pthread_mutex_lock(&l->lock);
	loader_account(l);
	/* the announcement of an earlier layer is over; one of this layer is replaced; the nearer layer
	 * stands first */
	struct announcement *a = NULL;
	for (int i = 0; i < 2; i++)
		if (l->ahead[i].layer == layer)
			a = &l->ahead[i];
	if (!a)
		a = l->ahead[0].layer < l->ahead[1].layer ? &l->ahead[0] : &l->ahead[1];
	a->layer = layer;
	a->n = n;
	a->next = 0;
	for (int i = 0; i < n; i++)
		a->ids[i] = ids[i];
	if (l->ahead[0].layer > l->ahead[1].layer) {
		struct announcement t = l->ahead[0];
		l->ahead[0] = l->ahead[1];
		l->ahead[1] = t;
	}
	drop_announced(l);
	pthread_mutex_unlock(&l->lock);
	loader_poke(l);
}

/* A new step begins: what was announced for the last one is over. */
static void loader_step(struct expert_source *s, enum expert_use use, int rows, int position)
{
	(void)rows;
	(void)position;
	struct loader *l = loader_of(s);
	struct cache_plan plan;
	pthread_mutex_lock(&l->lock);
	loader_account(l);
	clear_announced(l);
	atomic_store(&l->hurry, use == EXPERT_PREFILL);
	cache_begin_step(l->cache, cache_use_of(use), &plan);
	enqueue_moves(l, &plan);
	pthread_mutex_unlock(&l->lock);
	if (plan.n_demotions)
		loader_poke(l);
}

const struct expert_source_ops loader_ops = {
	.name = "stream",
	.close = loader_close,
	.step = loader_step,
	.acquire = loader_acquire,
	.wait_ready = loader_wait_ready,
	.release = loader_release,
	.prefetch = loader_prefetch,
	.read_ahead = loader_read_ahead,
};
