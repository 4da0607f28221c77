/* SPDX-License-Identifier: MIT */
/*
 * A limit on the memory of all requests together, without their bodies (http.h limits these): JSON
 * trees, the text of prompts while it is rendered, the tokens of prompts, answers, and responses
 * until clients have taken them. Nothing is allocated here: a caller reserves an upper bound of
 * what it is about to allocate.
 *
 * In order of use, for each request: fill in budget and client of a zeroed budget_part; budget_hold
 * before each phase, with the bytes of all that the request holds then; budget_release at its end.
 *
 * Threads: the budget belongs to all, a part to one at a time.
 */
#ifndef GLM_SERVE_BUDGET_H
#define GLM_SERVE_BUDGET_H

#include "src/serve/client_share.h"

#include <stdatomic.h>
#include <stddef.h>

struct budget {
	atomic_size_t held, peak; /* bytes, of all parts */
	atomic_ulong refused;     /* BUDGET_FULL and BUDGET_TOO_LARGE; client_share.h counts the rest */
	size_t limit;             /* bytes, of all parts; constant. One request may hold half of it. */
};

/* What one request holds. budget: lent; NULL: nothing is counted. client: a reference that
 * budget_release drops (client_hold); NULL: without a share. */
struct budget_part {
	struct budget *budget;
	struct client *client;
	size_t bytes;
};

enum budget_answer {
	BUDGET_TAKEN,
	BUDGET_FULL,     /* refused until other requests end */
	BUDGET_SHARE,    /* refused until requests of the same client end */
	BUDGET_TOO_LARGE /* refused for good: more than budget_most */
};

/* Sets what the part holds to `bytes` in all, more or fewer than before. A refusal changes nothing.
 */
enum budget_answer budget_hold(struct budget_part *p, size_t bytes);
/* The same for what is allocated already, such as a response that waits for its client: never
 * refused. All parts together may then hold more than the limit, until some are released. */
void budget_count(struct budget_part *p, size_t bytes);
void budget_release(struct budget_part *p); /* all bytes, and the reference to the client */
size_t budget_most(const struct budget *b); /* bytes that one request may hold */

#endif
