/* SPDX-License-Identifier: MIT */
/*
 * The vocabulary tables. Normal tokens are found through an open-addressing table that keeps 32
 * bits of the hash beside the id, so that nearly every probe is decided without touching the bytes.
 * Added tokens are few: they lie sorted, and a match narrows the range of candidates byte by byte.
 */
#include "src/text/vocab.h"

#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/text/utf8.h"

#include <stdlib.h>
#include <string.h>

/* ---- GPT-2 spelling: printable Latin-1 stands for itself, the other 68 bytes for U+0100, U+0101,
 * ... in order ---- */

static bool spelled_as_itself(unsigned b)
{
	return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
}

/* The other bytes in order: 0..32, 127..160, 173. */
static int byte_of(unsigned c)
{
	if (c < 256)
		return spelled_as_itself(c) ? (int)c : -1;
	c -= 256;
	return c < 33 ? (int)c : c < 67 ? (int)c - 33 + 127 : c == 67 ? 173 : -1;
}

static unsigned char_of(unsigned char b)
{
	if (spelled_as_itself(b))
		return b;
	return 256 + (b < 33 ? b : b == 173 ? 67u : b - 127u + 33);
}

int vocab_unspell(const char *text, size_t n, struct buf *out)
{
	buf_reserve(out, n);
	for (size_t i = 0; i < n;) {
		unsigned char b = (unsigned char)text[i];
		unsigned c = b;
		size_t len = 1;
		if (b >= 0x80) { /* the alphabet lies below U+0144: two bytes at most */
			if (b < 0xc2 || b > 0xdf || i + 1 == n || ((unsigned char)text[i + 1] & 0xc0) != 0x80)
				return -1;
			c = (b & 31u) << 6 | ((unsigned char)text[i + 1] & 63u);
			len = 2;
		}
		int byte = byte_of(c);
		if (byte < 0)
			return -1;
		out->data[out->len++] = (char)byte;
		i += len;
	}
	out->data[out->len] = 0;
	return 0;
}

void vocab_spell(const char *bytes, size_t n, struct buf *out)
{
	for (size_t i = 0; i < n; i++)
		utf8_append(out, char_of((unsigned char)bytes[i]));
}

/* ---- lookup of normal tokens ---- */

static inline uint64_t hash_mix(uint64_t h, uint64_t v)
{
	h = (h ^ v) * 0x9e3779b97f4a7c15u;
	return h ^ h >> 29;
}

static uint32_t token_hash(const char *p, size_t n)
{
	uint64_t h = hash_mix(0x51ed270b35a3c1d7u, n);
	for (; n >= 8; p += 8, n -= 8)
		h = hash_mix(h, load_u64(p));
	uint64_t tail = 0;
	if (n >= 4)
		tail = (uint64_t)load_u32(p) << 32 | load_u32(p + n - 4);
	else if (n)
		tail = (uint64_t)(unsigned char)p[0] << 16 | (uint64_t)(unsigned char)p[n / 2] << 8 |
			   (unsigned char)p[n - 1];
	h = hash_mix(h, tail);
	return (uint32_t)(h >> 32);
}

int32_t vocab_find(const struct vocab *v, const char *p, size_t n)
{
	uint32_t h = token_hash(p, n);
	for (uint32_t i = h & v->slot_mask;; i = (i + 1) & v->slot_mask) {
		uint64_t s = v->slots[i];
		if (!s)
			return -1;
		if ((uint32_t)(s >> 32) != h)
			continue;
		int32_t id = (int32_t)(uint32_t)s - 1;
		struct text_span t = vocab_text(v, id);
		if (t.len == n && !memcmp(t.data, p, n))
			return id;
	}
}

static int slots_build(struct vocab *v, struct err *e)
{
	uint32_t n_slots = 16;
	while (n_slots < 2 * v->n_tokens)
		n_slots *= 2;
	v->slots = mem_try_new(n_slots, sizeof *v->slots);
	if (!v->slots)
		return err_set(e, ERR_MEMORY, "no memory for a table of %u tokens", v->n_tokens);
	v->slot_mask = n_slots - 1;
	memset(v->byte_id, -1, sizeof v->byte_id);
	for (uint32_t id = 0; id < v->n_tokens; id++) {
		if (v->type[id] != TOKEN_NORMAL)
			continue;
		struct text_span t = vocab_text(v, (int32_t)id);
		if (!t.len)
			return err_set(e, ERR_INPUT, "token %u is empty", id);
		int32_t twin = vocab_find(v, t.data, t.len);
		if (twin >= 0)
			return err_set(e, ERR_INPUT, "token %u has the same bytes as token %d", id, twin);
		uint32_t h = token_hash(t.data, t.len), i = h & v->slot_mask;
		while (v->slots[i])
			i = (i + 1) & v->slot_mask;
		v->slots[i] = (uint64_t)h << 32 | (id + 1);
		if (t.len == 1)
			v->byte_id[(unsigned char)t.data[0]] = (int32_t)id;
	}
	for (unsigned b = 0; b < 256; b++)
		if (v->byte_id[b] < 0)
			return err_set(
				e, ERR_INPUT, "no token for byte 0x%02x: not a byte-level vocabulary", b);
	return 0;
}

/* ---- added tokens ---- */

static int span_order(struct text_span a, struct text_span b)
{
	int c = memcmp(a.data, b.data, MIN(a.len, b.len));
	return c ? c : (a.len > b.len) - (a.len < b.len);
}

static int added_order(const void *a, const void *b, void *vocab)
{
	return span_order(
		vocab_text(vocab, *(const int32_t *)a), vocab_text(vocab, *(const int32_t *)b));
}

static int added_build(struct vocab *v, struct err *e)
{
	v->added = mem_try_new(v->n_added, sizeof *v->added);
	if (!v->added)
		return err_set(e, ERR_MEMORY, "no memory for %u added tokens", v->n_added);
	uint32_t n = 0;
	for (uint32_t id = 0; id < v->n_tokens; id++) {
		if (!vocab_is_added(v, (int32_t)id))
			continue;
		struct text_span t = vocab_text(v, (int32_t)id);
		if (!t.len || utf8_valid_prefix(t.data, t.len) != t.len)
			return err_set(
				e, ERR_INPUT, "added token %u is %s", id, t.len ? "not valid UTF-8" : "empty");
		v->added_first[(unsigned char)t.data[0]] = true;
		v->added[n++] = (int32_t)id;
	}
	qsort_r(v->added, n, sizeof *v->added, added_order, v);
	for (uint32_t i = 1; i < n; i++)
		if (!span_order(vocab_text(v, v->added[i - 1]), vocab_text(v, v->added[i])))
			return err_set(e, ERR_INPUT, "added tokens %d and %d have the same text",
				MIN(v->added[i - 1], v->added[i]), MAX(v->added[i - 1], v->added[i]));
	return 0;
}

int32_t vocab_match_added(const struct vocab *v, const char *p, size_t n, size_t *len)
{
	int32_t best = -1;
	uint32_t lo = 0, hi = v->n_added; /* candidates that agree with p in the first `d` bytes */
	if (!n || !v->added_first[(unsigned char)*p])
		return -1;
	for (size_t d = 0; lo < hi; d++) {
		struct text_span t = vocab_text(v, v->added[lo]);
		if (t.len == d) { /* sorted: the one that ends here comes first */
			best = v->added[lo++];
			*len = d;
			if (lo == hi)
				break;
		}
		if (d == n)
			break;
		unsigned char c = (unsigned char)p[d];
		uint32_t a = lo, b = hi; /* first candidate with byte d >= c */
		while (a < b) {
			uint32_t m = a + (b - a) / 2;
			if ((unsigned char)vocab_text(v, v->added[m]).data[d] < c)
				a = m + 1;
			else
				b = m;
		}
		lo = a;
		b = hi; /* first candidate with byte d > c */
		while (a < b) {
			uint32_t m = a + (b - a) / 2;
			if ((unsigned char)vocab_text(v, v->added[m]).data[d] <= c)
				a = m + 1;
			else
				b = m;
		}
		hi = a;
	}
	return best;
}

int32_t vocab_find_added(const struct vocab *v, const char *text)
{
	struct text_span key = {text, strlen(text)};
	uint32_t lo = 0, hi = v->n_added;
	while (lo < hi) {
		uint32_t m = lo + (hi - lo) / 2;
		int c = span_order(vocab_text(v, v->added[m]), key);
		if (!c)
			return v->added[m];
		if (c < 0)
			lo = m + 1;
		else
			hi = m;
	}
	return -1;
}

/* ---- building ---- */

/* Copies all texts into v->bytes, normal tokens unspelled if asked; rows without text become empty.
 */
static int texts_copy(
	struct vocab *v, const struct text_span *texts, enum vocab_spelling spelling, struct err *e)
{
	uint64_t total = 0;
	for (uint32_t i = 0; i < v->n_tokens; i++)
		if (!num_add(total, texts[i].len, &total) || total > UINT32_MAX / 2)
			return err_set(
				e, ERR_INPUT, "the texts of the first %u tokens have more than 2 GiB", i + 1);
	struct buf b = {0};
	buf_reserve(&b, total);
	int rc = 0;
	for (uint32_t i = 0; i < v->n_tokens && !rc; i++) {
		v->start[i] = (uint32_t)b.len;
		struct text_span t = texts[i];
		switch (v->type[i]) {
		case TOKEN_NORMAL:
			if (spelling == VOCAB_RAW)
				buf_append(&b, t.data, t.len);
			else if (vocab_unspell(t.data, t.len, &b))
				rc = err_set(e, ERR_INPUT, "token %u \"%.*s\" is not in byte-level spelling", i,
					(int)MIN(t.len, 40), t.data);
			break;
		case TOKEN_CONTROL:
		case TOKEN_USER:
			buf_append(&b, t.data, t.len);
			v->n_added++;
			break;
		case TOKEN_UNUSED:
		case TOKEN_UNKNOWN:
			break;
		default:
			rc = err_set(e, ERR_INPUT, "token %u has type %u; supported are 1 to 5", i, v->type[i]);
		}
	}
	v->start[v->n_tokens] = (uint32_t)b.len;
	v->bytes = buf_take(&b);
	return rc;
}

int vocab_init(struct vocab *v, const struct text_span *texts, const uint8_t *types, uint32_t n,
	enum vocab_spelling spelling, struct err *e)
{
	*v = (struct vocab){.n_tokens = n};
	if (!n || n > VOCAB_TOKENS_MAX)
		return err_set(e, ERR_INPUT, "%u tokens; expected 1 to %u", n, VOCAB_TOKENS_MAX);
	v->start = mem_try_new((size_t)n + 1, sizeof *v->start);
	v->type = mem_try_new(n, 1);
	int rc = 0;
	if (!v->start || !v->type) {
		rc = err_set(e, ERR_MEMORY, "no memory for %u tokens", n);
		goto out;
	}
	if (types)
		memcpy(v->type, types, n);
	else
		memset(v->type, TOKEN_NORMAL, n);
	if (!(rc = texts_copy(v, texts, spelling, e)) && !(rc = slots_build(v, e)))
		rc = added_build(v, e);
out:
	if (rc)
		vocab_fini(v);
	return rc;
}

void vocab_fini(struct vocab *v)
{
	free(v->bytes);
	free(v->start);
	free(v->type);
	free(v->slots);
	free(v->added);
	*v = (struct vocab){0};
}

/* ---- lists of ids ---- */

int token_ids_push(struct token_ids *l, int32_t id)
{
	if (l->n == l->cap) {
		size_t cap = l->cap ? l->cap * 2 : 256;
		int32_t *data =
			cap <= SIZE_MAX / sizeof *data ? realloc(l->data, cap * sizeof *data) : NULL;
		if (!data)
			return ERR_MEMORY;
		l->data = data;
		l->cap = cap;
	}
	l->data[l->n++] = id;
	return 0;
}

void token_ids_free(struct token_ids *l)
{
	free(l->data);
	*l = (struct token_ids){0};
}
