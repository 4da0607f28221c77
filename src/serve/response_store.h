/* SPDX-License-Identifier: MIT */
/*
 * Responses that were given, by id, with the items they answered: what previous_response_id and
 * GET /v1/responses/ID look for. Bounded by number and bytes; the response that was used longest
 * ago is forgotten first. Any thread.
 *
 * With a folder each response is a file ID.response there too, readable by its owner only, so that
 * a later run of the server finds it. Files appear whole or not at all. The folder may hold other
 * files: only those that begin as these do are read or removed.
 *
 * Memory and folder have bounds of their own. A response above the bound of one is not kept there,
 * but still in the other.
 */
#ifndef GLM_SERVE_RESPONSE_STORE_H
#define GLM_SERVE_RESPONSE_STORE_H

#include "src/base/buf.h"
#include "src/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RESPONSE_STORE_MAX    1000          /* responses in memory; in a folder as many again */
#define RESPONSE_FOLDER_BYTES (64ull << 20) /* in a folder */

#define RESPONSE_ID_LEN 29 /* "resp_" and 24 letters and digits */

struct response_store;

/* folder: NULL: memory only; else it must exist. limit_bytes: in memory; 0: folder only. *out is
 * never NULL after 0. */
int response_store_open(
	const char *folder, uint64_t limit_bytes, struct response_store **out, struct err *e);
void response_store_close(struct response_store *s); /* NULL is fine; files stay */

/* Keeps a response, a JSON object, with the items it answered, a JSON array. A file that cannot be
 * written is a warning. */
void response_store_put(
	struct response_store *s, const char *id, const struct buf *response, const struct buf *items);
/* What response_store_get would append at most, of the response, the items or both. 0: it is not
 * there. */
size_t response_store_bytes(struct response_store *s, const char *id, bool response, bool items);
/* Appends both (each may be NULL). False: not there; or memory is exhausted, and the scope is
 * marked (mem.h). Any text may be given as an id. */
bool response_store_get(
	struct response_store *s, const char *id, struct buf *response, struct buf *items);
bool response_store_delete(struct response_store *s, const char *id); /* false: not there */

struct response_store_stats {
	/* In memory. bytes: what they take of the allocator; forgotten: to keep the bounds. */
	uint64_t responses, bytes, forgotten;
};
struct response_store_stats response_store_stats(struct response_store *s);

#endif
