/* SPDX-License-Identifier: MIT */
/* The text is valid JSON, so brackets match and a comma in an object comes before a key. */
#include "src/text/schema/unique_keys.h"

#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/text/utf8.h"

#include <stdlib.h>
#include <string.h>

enum state { OUTSIDE, STRING, STRING_ESCAPE, KEY, KEY_ESCAPE, KEY_CODE };

void unique_keys_free(struct unique_keys *u)
{
	free(u->keys);
	*u = (struct unique_keys){0};
}

bool unique_keys_reserve(struct unique_keys *u, size_t n)
{
	size_t cap = u->n_keys + n / 2 + 1; /* a key has two quotes */
	if (cap <= u->cap)
		return true;
	cap = MAX(cap, 2 * u->cap);
	if (!mem_grow_array(&u->keys, cap, sizeof *u->keys))
		return false;
	u->cap = cap;
	return true;
}

static uint64_t mix(uint64_t h, uint64_t v)
{
	h = (h ^ v) * 0x9e3779b97f4a7c15u;
	return h ^ h >> 29;
}

static void level_open(struct unique_keys *u, bool object)
{
	if (u->depth < UNIQUE_KEYS_DEPTH) {
		u->levels[u->depth].object = object ? ++u->n_objects : 0;
		u->levels[u->depth].first = u->n_keys;
	}
	u->depth++;
	u->key_next = object;
}

static void level_close(struct unique_keys *u)
{
	if (u->depth && --u->depth < UNIQUE_KEYS_DEPTH && !u->copy)
		u->n_keys = u->levels[u->depth].first;
	u->key_next = false;
}

static bool in_object(const struct unique_keys *u)
{
	return u->depth && u->depth <= UNIQUE_KEYS_DEPTH && u->levels[u->depth - 1].object;
}

static void outside_push(struct unique_keys *u, uint8_t byte)
{
	switch (byte) {
	case '{':
	case '[':
		level_open(u, byte == '{');
		break;
	case '}':
	case ']':
		level_close(u);
		break;
	case ',':
		u->key_next = in_object(u);
		break;
	case '"':
		u->state = u->key_next ? KEY : STRING;
		u->key_next = false;
		u->hash = mix(0, in_object(u) ? u->levels[u->depth - 1].object : 0);
		break;
	default:
		break;
	}
}

static void key_add(struct unique_keys *u, uint32_t c)
{
	char text[4];
	size_t n = utf8_from_code(text, c);
	for (size_t i = 0; i < n; i++)
		u->hash = mix(u->hash, (uint8_t)text[i]);
}

/* A hexadecimal digit of \uXXXX. */
static void code_push(struct unique_keys *u, uint8_t byte)
{
	u->code = 16 * u->code + (byte <= '9' ? byte - '0' : (byte | 32) - 'a' + 10);
	if (--u->digits)
		return;
	u->state = KEY;
	if (u->code >= 0xd800 && u->code < 0xdc00) {
		u->high = u->code;
		return;
	}
	key_add(u, u->high ? 0x10000 + ((u->high - 0xd800) << 10) + (u->code - 0xdc00) : u->code);
	u->high = 0;
}

void unique_keys_push(struct unique_keys *u, uint8_t byte)
{
	static const uint8_t escapes[] = {
		['b'] = '\b', ['f'] = '\f', ['n'] = '\n', ['r'] = '\r', ['t'] = '\t'};
	switch ((enum state)u->state) {
	case OUTSIDE:
		outside_push(u, byte);
		break;
	case STRING:
		u->state = byte == '\\' ? STRING_ESCAPE : byte == '"' ? OUTSIDE : STRING;
		break;
	case STRING_ESCAPE: /* the digits of \uXXXX are characters like others */
		u->state = STRING;
		break;
	case KEY:
		if (byte == '\\') {
			u->state = KEY_ESCAPE;
		} else if (byte == '"') {
			u->state = OUTSIDE;
			if (u->n_keys < u->cap)
				u->keys[u->n_keys++] = u->hash;
		} else {
			u->hash = mix(u->hash, byte);
		}
		break;
	case KEY_ESCAPE:
		u->state = byte == 'u' ? KEY_CODE : KEY;
		u->digits = 4;
		u->code = 0;
		if (byte != 'u')
			key_add(u, byte < sizeof escapes && escapes[byte] ? escapes[byte] : byte);
		break;
	case KEY_CODE:
		code_push(u, byte);
		break;
	}
}

bool unique_keys_repeats(const struct unique_keys *u, uint8_t byte)
{
	if (u->state != KEY || byte != '"' || !in_object(u))
		return false;
	for (size_t i = u->levels[u->depth - 1].first; i < u->n_keys; i++)
		if (u->keys[i] == u->hash)
			return true;
	return false;
}
