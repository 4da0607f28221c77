/* SPDX-License-Identifier: MIT */
/* Addresses are compared in IPv6's form, which holds IPv4's too. */
#include "src/serve/http/identity.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#define PREFIX 8 /* bytes of an IPv6 address that count */

/* ---- keys ---- */

static bool same_secret(const char *given, const char *key, size_t m)
{
	size_t n = strlen(given);
	unsigned diff = n != m;
	for (size_t i = 0; i < n; i++)
		diff |= (unsigned char)given[i] ^ (unsigned char)key[m ? i % m : 0];
	return !diff && n;
}

int identity_find_key(const char *keys, const char *authorization, const char *x_api_key)
{
	const char *bearer =
		authorization && !strncasecmp(authorization, "Bearer ", 7) ? authorization + 7 : NULL;
	int index = 0, found = -1;
	for (const char *key = keys;; index++) { /* all of them, found or not */
		size_t n = strcspn(key, ",");
		bool same = bearer && same_secret(bearer, key, n);
		same = (x_api_key && same_secret(x_api_key, key, n)) || same;
		if (same)
			found = index;
		if (!key[n])
			return found;
		key += n + 1;
	}
}

bool identity_has_several(const char *keys)
{
	return keys && strchr(keys, ',');
}

struct identity identity_of_key(int index)
{
	struct identity out = {{0}, 0};
	out.n = (size_t)snprintf((char *)out.id, sizeof out.id, "key %d", index);
	return out;
}

/* ---- addresses ---- */

static void map_four(const struct in_addr *four, unsigned char out[16])
{
	memcpy(out, "\0\0\0\0\0\0\0\0\0\0\xff\xff", 12);
	memcpy(out + 12, four, 4);
}

/* False: of no family that has addresses. */
static bool address_bytes(const struct sockaddr *a, unsigned char out[16])
{
	if (a && a->sa_family == AF_INET6) {
		memcpy(out, &((const struct sockaddr_in6 *)(const void *)a)->sin6_addr, 16);
		return true;
	}
	if (!a || a->sa_family != AF_INET)
		return false;
	map_four(&((const struct sockaddr_in *)(const void *)a)->sin_addr, out);
	return true;
}

static bool parse_address(const char *text, size_t n, unsigned char out[16])
{
	char copy[64];
	struct in_addr four;
	if (!n || n >= sizeof copy)
		return false;
	memcpy(copy, text, n);
	copy[n] = 0;
	if (*copy == '[') { /* [IPv6]:port */
		char *end = strchr(copy, ']');
		if (!end)
			return false;
		*end = 0;
		return inet_pton(AF_INET6, copy + 1, out) == 1;
	}
	if (inet_pton(AF_INET6, copy, out) == 1)
		return true;
	copy[strcspn(copy, ":")] = 0;
	if (inet_pton(AF_INET, copy, &four) != 1)
		return false;
	map_four(&four, out);
	return true;
}

static struct identity identity_of_bytes(const unsigned char bytes[16])
{
	struct identity out = {{0}, 0};
	bool four = !memcmp(bytes, "\0\0\0\0\0\0\0\0\0\0\xff\xff", 12);
	out.n = four ? 16 : PREFIX;
	memcpy(out.id, bytes, out.n);
	return out;
}

struct identity identity_of_address(const struct sockaddr *a)
{
	unsigned char bytes[16];
	return address_bytes(a, bytes) ? identity_of_bytes(bytes) : (struct identity){{0}, 0};
}

struct identity identity_of_forwarded(const char *value)
{
	unsigned char bytes[16];
	const char *comma = strrchr(value, ','), *from = comma ? comma + 1 : value;
	from += strspn(from, " \t");
	size_t n = strlen(from);
	while (n && strchr(" \t", from[n - 1]))
		n--;
	return parse_address(from, n, bytes) ? identity_of_bytes(bytes) : (struct identity){{0}, 0};
}

bool identity_is(const struct sockaddr *a, const char *text)
{
	unsigned char x[16], y[16];
	return text && address_bytes(a, x) && parse_address(text, strlen(text), y) &&
		   !memcmp(x, y, sizeof x);
}

bool identity_is_address(const char *text)
{
	unsigned char bytes[16];
	return parse_address(text, strlen(text), bytes);
}
