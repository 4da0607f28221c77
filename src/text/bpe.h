/* SPDX-License-Identifier: MIT */
/*
 * Byte pair merging inside one piece: of all adjacent pairs that may merge, the one with the lowest
 * rank is joined, leftmost first, until none is left.
 *
 * Pairs come from an explicit list (rank = place in the list, as tokenizer.json has it), or from
 * the vocabulary alone: every split of a token into two tokens is a pair and its rank is the id of
 * the result (tiktoken's rule, and exactly what GLM's published merge list is). Both become one
 * table: pair of ids -> rank, result.
 *
 * Short pieces are merged by scanning an array; longer ones with a linked list and a heap, O(n log
 * n) time and about 32 bytes of memory per input byte.
 */
#ifndef GLM_TEXT_BPE_H
#define GLM_TEXT_BPE_H

#include "src/base/err.h"
#include "src/text/vocab.h"

struct bpe_pair {
	int32_t left, right; /* left < 0: empty slot */
	uint32_t rank;
	int32_t result;
};

struct bpe {
	const struct vocab *vocab; /* borrowed */
	struct bpe_pair *pairs;    /* open addressing, slot_mask + 1 entries */
	uint32_t slot_mask;
	uint32_t n_pairs;
	bool whole_pieces; /* ignore_merges: a piece that is a token is taken as it is */
};

/* From merges[i] = "left right" in GPT-2 spelling. Every part and every result must be a normal
 * token. */
int bpe_init_merges(struct bpe *b, const struct vocab *v, const struct text_span *merges,
	uint32_t n_merges, bool whole_pieces, struct err *e);

/* From the vocabulary: rank = id. ERR_INPUT: the tokens are so long that looking up all their
 * splits would hash more than 1 GiB. */
int bpe_init_ids(struct bpe *b, const struct vocab *v, bool whole_pieces, struct err *e);

void bpe_fini(struct bpe *b);

/* Memory of one caller, reused between pieces. Zero-initialise. */
struct bpe_work {
	void *nodes;    /* [n_nodes] */
	uint64_t *heap; /* [2 * n_nodes] */
	size_t n_nodes;
	/* Asked before a piece takes more memory than those before it; `bytes`: at most, in all. False
	 * refuses the piece: ERR_MEMORY. NULL: never asked. */
	bool (*hold)(void *user, size_t bytes);
	void *user; /* of hold */
};
void bpe_work_fini(struct bpe_work *w);

/* Appends the tokens of one piece. 0 or ERR_MEMORY (`out` then holds what it held before plus some
 * of the piece). */
int bpe_encode(
	const struct bpe *b, struct bpe_work *w, const char *piece, size_t n, struct token_ids *out);

#endif
