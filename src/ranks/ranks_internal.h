/* SPDX-License-Identifier: MIT */
/* The inside of ranks, for the files of this folder. */
#ifndef GLM_RANKS_RANKS_INTERNAL_H
#define GLM_RANKS_RANKS_INTERNAL_H

#include "src/ranks/mpi_calls.h"
#include "src/ranks/ranks.h"

#include <pthread.h>
#include <stdatomic.h>

enum { TAG_MESSAGE = 1, TAG_BEAT = 2 };

enum beat_kind { BEAT_ALIVE, BEAT_DONE, BEAT_LEFT, BEAT_LOST };

/* What a beat begins with; the status follows. Ranks are of one program on machines of one kind:
 * numbers have their order of bytes. */
struct beat {
	uint32_t kind; /* enum beat_kind */
	uint32_t rank; /* LOST: the one that is */
	char text[ERR_TEXT_MAX + 64];
};

struct peer {
	char name[96];
	/* beats; the thread's */
	struct mpi_transfer in, out;
	uint8_t *in_data, *out_data; /* a struct beat, then a status */
	size_t out_capacity;
	uint64_t silent_ns; /* since the last beat, by this process's own running */
	uint32_t said;      /* the kind of the last beat sent, once that send is complete */
	uint32_t saying;    /* ... and of the one under way */
	atomic_bool done;
	uint8_t *status; /* [status_bytes] the latest; under `lock` */
	size_t status_bytes;
	/* how long the last two messages from here were waited for */
	uint64_t waited_ns[2];
};

struct ranks {
	uint32_t me, count, beside;
	struct peer *peers;  /* [count]; the own one has a name only */
	pthread_mutex_t mpi; /* one call at a time */
	/* the beats */
	pthread_t thread;
	pthread_mutex_t lock; /* of what follows */
	pthread_cond_t wake;
	bool stop;
	uint32_t kind; /* what this rank says: enum beat_kind */
	struct beat words;
	size_t publish_bytes;
	void (*publish)(void *user, void *out);
	void *publish_user;
	struct err loss;      /* of the lost rank */
	atomic_bool lost;     /* set after `loss` */
	atomic_bool reported; /* somebody writes the sentence */
	bool settled;         /* the caller's thread */
};

/* Starts the thread. */
int rank_beats_start(struct ranks *r, struct err *e);
/* Says this from now on, and at once. text may be NULL. */
void rank_beats_say(struct ranks *r, enum beat_kind kind, const char *text);
/* Has every other rank got the latest kind (and, all_done, said "done" itself)? */
bool rank_beats_delivered(struct ranks *r, bool all_done);
/* A rank is lost; the first one counts. Returns ERR_RUN with its sentence in *e (may be NULL). */
int rank_lose(struct ranks *r, uint32_t rank, const char *why, struct err *e);
/* Ends the thread; nothing is received any more. */
void rank_beats_stop(struct ranks *r);

#endif
