/* SPDX-License-Identifier: MIT */
/*
 * The I/O thread of the loader. It runs the queued commands in order (a slot is emptied before it
 * is filled), submits reads, and publishes what has landed. Between demands it turns announcements
 * and hints into reservations of its own.
 *
 * Order: demands first. Without a card a guess is started only while no demand is under way; its
 * reads then stand behind any demand that comes later, because demands are submitted as urgent.
 * With one, loader_card.c sees to it that guesses take only what demands leave.
 */
#include "stream/loader/loader_internal.h"

#include "src/base/log.h"
#include "src/base/num.h"

#include <sched.h>
#include <string.h>
#include <time.h>

#define REAP_MAX 64
/* Copies to a card take 20 to 300 us and end without a sound: so long the thread watches, then it
 * naps in between. And the next layer's demand, which comes after a fraction of a millisecond,
 * shall not wait until somebody who sleeps is up. Nor shall a drive that has read what it was asked
 * for (READER_POLL_NS). */
#define SPIN_NS 2000000
#define NAP_NS  20000
/* Guesses on their way to a card from tier 1: the others stay wants, which cost nothing when their
 * layer comes before their turn, and are demands then, which go first. */
#define MOST_PREFETCH_RAM 1

/* Tag of a read: slot and the serial of its filling. */
static uint64_t tag_of(const struct loader *l, int32_t slot)
{
	return l->fills[slot].serial << 24 | (uint64_t)(uint32_t)slot;
}

void loader_poke(struct loader *l)
{
	atomic_store(&l->poked, true);
	if (atomic_load(&l->asleep))
		reader_wake(l->reader);
}

/* What was counted up to now, running times included. */
static struct loader_io io_snapshot(const struct loader *l)
{
	struct loader_io io = l->io_now;
	struct loader_busy *busy[] = {&io.disk_busy, &io.in_busy, &io.out_busy};
	uint64_t now = clock_ns();
	for (size_t i = 0; i < ARRAY_LEN(busy); i++)
		busy[i]->ns += busy[i]->on ? now - busy[i]->since_ns : 0;
	return io;
}

/* Commit or abort, and give back what waited for it. Takes the lock. */
void loader_finish(struct loader *l, int32_t slot, const struct err *failure)
{
	struct loader_io io = io_snapshot(l);
	pthread_mutex_lock(&l->lock);
	l->io = io;
	struct fill *f = &l->fills[slot];
	l->n_under_way--;
	l->n_wanted -= f->wanted;
	l->n_prefetch -= f->prefetch;
	l->n_prefetch_ram -= f->prefetch && f->from_ram;
	uint16_t drop = f->drop_pins;
	f->wanted = f->prefetch = false;
	f->drop_pins = 0;
	if (failure) {
		struct failure *kept = &l->failures[l->n_failures++ % LOADER_FAILURES_MAX];
		kept->serial = f->serial;
		kept->err = *failure;
		f->serial = 0;
		f->ahead = false;
		cache_abort(l->cache, slot); /* voids all pins */
	} else {
		cache_commit(l->cache, slot);
		l->bytes_read += f->bytes;
		for (; drop; drop--)
			cache_unpin(l->cache, slot);
	}
	pthread_cond_broadcast(&l->landed);
	pthread_mutex_unlock(&l->lock);
	atomic_fetch_add(&l->n_landed, 1); /* who watches it takes the lock next */
}

static struct cache_slot slot_of(struct loader *l, int32_t slot)
{
	pthread_mutex_lock(&l->lock);
	struct cache_slot s = cache_slot_get(l->cache, slot);
	pthread_mutex_unlock(&l->lock);
	return s;
}

void loader_finish_failed(struct loader *l, int32_t slot, const struct err *copy)
{
	struct cache_slot s = slot_of(l, slot);
	struct err failure = {0};
	if (copy)
		failure = *copy;
	else
		reader_completion_err(l->reader, &l->fills[slot].failure_at, &failure);
	err_prefix(&failure,
		copy ? "expert %d of layer %d on its way to or from the card" : "expert %d of layer %d",
		s.expert, s.layer);
	failure.code = ERR_RUN;
	loader_finish(l, slot, &failure);
}

static int collect(struct loader *l, unsigned min, int timeout_ms)
{
	struct reader_completion done[REAP_MAX];
	int n = reader_reap(l->reader, done, min, REAP_MAX, timeout_ms);
	for (int i = 0; i < n; i++) {
		if (l->card) {
			loader_card_landed(l, &done[i]);
			continue;
		}
		int32_t slot = (int32_t)(done[i].tag & 0xffffff);
		struct fill *f = &l->fills[slot];
		if (done[i].code && !f->code) {
			f->code = done[i].code;
			f->failure_at = done[i];
		}
		if (--f->reads_left)
			continue;
		if (f->code)
			loader_finish_failed(l, slot, NULL);
		else
			loader_finish(l, slot, NULL);
	}
	loader_busy(&l->io_now.disk_busy, reader_pending(l->reader) > 0);
	return n;
}

/* Submits the reads of a fill from disk. */
static void read_expert(struct loader *l, const struct command *c, uint8_t *dst, bool urgent)
{
	struct extent_plan p;
	if (extent_plan(l->table, (uint32_t)c->layer, (uint32_t)c->expert, &p))
		bug("no extents for expert %d of layer %d", c->expert, c->layer);
	struct fill *f = &l->fills[c->slot];
	f->reads_left = (int)p.n_reads;
	f->code = 0;
	f->bytes = p.read_bytes;
#ifdef LOADER_POISON
	memset(dst, READER_POISON, p.dst_bytes);
#endif
	for (unsigned i = 0; i < p.n_reads; i++) {
		struct reader_request q = {
			.file = p.reads[i].file,
			.offset = p.reads[i].offset,
			.bytes = p.reads[i].bytes,
			.need = p.reads[i].need,
			.dst = dst + p.reads[i].dst_offset,
			.tag = tag_of(l, c->slot),
			.urgent = urgent,
		};
		int rc;
		while ((rc = reader_submit(l->reader, &q)) == READER_BUSY)
			collect(l, 1, -1);
		if (rc)
			bug("the reader refused expert %d of layer %d: code %d", c->expert, c->layer, rc);
	}
}

static void run_command(struct loader *l, const struct command *c, bool urgent)
{
	if (c->kind == COMMAND_URGE) {
		loader_card_urge(l, c->slot);
		return;
	}
	if (l->card && c->kind == COMMAND_MOVE) {
		loader_card_move(l, c);
		return;
	}
	if (l->card) {
		struct cache_slot to = slot_of(l, c->slot);
		const uint8_t *from = c->source >= 0 ? loader_slot_memory(l, slot_of(l, c->source)) : NULL;
		loader_card_fill(l, c, loader_slot_memory(l, to), from, to.bytes, urgent);
		return;
	}
	if (c->kind == COMMAND_MOVE) {
		memcpy(l->arena[1] + c->to_offset, l->arena[0] + c->from_offset, c->bytes);
		loader_finish(l, c->slot, NULL);
		return;
	}
	struct cache_slot to = slot_of(l, c->slot);
	uint8_t *dst = loader_slot_memory(l, to);
	if (c->source >= 0) {
		memcpy(dst, loader_slot_memory(l, slot_of(l, c->source)), to.bytes);
		loader_finish(l, c->slot, NULL);
		return;
	}
	read_expert(l, c, dst, urgent);
}

/* The next announced expert into a staging slot. False when there is nothing to do or no room.
 * Holds the lock. */
static bool start_announced(struct loader *l)
{
	for (int i = 0; i < 2; i++) {
		struct announcement *a = &l->ahead[i];
		for (; a->next < a->n; a->next++) {
			int32_t id = a->ids[a->next], slot = cache_find(l->cache, a->layer, id);
			if (slot >= 0 && cache_slot_get(l->cache, slot).tier == 0)
				continue;
			struct cache_plan plan;
			enum cache_result answer = cache_reserve(l->cache, a->layer, id, CACHE_PREFILL, &plan);
			if (answer == CACHE_PRESENT)
				continue;
			if (answer != CACHE_OK)
				return false;
			loader_enqueue(l, &plan, a->layer, id, false, false);
			l->fills[plan.slot].ahead = true;
			a->next++;
			return true;
		}
	}
	return false;
}

/* Is there a way free for this hint's bytes? */
static bool way_free(const struct loader *l, const struct want *w)
{
	return l->card && cache_find(l->cache, w->layer, w->expert) >= 0
			   ? l->n_prefetch_ram < MOST_PREFETCH_RAM
			   : l->n_prefetch - l->n_prefetch_ram < l->most_prefetch &&
					 (!l->card || l->moment >= l->drive_free);
}

/* The most urgent hint into a free or cold slot. Holds the lock. */
static bool start_hinted(struct loader *l)
{
	for (;;) {
		int first = -1;
		for (int i = 0; i < l->n_wants; i++)
			if ((first < 0 || l->wants[i].due < l->wants[first].due) && way_free(l, &l->wants[i]))
				first = i;
		if (first < 0)
			return false;
		struct want w = l->wants[first];
		memmove(&l->wants[first], &l->wants[first + 1], (size_t)(--l->n_wants - first) * sizeof w);
		if (w.due <= l->moment)
			continue;
		int32_t slot = cache_find(l->cache, w.layer, w.expert);
		if (slot >= 0 && cache_slot_get(l->cache, slot).tier == 0)
			continue;
		struct cache_plan plan;
		if (cache_reserve(l->cache, w.layer, w.expert, CACHE_PREFETCH, &plan) != CACHE_OK)
			continue; /* nothing cold: the guess is not worth a warm expert */
		loader_enqueue(l, &plan, w.layer, w.expert, false, true);
		return true;
	}
}

/* The next expert of the warm list, as long as it takes nobody's place: a prefetch only gets free
 * or cold slots. Holds the lock. */
static bool start_warm(struct loader *l)
{
	while (l->next_warm < l->n_warm && l->n_prefetch < l->most_prefetch) {
		struct profile_key k = l->warm[l->next_warm++];
		struct cache_plan plan;
		if (cache_find(l->cache, k.layer, k.expert) >= 0)
			continue;
		if (cache_reserve(l->cache, k.layer, k.expert, CACHE_PREFETCH, &plan) != CACHE_OK) {
			l->next_warm = l->n_warm; /* full */
			return false;
		}
		loader_enqueue(l, &plan, k.layer, k.expert, false, true);
		return true;
	}
	return false;
}

/* Takes the next command. Holds the lock. */
static bool next_command(struct loader *l, struct command *c, bool *urgent)
{
	while (!l->n_commands) {
		if (!(l->n_wanted && !l->card) && (start_announced(l) || start_hinted(l) || start_warm(l)))
			continue;
		if (!l->account)
			return false;
		loader_account(l);
	}
	*c = l->commands[l->first_command];
	if (l->card && c->kind == COMMAND_MOVE && !loader_card_can_move(l, c))
		return false;
	l->first_command = (l->first_command + 1) % l->cap_commands;
	l->n_commands--;
	*urgent = c->kind == COMMAND_FILL && l->fills[c->slot].wanted;
	return true;
}

/* Waits for something to do. */
static void rest(struct loader *l, uint64_t *idle_since_ns)
{
	bool copying = l->card && loader_card_copying(l);
	uint64_t now = clock_ns();
	if (!*idle_since_ns)
		*idle_since_ns = now;
	if (l->card && now - *idle_since_ns < (reader_pending(l->reader) ? READER_POLL_NS : SPIN_NS)) {
		sched_yield();
	} else if (copying) {
		nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
	} else {
		atomic_store(&l->asleep, true);
		if (!atomic_load(&l->poked))
			reader_wait(l->reader, -1);
		atomic_store(&l->asleep, false);
		*idle_since_ns = 0;
	}
}

void *loader_io_main(void *arg)
{
	struct loader *l = arg;
	bool look = true; /* the queues may hold something that can be done now */
	uint64_t idle_since_ns = 0;
	if (l->card)
		loader_card_attach(l);
	for (;;) {
		struct command c;
		bool urgent = false;
		if (atomic_exchange(&l->poked, false))
			look = true;
		if (look) {
			pthread_mutex_lock(&l->lock);
			bool quit = l->quit, have = !quit && next_command(l, &c, &urgent);
			pthread_mutex_unlock(&l->lock);
			if (quit)
				break;
			if ((look = have)) {
				run_command(l, &c, urgent);
				if (l->card && c.kind != COMMAND_MOVE)
					loader_card_run(l); /* on its way before the next victim is taken aside */
				continue;
			}
		}
		bool moved = l->card && loader_card_run(l);
		reader_flush(l->reader);
		loader_busy(&l->io_now.disk_busy, reader_pending(l->reader) > 0);
		if (!moved && !reader_wait(l->reader, 0))
			rest(l, &idle_since_ns);
		moved |= collect(l, 0, 0) > 0;
		if (moved)
			idle_since_ns = 0;
		look = moved || !l->card;
	}
	/* only the owner of a ring may take part in its end: cancel, and wait for what cannot be
	 * cancelled */
	struct reader_completion rest_of[REAP_MAX];
	reader_cancel_all(l->reader);
	while (reader_pending(l->reader))
		reader_reap(l->reader, rest_of, 1, REAP_MAX, -1);
	if (l->card)
		loader_card_drain(l);
	return NULL;
}
