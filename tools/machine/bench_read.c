/* SPDX-License-Identifier: MIT */
/*
 * bench read. The test file is unlinked as soon as it is open and reached through /proc/PID/fd, by
 * fio too, so no end of the program leaves gigabytes behind. Neither side's setup (rings,
 * registered memory, opening) is timed.
 */
#include "tools/machine/bench_read.h"

#include "src/base/buf.h"
#include "src/base/host/clock.h"
#include "src/base/host/pages.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/base/rng.h"
#include "src/format/json_parse.h"
#include "stream/reader/reader.h"
#include "tools/output/interrupt.h"
#include "tools/output/progress.h"

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

#define WRITE_CHUNK (8u << 20)

/* Requests that a reader which finds the depth itself is given at a time: its deepest queue. */
#define FOUND_REQUESTS READER_ADAPT_DEPTH_MAX

enum source { SOURCE_URING, SOURCE_THREADS, SOURCE_FIO, SOURCES };

static const char *const source_names[SOURCES] = {"uring", "threads", "fio"};

struct read_sample {
	double gb_s, cpu_s_per_gb;
	bool direct; /* what was used, not what was asked for */
	struct reader_setting found;
};

struct read_job {
	struct bench *bench;
	const struct bench_read_options *o;
	int fd;          /* of the file, for fadvise */
	char path[4096]; /* by which readers and fio open it */
	uint64_t file_bytes, bytes;
	uint32_t *blocks; /* [file_bytes / slice] in random order; a run reads the first of them */
	bool have[SOURCES];
	double fio_best;       /* GB/s past the page cache, the best depth's median; 0: not measured */
	unsigned best_depth;   /* that depth */
	unsigned char *memory; /* one slice per request of the deepest queue */
	size_t memory_bytes;
	struct progress progress;
	uint64_t done, total; /* bytes of all samples */
};

/* --- the file --- */

/* Random bytes: no drive or filesystem can compress or deduplicate them. */
static int make_file(struct read_job *j, uint64_t bytes, struct err *e)
{
	char name[4096];
	const char *dir = j->o->dir ? j->o->dir : ".";
	if ((size_t)snprintf(name, sizeof name, "%s/glmstream-bench-XXXXXX", dir) >= sizeof name)
		return err_set(e, ERR_USAGE, "%.100s...: name too long", dir);
	j->fd = mkstemp(name);
	if (j->fd < 0)
		return err_errno(e, errno, "%s: test file", dir);
	unlink(name);
	snprintf(j->path, sizeof j->path, "/proc/%d/fd/%d", (int)getpid(), j->fd);
	log_info("bench read: writing %.1f GB of random bytes to a file in %s (it has no name and is "
			 "gone afterwards)",
		(double)bytes / 1e9, dir);
	int code = posix_fallocate(j->fd, 0, (off_t)bytes);
	if (code)
		return err_errno(e, code, "%s: test file of %.1f GB", dir, (double)bytes / 1e9);
	uint64_t *chunk = mem_new(WRITE_CHUNK / 8, 8);
	struct rng g = {clock_ns()};
	for (uint64_t at = 0; at < bytes && !code;) {
		for (size_t i = 0; i < WRITE_CHUNK / 8; i++)
			chunk[i] = rng_u64(&g);
		ssize_t n = write(j->fd, chunk, MIN((uint64_t)WRITE_CHUNK, bytes - at));
		if (n < 0 && errno != EINTR)
			code = err_errno(e, errno, "%s: test file, at byte %llu", dir, (unsigned long long)at);
		else if (atomic_load(interrupt_flag()))
			code = err_set(e, ERR_INTERRUPTED, "interrupted");
		at += n > 0 ? (uint64_t)n : 0;
	}
	free(chunk);
	if (!code && fsync(j->fd))
		code = err_errno(e, errno, "%s: test file", dir);
	j->file_bytes = bytes;
	return code;
}

static int open_file(struct read_job *j, struct err *e)
{
	struct stat st;
	if ((size_t)snprintf(j->path, sizeof j->path, "%s", j->o->path) >= sizeof j->path)
		return err_set(e, ERR_USAGE, "%.100s...: name too long", j->o->path);
	j->fd = open(j->path, O_RDONLY | O_CLOEXEC);
	if (j->fd < 0 || fstat(j->fd, &st))
		return err_errno(e, errno, "%s", j->path);
	if (!S_ISREG(st.st_mode))
		return err_set(e, ERR_INPUT, "%s: not a regular file", j->path);
	j->file_bytes = (uint64_t)st.st_size;
	if (j->file_bytes < j->o->slice_bytes)
		return err_set(e, ERR_INPUT, "%s: %llu bytes, one read is %zu", j->path,
			(unsigned long long)j->file_bytes, j->o->slice_bytes);
	return 0;
}

static void drop_cache(const struct read_job *j)
{
	fsync(j->fd);
	posix_fadvise(j->fd, 0, 0, POSIX_FADV_DONTNEED);
}

/* --- our readers --- */

static double cpu_seconds(void)
{
	struct rusage u;
	getrusage(RUSAGE_SELF, &u);
	return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
		   1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

static void submit_block(const struct read_job *j, struct reader *r, uint64_t block, uint64_t tag)
{
	const size_t slice = j->o->slice_bytes;
	const struct reader_request q = {.offset = j->blocks[block] * (uint64_t)slice,
		.bytes = slice,
		.tag = tag,
		.dst = j->memory + tag * slice};
	if (reader_submit(r, &q))
		bug("bench read: busy at block %llu", (unsigned long long)block);
}

/* Keeps `depth` requests of one slice in flight until all blocks were read. Request k reads into
 * slice k of the memory. */
static int read_blocks(const struct read_job *j, struct reader *r, unsigned depth, struct err *e)
{
	uint64_t n = j->bytes / j->o->slice_bytes, sent = 0, done = 0;
	struct reader_completion c[64];
	for (; sent < MIN((uint64_t)depth, n); sent++)
		submit_block(j, r, sent, sent);
	while (done < n) {
		int got = reader_reap(r, c, 1, ARRAY_LEN(c), 500);
		for (int i = 0; i < got; i++, done++) {
			if (c[i].code)
				return reader_completion_err(r, &c[i], e);
			if (sent < n)
				submit_block(j, r, sent++, c[i].tag);
		}
		if (atomic_load(interrupt_flag()))
			return err_set(e, ERR_INTERRUPTED, "interrupted");
	}
	return 0;
}

/* depth 0: the reader finds it, and how long its reads are. */
static int run_reader(const struct read_job *j, enum source source, bool direct, unsigned depth,
	struct read_sample *s, struct err *e)
{
	struct reader_file f = {.path = j->path};
	struct reader_options o = {.engine = source == SOURCE_URING ? READER_URING : READER_THREADS,
		.buffered = !direct,
		.depth = depth,
		.threads = depth,
		.requests = depth ? depth : FOUND_REQUESTS,
		.slice_bytes = depth ? j->o->slice_bytes : 0};
	struct reader *r;
	const enum log_level before =
		log_lower(LOG_WARN); /* one line per run would drown the figures */
	int code = reader_open(&r, &f, 1, &o, e);
	if (!code) {
		reader_register(r, j->memory, o.requests * j->o->slice_bytes);
		s->direct = reader_file_align(r, 0) > 1;
		double cpu = cpu_seconds();
		uint64_t start = clock_ns();
		code = read_blocks(j, r, o.requests, e);
		double seconds = 1e-9 * (double)(clock_ns() - start), gb = 1e-9 * (double)j->bytes;
		s->cpu_s_per_gb = (cpu_seconds() - cpu) / gb;
		s->gb_s = gb / seconds;
		s->found = reader_setting(r);
		reader_close(r);
	}
	log_set_level(before);
	return code;
}

/* --- fio --- */

static int parse_fio(
	const char *json, size_t bytes, double *gb_s, double *cpu_s_per_gb, struct err *e)
{
	const char *start = memchr(json, '{', bytes); /* notes may stand before it */
	if (!start)
		return err_set(e, ERR_INPUT, "fio: no JSON in its output");
	json_t *root;
	int code = json_parse_part("fio", "its output ", start, bytes - (size_t)(start - json),
		JSON_DISABLE_EOF_CHECK, &root, e);
	if (code)
		return code;
	json_t *job = json_array_get(json_object_get(root, "jobs"), 0),
		   *rd = json_object_get(job, "read");
	double io = json_number_value(json_object_get(rd, "io_bytes"));
	double seconds = 1e-3 * json_number_value(json_object_get(rd, "runtime"));
	double user = json_number_value(json_object_get(job, "usr_cpu"));
	double sys = json_number_value(json_object_get(job, "sys_cpu"));
	json_int_t failed = json_integer_value(json_object_get(job, "error"));
	json_decref(root);
	if (failed)
		return err_set(e, ERR_RUN, "fio: the job failed: %s", err_name(-(int)failed));
	if (!(io > 0) || !(seconds > 0) || !(user >= 0) || !(sys >= 0))
		return err_set(e, ERR_INPUT, "fio: its JSON has no figures of a read job");
	*gb_s = 1e-9 * io / seconds;
	*cpu_s_per_gb = 1e-2 * (user + sys) * seconds / (1e-9 * io);
	return 0;
}

/* Runs a program and collects its standard output. 0 and its exit status, -ENOENT when there is no
 * such program. */
static int run_program(char *const argv[], struct buf *out, int *status)
{
	int ends[2];
	if (pipe2(ends, O_CLOEXEC))
		return -errno;
	posix_spawn_file_actions_t a;
	posix_spawn_file_actions_init(&a);
	posix_spawn_file_actions_adddup2(&a, ends[1], STDOUT_FILENO);
	posix_spawn_file_actions_addopen(&a, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
	pid_t pid;
	int code = -posix_spawnp(&pid, argv[0], &a, NULL, argv, environ);
	posix_spawn_file_actions_destroy(&a);
	close(ends[1]);
	while (!code) {
		buf_reserve(out, 65536);
		ssize_t n = read(ends[0], out->data + out->len, 65536);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0) {
			while (waitpid(pid, status, 0) < 0 && errno == EINTR)
				;
			break;
		}
		out->len += (size_t)n;
	}
	close(ends[0]);
	return code;
}

static bool fio_installed(void)
{
	struct buf out = {0};
	char *argv[] = {"fio", "--version", NULL};
	int status = 1;
	bool yes =
		run_program(argv, &out, &status) == 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0;
	buf_free(&out);
	return yes;
}

static int run_fio(
	const struct read_job *j, bool direct, unsigned depth, struct read_sample *s, struct err *e)
{
	char *name = mem_printf("--filename=%s", j->path),
		 *bs = mem_printf("--bs=%zu", j->o->slice_bytes);
	char *size = mem_printf(
		"--size=%llu", (unsigned long long)(j->file_bytes / j->o->slice_bytes * j->o->slice_bytes));
	char *io = mem_printf("--io_size=%llu", (unsigned long long)j->bytes);
	char *iodepth = mem_printf("--iodepth=%u", depth);
	/* glibc then asks for huge pages for fio's buffers, as we do for ours */
	char *argv[] = {"env", "GLIBC_TUNABLES=glibc.malloc.hugetlb=1", "fio", "--name=read",
		"--rw=randread", "--ioengine=io_uring", "--fixedbufs=1", "--registerfiles=1", "--thread",
		"--readonly", "--allow_file_create=0", "--output-format=json",
		direct ? "--direct=1" : "--direct=0", name, bs, size, io, iodepth, NULL};
	struct buf out = {0};
	int status = 0;
	int code = run_program(argv, &out, &status);
	if (code)
		err_errno(e, -code, "fio");
	else if (atomic_load(interrupt_flag()))
		code = err_set(e, ERR_INTERRUPTED, "interrupted");
	else if (!WIFEXITED(status) || WEXITSTATUS(status))
		code = err_set(e, ERR_RUN, "fio ended with status 0x%x", (unsigned)status);
	else
		code = parse_fio(buf_str(&out), out.len, &s->gb_s, &s->cpu_s_per_gb, e);
	s->direct = direct;
	buf_free(&out);
	free(name);
	free(bs);
	free(size);
	free(io);
	free(iodepth);
	return code;
}

/* --- one mode, one depth --- */

/* The sources take turns, so that other load disturbs all of them alike. */
static int bench_depth(struct read_job *j, bool direct, unsigned depth, struct err *e)
{
	const int repeats = j->bench->repeats;
	struct read_sample s[SOURCES] = {0};
	double rate[SOURCES][BENCH_MAX_REPEATS], cpu[SOURCES][BENCH_MAX_REPEATS];
	for (int i = 0; i < repeats; i++)
		for (unsigned k = 0; k < SOURCES; k++) {
			if (!j->have[k])
				continue;
			if (!direct)
				drop_cache(j);
			int code = k == SOURCE_FIO ? run_fio(j, direct, depth, &s[k], e)
									   : run_reader(j, (enum source)k, direct, depth, &s[k], e);
			if (code)
				return code;
			rate[k][i] = s[k].gb_s;
			cpu[k][i] = s[k].cpu_s_per_gb;
			progress_update(&j->progress, j->done += j->bytes, j->total);
		}
	double fio = 0;
	if (j->have[SOURCE_FIO])
		fio = bench_spread_of(rate[SOURCE_FIO], repeats).median;
	if (direct && fio > j->fio_best) {
		j->fio_best = fio;
		j->best_depth = depth;
	}
	for (unsigned k = 0; k < SOURCES; k++)
		if (j->have[k])
			bench_add(j->bench, "read", "GB/s", bench_spread_of(rate[k], repeats),
				k == SOURCE_FIO ? 0 : fio, "fio", "%s%s, depth %u, %zu KiB, %.3f CPU s/GB",
				source_names[k], s[k].direct ? " O_DIRECT" : " buffered", depth,
				j->o->slice_bytes >> 10, bench_spread_of(cpu[k], repeats).median);
	return 0;
}

/* The depth that the reader finds, in turns with fio and the depth that was best for it. */
static int bench_found(struct read_job *j, struct err *e)
{
	const int repeats = j->bench->repeats;
	struct read_sample s = {0}, f = {0};
	double rate[BENCH_MAX_REPEATS], cpu[BENCH_MAX_REPEATS], fio[BENCH_MAX_REPEATS];
	int code = 0;
	if (!j->have[SOURCE_URING])
		return 0;
	for (int i = 0; i < repeats; i++) {
		if ((code = run_reader(j, SOURCE_URING, true, 0, &s, e)) ||
			(j->best_depth && (code = run_fio(j, true, j->best_depth, &f, e))))
			return code;
		rate[i] = s.gb_s;
		cpu[i] = s.cpu_s_per_gb;
		fio[i] = f.gb_s;
		progress_update(&j->progress, j->done += (1 + (j->best_depth > 0)) * j->bytes, j->total);
	}
	if (!s.direct) /* through the page cache nothing is looked for */
		return 0;
	bench_add(j->bench, "read", "GB/s", bench_spread_of(rate, repeats),
		bench_spread_of(fio, repeats).median, "fio's best depth in turns",
		"uring O_DIRECT, depth found: %u, %zu KiB, %.3f CPU s/GB", s.found.depth,
		s.found.slice_bytes >> 10, bench_spread_of(cpu, repeats).median);
	return 0;
}

/* --- all of it --- */

static void choose_sources(struct read_job *j)
{
	struct reader *r;
	struct err e = {0};
	struct reader_file f = {.path = j->path};
	struct reader_options o = {.engine = READER_URING};
	const enum log_level before = log_lower(LOG_WARN);
	int code = reader_open(&r, &f, 1, &o, &e);
	log_set_level(before);
	if (!code)
		reader_close(r);
	const char *no_fio = NULL;
	if (code)
		log_info("bench read: without io_uring: %s", e.text);
	if (j->o->no_fio)
		no_fio = "";
	else if (code)
		no_fio = "whose runs use io_uring too";
	else if (strpbrk(j->path, ":\\"))
		no_fio = "whose file names cannot hold : or \\";
	else if (!fio_installed())
		no_fio = "which is not installed";
	if (no_fio && *no_fio)
		log_info("bench read: without fio, %s", no_fio);
	j->have[SOURCE_URING] = !code;
	j->have[SOURCE_THREADS] = true;
	j->have[SOURCE_FIO] = !no_fio;
}

int bench_read(struct bench *b, const struct bench_read_options *o, struct err *e)
{
	static const unsigned usual[] = {1, 4, 16, 32, 64};
	const unsigned *depths = o->depth ? &o->depth : usual;
	const size_t n_depths = o->depth ? 1 : ARRAY_LEN(usual), slice = o->slice_bytes;
	struct read_job j = {.bench = b, .o = o, .fd = -1};
	uint64_t bytes = MAX(o->bytes, (uint64_t)slice) / slice * slice;
	int code = o->path ? open_file(&j, e) : make_file(&j, bytes, e);
	if (code)
		goto out;
	uint64_t n_blocks = j.file_bytes / slice;
	j.bytes = MIN(bytes, n_blocks * slice);
	j.memory_bytes = (size_t)(o->depth ? o->depth : FOUND_REQUESTS) * slice;
	j.memory = pages_try_map(j.memory_bytes);
	j.blocks = n_blocks <= UINT32_MAX ? mem_try_new(n_blocks, sizeof *j.blocks) : NULL;
	if (!j.memory || !j.blocks) {
		code = err_set(e, ERR_MEMORY, "bench read: no memory for reads of %zu bytes", slice);
		goto out;
	}
	memset(j.memory, 1, j.memory_bytes);
	struct rng g = {1};
	for (uint32_t i = 0; i < n_blocks; i++) { /* a random permutation, built inside out */
		uint32_t k = rng_below(&g, i + 1);
		j.blocks[i] = j.blocks[k];
		j.blocks[k] = i;
	}
	choose_sources(&j);
	const unsigned n_sources =
		j.have[SOURCE_URING] + j.have[SOURCE_THREADS] + (unsigned)j.have[SOURCE_FIO];
	j.total = (2 * n_depths * n_sources +
				  (!o->depth && j.have[SOURCE_URING]) * (1u + j.have[SOURCE_FIO])) *
			  (uint64_t)b->repeats * j.bytes;
	log_info("bench read: %.4g GB in all: %zu queue depth%s with and without the page cache, %d "
			 "times by each of %u readers, %.4g GB each (--gb, --depth and --repeats make it less)",
		(double)j.total * 1e-9, n_depths, n_depths > 1 ? "s" : "", b->repeats, n_sources,
		(double)j.bytes * 1e-9);
	progress_begin_lines(&j.progress, "reading", NULL, 0, j.total);
	for (int direct = 1; direct >= 0; direct--) {
		for (size_t i = 0; i < n_depths && !code; i++)
			code = bench_depth(&j, direct, depths[i], e);
		if (direct && !o->depth && !code)
			code = bench_found(&j, e);
	}
	progress_end(&j.progress);
out:
	free(j.blocks);
	if (j.memory)
		pages_unmap(j.memory, j.memory_bytes);
	if (j.fd >= 0)
		close(j.fd);
	return code;
}
