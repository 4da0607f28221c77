/* SPDX-License-Identifier: MIT */
/*
 * Any bytes as a session file for the pocket model. Behind the letter R all check values are first
 * made right, so that what they protect is reached. Allowed:
 * - The file is refused with a sentence; the session is as it was.
 * - It is taken, and a token more is computed.
 * - It is taken, and rows of its caches lead to logits that are not finite: ERR_RUN, the session is
 *   empty. No writer makes such a file, and no check value tells it from one that a writer made.
 * A session that was extended then computes from its beginning.
 */
#include "src/base/hash.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/engine/session/session_blocks.h"
#include "src/engine/session/session_file.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MODEL   "tools/pocket/pocket.gguf"
#define CONTEXT 8

static struct session *empty, *held; /* which reads once, and twice: it has something to lose */
static const int32_t two[] = {1, 2};

static void open_once(void)
{
	struct err e = {0};
	struct engine *g;
	const struct engine_options o = {
		.model_path = MODEL, .backend = "cpu", .context = CONTEXT, .threads = 1, .sessions = 2};
	log_set_level(LOG_QUIET);
	if (empty)
		return;
	if (engine_open(&o, &g, &e) || session_new(g, &empty, &e) || session_enable_mtp(empty, &e) ||
		session_new(g, &held, &e) || session_enable_mtp(held, &e) ||
		session_extend(held, two, 2, NULL, NULL, &e))
		bug("%s", e.text);
}

/* The check values that a writer would have put there, block after block while their lengths make
 * sense. */
static void seal(uint8_t *d, size_t n)
{
	if (n < SESSION_FILE_HEAD)
		return;
	uint64_t seed = hash_bytes(HASH_START, d, SESSION_FILE_HEAD_ENDS);
	store_u64(d + SESSION_FILE_HEAD_ENDS, seed);
	uint64_t number = 0;
	for (size_t at = SESSION_FILE_HEAD;
		 n - at >= BLOCK_HEAD && load_u32(d + at) <= n - at - BLOCK_HEAD;) {
		uint32_t stored = load_u32(d + at);
		uint64_t h = hash_u64(hash_u64(seed, number++), load_u64(d + at));
		store_u64(d + at + 8, hash_bytes(h, d + at + BLOCK_HEAD, stored));
		at += BLOCK_HEAD + stored;
	}
}

/* Computes a token behind the rows of an accepted file. */
static void extend_loaded(struct session *session, bool sealed)
{
	struct err e = {0};
	int rc = session_extend(session, two, 1, NULL, NULL, &e);
	if (rc &&
		(!sealed || rc != ERR_RUN || !strstr(e.text, "not finite") || session_length(session)))
		bug("%s", e.text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	open_once();
	bool sealed = size && data[0] == 'R';
	size_t n = size - sealed;
	uint8_t *copy = NEW_ARRAY(uint8_t, n + 1);
	if (n)
		memcpy(copy, data + sealed, n);
	if (sealed)
		seal(copy, n);
	struct err e = {0};
	struct buf note = {0};
	struct session_file_info info;
	struct session *session = n % 2 ? held : empty;
	uint32_t before = session_length(session);
	FILE *f = n ? fmemopen(copy, n, "rb") : NULL;
	if (f) {
		int rc = session_file_read(session, f, "fuzz", &note, &info, &e);
		if (rc && (rc >= 0 || !e.text[0] || session_length(session) != before || note.len))
			bug("refused without a sentence, or left something behind");
		if (!rc && (session_length(session) != info.n || info.n > CONTEXT || info.bytes > n))
			bug("took %u tokens of %u", info.n, session_length(session));
		/* one in eight goes on, which takes a hundred times as long as reading */
		bool longer = !rc && info.n < CONTEXT && data[size / 2] % 8 == 0;
		if (longer)
			extend_loaded(session, sealed);
		if (!rc) {
			session_rewind(session, 0);
			if ((before || longer) && session_extend(session, two, 2, NULL, NULL, &e))
				bug("from its beginning: %s", e.text);
			session_rewind(session, before);
		}
		fclose(f);
	}
	buf_free(&note);
	free(copy);
	return 0;
}
