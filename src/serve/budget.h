/* SPDX-License-Identifier: MIT */
/*
 * The memory that requests may hold together, beside their bodies (http.h counts these): trees of
 * JSON, the text of prompts while it is made, and the prompts' tokens. What a request is going to
 * need is estimated from above before it is taken; nothing is allocated here. Any thread.
 */
#ifndef GLM_SERVE_BUDGET_H
#define GLM_SERVE_BUDGET_H

#include "src/serve/client_share.h"

#include <stdatomic.h>
#include <stddef.h>

struct budget {
	atomic_size_t held, peak;
	atomic_ulong refused;
	size_t limit; /* of all together; constant. One request may hold half of it. */
};

/* What one request holds, and for whom. budget NULL: nothing is counted. client: held, may be NULL.
 */
struct budget_part {
	struct budget *budget;
	struct client *client;
	size_t bytes;
};

/* BUDGET_FULL: there is room once others have ended. BUDGET_SHARE: once this client's own have. */
enum budget_answer { BUDGET_TAKEN, BUDGET_FULL, BUDGET_SHARE, BUDGET_TOO_LARGE };

/* The part holds `bytes` from now on, more or fewer than before; on a refusal it is unchanged. */
enum budget_answer budget_hold(struct budget_part *p, size_t bytes);
void budget_release(struct budget_part *p); /* lets the client go as well */
size_t budget_most(const struct budget *b); /* of one request */

#endif
