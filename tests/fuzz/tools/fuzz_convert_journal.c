/* SPDX-License-Identifier: MIT */
/*
 * Any bytes as the journal of a conversion. Input: a byte of options, then the file; with its bit 1
 * a head and the ends of lines "NUMBER PIECES ?" (done), "NUMBER 0 !" (dropped) and "types KEY
 * DIGITS #" are made right, whatever KEY and DIGITS are.
 * Checked: a refusal has a sentence; what is not believed is said, and then nothing counts as done;
 * a journal to which tensors are added says so when it is read again, besides what it said before;
 * one that was dropped is not done when it is read again. Types are found under one key alone;
 * those that are added are found again, in their number alone.
 */
#include "src/base/hash.h"
#include "src/base/log.h"
#include "tests/fuzz/fixture.h"
#include "tools/convert/convert_journal.h"

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define FINGERPRINT 0x0123456789abcdefull
#define N_TENSORS   40

/* Every third tensor has several pieces. */
static uint64_t pieces[N_TENSORS];

struct read_back {
	struct convert_journal journal;
	uint64_t done[N_TENSORS];
	size_t n_done;
	bool worthless;
};

/* What a writer would have written: a head, for each '?' and '!' the source and the check value of
 * its number, for each '#' the check value of its line up to there. */
static void seal_lines(const uint8_t *d, size_t n, struct buf *out)
{
	uint64_t fingerprint = FINGERPRINT;
	uint32_t id = 0, number = 0;
	bool has_id = false;
	buf_printf(out, "glmstream-convert 5 %016llx\n", FINGERPRINT);
	size_t line = out->len;
	for (size_t i = 0; i < n; i++) {
		if (d[i] >= '0' && d[i] <= '9')
			number = number * 10 + (d[i] - '0');
		if (d[i] == ' ' && !has_id) {
			id = number;
			number = 0;
			has_id = true;
		}
		if (d[i] == '?' || d[i] == '!') {
			const uint64_t source = d[i] == '?';
			const uint64_t head = hash_bytes(hash_bytes(HASH_START, &fingerprint, 8), &id, 4);
			buf_printf(out, "%016" PRIx64 " %016" PRIx64, source,
				hash_u64(hash_u64(head, number), source));
		} else if (d[i] == '#') {
			buf_printf(
				out, "%016" PRIx64, hash_bytes(HASH_START, out->data + line, out->len - line));
		} else {
			buf_append(out, &d[i], 1);
		}
		if (d[i] == '\n') {
			id = number = 0;
			has_id = false;
			line = out->len;
		}
	}
}

static void check_types(const uint8_t *types, size_t n, uint64_t key)
{
	uint8_t found[N_TENSORS];
	char out[256];
	snprintf(out, sizeof out, "%s", fixture_path("out.gguf"));
	if (!convert_journal_find_types(out, key, found, n) || memcmp(found, types, n) != 0)
		bug("types that were just written are not found");
	if (convert_journal_find_types(out, key + 1, found, n) ||
		convert_journal_find_types(out, key, found, n - 1))
		bug("types of another choice are found");
}

static bool open_journal(struct read_back *r, bool force)
{
	struct buf notes = {0};
	struct err e = {0};
	char out[256];
	snprintf(out, sizeof out, "%s", fixture_path("out.gguf"));
	*r = (struct read_back){0};
	for (size_t i = 0; i < N_TENSORS; i++)
		pieces[i] = i % 3 ? 1 : 1 + i;
	int rc = convert_journal_open(&r->journal, out, force, FINGERPRINT, NULL, pieces, r->done,
		N_TENSORS, &r->n_done, &notes, &e);
	if (rc && (!e.text[0] || rc != e.code))
		bug("refused without a sentence");
	r->worthless = notes.len != 0;
	size_t n = 0;
	for (size_t i = 0; i < N_TENSORS; i++) {
		if (r->done[i] > pieces[i] || (r->worthless && r->done[i]))
			bug("%zu: %" PRIu64 " pieces are done", i, r->done[i]);
		n += r->done[i] == pieces[i];
	}
	if (!rc && n != r->n_done)
		bug("%zu tensors are done, %zu were said to be", n, r->n_done);
	buf_free(&notes);
	return !rc;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (!size)
		return 0;
	struct buf text = {0};
	struct read_back first, second;
	struct err e = {0};
	const uint32_t id = data[0] % N_TENSORS;
	const struct journal_entry more[] = {{id, 1 + data[0] % (id % 3 ? 1 : 1 + id)}, {39, 40}};
	if (data[0] & 1)
		seal_lines(data + 1, size - 1, &text);
	else
		buf_append(&text, data + 1, size - 1);
	fixture_write("out.gguf.journal", text.data, text.len);
	buf_free(&text);
	uint8_t types[N_TENSORS];
	const size_t n_types = 1 + data[size - 1] % (N_TENSORS - 1);
	char out[256];
	snprintf(out, sizeof out, "%s", fixture_path("out.gguf"));
	if (convert_journal_find_types(out, 0, types, n_types) &&
		convert_journal_find_types(out, 1, types, n_types))
		bug("the same types are found under two keys");
	memset(types, data[size - 1], sizeof types);
	if (!open_journal(&first, data[0] & 2))
		return 0;
	/* a file without a head gets one, as an unbelieved one does */
	if (first.worthless || !first.n_done) {
		if (convert_journal_restart(&first.journal, &e))
			bug("%s", e.text);
		memset(first.done, 0, sizeof first.done);
	}
	if (convert_journal_add(&first.journal, more, 2, &e))
		bug("%s", e.text);
	if (convert_journal_add_types(&first.journal, size, types, n_types, &e))
		bug("%s", e.text);
	const uint32_t dropped[] = {data[0] / 2 % N_TENSORS};
	size_t n_dropped;
	if (convert_journal_drop(&first.journal, dropped, 1, &n_dropped, &e))
		bug("%s", e.text);
	convert_journal_close(&first.journal, false);
	check_types(types, n_types, size);
	if (!open_journal(&second, false) || second.worthless)
		bug("a journal that was just written is not believed");
	for (size_t i = 0; i < 2; i++)
		first.done[more[i].id] = more[i].pieces;
	if (n_dropped != (first.done[dropped[0]] != 0))
		bug("%zu tensors dropped", n_dropped);
	first.done[dropped[0]] = 0;
	if (memcmp(first.done, second.done, sizeof first.done) != 0)
		bug("other tensors are done when it is read again");
	convert_journal_close(&second.journal, data[0] & 4);
	return 0;
}
