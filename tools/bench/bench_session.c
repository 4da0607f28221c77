/* SPDX-License-Identifier: MIT */
/*
 * Saving and reading a session against computing it again. Saving is held against a plain write and
 * fsync of as many bytes to the same folder, reading against a plain read of the same file.
 */
#include "tools/bench/bench.h"

#include "src/base/host/clock.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/base/out_file.h"
#include "src/base/rng.h"
#include "src/engine/session/session_blocks.h"
#include "src/engine/session/session_file.h"
#include "tools/options/common_opts.h"
#include "tools/options/text_input.h"
#include "tools/output/interrupt.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

static int plain_write(struct session_job *j, double *seconds, struct err *e)
{
	static uint8_t
		zeros[BLOCK_MAX_BYTES]; /* the drives this is for do not look at what they write */
	struct out_file o;
	int rc = out_file_open_private(&o, j->path, &out_session, true, e);
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
		rc = session_file_save(j->s, n, j->path, true, NULL, 0, &info, e);
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
	bench_add_value(j->b, "session", "s", j->prefill_s, "%s, %u tokens: prefill", j->kind, n);
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
	bench_add_value(j->b, "session", "MB", gb * 1e3, "%s: file (%.1f MB before lz4)", j->kind,
		(double)info.raw_bytes * 1e-6);
	return 0;
}

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
			!(rc = session_new(g, &j.s, e)))
			rc = time_it(&j, e);
		unlink(j.path);
		free(j.path);
		token_ids_free(&j.ids);
		session_free(j.s);
		rc = common_opts_close(g, rc, e);
	}
	return rc;
}
