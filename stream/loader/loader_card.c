/* SPDX-License-Identifier: MIT */
/*
 * The loader's way to a card. The host cannot read into the card's memory, so bytes pass through
 * pinned memory:
 *
 *     disk --read--> bounce buffer --IN or AHEAD--> slot of tier 0     a filling from disk, piece
 * by piece slot of tier 1 (pinned) -----IN or AHEAD----> slot of tier 0     a promotion slot of
 * tier 0 --WITHIN--> parking place --OUT--> slot of tier 1 a demotion
 *
 * A victim's slot is wanted at once. Its bytes go aside to a parking place on the card, which takes
 * microseconds; the lanes into the card and out of it wait for that (the card's clockwork does, not
 * this thread), and the way to the host takes its time. So a demotion delays no demand unless all
 * places are taken.
 *
 * Both directions share the link: 55 GB/s alone, 48 to 50 each together (PCIe 5.0). Somebody waits
 * for what comes in, or soon will; for what leaves hardly anybody does. So what is parked leaves in
 * gaps, one small piece at a time, while nothing comes in: what comes next meets a piece at most.
 * It does not wait for a gap when many are parked (a cache that turns over fast must not wait for
 * one), when a prompt runs or the compute thread waits for room (loader.hurry), and when this very
 * expert is wanted again: it has to arrive before it can come back.
 *
 * A filling is cut into pieces. Those that somebody waits for go first and may take every bounce
 * buffer, the others leave a third of them. A slot is committed when the ticket of its last piece
 * is done, that is when the bytes stand on the card, and aborted no earlier: until then somebody
 * may write to it. The same holds for slots of tier 1, so the cache's states are all that keeps a
 * slot from being given out too early.
 *
 * Everything here belongs to the I/O thread, opening and closing excepted.
 */
#include "stream/loader/loader_internal.h"

#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/num.h"

#include <stdlib.h>
#include <string.h>

#define PARKING_PLACES   16
#define BOUNCE_BYTES_MAX ((uint64_t)512 << 20)
#define BOUNCE_LEAST     6
/* A guess from tier 1 moves in equal chunks, a few on the way at a time: a demand that comes then
 * waits no longer than these take. Smaller ones cost the link more than they save: an expert of
 * GLM-5.2 in 2-bit types (9.7 MB) is one. */
#define RAM_CHUNK  ((uint64_t)16 << 20)
#define RAM_CHUNKS 2
/* What leaves: so many experts wait for gaps, and a piece takes 50 us. Those that do not wait go
 * whole, so many at a time that the link does not rest between them. */
#define PARKED_AT_EASE 7
#define OUT_PIECE      ((uint64_t)5 << 19)
#define OUT_HURRIED    2
/* Reads of guesses in flight: nearly enough to keep a drive busy, few enough not to stand long
 * before a demand. */
#define GUESSES 6
/* Tier 1 is pinned in steps, some of them ahead of the demotions. While one is being pinned the
 * driver lets nobody launch or copy: 20 ms a GiB (H200). */
#define PIN_STEP  ((size_t)256 << 20)
#define PIN_AHEAD 8
#define NOBODY    (-1)
#define POISON    (-2)

/* A filling whose pieces have not all been started; one a slot. */
struct job {
	int32_t next; /* in its queue */
	int32_t layer, expert;
	uint8_t lane;        /* of all its copies */
	bool urgent;         /* in the queue of those that somebody waits for */
	const uint8_t *from; /* tier 1; NULL: disk */
	uint8_t *dst;
	uint64_t bytes; /* from tier 1 */
	unsigned read;  /* disk: the next piece is of this read */
	uint64_t at;    /* and begins here; tier 1: the next chunk does */
};

struct job_queue {
	int32_t head, tail;
};

/* A bounce buffer. */
struct piece {
	int32_t next_free;
	int32_t slot;
	uint64_t dst_offset;
	bool guess, urgent; /* how it is counted while it is read */
};

/* A copy under way. */
struct flight {
	uint64_t ticket;
	int32_t slot;   /* that waits for it */
	int32_t place;  /* IN, AHEAD: bounce buffer; OUT: parking place that is empty then; NOBODY: from
					 * tier 1,  or not the last piece out; POISON: no bytes of anybody */
	uint64_t aside; /* OUT: the ticket of the copy to the parking place */
};

/* A parked expert whose way out has not all been started. */
struct parked {
	int32_t slot, place; /* of tier 1; where it is parked */
	bool urgent;         /* waits for no gap */
	uint64_t aside;      /* the ticket of the copy to there */
	uint8_t *dst;
	uint64_t bytes, at; /* the next piece begins here */
};

struct flights {
	struct flight *ring; /* [cap] */
	unsigned cap, first, n;
};

struct card {
	struct copier *copier;
	bool own; /* the copier is closed with this */
	struct loader_geometry g;
	uint8_t *parking; /* behind tier 0 */
	struct pinned bounce, ram;
	struct piece *pieces; /* [g.n_pieces] */
	int32_t free_piece;
	unsigned n_free_pieces;
	struct job *jobs;                      /* [n_slots] */
	struct job_queue urgent[2], normal[2]; /* from disk, from tier 1: neither holds up the other */
	struct flights in, ahead, out;
	unsigned n_ahead_ram; /* of ahead: from tier 1 */
	unsigned most_reads;  /* pieces being read at a time */
	unsigned n_reads[2];  /* pieces being read: that nobody waits for, that somebody does */
	unsigned n_guessed;   /* of the former: of guesses */
	int32_t free_places[PARKING_PLACES];
	unsigned n_free_places;
	struct parked parked[PARKING_PLACES]; /* in the order in which they leave */
	unsigned n_parked;
	uint64_t demotion_chunk_bytes;
	struct err failure; /* of the latest copy that failed */
#ifdef LOADER_POISON
	uint8_t *poison; /* behind the bounce buffers: a slot's worth */
#endif
};

int loader_geometry(const struct loader_options *o, const struct extent_table *t,
	const struct reader *r, struct loader_geometry *g)
{
	*g = (struct loader_geometry){0};
	if (!o->copier &&
		(!o->backend || !o->backend->ops->copier_open)) /* forecasts have no backend */
		return 0;
	for (uint32_t i = 0; i < extent_n_layers(t); i++)
		g->slot_bytes = MAX(g->slot_bytes, extent_slot_bytes(t, i));
	uint64_t slice = reader_slice(r);
	g->piece_bytes = num_align_up(slice + slice / 2, READER_SLICE_MIN) + READER_SLICE_MIN;
	uint64_t most = MAX(BOUNCE_BYTES_MAX / g->piece_bytes, (uint64_t)BOUNCE_LEAST);
	uint64_t requests = o->reader.requests ? o->reader.requests : READER_REQUESTS_DEFAULT;
	uint64_t wish = reader_staging_buffers(r);
	g->n_pieces = (unsigned)MIN(MAX(wish, (uint64_t)BOUNCE_LEAST), MIN(most, requests));
	g->host_staging_bytes = g->n_pieces * g->piece_bytes;
#ifdef LOADER_POISON
	g->host_staging_bytes += g->slot_bytes;
#endif
	g->device_staging_bytes = o->tier_bytes[1] ? PARKING_PLACES * g->slot_bytes : 0;
	return 1;
}

/* ---- copies under way ---- */

static void flights_push(struct flights *q, struct flight f)
{
	if (q->n == q->cap)
		bug("more than %u copies under way", q->cap);
	q->ring[(q->first + q->n++) % q->cap] = f;
}

static struct flight flights_pop(struct flights *q)
{
	struct flight f = q->ring[q->first];
	q->first = (q->first + 1) % q->cap;
	q->n--;
	return f;
}

static void give_piece(struct card *c, int32_t piece)
{
	c->pieces[piece].next_free = c->free_piece;
	c->free_piece = piece;
	c->n_free_pieces++;
}

static int32_t take_piece(struct card *c)
{
	int32_t piece = c->free_piece;
	c->free_piece = c->pieces[piece].next_free;
	c->n_free_pieces--;
	return piece;
}

/* One piece less to wait for; the last one ends the filling. */
static void piece_over(struct loader *l, int32_t slot)
{
	struct fill *f = &l->fills[slot];
	if (--f->reads_left)
		return;
	if (f->code)
		loader_finish_failed(l, slot, f->copy_failed ? &l->card->failure : NULL);
	else
		loader_finish(l, slot, NULL);
}

static void copy_failed(struct loader *l, int32_t slot, const struct err *e)
{
	struct fill *f = &l->fills[slot];
	l->card->failure = *e;
	if (f->code)
		return;
	f->code = e->code;
	f->copy_failed = true;
}

/* As copier_ops.done. What went out is what was taken aside. */
static int landed(struct copier *x, const struct flight *f, struct err *e)
{
	int rc = x->ops->fence_status(x, f->ticket, e);
	return rc > 0 && f->aside ? x->ops->fence_status(x, f->aside, e) : rc;
}

static bool poll_lane(struct loader *l, struct flights *q, bool out)
{
	struct card *c = l->card;
	bool any = false;
	while (q->n) {
		struct err e = {0};
		int rc = landed(c->copier, &q->ring[q->first], &e);
		if (!rc)
			break;
		any = true;
		struct flight f = flights_pop(q);
		if (rc < 0)
			copy_failed(l, f.slot, &e);
		if (out) {
			if (f.place != NOBODY)
				c->free_places[c->n_free_places++] = f.place;
		} else if (f.place == NOBODY) {
			c->n_ahead_ram -= q == &c->ahead;
		} else if (f.place != POISON) {
			give_piece(c, f.place);
		}
		piece_over(l, f.slot);
	}
	return any;
}

/* A copy between the card and the host, in parts where a step of the pinned memory ends. */
static void copy_parts(
	struct card *c, enum copy_stream lane, uint8_t *dst, const uint8_t *src, uint64_t bytes)
{
	for (uint64_t n; bytes; dst += n, src += n, bytes -= n) {
		n = pinned_contiguous_bytes(&c->ram, lane == COPY_OUT ? dst : src, bytes);
		c->copier->ops->copy(c->copier, lane, dst, src, n);
	}
}

/* Copies a piece into its slot. */
static void send(struct loader *l, const struct job *j, int32_t slot, uint8_t *dst,
	const uint8_t *src, uint64_t bytes, int32_t place)
{
	struct card *c = l->card;
	enum copy_stream lane = (enum copy_stream)j->lane;
	copy_parts(c, lane, dst, src, bytes);
	l->io_now.bytes_in += bytes;
	flights_push(lane == COPY_IN ? &c->in : &c->ahead,
		(struct flight){
			.ticket = c->copier->ops->fence(c->copier, lane), .slot = slot, .place = place});
}

void loader_card_landed(struct loader *l, const struct reader_completion *done)
{
	struct card *c = l->card;
	int32_t piece = (int32_t)done->tag;
	const struct piece *p = &c->pieces[piece];
	struct fill *f = &l->fills[p->slot];
	c->n_guessed -= p->guess;
	c->n_reads[p->urgent]--;
	if (done->code && !f->code) {
		f->code = done->code;
		f->failure_at = *done;
	}
	if (!f->code) {
		const struct job *j = &c->jobs[p->slot];
		send(l, j, p->slot, j->dst + p->dst_offset,
			c->bounce.base + (uint64_t)piece * c->g.piece_bytes, done->bytes, piece);
		return;
	}
	int32_t slot = p->slot;
	give_piece(c, piece);
	piece_over(l, slot);
}

/* ---- jobs ---- */

static void queue_push(struct card *c, struct job_queue *q, int32_t slot)
{
	c->jobs[slot].next = NOBODY;
	if (q->head == NOBODY)
		q->head = slot;
	else
		c->jobs[q->tail].next = slot;
	q->tail = slot;
}

void loader_card_fill(struct loader *l, const struct command *command, uint8_t *dst,
	const uint8_t *from, uint64_t bytes, bool urgent)
{
	struct card *c = l->card;
	struct fill *f = &l->fills[command->slot];
	c->jobs[command->slot] = (struct job){.layer = command->layer,
		.expert = command->expert,
		.lane = urgent ? COPY_IN : COPY_AHEAD,
		.urgent = urgent,
		.from = from,
		.dst = dst,
		.bytes = bytes};
	f->reads_left = 1; /* the job itself, as long as it is queued */
	f->code = 0;
	f->copy_failed = false;
#ifdef LOADER_POISON
	f->reads_left++;
	send(l, &c->jobs[command->slot], command->slot, dst, c->poison, bytes, POISON);
#endif
	queue_push(c, urgent ? &c->urgent[from != NULL] : &c->normal[from != NULL], command->slot);
}

/* A parked expert that goes to this slot leaves first, and now. */
static bool urge_parked(struct card *c, int32_t slot)
{
	unsigned i = 0;
	while (i < c->n_parked && c->parked[i].slot != slot)
		i++;
	if (i == c->n_parked)
		return false;
	struct parked p = c->parked[i];
	p.urgent = true;
	memmove(&c->parked[1], &c->parked[0], i * sizeof p);
	c->parked[0] = p;
	return true;
}

void loader_card_urge(struct loader *l, int32_t slot)
{
	struct card *c = l->card;
	if (urge_parked(c, slot))
		return;
	struct job_queue *q = &c->normal[c->jobs[slot].from != NULL];
	int32_t before = NOBODY, at = q->head;
	for (; at != NOBODY && at != slot; at = c->jobs[at].next)
		before = at;
	if (at == NOBODY)
		return; /* all its pieces are on their way */
	if (before == NOBODY)
		q->head = c->jobs[at].next;
	else
		c->jobs[before].next = c->jobs[at].next;
	if (q->tail == at)
		q->tail = before;
	c->jobs[at].urgent = true;
	queue_push(c, &c->urgent[c->jobs[at].from != NULL], at);
}

/* The next chunk from tier 1. Returns 1: that was the last, 0: more to come, -1: not now. */
static int start_chunk(struct loader *l, int32_t slot, struct job *j)
{
	struct card *c = l->card;
	if (!j->urgent && c->n_ahead_ram >= RAM_CHUNKS)
		return -1;
	uint64_t chunk = num_align_up(j->bytes / ((j->bytes + RAM_CHUNK - 1) / RAM_CHUNK), 4096);
	uint64_t n = j->urgent ? j->bytes - j->at : MIN(j->bytes - j->at, chunk);
	l->fills[slot].reads_left++;
	c->n_ahead_ram += j->lane == COPY_AHEAD;
	send(l, j, slot, j->dst + j->at, j->from + j->at, n, NOBODY);
	j->at += n;
	return j->at == j->bytes;
}

/* The next piece from disk; answers like start_chunk. */
static int start_read(struct loader *l, int32_t slot, struct job *j)
{
	struct card *c = l->card;
	struct extent_plan p;
	bool guess = !j->urgent && l->fills[slot].prefetch;
	if (c->n_free_pieces <= (j->urgent ? 0 : c->g.n_pieces / 3) ||
		(guess && c->n_guessed >= GUESSES) ||
		c->n_reads[1] + (j->urgent ? 0 : c->n_reads[0]) >= c->most_reads)
		return -1;
	if (extent_plan(l->table, (uint32_t)j->layer, (uint32_t)j->expert, &p))
		bug("no extents for expert %d of layer %d", j->expert, j->layer);
	const struct extent_read *r = &p.reads[j->read];
	uint64_t step = reader_slice_step(r->bytes, reader_slice(l->reader)),
			 n = MIN(step, r->bytes - j->at);
	int32_t piece = take_piece(c);
	struct reader_request q = {
		.file = r->file,
		.offset = r->offset + j->at,
		.bytes = n,
		.need = MIN(n, r->need - j->at),
		.dst = c->bounce.base + (uint64_t)piece * c->g.piece_bytes,
		.tag = (uint64_t)piece,
		.urgent = j->urgent,
	};
	int rc = reader_submit(l->reader, &q);
	if (rc) {
		give_piece(c, piece);
		if (rc != READER_BUSY)
			bug("the reader refused expert %d of layer %d: code %d", j->expert, j->layer, rc);
		return -1;
	}
	c->pieces[piece] = (struct piece){
		.slot = slot, .dst_offset = r->dst_offset + j->at, .guess = guess, .urgent = j->urgent};
	c->n_guessed += guess;
	c->n_reads[j->urgent]++;
	l->fills[slot].reads_left++;
	l->fills[slot].bytes += n;
	j->at += step;
	if (j->at >= r->need) {
		j->at = 0;
		j->read++;
	}
	return j->read == p.n_reads;
}

/* Starts pieces of the queue's fillings, in order, as far as there is room. */
static bool start_queue(struct loader *l, struct job_queue *q)
{
	struct card *c = l->card;
	bool any = false;
	while (q->head != NOBODY) {
		int32_t slot = q->head;
		struct job *j = &c->jobs[slot];
		int rc = l->fills[slot].code ? 1
				 : j->from           ? start_chunk(l, slot, j)
									 : start_read(l, slot, j);
		if (rc < 0)
			break;
		any = true;
		if (!rc)
			continue;
		q->head = j->next;
		piece_over(l, slot);
	}
	return any;
}

/* Starts what may leave now. */
static bool start_out(struct loader *l)
{
	struct card *c = l->card;
	bool any = false, hurry = atomic_load(&l->hurry);
	for (; c->n_parked; any = true) {
		struct parked *p = &c->parked[0];
		bool now = hurry || p->urgent || c->n_parked > PARKED_AT_EASE;
		if (now ? c->out.n >= OUT_HURRIED : c->out.n || c->in.n || c->ahead.n)
			break;
		const uint64_t left = p->bytes - p->at;
		const bool last = now || left <= c->demotion_chunk_bytes;
		const uint64_t n = last ? left : c->demotion_chunk_bytes;
		copy_parts(c, COPY_OUT, p->dst + p->at,
			c->parking + (uint64_t)p->place * c->g.slot_bytes + p->at, n);
		l->io_now.bytes_out += n;
		flights_push(&c->out, (struct flight){.ticket = c->copier->ops->fence(c->copier, COPY_OUT),
								  .slot = p->slot,
								  .place = last ? p->place : NOBODY,
								  .aside = p->aside});
		p->at += n;
		if (last)
			memmove(&c->parked[0], &c->parked[1], --c->n_parked * sizeof *p);
		else
			l->fills[p->slot].reads_left++;
	}
	return any;
}

bool loader_card_run(struct loader *l)
{
	struct card *c = l->card;
	bool any = poll_lane(l, &c->in, false);
	any |= poll_lane(l, &c->ahead, false);
	any |= poll_lane(l, &c->out, true);
	for (int from = 1; from >= 0; from--) {
		any |= start_queue(l, &c->urgent[from]);
		any |= start_queue(l, &c->normal[from]);
	}
	any |= start_out(l);
	loader_busy(&l->io_now.in_busy, c->in.n + c->ahead.n > 0);
	loader_busy(&l->io_now.out_busy, c->out.n > 0);
	return any;
}

bool loader_card_copying(const struct loader *l)
{
	const struct card *c = l->card;
	return c->in.n || c->ahead.n || c->out.n || c->n_parked;
}

/* ---- demotion ---- */

bool loader_card_can_move(struct loader *l, const struct command *command)
{
	struct pinned *ram = &l->card->ram;
	uint64_t end = command->to_offset + command->bytes;
	pinned_request(ram, end + PIN_AHEAD * ram->step);
	return l->card->n_free_places &&
		   (end <= atomic_load(&ram->ready) || atomic_load(&ram->state) == PINNED_REFUSED);
}

void loader_card_move(struct loader *l, const struct command *command)
{
	struct card *c = l->card;
	struct copier *x = c->copier;
	struct fill *f = &l->fills[command->slot];
	f->reads_left = 1; /* the last piece out */
	f->code = 0;
	if (command->to_offset + command->bytes > atomic_load(&c->ram.ready)) {
		copy_failed(l, command->slot, &c->ram.why); /* or it could not be moved yet */
		piece_over(l, command->slot);
		return;
	}
	int32_t place = c->free_places[--c->n_free_places];
	uint8_t *parked = c->parking + (uint64_t)place * c->g.slot_bytes;
	x->ops->copy(x, COPY_WITHIN, parked, l->arena[0] + command->from_offset, command->bytes);
	uint64_t aside = x->ops->fence(x, COPY_WITHIN);
	x->ops->stream_wait(x, COPY_IN, aside); /* the slot is filled again as soon as it is empty */
	x->ops->stream_wait(x, COPY_AHEAD, aside);
	x->ops->stream_wait(x, COPY_OUT, aside);
	c->parked[c->n_parked++] = (struct parked){.slot = command->slot,
		.place = place,
		.aside = aside,
		.dst = c->ram.base + command->to_offset,
		.bytes = command->bytes};
}

/* ---- life ---- */

static void pinned_told(void *arg)
{
	struct loader *l = arg;
	const struct pinned *p = &l->card->ram;
	if (atomic_load(&p->state) == PINNED_READY)
		log_verbose("copies: %.2f GB of host memory pinned in %.2f s and pauses",
			(double)p->bytes / 1e9, p->seconds);
	loader_poke(l);
}

static bool new_flights(struct flights *q, size_t cap)
{
	q->cap = (unsigned)cap;
	q->ring = mem_try_new(cap, sizeof *q->ring);
	return q->ring != NULL;
}

int loader_card_open(struct loader *l, const struct loader_options *o,
	const struct loader_geometry *g, struct err *e)
{
	struct card *c = l->card = NEW(struct card);
	int rc;
	c->g = *g;
	c->demotion_chunk_bytes = o->demotion_chunk_bytes ? o->demotion_chunk_bytes : OUT_PIECE;
	c->copier = o->copier;
	if (!c->copier) {
		if ((rc = o->backend->ops->copier_open(o->backend, &c->copier, e)))
			return rc;
		c->own = true;
	}
	struct copier *x = c->copier;
	l->arena_bytes[0] = cache_memory_bytes(l->cache, 0);
	l->arena_bytes[1] = cache_memory_bytes(l->cache, 1);
	uint64_t parking = l->arena_bytes[1] ? PARKING_PLACES * g->slot_bytes : 0;
	size_t n_slots = (size_t)l->n_slots;
	c->pieces = mem_try_new(g->n_pieces, sizeof *c->pieces);
	c->jobs = mem_try_new(n_slots, sizeof *c->jobs);
	if (!c->pieces || !c->jobs || !new_flights(&c->in, g->n_pieces + 2 * n_slots) ||
		!new_flights(&c->ahead, g->n_pieces + RAM_CHUNKS + n_slots) ||
		!new_flights(&c->out, OUT_HURRIED))
		return err_set(e, ERR_MEMORY, "no memory for the tables of %d cache slots", l->n_slots);
	uint64_t parking_at = num_align_up(l->arena_bytes[0], 4096);
	if ((rc = x->ops->alloc(x, parking_at + parking, (void **)&l->arena[0], e))) {
		err_prefix(e, "expert cache");
		return rc;
	}
	c->parking = l->arena[0] + parking_at;
	if (l->arena_bytes[1]) {
		size_t step = o->pin_step_bytes ? o->pin_step_bytes : PIN_STEP;
		if ((rc = pinned_start(&c->ram, x, l->arena_bytes[1], step, pinned_told, l, e)))
			return rc;
		l->arena[1] = c->ram.base;
	}
	if ((rc = pinned_start(&c->bounce, x, g->host_staging_bytes, 0, NULL, NULL, e)) ||
		(rc = pinned_wait(&c->bounce, e)))
		return rc;
	reader_register(l->reader, c->bounce.base, c->bounce.bytes);
#ifdef LOADER_POISON
	c->poison = c->bounce.base + g->n_pieces * g->piece_bytes;
	memset(c->poison, READER_POISON, g->slot_bytes);
#endif
	unsigned few = reader_useful_depth(l->reader);
	c->most_reads = few < reader_depth(l->reader) * reader_n_drives(l->reader) ? few : g->n_pieces;
	c->free_piece = NOBODY;
	for (unsigned i = g->n_pieces; i-- > 0;)
		give_piece(c, (int32_t)i);
	for (int32_t i = PARKING_PLACES; i-- > 0;)
		c->free_places[c->n_free_places++] = i;
	for (int from = 0; from < 2; from++)
		c->urgent[from].head = c->normal[from].head = NOBODY;
	return 0;
}

int loader_card_settle(struct loader *l, struct err *e)
{
	return pinned_wait(&l->card->ram, e);
}

int loader_card_refused(const struct loader *l, struct err *e)
{
	const struct pinned *p = &l->card->ram;
	if (atomic_load(&p->state) != PINNED_REFUSED)
		return 0;
	if (e) {
		*e = p->why;
		if (atomic_load(&p->ready))
			err_hint(
				e, "--ram-gb %.2f was pinned", (double)(atomic_load(&p->ready) / 10000000) / 100);
	}
	return ERR_MEMORY;
}

void loader_card_go_on(struct loader *l)
{
	pinned_continue(&l->card->ram);
}

void loader_card_attach(struct loader *l)
{
	l->card->copier->ops->attach(l->card->copier);
}

void loader_card_drain(struct loader *l)
{
	l->card->copier->ops->drain(l->card->copier);
}

void loader_card_stop(struct loader *l)
{
	atomic_store(&l->card->ram.stop, true);
	pinned_wait(&l->card->ram, NULL);
}

void loader_card_close(struct loader *l)
{
	struct card *c = l->card;
	if (!c)
		return;
	pinned_free(&c->ram);
	pinned_free(&c->bounce);
	if (c->copier && l->arena[0])
		c->copier->ops->free(c->copier, l->arena[0], l->arena_bytes[0]);
	if (c->own)
		c->copier->ops->close(c->copier);
	free(c->pieces);
	free(c->jobs);
	free(c->in.ring);
	free(c->ahead.ring);
	free(c->out.ring);
	free(c);
	l->card = NULL;
	l->arena[0] = l->arena[1] = NULL;
}
