/* SPDX-License-Identifier: MIT */
/*
 * The identity of a client: an API key or an address, as an id for client_find (client_share.h).
 *
 * Of an IPv6 address the first 64 bits count, since one customer usually has a whole /64. A trusted
 * proxy names the client in X-Forwarded-For. Only the last address there is used: the proxy itself
 * has appended it, and the client may have sent those before it.
 */
#ifndef GLM_SERVE_IDENTITY_H
#define GLM_SERVE_IDENTITY_H

#include "src/serve/client_share.h"

#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>

struct identity {
	unsigned char id[CLIENT_ID_MAX];
	size_t n; /* 0: unknown */
};

/* The index of the key in `keys` (separated by commas) that a request's headers contain; -1: none.
 * Either header may be NULL. The time depends on lengths, not on where a key differs. */
int identity_find_key(const char *keys, const char *authorization, const char *x_api_key);
bool identity_has_several(const char *keys); /* NULL: no */
struct identity identity_of_key(int index);

struct identity identity_of_address(const struct sockaddr *a);
/* The last address of a header's value; n 0 when there is none. A port behind it does not count. */
struct identity identity_of_forwarded(const char *value);

/* Whether `a` is the address that `text` gives in digits. */
bool identity_is(const struct sockaddr *a, const char *text);
bool identity_is_address(const char *text); /* whether identity_is can be true */

#endif
