/* SPDX-License-Identifier: MIT */
/*
 * Byte pair merging. The pair table answers "may these two merge, how early, into what" with one
 * probe.
 *
 * Long pieces: nodes form a linked list over the piece; rank[i] is the rank of the pair that starts
 * at node i. The heap holds keys rank << 32 | i, so equal ranks come out leftmost first. A merge
 * changes the pairs around it; their old keys stay in the heap and are recognised when they come
 * out, because rank[i] no longer agrees. A piece of n bytes has at most n - 1 pairs at first and
 * n - 1 merges. A merge takes one key and pushes at most two, so the heap never holds more than
 * 2 n keys.
 */
#include "src/text/bpe.h"

#include "src/base/buf.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/num.h"

#include <stdlib.h>
#include <string.h>

#define NO_RANK     UINT32_MAX
#define SHORT_PIECE 48 /* below this scanning beats the heap */
/* Limit of the bytes hashed for the left halves of all splits, in one pass. */
#define SPLITS_WORK (1ull << 30)

/* ---- the pair table ---- */

static inline uint32_t pair_hash(int32_t left, int32_t right)
{
	uint64_t h = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * 0x9e3779b97f4a7c15u;
	return (uint32_t)(h >> 32);
}

/* The entry of a pair, or the empty slot where it would go. */
static inline struct bpe_pair *pair_slot(const struct bpe *b, int32_t left, int32_t right)
{
	for (uint32_t i = pair_hash(left, right) & b->slot_mask;; i = (i + 1) & b->slot_mask) {
		struct bpe_pair *p = &b->pairs[i];
		if (p->left < 0 || (p->left == left && p->right == right))
			return p;
	}
}

static int table_alloc(struct bpe *b, uint64_t n_pairs, struct err *e)
{
	uint64_t n = 64;
	while (n < 2 * n_pairs)
		n *= 2;
	b->pairs = n <= UINT32_MAX ? mem_try_new(n, sizeof *b->pairs) : NULL;
	if (!b->pairs)
		return err_set(
			e, ERR_MEMORY, "no memory for a table of %llu merges", (unsigned long long)n_pairs);
	for (uint64_t i = 0; i < n; i++)
		b->pairs[i].left = -1;
	b->slot_mask = (uint32_t)(n - 1);
	return 0;
}

static void pair_put(struct bpe *b, int32_t left, int32_t right, uint32_t rank, int32_t result)
{
	struct bpe_pair *p = pair_slot(b, left, right);
	b->n_pairs += p->left < 0;
	*p = (struct bpe_pair){left, right, rank, result};
}

int bpe_init_merges(struct bpe *b, const struct vocab *v, const struct text_span *merges,
	uint32_t n_merges, bool whole_pieces, struct err *e)
{
	*b = (struct bpe){.vocab = v, .whole_pieces = whole_pieces};
	int rc = table_alloc(b, n_merges, e);
	struct buf bytes = {0};
	for (uint32_t i = 0; i < n_merges && !rc; i++) {
		struct text_span m = merges[i];
		const char *blank = m.len ? memchr(m.data, ' ', m.len) : NULL;
		size_t left_len = blank ? (size_t)(blank - m.data) : 0;
		int32_t left = -1, right = -1, result = -1;
		buf_clear(&bytes);
		if (blank && !vocab_unspell(m.data, left_len, &bytes)) {
			size_t cut = bytes.len;
			if (!vocab_unspell(blank + 1, m.len - left_len - 1, &bytes)) {
				left = vocab_find(v, buf_str(&bytes), cut);
				right = vocab_find(v, buf_str(&bytes) + cut, bytes.len - cut);
				result = vocab_find(v, buf_str(&bytes), bytes.len);
			}
		}
		if (left < 0 || right < 0 || result < 0)
			rc = err_set(e, ERR_INPUT,
				"merge %u \"%.*s\": expected two tokens that join to a token, with a blank between",
				i, (int)MIN(m.len, 60), m.data);
		else
			/* a pair named twice: the later rank holds, as in Hugging Face */
			pair_put(b, left, right, i, result);
	}
	buf_free(&bytes);
	if (rc)
		bpe_fini(b);
	return rc;
}

int bpe_init_ids(struct bpe *b, const struct vocab *v, bool whole_pieces, struct err *e)
{
	*b = (struct bpe){.vocab = v, .whole_pieces = whole_pieces};
	uint64_t n_pairs = 0, work = 0;
	for (uint32_t id = 0; id < v->n_tokens; id++) {
		uint64_t len = vocab_text(v, (int32_t)id).len;
		if (v->type[id] == TOKEN_NORMAL && (work += len * len / 2) > SPLITS_WORK)
			return err_set(e, ERR_INPUT,
				"the tokens are too long for merges to be derived from them; a list of merges is "
				"needed");
	}
	/* two passes over all splits: count, then store */
	for (int pass = 0; pass < 2; pass++) {
		for (uint32_t id = 0; id < v->n_tokens; id++) {
			struct text_span t = vocab_text(v, (int32_t)id);
			if (v->type[id] != TOKEN_NORMAL)
				continue;
			for (size_t cut = 1; cut < t.len; cut++) {
				int32_t left = vocab_find(v, t.data, cut);
				int32_t right = left < 0 ? -1 : vocab_find(v, t.data + cut, t.len - cut);
				if (right < 0)
					continue;
				if (pass)
					pair_put(b, left, right, id, (int32_t)id);
				else
					n_pairs++;
			}
		}
		if (!pass) {
			int rc = table_alloc(b, n_pairs, e);
			if (rc)
				return rc;
		}
	}
	return 0;
}

void bpe_fini(struct bpe *b)
{
	free(b->pairs);
	*b = (struct bpe){0};
}

void bpe_work_fini(struct bpe_work *w)
{
	free(w->nodes);
	free(w->heap);
	*w = (struct bpe_work){0};
}

/* ---- short pieces ---- */

static int encode_short(const struct bpe *b, const char *piece, size_t n, struct token_ids *out)
{
	int32_t id[SHORT_PIECE], result[SHORT_PIECE];
	uint32_t rank[SHORT_PIECE]; /* of the pair (i, i + 1) */
	for (size_t i = 0; i < n; i++)
		id[i] = b->vocab->byte_id[(unsigned char)piece[i]];
	for (size_t i = 0; i + 1 < n; i++) {
		const struct bpe_pair *p = pair_slot(b, id[i], id[i + 1]);
		rank[i] = p->left < 0 ? NO_RANK : p->rank;
		result[i] = p->result;
	}
	while (n > 1) {
		size_t at = 0;
		for (size_t i = 1; i + 1 < n; i++)
			if (rank[i] < rank[at])
				at = i;
		if (rank[at] == NO_RANK)
			break;
		id[at] = result[at];
		size_t after = n - at - 2; /* ids behind the pair */
		memmove(id + at + 1, id + at + 2, after * sizeof *id);
		if (after) { /* the pair (at + 1, at + 2) is gone; later ones move up */
			memmove(rank + at + 1, rank + at + 2, (after - 1) * sizeof *rank);
			memmove(result + at + 1, result + at + 2, (after - 1) * sizeof *result);
		}
		n--;
		for (size_t i = at ? at - 1 : 0; i <= at && i + 1 < n; i++) {
			const struct bpe_pair *p = pair_slot(b, id[i], id[i + 1]);
			rank[i] = p->left < 0 ? NO_RANK : p->rank;
			result[i] = p->result;
		}
	}
	for (size_t i = 0; i < n; i++)
		if (token_ids_push(out, id[i]))
			return ERR_MEMORY;
	return 0;
}

/* ---- long pieces ---- */

struct node {
	uint32_t prev, next; /* index of the neighbour; next = n: none */
	int32_t id;
	uint32_t rank; /* of the pair that starts here; NO_RANK: none, or the node is gone */
};

/* Four-way heap: a node's children lie in one cache line. */
static void sift_down(uint64_t *heap, size_t n, size_t i)
{
	uint64_t key = heap[i];
	for (;;) {
		size_t first = 4 * i + 1, end = MIN(first + 4, n), least = first;
		if (first >= n)
			break;
		for (size_t c = first + 1; c < end; c++)
			if (heap[c] < heap[least])
				least = c;
		if (heap[least] >= key)
			break;
		heap[i] = heap[least];
		i = least;
	}
	heap[i] = key;
}

static void heap_push(uint64_t *heap, size_t *n, uint64_t key)
{
	size_t i = (*n)++;
	while (i) {
		size_t parent = (i - 1) / 4;
		if (heap[parent] <= key)
			break;
		heap[i] = heap[parent];
		i = parent;
	}
	heap[i] = key;
}

/* Of memory for each byte of a long piece: a node, and two keys of the heap. */
#define PIECE_FACTOR (sizeof(struct node) + 2 * sizeof(uint64_t))

static int work_reserve(struct bpe_work *w, size_t n)
{
	if (w->n_nodes >= n)
		return 0;
	if (w->hold && !w->hold(w->user, PIECE_FACTOR * n))
		return ERR_MEMORY;
	free(w->nodes);
	free(w->heap);
	w->nodes = malloc(n * sizeof(struct node));
	w->heap = malloc(2 * n * sizeof *w->heap);
	w->n_nodes = w->nodes && w->heap ? n : 0;
	return w->n_nodes ? 0 : ERR_MEMORY;
}

static int encode_long(
	const struct bpe *b, struct bpe_work *w, const char *piece, size_t n, struct token_ids *out)
{
	if (n >= UINT32_MAX || work_reserve(w, n))
		return ERR_MEMORY;
	struct node *nodes = w->nodes;
	size_t n_heap = 0;
	for (size_t i = 0; i < n; i++)
		nodes[i] = (struct node){
			(uint32_t)i - 1, (uint32_t)i + 1, b->vocab->byte_id[(unsigned char)piece[i]], NO_RANK};
	for (size_t i = 0; i + 1 < n; i++) {
		const struct bpe_pair *p = pair_slot(b, nodes[i].id, nodes[i + 1].id);
		if (p->left < 0)
			continue;
		nodes[i].rank = p->rank;
		w->heap[n_heap++] = (uint64_t)p->rank << 32 | i;
	}
	for (size_t i = n_heap / 4 + 1; i-- > 0;)
		if (i < n_heap)
			sift_down(w->heap, n_heap, i);
	while (n_heap) {
		uint64_t key = w->heap[0];
		w->heap[0] = w->heap[--n_heap];
		if (n_heap)
			sift_down(w->heap, n_heap, 0);
		uint32_t i = (uint32_t)key, rank = (uint32_t)(key >> 32);
		if (nodes[i].rank != rank)
			continue; /* stale */
		uint32_t j = nodes[i].next;
		nodes[i].id = pair_slot(b, nodes[i].id, nodes[j].id)->result;
		nodes[i].next = nodes[j].next;
		nodes[i].rank = nodes[j].rank = NO_RANK;
		if (nodes[i].next < n)
			nodes[nodes[i].next].prev = i;
		/* the pairs that end and start at i are new */
		uint32_t left[2] = {i ? nodes[i].prev : NO_RANK, i};
		for (int k = 0; k < 2; k++) {
			uint32_t a = left[k];
			if (a == NO_RANK || nodes[a].next >= n)
				continue;
			const struct bpe_pair *p = pair_slot(b, nodes[a].id, nodes[nodes[a].next].id);
			nodes[a].rank = p->left < 0 ? NO_RANK : p->rank;
			if (p->left >= 0)
				heap_push(w->heap, &n_heap, (uint64_t)p->rank << 32 | a);
		}
	}
	for (uint32_t i = 0; i < n; i = nodes[i].next)
		if (token_ids_push(out, nodes[i].id))
			return ERR_MEMORY;
	return 0;
}

int bpe_encode(
	const struct bpe *b, struct bpe_work *w, const char *piece, size_t n, struct token_ids *out)
{
	if (!n)
		return 0;
	if (n == 1)
		return token_ids_push(out, b->vocab->byte_id[(unsigned char)*piece]);
	if (b->whole_pieces) {
		int32_t id = vocab_find(b->vocab, piece, n);
		if (id >= 0)
			return token_ids_push(out, id);
	}
	return n <= SHORT_PIECE ? encode_short(b, piece, n, out) : encode_long(b, w, piece, n, out);
}
