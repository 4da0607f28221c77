/* SPDX-License-Identifier: MIT */
/* The inside of ranks, for the files of this folder. */
#ifndef GLM_RANKS_RANKS_INTERNAL_H
#define GLM_RANKS_RANKS_INTERNAL_H

#include "src/ranks/mpi_calls.h"
#include "src/ranks/ranks.h"

#include <pthread.h>
#include <stdatomic.h>

enum { TAG_MESSAGE = 1, TAG_HEARTBEAT = 2 };

enum heartbeat_state { HEARTBEAT_ALIVE, HEARTBEAT_DONE, HEARTBEAT_LEFT, HEARTBEAT_LOST };

/* The head of a heartbeat; the status follows. Ranks are of one program on machines of one kind:
 * numbers have their order of bytes. */
struct heartbeat {
	uint32_t state; /* enum heartbeat_state */
	uint32_t rank;  /* LOST: the one that is */
	int32_t code;   /* LEFT: of the rank's error; LOST: of the loss */
	char text[ERR_TEXT_MAX + 64];
};

struct peer {
	char name[96];
	/* used by the thread of the heartbeats alone */
	struct mpi_transfer in, out;
	uint8_t *in_data, *out_data; /* a struct heartbeat, then a status */
	size_t out_capacity;
	uint64_t silent_ns; /* since the last heartbeat, by this process's own running */
	/* under `lock` */
	uint32_t delivered_state; /* of the last heartbeat that was sent completely */
	uint32_t sent_state;      /* of the latest one, which may be under way */
	uint8_t *status;          /* [status_bytes] the latest one received; NULL: none */
	size_t status_bytes;
	/* any thread */
	atomic_bool done; /* it has sent HEARTBEAT_DONE */
	/* of the thread that calls ranks_receive: how long it waited for the last two messages */
	uint64_t waited_ns[2];
};

struct ranks {
	uint32_t me, count, on_host;
	struct peer *peers;  /* [count]; the own one has a name only */
	pthread_mutex_t mpi; /* one call at a time */
	/* the heartbeats */
	pthread_t thread;
	pthread_mutex_t lock; /* of what follows */
	pthread_cond_t wake;
	bool stop;
	uint32_t state;             /* of this rank: enum heartbeat_state */
	struct heartbeat heartbeat; /* text and rank of the next ones */
	size_t publish_bytes;
	void (*publish)(void *user, void *out);
	void *publish_user;
	void (*on_loss)(void *user, const char *sentence); /* NULL: nobody, or it was called */
	void *on_loss_user;
	struct err loss;      /* sentence and code of the lost rank */
	atomic_bool lost;     /* set after `loss` */
	atomic_bool reported; /* a thread prints the loss */
	bool orderly;         /* the caller's thread */
};

/* Starts the thread. */
int heartbeats_start(struct ranks *r, struct err *e);
/* Sends this state from now on, and at once. LEFT: code and text of the error; else 0, NULL. */
void heartbeats_set_state(struct ranks *r, enum heartbeat_state state, int code, const char *text);
/* Has every other rank received the latest state (and, all_done, sent HEARTBEAT_DONE itself)? */
bool heartbeats_delivered(struct ranks *r, bool all_done);
/* A rank is lost; the first one counts. Returns ERR_RUN with its sentence in *e (may be NULL). */
int rank_lose(struct ranks *r, uint32_t rank, const char *why, struct err *e);
/* Ends the thread; nothing is received any more. */
void heartbeats_stop(struct ranks *r);

#endif
