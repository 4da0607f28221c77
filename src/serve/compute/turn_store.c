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

struct turn {
	struct turn *next;          /* in the bucket */
	struct turn *newer, *older; /* by use */
	uint64_t hash;
	char *key; /* [key_len] */
	size_t key_len;
	char *reasoning; /* [reasoning_len] */
	size_t reasoning_len;
	int32_t *ids; /* [n] */
	size_t n, n_reasoning;
};

struct turn_store {
	pthread_mutex_t lock; /* guards everything; nothing is called out while it is held */
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

static size_t turn_bytes(const struct turn *t)
{
	return sizeof *t + t->key_len + t->reasoning_len + t->n * sizeof *t->ids;
}

static void turn_free(struct turn *t)
{
	free(t->key);
	free(t->reasoning);
	free(t->ids);
	free(t);
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

static void forget_oldest(struct turn_store *r)
{
	struct turn *t = r->oldest, **at = &r->buckets[t->hash % N_BUCKETS];
	while (*at != t)
		at = &(*at)->next;
	*at = t->next;
	r->oldest = t->newer;
	*(r->oldest ? &r->oldest->older : &r->newest) = NULL;
	r->bytes -= turn_bytes(t);
	turn_free(t);
}

void turn_store_free(struct turn_store *r)
{
	if (!r)
		return;
	while (r->oldest)
		forget_oldest(r);
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

/* The bytes that two equal turns share. Arguments are spelled with sorted keys: clients parse and
 * write them again. */
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
	if (t->n_calls) {
		buf_puts(key, t->call_ids);
	} else {
		buf_printf(key, "%zu %016llx", t->n_before, (unsigned long long)t->before);
	}
}

static struct turn *turn_find(struct turn_store *r, uint64_t hash, const struct buf *key)
{
	for (struct turn *t = r->buckets[hash % N_BUCKETS]; t; t = t->next)
		if (t->hash == hash && t->key_len == key->len && !memcmp(t->key, key->data, key->len))
			return t;
	return NULL;
}

void turn_store_put(struct turn_store *r, const struct stored_turn *turn, const int32_t *ids,
	size_t n, size_t n_reasoning)
{
	struct buf key = {0};
	turn_spell(turn, &key);
	uint64_t hash = hash_bytes(HASH_START, key.data, key.len);
	struct chat_text reasoning = chat_text_trimmed(turn->reasoning);
	char *own_reasoning = mem_strndup(reasoning.data ? reasoning.data : "", reasoning.len);
	int32_t *own_ids = NEW_ARRAY(int32_t, n + 1);
	struct turn *fresh = NEW(struct turn);
	if (!own_reasoning || !own_ids || !fresh || mem_scope_failed()) { /* not remembered */
		free(own_reasoning);
		free(own_ids);
		free(fresh);
		buf_free(&key);
		return;
	}
	pthread_mutex_lock(&r->lock);
	struct turn *t = turn_find(r, hash, &key);
	if (t) { /* given again: what was written last counts */
		unlink_use(r, t);
		r->bytes -= turn_bytes(t);
		free(t->reasoning);
		free(t->ids);
	} else {
		t = fresh;
		fresh = NULL;
		t->hash = hash;
		t->key_len = key.len;
		t->key = buf_take(&key);
		t->next = r->buckets[hash % N_BUCKETS];
		r->buckets[hash % N_BUCKETS] = t;
	}
	t->reasoning = own_reasoning;
	t->reasoning_len = reasoning.len;
	t->ids = own_ids;
	if (n)
		memcpy(t->ids, ids, n * sizeof *ids);
	t->n = n;
	t->n_reasoning = n_reasoning;
	link_newest(r, t);
	r->bytes += turn_bytes(t);
	while (r->bytes > r->limit && r->oldest)
		forget_oldest(r);
	pthread_mutex_unlock(&r->lock);
	free(fresh);
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
	bool good = t && (!reasoning.len || (reasoning.len == t->reasoning_len &&
											!memcmp(reasoning.data, t->reasoning, reasoning.len)));
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
