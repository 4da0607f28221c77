/* SPDX-License-Identifier: MIT */
/*
 * Who asks: an API key, or an address. An id is what client_share.h tells clients apart by.
 *
 * An IPv6 address counts by its first 64 bits: one customer has all that lie behind. A proxy that
 * is trusted says in X-Forwarded-For who asks. Only the last address there is believed: that is the
 * one that the proxy itself has seen and written; what stands before it came from the client.
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

/* Which of the keys (separated by commas) a request brings, from 0 on; -1: none of them. Either
 * header may be NULL. Time depends on lengths, not on where a key differs. */
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
