/* SPDX-License-Identifier: MIT */
/*
 * Saving and reading a session against computing it again, and what compression would gain: by
 * plain lz4 on each MiB of cache rows, and after sorting their bytes or bits into planes (which the
 * program does not do: the figures here are why). Saving is held against a plain write and fsync of
 * as many bytes to the same folder, reading against a plain read of the same file.
 */
#include "tools/bench/bench.h"

#include "src/base/clock.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/base/out_file.h"
#include "src/base/rng.h"
#include "src/engine/session_blocks.h"
#include "src/engine/session_file.h"
#include "src/engine/session_internal.h"
#include "tools/options/common_opts.h"
#include "tools/output/interrupt.h"
#include "tools/options/text_input.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#if HAVE_LZ4
#include <lz4.h>
#endif

struct session_job {
	struct bench *b;
	struct session *s;
	struct token_ids ids;
	const char *kind; /* "16-bit", "float32" */
	char *path;
	uint64_t bytes;   /* of the file */
	double prefill_s; /* the fastest, not less than one */
};

static double seconds_since(uint64_t start)
{
	return (double)(clock_ns() - start) * 1e-9;
}

static struct bench_spread one(double v)
{
	return (struct bench_spread){v, v, v};
}

/* n tokens: the text of a file, as often as it takes, else random ones. */
static int make_ids(
	struct token_ids *ids, struct engine *g, const char *file, uint32_t n, struct err *e)
{
	struct rng r = {42};
	char *text = NULL;
	size_t len;
	int rc = 0;
	if (file && !(rc = text_input_read(file, &text, &len, e)))
		rc = tokenizer_encode(engine_tokenizer(g), text, len, 0, ids, e);
	free(text);
	if (file && !rc && !ids->n)
		rc = err_set(e, ERR_INPUT, "%.400s: holds no tokens", file);
	for (size_t i = ids->n, period = ids->n; i < n && !rc; i++) {
		int32_t id =
			file ? ids->data[i - period] : (int32_t)rng_below(&r, (uint32_t)engine_n_valid(g));
		if (token_ids_push(ids, id))
			rc = err_set(e, ERR_MEMORY, "no memory for %u tokens", n);
	}
	ids->n = MIN(ids->n, n);
	return rc;
}

/* ---- time ---- */

static int plain_write(struct session_job *j, double *seconds, struct err *e)
{
	static uint8_t
		zeros[BLOCK_MAX_BYTES]; /* the drives this is for do not look at what they write */
	struct out_file o;
	int rc = out_file_open_private(&o, j->path, e);
	uint64_t start = clock_ns();
	if (rc)
		return rc;
	for (uint64_t done = 0; done < j->bytes; done += sizeof zeros)
		fwrite(zeros, 1, MIN(j->bytes - done, sizeof zeros), o.f);
	rc = out_file_commit(&o, e);
	*seconds = seconds_since(start);
	return rc;
}

static int plain_read(struct session_job *j, double *seconds, struct err *e)
{
	uint8_t *buffer = NEW_ARRAY(uint8_t, BLOCK_MAX_BYTES);
	uint64_t start = clock_ns();
	int fd = open(j->path, O_RDONLY | O_CLOEXEC), rc = 0;
	while (fd >= 0 && read(fd, buffer, BLOCK_MAX_BYTES) > 0)
		;
	*seconds = seconds_since(start);
	if (fd < 0)
		rc = err_errno(e, errno, "%.400s", j->path);
	else
		close(fd);
	free(buffer);
	return rc;
}

static int time_it(struct session_job *j, struct err *e)
{
	const struct session_watch watch = {.cancel = interrupt_flag()};
	double save[BENCH_MAX_REPEATS], load[BENCH_MAX_REPEATS], wrote[BENCH_MAX_REPEATS],
		was_read[BENCH_MAX_REPEATS];
	uint32_t n = (uint32_t)j->ids.n;
	struct session_file_info info;
	int repeats = j->b->repeats;
	uint64_t start = clock_ns();
	int rc = session_sync(j->s, j->ids.data, n, &watch, NULL, e);
	j->prefill_s = seconds_since(start);
	for (int i = 0; i < repeats && !rc; i++) {
		start = clock_ns();
		rc = session_file_save(j->s, j->path, NULL, 0, &info, e);
		save[i] = seconds_since(start);
		j->bytes = info.bytes;
		if (rc || (rc = plain_read(j, &was_read[i], e)))
			break;
		session_rewind(j->s, 0);
		start = clock_ns();
		rc = session_file_load(j->s, j->path, NULL, NULL, e);
		load[i] = seconds_since(start);
		if (!rc)
			rc = plain_write(j, &wrote[i], e);
		if (!rc && atomic_load(interrupt_flag()))
			rc = err_set(e, ERR_INTERRUPTED, "interrupted");
	}
	if (rc)
		return rc;
	struct bench_spread s = bench_spread_of(save, repeats), l = bench_spread_of(load, repeats);
	double gb = (double)j->bytes * 1e-9;
	bench_add(
		j->b, "session", "s", one(j->prefill_s), 0, NULL, "%s, %u tokens: prefill", j->kind, n);
	bench_add(
		j->b, "session", "s", s, 0, NULL, "%s, %u tokens: save %.1f MB", j->kind, n, gb * 1e3);
	bench_add(j->b, "session", "GB/s", bench_rate(s, gb),
		gb / bench_spread_of(wrote, repeats).median, "plain write and fsync", "%s: save", j->kind);
	bench_add(j->b, "session", "s", l, 0, NULL, "%s, %u tokens: read it back", j->kind, n);
	bench_add(j->b, "session", "GB/s", bench_rate(l, gb),
		gb / bench_spread_of(was_read, repeats).median, "plain read, page cache",
		"%s: read it back", j->kind);
	bench_add(j->b, "session", "times", bench_rate(l, j->prefill_s), 0, NULL,
		"%s: prefill took longer by", j->kind);
	bench_add(j->b, "session", "MB", one(gb * 1e3), 0, NULL, "%s: file (%.1f MB before lz4)",
		j->kind, (double)info.raw_bytes * 1e-6);
	return 0;
}

/* ---- compression ---- */

#if HAVE_LZ4
enum way { AS_IT_IS, BYTE_PLANES, BIT_PLANES, N_WAYS };

/* Value i of n, of w bytes each: byte k goes to place k * n + i. */
static void byte_planes(const uint8_t *in, uint8_t *out, size_t n, size_t w)
{
	for (size_t k = 0; k < w; k++)
		for (size_t i = 0; i < n; i++)
			out[k * n + i] = in[i * w + k];
}

/* The bits of eight bytes as an 8 x 8 matrix, transposed. */
static uint64_t transpose8(uint64_t x)
{
	uint64_t t = (x ^ (x >> 7)) & 0x00aa00aa00aa00aau;
	x ^= t ^ (t << 7);
	t = (x ^ (x >> 14)) & 0x0000cccc0000ccccu;
	x ^= t ^ (t << 14);
	t = (x ^ (x >> 28)) & 0x00000000f0f0f0f0u;
	return x ^ t ^ (t << 28);
}

/* n a multiple of 8; bit b of byte k of all values goes to plane 8k + b of n / 8 bytes. */
static void bit_planes(const uint8_t *in, uint8_t *out, size_t n, size_t w)
{
	for (size_t k = 0; k < w; k++)
		for (size_t i = 0; i < n; i += 8) {
			uint64_t x = 0;
			for (size_t r = 0; r < 8; r++)
				x |= (uint64_t)in[(i + r) * w + k] << (8 * r);
			x = transpose8(x);
			for (size_t b = 0; b < 8; b++)
				out[(8 * k + b) * (n / 8) + i / 8] = (uint8_t)(x >> (8 * b));
		}
}

struct squeeze {
	uint64_t raw, packed[N_WAYS];
	double sort_s[N_WAYS], pack_s[N_WAYS], unpack_s[N_WAYS];
};

static void squeeze_piece(
	struct squeeze *q, const uint8_t *rows, size_t bytes, size_t w, uint8_t *scratch)
{
	size_t bound = (size_t)LZ4_compressBound(BLOCK_MAX_BYTES);
	uint8_t *sorted = scratch, *packed = scratch + BLOCK_MAX_BYTES, *back = packed + bound;
	q->raw += bytes;
	for (int way = 0; way < N_WAYS; way++) {
		uint64_t start = clock_ns();
		if (way == BYTE_PLANES)
			byte_planes(rows, sorted, bytes / w, w);
		else if (way == BIT_PLANES)
			bit_planes(rows, sorted, bytes / w, w);
		q->sort_s[way] += seconds_since(start);
		start = clock_ns();
		int got = LZ4_compress_default(
			(const char *)(way ? sorted : rows), (char *)packed, (int)bytes, (int)bound);
		q->pack_s[way] += seconds_since(start);
		start = clock_ns();
		LZ4_decompress_safe((const char *)packed, (char *)back, got, (int)bytes);
		q->unpack_s[way] += seconds_since(start);
		q->packed[way] += MIN((uint64_t)got, bytes);
	}
}

static int squeeze_layer(struct session_job *j, uint32_t layer, struct squeeze *q, uint8_t *rows,
	uint8_t *scratch, struct err *e)
{
	struct engine *g = j->s->g;
	const struct cache_view *views[] = {&g->kv.latent[layer], &g->kv.index_key[layer]};
	int rc = 0;
	for (size_t v = 0; v < ARRAY_LEN(views); v++) {
		if (!views[v]->data)
			continue;
		size_t w = views[v]->type == DTYPE_F32 ? 4 : 2, row = (size_t)views[v]->width * w;
		size_t piece = BLOCK_MAX_BYTES / row & ~(size_t)7;
		for (size_t done = 0; done + piece <= j->ids.n && !rc; done += piece) {
			const uint8_t *from =
				(const uint8_t *)views[v]->data + ((size_t)j->s->base + done) * row;
			rc = g->backend->ops->download(g->backend, rows, from, piece * row, e);
			if (!rc)
				squeeze_piece(q, rows, piece * row, w, scratch);
		}
	}
	return rc;
}

static void add_squeeze(struct session_job *j, const struct squeeze *q, const char *what)
{
	static const char *const ways[] = {"lz4", "byte planes, lz4", "bit planes, lz4"};
	for (int way = 0; q->raw && way < N_WAYS; way++) {
		double gb = (double)q->raw * 1e-9;
		bench_add(j->b, "session", "times", one((double)q->raw / (double)q->packed[way]), 0, NULL,
			"%s, %s: %s (%.1f, back %.1f GB/s)", j->kind, what, ways[way],
			gb / (q->sort_s[way] + q->pack_s[way]), gb / (q->sort_s[way] + q->unpack_s[way]));
	}
}

static int squeeze(struct session_job *j, struct err *e)
{
	struct squeeze first = {0}, rest = {0};
	uint8_t *rows = NEW_ARRAY(uint8_t, BLOCK_MAX_BYTES);
	uint8_t *scratch =
		NEW_ARRAY(uint8_t, 2 * BLOCK_MAX_BYTES + (size_t)LZ4_compressBound(BLOCK_MAX_BYTES));
	int rc = 0;
	for (uint32_t l = 0; l < j->s->g->model.config.n_layers && !rc; l++)
		rc = squeeze_layer(j, l, l ? &rest : &first, rows, scratch, e);
	if (!rc) {
		add_squeeze(j, &first, "layer 0");
		add_squeeze(j, &rest, "rest");
	}
	free(rows);
	free(scratch);
	return rc;
}
#else
static int squeeze(struct session_job *j, struct err *e)
{
	(void)j;
	(void)e;
	return 0;
}
#endif

int bench_session(struct bench *b, const struct common_opts *options, const char *text,
	const char *folder, uint32_t n, struct err *e)
{
	int rc = 0;
	for (int f32 = 0; f32 < 2 && !rc; f32++) {
		struct common_opts c = *options;
		struct engine *g = NULL;
		struct session_job j = {.b = b, .kind = f32 ? "float32" : "16-bit"};
		c.kv_f32 = f32;
		if (!c.context)
			c.context = n;
		j.path =
			mem_printf("%s/glmstream-bench.%ld.session", folder ? folder : ".", (long)getpid());
		if (!(rc = common_opts_open(&c, &g, e)) && !(rc = make_ids(&j.ids, g, text, n, e)) &&
			!(rc = session_new(g, &j.s, e)) && !(rc = time_it(&j, e)))
			rc = squeeze(&j, e);
		unlink(j.path);
		free(j.path);
		token_ids_free(&j.ids);
		session_free(j.s);
		rc = common_opts_close(g, rc, e);
	}
	return rc;
}
