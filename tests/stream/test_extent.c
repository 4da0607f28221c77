// SPDX-License-Identifier: MIT
/*
 * Extents: fixed cases with the numbers written out, random tables against a model that copies
 * bytes, hostile sizes, and the whole way from a GGUF on disk through a reader into a slot.
 */
#include "stream/extent.h"

#include "src/base/buf.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/base/rng.h"
#include "tests/support/reader_null.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define KIB 1024u
#define MIB (1024u * KIB)

static struct extent_table *new_table(
	uint32_t n_layers, uint32_t n_experts, const struct extent_file *f, uint32_t n)
{
	struct extent_table *t;
	struct err e = {0};
	if (extent_table_new(&t, n_layers, n_experts, f, n, &e))
		fail_msg("%s", e.text);
	return t;
}

static void set(struct extent_table *t, uint32_t layer, enum extent_part part, uint32_t file,
	uint64_t offset, uint64_t bytes)
{
	struct err e = {0};
	struct extent_tensor x = {.file = file, .offset = offset, .bytes = bytes};
	if (extent_table_set(t, layer, part, &x, &e))
		fail_msg("%s", e.text);
}

#define assert_read(r, f, o, b, nd, d)                                                             \
	assert_true((r).file == (f) && (r).offset == (o) && (r).bytes == (b) && (r).need == (nd) &&    \
				(r).dst_offset == (d))

/* GLM-5.2's Q2_K experts, 4096-aligned: three reads without waste, payloads at the start of each.
 */
/* Experts that lie anywhere, each with scales in another file: no room for less than all of them,
 * parts that touch are read as one. */
static void test_runs(void **state)
{
	(void)state;
	const struct extent_file f[] = {
		{.size = 1u << 20, .align = 512, .memory_align = 512}, {1u << 16, 512, 512}};
	struct extent_table *t = new_table(2, 2, f, 2);
	const struct gguf_run gate[] = {{0, 70000, 1000, NULL}, {1, 40, 1000, NULL}},
						  up[] = {{0, 71000, 1000, NULL}, {0, 900, 1000, NULL}},
						  scales[] = {{1, 5000, 16, NULL}, {0, 1900, 16, NULL}};
	struct err e = {0};
	struct extent_tensor x = {.bytes = 2000, .runs = gate};
	assert_int_equal(extent_table_set(t, 1, EXTENT_GATE, &x, &e), 0);
	x.runs = up;
	assert_int_equal(extent_table_set(t, 1, EXTENT_UP, &x, &e), 0);
	x = (struct extent_tensor){.bytes = 32, .runs = scales};
	assert_int_equal(extent_table_set(t, 1, EXTENT_UP_SCALES, &x, &e), 0);
	struct extent_plan p;
	assert_int_equal(extent_plan(t, 1, 0, &p), 0);
	assert_int_equal(p.n_reads, 2);
	assert_read(p.reads[0], 0, 69632, 2560, 2368, 0);
	assert_read(p.reads[1], 1, 4608, 512, 408, 2560);
	assert_true(p.parts[EXTENT_GATE].dst_offset == 368 && p.parts[EXTENT_UP].dst_offset == 1368);
	assert_true(p.parts[EXTENT_UP_SCALES].dst_offset == 2560 + 392);
	assert_true(p.parts[EXTENT_UP_SCALES].bytes == 16 && !p.parts[EXTENT_GATE_SCALES].bytes);
	assert_int_equal(p.payload_bytes, 2016);
	assert_int_equal(extent_plan(t, 1, 1, &p), 0); /* up and its scales are one read */
	assert_int_equal(p.n_reads, 2);
	assert_read(p.reads[0], 0, 512, 1536, 1404, 0);
	assert_read(p.reads[1], 1, 0, 1536, 1040, 1536);
	assert_true(extent_slot_bytes(t, 1) >= p.dst_bytes);
	static const struct gguf_run bad[][2] = {
		{{0, 0, 8, NULL}, {2, 0, 8, NULL}},              /* no such file */
		{{0, 0, 8, NULL}, {1, (1u << 16) - 7, 8, NULL}}, /* ends behind it */
		{{0, 0, 8, NULL}, {1, UINT64_MAX - 3, 8, NULL}},
		{{0, 0, 8, NULL}, {0, 0, 7, NULL}},
	};
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		x = (struct extent_tensor){.bytes = 16, .runs = bad[i]};
		assert_int_equal(extent_table_set(t, 0, EXTENT_DOWN_SCALES, &x, &e), ERR_INPUT);
		assert_non_null(strstr(e.text, "blk.0 down"));
	}
	assert_false(extent_has_layer(t, 0));
	extent_table_free(t);
}

static void test_aligned(void **state)
{
	(void)state;
	const uint64_t matrix = 2048ull * 6144 / 256 * 84, tensor = 256 * matrix;
	struct extent_file f = {.size = 1ull << 40, .align = 4096, .memory_align = 512};
	struct extent_table *t = new_table(79, 256, &f, 1);
	for (unsigned p = 0; p < 3; p++)
		set(t, 3, (enum extent_part)p, 0, 8192 + p * tensor, tensor);
	struct extent_plan p;
	assert_int_equal(extent_plan(t, 3, 255, &p), 0);
	assert_int_equal(p.n_reads, 3);
	for (unsigned i = 0; i < 3; i++) {
		assert_read(p.reads[i], 0, 8192 + i * tensor + 255 * matrix, matrix, matrix, i * matrix);
		assert_true(p.parts[i].dst_offset == i * matrix && p.parts[i].bytes == matrix);
	}
	assert_true(
		p.payload_bytes == 3 * matrix && p.read_bytes == 3 * matrix && p.dst_bytes == 3 * matrix);
	assert_true(extent_slot_bytes(t, 3) == 3 * matrix);
	assert_true(extent_slot_bytes(t, 4) == 0 && !extent_has_layer(t, 4));
	assert_int_equal(extent_slot_align(t), 4096);
	assert_int_equal(extent_plan(t, 4, 0, &p), -EINVAL);
	assert_int_equal(extent_plan(t, 79, 0, &p), -EINVAL);
	assert_int_equal(extent_plan(t, 3, 256, &p), -EINVAL);
	extent_table_free(t);
	extent_table_free(NULL);
}

static void test_rounding_and_merging(void **state)
{
	(void)state;
	struct extent_file f[] = {{.size = 100000, .align = 4096, .memory_align = 4096},
		{.size = 100000, .align = 1, .memory_align = 1}};
	struct extent_table *t = new_table(5, 4, f, 2);
	struct extent_plan p;

	/* gate ends where up begins; down is far away: two reads */
	set(t, 0, EXTENT_GATE, 0, 32, 4 * 5000);
	set(t, 0, EXTENT_UP, 0, 20032, 4 * 100);
	set(t, 0, EXTENT_DOWN, 0, 60000, 4 * 1000);
	assert_int_equal(
		extent_plan(t, 0, 3, &p), 0); /* gate 15032..20032, up 20332..20432, down 63000..64000 */
	assert_int_equal(p.n_reads, 2);
	assert_read(p.reads[0], 0, 12288, 8192, 8144, 0);
	assert_read(p.reads[1], 0, 61440, 4096, 2560, 8192);
	assert_true(p.parts[EXTENT_GATE].dst_offset == 15032 - 12288);
	assert_true(p.parts[EXTENT_UP].dst_offset == 20332 - 12288);
	assert_true(p.parts[EXTENT_DOWN].dst_offset == 8192 + 63000 - 61440);
	assert_true(p.payload_bytes == 6100 && p.read_bytes == 12288 && p.dst_bytes == 12288);
	assert_int_equal(
		extent_plan(t, 0, 0, &p), 0); /* gate 32..5032, up 20032..20132, down 60000..61000 */
	assert_int_equal(p.n_reads, 3);

	/* down before gate in the file: reads in file order */
	set(t, 1, EXTENT_DOWN, 0, 0, 4 * 4096);
	set(t, 1, EXTENT_GATE, 0, 50000, 4 * 10);
	assert_int_equal(extent_plan(t, 1, 0, &p), 0);
	assert_int_equal(p.n_reads, 2);
	assert_read(p.reads[0], 0, 0, 4096, 4096, 0);
	assert_read(p.reads[1], 0, 49152, 4096, 858, 4096);
	assert_true(p.parts[EXTENT_UP].bytes == 0);

	/* the last bytes of the file: rounded beyond its end, only what is there is needed */
	set(t, 2, EXTENT_UP, 0, 100000 - 4 * 300, 4 * 300);
	assert_int_equal(extent_plan(t, 2, 3, &p), 0);
	assert_read(p.reads[0], 0, 98304, 4096, 1696, 0);

	/* buffered: nothing is rounded, payloads land at multiples of 64, files are not mixed */
	set(t, 3, EXTENT_GATE, 1, 1, 4 * 3);
	set(t, 3, EXTENT_UP, 1, 13, 4 * 70);
	set(t, 3, EXTENT_DOWN, 0, 4096, 4 * 4096);
	assert_int_equal(extent_plan(t, 3, 3, &p), 0); /* gate 10..13, up 223..293 */
	assert_int_equal(p.n_reads, 3);
	assert_read(p.reads[0], 0, 16384, 4096, 4096, 0);
	assert_read(p.reads[1], 1, 10, 3, 3, 4096);
	assert_read(p.reads[2], 1, 223, 70, 70, 4096 + 64);

	/* touching without rounding: experts' matrices that follow each other are one read */
	set(t, 4, EXTENT_GATE, 1, 400, 4 * 10);
	set(t, 4, EXTENT_UP, 1, 430 + 10, 4 * 10);
	assert_int_equal(extent_plan(t, 4, 0, &p), 0);
	assert_int_equal(p.n_reads, 2);
	assert_int_equal(extent_plan(t, 4, 3, &p), 0); /* 430..440, 470..480 */
	assert_int_equal(p.n_reads, 2);
	extent_table_free(t);

	t = new_table(1, 1, f, 2);
	set(t, 0, EXTENT_GATE, 1, 400, 10);
	set(t, 0, EXTENT_UP, 1, 410, 10);
	set(t, 0, EXTENT_DOWN, 1, 420, 10);
	assert_int_equal(extent_plan(t, 0, 0, &p), 0);
	assert_int_equal(p.n_reads, 1);
	assert_read(p.reads[0], 1, 400, 30, 30, 0);
	assert_true(p.parts[EXTENT_DOWN].dst_offset == 20);
	extent_table_free(t);
}

static void check_plan(const struct extent_table *t, const struct extent_file *f, uint32_t layer,
	uint32_t expert, unsigned char *slot)
{
	struct extent_plan p;
	assert_int_equal(extent_plan(t, layer, expert, &p), 0);
	uint64_t room = extent_slot_bytes(t, layer), want[EXTENT_PARTS] = {0}, sum = 0, read_sum = 0;
	assert_true(p.dst_bytes <= room && room % EXTENT_DST_ALIGN == 0);
	memset(slot, 0xee, room);
	const struct extent_read *s = p.reads;
	for (unsigned i = 0; i < p.n_reads; i++) {
		const struct extent_file *g = &f[s[i].file];
		assert_true(s[i].need > 0 && s[i].need <= s[i].bytes && s[i].offset + s[i].need <= g->size);
		assert_true(!((s[i].offset | s[i].bytes) & (g->align - 1)) &&
					!(s[i].dst_offset & (g->memory_align - 1)));
		assert_true(s[i].dst_offset + s[i].bytes <= p.dst_bytes);
		if (i)
			assert_true(s[i].dst_offset >= s[i - 1].dst_offset + s[i - 1].bytes);
		/* a read may end early at the end of the file, after `need` bytes */
		reader_null_fill(
			s[i].file, s[i].offset, slot + s[i].dst_offset, MIN(s[i].bytes, g->size - s[i].offset));
	}
	for (unsigned i = 0; i < p.n_reads; i++)
		read_sum += p.reads[i].bytes;
	for (unsigned k = 0; k < EXTENT_PARTS; k++) {
		const struct extent_tensor *x = extent_tensor(t, layer, (enum extent_part)k);
		if (!x) {
			assert_true(p.parts[k].bytes == 0);
			continue;
		}
		want[k] = x->bytes / extent_n_experts(t);
		assert_true(p.parts[k].bytes == want[k]);
		unsigned char *bytes = malloc(want[k]);
		reader_null_fill(x->file, x->offset + expert * want[k], bytes, want[k]);
		assert_memory_equal(slot + p.parts[k].dst_offset, bytes, want[k]);
		free(bytes);
		sum += want[k];
	}
	assert_true(sum == p.payload_bytes && read_sum == p.read_bytes);
}

/* Random tables, overlapping tensors too: every payload arrives, reads are aligned and disjoint in
 * the slot. */
static void test_random_tables(void **state)
{
	(void)state;
	unsigned char *slot = malloc(MIB);
	assert_non_null(slot);
	for (uint64_t seed = 0; seed < 400; seed++) {
		struct rng g = {seed};
		static const uint32_t aligns[] = {1, 512, 4096};
		struct extent_file f[3];
		for (unsigned i = 0; i < 3; i++) {
			uint32_t a = aligns[rng_below(&g, 3)];
			f[i] =
				(struct extent_file){100000 + rng_below(&g, 900000), a, a == 1 ? 1 : MAX(a, 512u)};
		}
		uint32_t n_layers = 1 + rng_below(&g, 4), n_experts = 1 + rng_below(&g, 6);
		struct extent_table *t = new_table(n_layers, n_experts, f, 3);
		uint64_t unit = seed % 3 == 0 ? 4096 : seed % 3 == 1 ? 32 : 1;
		for (uint32_t layer = 0; layer < n_layers; layer++) {
			unsigned first = rng_below(&g, 2), file = rng_below(&g, 3);
			for (unsigned p = first; p < EXTENT_PARTS; p++) {
				if (rng_below(&g, 3) == 0)
					file = rng_below(&g, 3);
				uint64_t most = f[file].size / n_experts / unit;
				uint64_t bytes = unit * (1 + rng_below(&g, (uint32_t)MIN(most, 30000 / unit + 1)));
				if (bytes * n_experts > f[file].size)
					bytes = unit;
				uint64_t spare = f[file].size - bytes * n_experts;
				uint64_t offset = rng_below(&g, 4) ? rng_below(&g, (uint32_t)spare + 1) : spare;
				set(t, layer, (enum extent_part)p, file, num_align_down(offset, unit == 1 ? 1 : 32),
					bytes * n_experts);
			}
		}
		for (uint32_t layer = 0; layer < n_layers; layer++) {
			assert_true(extent_slot_bytes(t, layer) <= MIB);
			for (uint32_t expert = 0; expert < n_experts; expert++)
				check_plan(t, f, layer, expert, slot);
		}
		extent_table_free(t);
	}
	free(slot);
}

static void test_hostile_sizes(void **state)
{
	(void)state;
	struct extent_table *t;
	struct err e = {0};
	const struct extent_file ok = {1000, 512, 512};
	const struct extent_file bad[] = {{1000, 0, 512}, {1000, 3, 512}, {1000, 8192, 512},
		{1000, 512, 0}, {1000, 512, 8192}, {UINT64_MAX, 512, 512}, {(1ull << 62) + 1, 1, 1}};
	for (unsigned i = 0; i < ARRAY_LEN(bad); i++) {
		assert_int_equal(extent_table_new(&t, 1, 1, &bad[i], 1, &e), ERR_INPUT);
		assert_null(t);
	}
	assert_int_equal(extent_table_new(&t, 0, 1, &ok, 1, &e), ERR_INPUT);
	assert_int_equal(extent_table_new(&t, UINT32_MAX, 1, &ok, 1, &e), ERR_INPUT);
	assert_int_equal(extent_table_new(&t, 1, 0, &ok, 1, &e), ERR_INPUT);
	assert_int_equal(extent_table_new(&t, 1, UINT32_MAX, &ok, 1, &e), ERR_INPUT);
	assert_int_equal(extent_table_new(&t, 1, 1, &ok, 0, &e), ERR_INPUT);

	t = new_table(2, 10, &ok, 1);
	const struct {
		uint32_t layer, part;
		struct extent_tensor x;
	} cases[] = {
		{2, 0, {.bytes = 10}},
		{0, EXTENT_PARTS, {.bytes = 10}},
		{0, 0, {.file = 1, .bytes = 10}},
		{0, 0, {.bytes = 0}},
		{0, 0, {.bytes = 15}},
		{0, 0, {.bytes = 1010}},
		{0, 0, {.bytes = 10, .offset = 991}},
		{0, 0, {.bytes = 10, .offset = UINT64_MAX - 5}},
		{0, 0, {.bytes = UINT64_MAX - 5, .offset = 10}},
	};
	for (unsigned i = 0; i < ARRAY_LEN(cases); i++) {
		e = (struct err){0};
		assert_int_equal(
			extent_table_set(t, cases[i].layer, (enum extent_part)cases[i].part, &cases[i].x, &e),
			ERR_INPUT);
		assert_true(e.text[0]);
	}
	assert_false(extent_has_layer(t, 0));
	set(t, 0, EXTENT_GATE, 0, 990, 10);
	extent_table_free(t);

	/* the largest there is */
	struct extent_file huge = {1ull << 62, 4096, 4096};
	t = new_table(1, 1, &huge, 1);
	set(t, 0, EXTENT_GATE, 0, 1, (1ull << 62) - 1);
	struct extent_plan p;
	assert_int_equal(extent_plan(t, 0, 0, &p), 0);
	assert_read(p.reads[0], 0, 0, 1ull << 62, 1ull << 62, 0);
	assert_true(extent_slot_bytes(t, 0) >= p.dst_bytes);
	extent_table_free(t);
}

/* --- from a GGUF --- */

static void extent_put_u32(struct buf *b, uint32_t v)
{
	buf_append(b, &v, 4);
}

static void put_u64(struct buf *b, uint64_t v)
{
	buf_append(b, &v, 8);
}

struct made_tensor {
	const char *name;
	uint32_t n_dims;
	uint64_t ne[3];
};

/* A GGUF of F32 tensors with alignment 32, one after another; data are the bytes of
 * reader_null_fill(0, file offset). */
static void make_gguf(struct buf *b, const struct made_tensor *x, unsigned n)
{
	buf_clear(b);
	buf_append(b, "GGUF", 4);
	extent_put_u32(b, 3);
	put_u64(b, n);
	put_u64(b, 0);
	uint64_t offset = 0;
	for (unsigned i = 0; i < n; i++) {
		uint64_t bytes = 4;
		put_u64(b, strlen(x[i].name));
		buf_puts(b, x[i].name);
		extent_put_u32(b, x[i].n_dims);
		for (unsigned d = 0; d < x[i].n_dims; d++) {
			put_u64(b, x[i].ne[d]);
			bytes *= x[i].ne[d];
		}
		extent_put_u32(b, DTYPE_F32);
		put_u64(b, offset);
		offset += num_align_up(bytes, 32);
	}
	while (b->len % 32)
		buf_putc(b, 0);
	uint64_t start = b->len;
	buf_reserve(b, offset);
	for (uint64_t i = 0; i < offset; i++)
		buf_putc(b, 0);
	reader_null_fill(0, start, b->data + start, offset);
}

static const struct made_tensor model[] = {
	{"token_embd.weight", 2, {8, 11}},
	{"blk.1.ffn_gate_exps.weight", 3, {24, 100, 5}},
	{"blk.1.ffn_up_exps.weight", 3, {24, 100, 5}},
	{"blk.1.ffn_down_exps.weight", 3, {100, 24, 5}},
	{"blk.1.ffn_gate_shexp.weight", 2, {24, 100}},
	{"blk.3.ffn_down_exps.weight", 3, {1000, 7, 5}},
	{"blk.3.ffn_gate_exps.weight", 3, {7, 999, 5}},
	{"blk.3.ffn_up_exps.weight", 3, {7, 999, 5}},
};

static void test_gguf_to_slot(void **state)
{
	(void)state;
	struct buf b = {0};
	struct err e = {0};
	make_gguf(&b, model, ARRAY_LEN(model));
	char path[300];
	const char *tmp = getenv("TMPDIR");
	snprintf(path, sizeof path, "%s/glm-extent-XXXXXX", tmp && *tmp ? tmp : "/var/tmp");
	int fd = mkstemp(path);
	assert_true(fd >= 0);
	assert_int_equal(write(fd, b.data, b.len), (ssize_t)b.len);
	close(fd);
	struct gguf *g;
	if (gguf_open(path, &g, &e))
		fail_msg("%s", e.text);

	for (unsigned buffered = 0; buffered < 2; buffered++) {
		struct reader *r;
		struct reader_file f = {.path = path};
		struct reader_options o = {.buffered = buffered};
		if (reader_open(&r, &f, 1, &o, &e))
			fail_msg("%s", e.text);
		struct extent_table *t;
		if (extent_table_from_gguf(&t, g, r, &e))
			fail_msg("%s", e.text);
		assert_true(extent_n_layers(t) == 4 && extent_n_experts(t) == 5);
		assert_true(!extent_has_layer(t, 0) && extent_has_layer(t, 1) && !extent_has_layer(t, 2));
		const struct extent_tensor *x = extent_tensor(t, 3, EXTENT_DOWN);
		assert_true(x->n_in == 1000 && x->n_out == 7 && x->type == DTYPE_F32);
		for (uint32_t layer = 1; layer <= 3; layer += 2) {
			uint64_t room = extent_slot_bytes(t, layer);
			unsigned char *slot = aligned_alloc(4096, num_align_up(room, 4096));
			for (uint32_t expert = 0; expert < 5; expert++) {
				struct extent_plan p;
				const struct extent_read *read = p.reads;
				assert_int_equal(extent_plan(t, layer, expert, &p), 0);
				for (unsigned i = 0; i < p.n_reads; i++) {
					struct reader_request q = {read[i].file, read[i].offset, read[i].bytes,
						read[i].need, slot + read[i].dst_offset, 0, false};
					assert_int_equal(reader_submit(r, &q), 0);
				}
				for (unsigned i = 0; i < p.n_reads; i++) {
					struct reader_completion c;
					assert_int_equal(reader_reap(r, &c, 1, 1, -1), 1);
					assert_int_equal(c.code, 0);
				}
				for (unsigned k = 0; k < EXTENT_MATRICES; k++) {
					x = extent_tensor(t, layer, (enum extent_part)k);
					assert_memory_equal(slot + p.parts[k].dst_offset,
						b.data + x->offset + expert * (x->bytes / 5), x->bytes / 5);
				}
			}
			free(slot);
		}
		if (!buffered && reader_file_align(r, 0) > 1)
			assert_true(reader_stats(r).page_cache == 0); /* rounding kept every read direct */
		extent_table_free(t);
		reader_close(r);
	}

	struct reader *r;
	struct extent_table *t;
	struct reader_file f = {.path = path};
	assert_int_equal(truncate(path, (off_t)b.len - 1), 0);
	assert_int_equal(reader_open(&r, &f, 1, NULL, &e), 0);
	assert_int_equal(extent_table_from_gguf(&t, g, r, &e), ERR_INPUT);
	assert_non_null(strstr(e.text, path));
	assert_null(t);
	reader_close(r);
	gguf_close(g);
	unlink(path);
	buf_free(&b);
}

static void test_gguf_refused(void **state)
{
	(void)state;
	static const struct {
		struct made_tensor x[4];
		const char *part; /* of the sentence */
	} cases[] = {
		{{{"output.weight", 2, {8, 11}}}, "no expert tensors"},
		{{{"blk.3.ffn_gate_exps.weight", 3, {8, 4, 5}},
			 {"blk.3.ffn_down_exps.weight", 3, {8, 4, 5}}},
			"blk.3.ffn_up_exps.weight is missing"},
		{{{"blk.3.ffn_gate_exps.weight", 3, {8, 4, 5}}, {"blk.3.ffn_up_exps.weight", 3, {8, 4, 6}}},
			"6 experts"},
		{{{"blk.0.ffn_gate_exps.weight", 3, {8, 4, 5}},
			 {"blk.00.ffn_gate_exps.weight", 3, {8, 4, 5}}},
			"second"},
		{{{"blk.5000.ffn_gate_exps.weight", 3, {8, 4, 5}}}, "more than 4096 layers"},
		{{{"blk.1.ffn_gate_exps.weight", 3, {1, 1, 70000}}}, "70000 experts"},
		{{{"blk.99999999999.ffn_gate_exps.weight", 3, {8, 4, 5}}}, "no expert tensors"},
		{{{"blk.-1.ffn_gate_exps.weight", 3, {8, 4, 5}}}, "no expert tensors"},
		{{{"blk.1.ffn_gate_exps.weight.x", 3, {8, 4, 5}}}, "no expert tensors"},
	};
	struct buf b = {0};
	for (unsigned i = 0; i < ARRAY_LEN(cases); i++) {
		unsigned n = 0;
		while (n < 4 && cases[i].x[n].name)
			n++;
		make_gguf(&b, cases[i].x, n);
		struct gguf *g;
		struct extent_table *t;
		struct err e = {0};
		if (gguf_parse(b.data, b.len, "made.gguf", &g, &e))
			fail_msg("%s", e.text);
		assert_int_equal(extent_table_from_gguf(&t, g, NULL, &e), ERR_INPUT);
		if (!strstr(e.text, cases[i].part))
			fail_msg("case %u: %s", i, e.text);
		assert_null(t);
		gguf_close(g);
	}
	buf_free(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_runs),
		cmocka_unit_test(test_aligned),
		cmocka_unit_test(test_rounding_and_merging),
		cmocka_unit_test(test_random_tables),
		cmocka_unit_test(test_hostile_sizes),
		cmocka_unit_test(test_gguf_to_slot),
		cmocka_unit_test(test_gguf_refused),
	};
	log_set_level(LOG_QUIET);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
