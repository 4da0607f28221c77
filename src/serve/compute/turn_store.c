/* SPDX-License-Identifier: MIT */
/* A hash table of turns, keyed by bytes that spell the turn out, in a list by last use. */
#include "src/serve/compute/turn_store.h"

#include "src/base/buf.h"
#include "src/base/hash.h"
#include "src/base/mem.h"
#include "src/base/num.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define N_BUCKETS 4096

/* One allocation for each turn: many small ones with long lives would fragment the heap of the
 * requests. */
struct turn {
	struct turn *next;          /* in the bucket */
	struct turn *newer, *older; /* by use */
	uint64_t hash;
	size_t n, n_reasoning, key_len, reasoning_len;
	int32_t ids[]; /* [n]; behind them the key [key_len] and the reasoning [reasoning_len] */
};

struct turn_store {
	pthread_mutex_t lock; /* guards everything; no other lock is taken under it */
	struct turn *buckets[N_BUCKETS];
	struct turn *newest, *oldest;
	size_t bytes, limit;
};

struct turn_store *turn_store_new(size_t limit_bytes)
{
	struct turn_store *r = NEW(struct turn_store);
	r->limit = limit_bytes;
	pthread_mutex_init(&r->lock, NULL);
	return r;
}

static size_t turn_size(size_t n, size_t key_len, size_t reasoning_len)
{
	return sizeof(struct turn) + n * sizeof(int32_t) + key_len + reasoning_len;
}

static size_t turn_bytes(const struct turn *t)
{
	return mem_block_bytes(turn_size(t->n, t->key_len, t->reasoning_len));
}

static const char *turn_key(const struct turn *t)
{
	return (const char *)(t->ids + t->n);
}

static const char *turn_reasoning(const struct turn *t)
{
	return turn_key(t) + t->key_len;
}

/* NULL in a scope only. */
static struct turn *turn_new(const struct buf *key, struct chat_text reasoning, const int32_t *ids,
	size_t n, size_t n_reasoning)
{
	struct turn *t = mem_new(turn_size(n, key->len, reasoning.len), 1);
	if (!t)
		return NULL;
	t->hash = hash_bytes(HASH_START, key->data, key->len);
	t->n = n;
	t->n_reasoning = n_reasoning;
	t->key_len = key->len;
	t->reasoning_len = reasoning.len;
	if (n)
		memcpy(t->ids, ids, n * sizeof *ids);
	char *bytes = mempcpy(t->ids + n, buf_str(key), key->len);
	memcpy(bytes, reasoning.len ? reasoning.data : "", reasoning.len);
	return t;
}

static void unlink_use(struct turn_store *r, struct turn *t)
{
	*(t->newer ? &t->newer->older : &r->newest) = t->older;
	*(t->older ? &t->older->newer : &r->oldest) = t->newer;
}

static void link_newest(struct turn_store *r, struct turn *t)
{
	t->newer = NULL;
	t->older = r->newest;
	*(r->newest ? &r->newest->newer : &r->oldest) = t;
	r->newest = t;
}

static void turn_remove(struct turn_store *r, struct turn *t)
{
	struct turn **at = &r->buckets[t->hash % N_BUCKETS];
	while (*at != t)
		at = &(*at)->next;
	*at = t->next;
	unlink_use(r, t);
	r->bytes -= turn_bytes(t);
	free(t);
}

void turn_store_free(struct turn_store *r)
{
	if (!r)
		return;
	while (r->oldest)
		turn_remove(r, r->oldest);
	pthread_mutex_destroy(&r->lock);
	free(r);
}

size_t turn_store_bytes(struct turn_store *r)
{
	pthread_mutex_lock(&r->lock);
	size_t bytes = r->bytes;
	pthread_mutex_unlock(&r->lock);
	return bytes;
}

/* Appends the key of a turn, by which equal turns are found. Arguments are written with sorted
 * keys, since clients parse and write them again. */
static void turn_spell(const struct stored_turn *t, struct buf *key)
{
	struct chat_text content = chat_text_trimmed(t->content);
	buf_printf(key, "%zu:", content.len);
	buf_append(key, content.data, content.len);
	for (size_t i = 0; i < t->n_calls; i++) {
		char *arguments = json_dumps(t->calls[i].arguments, JSON_COMPACT | JSON_SORT_KEYS);
		buf_printf(key, "\n%zu:", t->calls[i].name.len);
		buf_append(key, t->calls[i].name.data, t->calls[i].name.len);
		buf_puts(key, arguments ? arguments : "?");
		free(arguments);
	}
	buf_putc(key, '\n');
	if (t->call_ids[strspn(t->call_ids, "\n")]) {
		buf_puts(key, t->call_ids);
	} else { /* no calls, or calls without ids */
		buf_printf(key, "%zu %016llx", t->n_before, (unsigned long long)t->before);
	}
}

static struct turn *turn_find(struct turn_store *r, uint64_t hash, const struct buf *key)
{
	for (struct turn *t = r->buckets[hash % N_BUCKETS]; t; t = t->next)
		if (t->hash == hash && t->key_len == key->len && !memcmp(turn_key(t), key->data, key->len))
			return t;
	return NULL;
}

void turn_store_put(struct turn_store *r, const struct stored_turn *turn, const int32_t *ids,
	size_t n, size_t n_reasoning)
{
	struct buf key = {0};
	turn_spell(turn, &key);
	struct turn *t = mem_scope_failed()
						 ? NULL
						 : turn_new(&key, chat_text_trimmed(turn->reasoning), ids, n, n_reasoning);
	if (!t || turn_bytes(t) > r->limit) { /* not remembered */
		free(t);
		buf_free(&key);
		return;
	}
	pthread_mutex_lock(&r->lock);
	struct turn *old = turn_find(r, t->hash, &key);
	if (old) /* given again: what was written last counts */
		turn_remove(r, old);
	t->next = r->buckets[t->hash % N_BUCKETS];
	r->buckets[t->hash % N_BUCKETS] = t;
	link_newest(r, t);
	r->bytes += turn_bytes(t);
	while (r->bytes > r->limit)
		turn_remove(r, r->oldest); /* NOLINT(clang-analyzer-unix.Malloc): `oldest` moves on */
	pthread_mutex_unlock(&r->lock);
	buf_free(&key);
}

bool turn_store_get(struct turn_store *r, const struct stored_turn *turn, bool with_reasoning,
	struct token_ids *out)
{
	struct buf key = {0};
	turn_spell(turn, &key);
	uint64_t hash = hash_bytes(HASH_START, key.data, key.len);
	struct chat_text reasoning = chat_text_trimmed(turn->reasoning);
	pthread_mutex_lock(&r->lock);
	struct turn *t = mem_scope_failed() ? NULL : turn_find(r, hash, &key);
	bool good =
		t && (!reasoning.len || (reasoning.len == t->reasoning_len &&
									!memcmp(reasoning.data, turn_reasoning(t), reasoning.len)));
	size_t kept = out->n;
	for (size_t i = with_reasoning ? 0 : good ? t->n_reasoning : 0; good && i < t->n; i++)
		good = !token_ids_push(out, t->ids[i]);
	if (good) {
		unlink_use(r, t);
		link_newest(r, t);
	} else {
		out->n = kept;
	}
	pthread_mutex_unlock(&r->lock);
	buf_free(&key);
	return good;
}
