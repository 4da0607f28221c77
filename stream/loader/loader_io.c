/* SPDX-License-Identifier: MIT */
/*
 * The I/O thread of the loader: gives the transfer the work that loader_next_work returns, and
 * publishes the slots that the transfer has filled. It holds the lock only to look at shared state,
 * never while it copies or waits.
 */
#include "stream/loader/loader_internal.h"

#include <sched.h>
#include <time.h>

/* How the thread waits with a card. Copies take 20 to 300 us, and their end wakes nobody; the next
 * layer's demand comes after a fraction of a millisecond and must not wait for a wake-up. So the
 * thread polls for POLL_NS, or for READER_POLL_NS while reads are pending. Then it sleeps NAP_NS
 * between polls while a copy is in flight, else until it is woken. */
#define POLL_NS 2000000
#define NAP_NS  20000

void loader_wake(struct loader *l)
{
	atomic_store(&l->signals.work_pending, true);
	if (atomic_load(&l->signals.sleeping))
		reader_wake(l->reader);
}

static void keep_failure(
	struct loader_shared *s, const struct cache_slot *slot, const struct err *failure)
{
	struct load_failure *kept = &s->failures[s->n_failures++ % LOADER_FAILURES];
	kept->load_id = slot->load_id;
	kept->err = *failure;
	err_prefix(&kept->err, "expert %d of layer %d", slot->expert, slot->layer);
	if (kept->err.code != ERR_MEMORY) /* that can be tried again */
		kept->err.code = ERR_RUN;
}

void loader_transfer_done(
	void *loader, int32_t slot, uint64_t bytes_read, const struct err *failure)
{
	struct loader *l = loader;
	struct loader_shared *s = &l->shared;
	struct transfer_traffic traffic = transfer_traffic_now(l->transfer);
	pthread_mutex_lock(&s->lock);
	s->traffic = traffic;
	const struct slot_work *x = &s->slot_work[slot];
	s->n_in_flight--;
	s->n_demands -= x->priority == TRANSFER_DEMAND;
	s->n_prefetches -= x->prefetched;
	s->n_tier1_prefetches -= x->prefetched && x->from_tier1;
	*loader_link_bytes(s, x) -= x->link_bytes;
	if (failure) {
		struct cache_slot failed = cache_slot_get(s->cache, slot);
		keep_failure(s, &failed, failure);
		cache_abort(s->cache, slot);
	} else {
		cache_commit(s->cache, slot);
		s->bytes_read += bytes_read;
	}
	pthread_cond_broadcast(&s->completed);
	pthread_mutex_unlock(&s->lock);
	atomic_fetch_add(&l->signals.n_completed, 1); /* who polls it takes the lock next */
}

static void give_to_transfer(struct transfer *t, const struct work *w)
{
	switch (w->kind) {
	case WORK_BOOST:
		t->ops->boost(t, w->request.slot);
		break;
	case WORK_DEMOTE:
		t->ops->demote(t, &w->request);
		return;
	case WORK_LOAD:
		t->ops->load(t, &w->request);
		break;
	}
	t->ops->run(t); /* starts this load before the next demotion is staged */
}

/* Waits for something to do. */
static void wait_for_work(struct loader *l, uint64_t *idle_since_ns)
{
	uint64_t now = clock_ns();
	if (!*idle_since_ns)
		*idle_since_ns = now;
	if (l->card && now - *idle_since_ns < (reader_pending(l->reader) ? READER_POLL_NS : POLL_NS)) {
		sched_yield();
	} else if (l->transfer->ops->copying(l->transfer)) {
		nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
	} else {
		atomic_store(&l->signals.sleeping, true);
		if (!atomic_load(&l->signals.work_pending))
			reader_wait(l->reader, -1);
		atomic_store(&l->signals.sleeping, false);
		*idle_since_ns = 0;
	}
}

void *loader_io_main(void *arg)
{
	struct loader *l = arg;
	struct transfer *t = l->transfer;
	bool look = true; /* the queue may hold work that can be done now */
	uint64_t idle_since_ns = 0;
	t->ops->attach(t);
	for (;;) {
		if (atomic_exchange(&l->signals.work_pending, false))
			look = true;
		if (look) {
			struct work w;
			pthread_mutex_lock(&l->shared.lock);
			bool quit = l->shared.quit, have = !quit && loader_next_work(l, &w);
			pthread_mutex_unlock(&l->shared.lock);
			if (quit)
				break;
			if ((look = have)) {
				give_to_transfer(t, &w);
				continue;
			}
		}
		bool progress = t->ops->run(t);
		transfer_flush_reads(t);
		if (!progress && !reader_wait(l->reader, 0))
			wait_for_work(l, &idle_since_ns);
		progress |= transfer_reap(t, 0, 0) > 0;
		if (progress)
			idle_since_ns = 0;
		look = progress || !l->card;
	}
	reader_drain(l->reader); /* only the owner of a ring may end its reads */
	t->ops->drain(t);
	return NULL;
}
