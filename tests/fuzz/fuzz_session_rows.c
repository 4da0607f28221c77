/* SPDX-License-Identifier: MIT */
/*
 * A block of a prefix store, and the blocks inside session files. Input: a letter, then bytes.
 *   R, S   a file of rows for four known tokens; with R all check values are first made right.
 *          Checked: a refusal has a sentence and leaves the timeline as it was, or as long as the
 *          rows that were asked for begin; what is accepted are these tokens.
 *   else   the content of blocks: what is written reads back the same, in each coding; a byte that
 *          is changed, or a length that differs, is refused.
 */
#include "src/base/hash.h"
#include "src/base/log.h"
#include "src/base/num.h"
#include "src/engine/session/session_blocks.h"
#include "src/engine/session/session_file.h"
#include "tests/fuzz/fixture.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define N_ROWS  4
#define CONTEXT 8

static struct session *session;
static const int32_t tokens[N_ROWS] = {11, 12, 13, 14};

static void open_once(void)
{
	struct err e = {0};
	struct engine *g;
	const struct engine_options o = {.model_path = "tools/pocket/pocket.gguf",
		.backend = "cpu",
		.context = CONTEXT,
		.threads = 1};
	log_set_level(LOG_QUIET);
	if (!session && (engine_open(&o, &g, &e) || session_new(g, &session, &e)))
		bug("%s", e.text);
}

/* The check values that a writer would have put there. */
static void seal_rows(uint8_t *d, size_t n)
{
	if (n < SESSION_FILE_HEAD)
		return;
	uint64_t seed = hash_bytes(HASH_START, d, SESSION_FILE_HEAD_ENDS), number = 0;
	store_u64(d + SESSION_FILE_HEAD_ENDS, seed);
	for (size_t at = SESSION_FILE_HEAD;
		 n - at >= BLOCK_HEAD && load_u32(d + at) <= n - at - BLOCK_HEAD;) {
		uint64_t h = hash_u64(hash_u64(seed, number++), load_u64(d + at));
		store_u64(d + at + 8, hash_bytes(h, d + at + BLOCK_HEAD, load_u32(d + at)));
		at += BLOCK_HEAD + load_u32(d + at);
	}
}

static void load_rows(uint8_t *copy, size_t n, bool sealed)
{
	struct err e = {0};
	open_once();
	if (sealed)
		seal_rows(copy, n);
	const char *path = fixture_write("block.rows", copy, n);
	uint32_t from = n % 2 ? 2 : 0; /* behind tokens that are there */
	if (session_length(session) > from)
		session_rewind(session, from);
	else if (session_length(session) < from &&
			 session_extend(session, tokens, from, NULL, NULL, &e))
		bug("%s", e.text);
	if (session_rows_load(session, from, tokens, N_ROWS, path, &e)) {
		if (!e.text[0] || session_length(session) != from)
			bug("refused without a sentence, or %u tokens are left of %u", session_length(session),
				from);
	} else if (session_length(session) != N_ROWS ||
			   memcmp(session_tokens(session), tokens, sizeof tokens) != 0) {
		bug("other tokens than were asked for");
	}
}

/* One block of `n` bytes, and one of a byte for each of them. */
static int read_blocks(const char *file, size_t bytes, const uint8_t *data, size_t n, struct err *e)
{
	FILE *f = fmemopen((void *)(uintptr_t)file, bytes, "rb");
	struct block_stream b;
	uint8_t *got = malloc(n);
	if (!f || block_stream_init(&b, f, "fuzz", 0, e))
		bug("no stream");
	b.seed = 7;
	int rc = block_read(&b, got, n, e);
	if (!rc && memcmp(got, data, n) != 0)
		bug("another block is read than was written");
	if (!rc)
		rc = block_read(&b, got, n / 2 + 1, e);
	if (!rc && memcmp(got, data, n / 2 + 1) != 0)
		bug("another second block is read than was written");
	if (rc && (rc >= 0 || !e->text[0]))
		bug("refused without a sentence");
	block_stream_fini(&b);
	fclose(f);
	free(got);
	return rc;
}

static void round_trip(const uint8_t *data, size_t n)
{
	char *file = NULL;
	size_t bytes = 0;
	struct block_stream b;
	struct err e = {0};
	FILE *f = open_memstream(&file, &bytes);
	if (!f || block_stream_init(&b, f, "fuzz", 0, &e))
		bug("no stream");
	b.seed = 7;
	if (block_write(&b, data, n, &e) || block_write(&b, data, n / 2 + 1, &e))
		bug("%s", e.text);
	block_stream_fini(&b);
	fclose(f);
	if (read_blocks(file, bytes, data, n, &e))
		bug("blocks that were written are refused: %s", e.text);
	size_t at = (data[0] | (size_t)data[n - 1] << 8) % bytes;
	file[at] ^= 1 << data[n / 2] % 8;
	if (!read_blocks(file, bytes, data, n, &e))
		bug("byte %zu was changed, and nobody notices", at);
	if (!read_blocks(file, bytes - 1, data, n, &e))
		bug("the last byte is missing, and nobody notices");
	free(file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size < 2)
		return 0;
	if (data[0] != 'R' && data[0] != 'S') {
		round_trip(data + 1, size - 1);
		return 0;
	}
	uint8_t *copy = malloc(size);
	memcpy(copy, data + 1, size - 1);
	load_rows(copy, size - 1, data[0] == 'R');
	free(copy);
	return 0;
}
