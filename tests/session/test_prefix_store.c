/* SPDX-License-Identifier: MIT */
/* The prefix store on a small model: what comes from it is what would have been computed, bit
 * for bit; it stays within its size, forgets what is unused for longest, and a damaged file costs
 * time only. GLM_BACKEND: where (cpu). */
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/base/rng.h"
#include "src/engine/engine_internal.h"
#include "src/engine/prefix_store.h"
#include "tests/support/engine_help.h"
#include "tests/support/mutate_model.h"
#include "tests/support/slow_build.h"
#include "tests/support/temp_dir.h"

#include <stdarg.h>
#include <setjmp.h>
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

/* Pieces have more rows than a card computes as a decode step (backend.h: Numbers). */
#define N_TEXT   1104 /* two blocks and a piece */
#define N_PIECE  592  /* a block and a piece */
#define N_DAMAGE 1089
#define CONTEXT  2048

static int32_t text[N_TEXT], other[N_TEXT];

static struct engine *prefix_store_open_engine(uint32_t sessions, bool kv_f32)
{
	struct engine_options o = {.model_path = small_model(),
		.backend = getenv("GLM_BACKEND") ? getenv("GLM_BACKEND") : "cpu",
		.context = CONTEXT,
		.sessions = sessions,
		.kv_f32 = kv_f32};
	return engine_of(&o);
}

static struct prefix_store *open_store(const char *name, uint64_t bytes, struct engine *g)
{
	struct err e = {0};
	struct prefix_store *p;
	if (prefix_store_open(temp_dir_path(name), bytes, g, &p, &e))
		fail_msg("%s", e.text);
	return p;
}

static void sync_to(struct session *s, const int32_t *tokens, uint32_t n, uint32_t reused_expected)
{
	struct err e = {0};
	uint32_t reused;
	if (session_sync(s, tokens, n, NULL, &reused, &e))
		fail_msg("%s", e.text);
	assert_int_equal(reused, reused_expected);
}

static void restore(struct prefix_store *p, struct session *s, const int32_t *tokens, uint32_t n,
	uint32_t read_expected, uint32_t length_expected)
{
	struct err e = {0};
	uint32_t read;
	if (prefix_store_restore(p, s, tokens, n, &read, &e))
		fail_msg("%s", e.text);
	assert_int_equal(read, read_expected);
	assert_int_equal(session_length(s), length_expected);
	assert_memory_equal(session_tokens(s), tokens, length_expected * sizeof *tokens);
}

static void keep(struct prefix_store *p, struct session *s, uint32_t n, uint64_t written_expected)
{
	struct err e = {0};
	uint64_t before = prefix_store_stats(p).blocks_written;
	if (prefix_store_keep(p, s, n, &e))
		fail_msg("%s", e.text);
	assert_int_equal(prefix_store_stats(p).blocks_written - before, written_expected);
}

/* Names of the folder's files, sorted. */
static int list(const char *name, struct dirent ***out)
{
	int n = scandir(temp_dir_path(name), out, NULL, alphasort);
	assert_true(n >= 2);
	return n;
}

static void free_list(struct dirent **l, int n)
{
	for (int i = 0; i < n; i++)
		free(l[i]);
	free(l);
}

static int prefix_store_setup(void **state)
{
	struct rng r = {17};
	for (size_t i = 0; i < N_TEXT; i++) {
		text[i] = (int32_t)rng_below(&r, 8000);
		other[i] = i < N_PIECE ? text[i]
							   : (int32_t)rng_below(&r, 8000); /* one block and a piece in common */
	}
	return temp_dir_make(state);
}

/* Rows of one setting of exact_prompts or fast_prompts are not found with the other. The engine
 * takes the flags where its backend has two ways; the key of the store is the same code everywhere.
 */
static void test_exact_prompts(void **state)
{
	(void)state;
	struct engine *g = prefix_store_open_engine(1, false);
	g->library_version = 0; /* two passes take no library */
	struct prefix_store *p = open_store("exact", 0, g);
	struct session *s = session_of(g, false);
	sync_to(s, text, N_PIECE, 0);
	keep(p, s, N_PIECE, 1);
	session_free(s);
	s = session_of(g, false);
	g->exact_prompts = !g->exact_prompts;
	restore(p, s, text, N_PIECE, 0, 0);
	g->exact_prompts = !g->exact_prompts;
	g->fast_prompts = !g->fast_prompts;
	restore(p, s, text, N_PIECE, 0, 0);
	g->fast_prompts = !g->fast_prompts;
	restore(p, s, text, N_PIECE, 512, 512);
	session_free(s);
	/* so are those of products by another library, or another version of it */
	for (uint32_t version = 1; version <= IF_SLOW_BUILD(1, 2); version++) {
		s = session_of(g, false);
		g->library_version = version;
		restore(p, s, text, N_PIECE, 0, 0);
		sync_to(s, text, N_PIECE, 0);
		keep(p, s, N_PIECE, 1);
		session_free(s);
	}
	prefix_store_close(p);
	engine_close(g, NULL);
}

/* With MTP rows, which have rules of their own; test_damage looks at the bits without them. */
static void test_same_bits(void **state)
{
	(void)state;
	struct engine *g = prefix_store_open_engine(2, false);
	uint32_t n_vocab = engine_config(g)->n_vocab;
	struct err e = {0};
	struct prefix_store *p = open_store("same", 0, g);
	struct session *a = session_of(g, true);
	float *want = NEW_ARRAY(float, n_vocab), *got = NEW_ARRAY(float, n_vocab);
	restore(p, a, text, N_TEXT, 0, 0);
	sync_to(a, text, N_TEXT, 0);
	uint64_t hash = logits_hash(a);
	draft_of(a, 42, want);
	keep(p, a, N_TEXT, 2);
	keep(p, a, N_TEXT, 0);
	restore(p, a, text, N_TEXT, 0, N_TEXT); /* nothing to gain: the logits stay */
	assert_true(logits_hash(a) == hash);
	/* another text over the same session takes what is common; its own blocks come beside */
	restore(p, a, other, N_TEXT, 0, N_PIECE);
	sync_to(a, other, N_TEXT, N_PIECE);
	keep(p, a, N_TEXT, 1);
	uint64_t other_hash = logits_hash(a);
	session_free(a);
	prefix_store_close(p);

	p = open_store("same", 0, g);
	assert_int_equal(prefix_store_stats(p).files, 3);
	a = session_of(g, true);
	restore(p, a, text, N_TEXT, 1024, 1024);
	assert_null(session_logits(a));
	sync_to(a, text, N_TEXT, 1024);
	assert_true(logits_hash(a) == hash);
	draft_of(a, 42, got);
	assert_memory_equal(want, got, n_vocab * sizeof *got);
	/* from the common tokens on: the second block comes whole from disk */
	restore(p, a, other, N_TEXT, 1024 - N_PIECE, 1024);
	sync_to(a, other, N_TEXT, 1024);
	assert_true(logits_hash(a) == other_hash);
	/* a prompt that ends on a block, and inside one */
	restore(p, a, text, 1024, 1024 - N_PIECE, 1024);
	sync_to(a, text, 1024, 1023);
	uint64_t half = logits_hash(a);
	session_rewind(a, 0);
	sync_to(a, text, 1023, 0); /* so that the last row is a step of its own here too */
	sync_to(a, text, 1024, 1023);
	assert_true(logits_hash(a) == half);
	session_rewind(a, 0);
	restore(p, a, text, 1023, 512, 512);
	session_rewind(a, 0);
	restore(p, a, text, 511, 0, 0);
	/* bad ids change nothing */
	int32_t bad[] = {text[0], -1};
	restore(p, a, text, N_PIECE, 512, 512);
	assert_int_equal(prefix_store_restore(p, a, bad, 2, NULL, &e), ERR_INPUT);
	assert_int_equal(session_length(a), 512);
	free(want);
	free(got);
	session_free(a);
	prefix_store_close(p);
	engine_close(g, NULL);
}

/* The MTP row of a block's last token belongs to the token after it: two texts that part at a
 * block's end. */
static void test_mtp(void **state)
{
	(void)state;
	struct engine *g = prefix_store_open_engine(1, false);
	uint32_t n_vocab = engine_config(g)->n_vocab;
	float *want = NEW_ARRAY(float, n_vocab), *got = NEW_ARRAY(float, n_vocab);
	struct session *s = session_of(g, true);
	int32_t second[N_TEXT];
	memcpy(second, text, sizeof second);
	second[512] = (text[512] + 1) % 8000;
	sync_to(s, second, N_TEXT, 0);
	draft_of(s, 42, want);
	struct prefix_store *p = open_store("parting", 0, g);
	session_rewind(s, 0);
	sync_to(s, text, N_TEXT, 0);
	keep(p, s, N_TEXT, 2);
	sync_to(s, second, N_TEXT, 512);
	keep(p, s, N_TEXT, 1);
	session_rewind(s, 0);
	restore(p, s, second, N_TEXT, 1024, 1024);
	sync_to(s, second, N_TEXT, 1024);
	draft_of(s, 42, got);
	assert_memory_equal(want, got, n_vocab * sizeof *got);
	free(want);
	free(got);
	session_free(s);
	prefix_store_close(p);
	engine_close(g, NULL);
}

/* Caches of another type do not meet each other's files. Sessions with and without MTP do, where
 * there are no blocks of their own kind. */
static void test_apart(void **state)
{
	(void)state;
	struct engine *g = prefix_store_open_engine(1, false);
	struct prefix_store *p = open_store("apart", 0, g);
	struct session *s = session_of(g, false);
	sync_to(s, text, N_PIECE, 0);
	keep(p, s, N_PIECE, 1);
	session_free(s);
	s = session_of(g, true);
	restore(
		p, s, text, N_PIECE, 512, 512); /* without MTP rows: they are made from the tokens ... */
	sync_to(s, text, N_PIECE, 512);
	uint64_t hash = logits_hash(s);
	float *draft = NEW_ARRAY(float, engine_config(g)->n_vocab);
	draft_of(s, 42, draft);
	keep(p, s, N_PIECE, 0); /* ... and are not kept */
	session_rewind(s, 0);
	sync_to(s, text, N_PIECE, 0);
	assert_true(logits_hash(s) == hash);
	keep(p, s, N_PIECE, 1);
	int32_t backwards[N_PIECE];
	for (int i = 0; i < N_PIECE; i++)
		backwards[i] = text[N_PIECE - 1 - i];
	sync_to(s, backwards, N_PIECE, 0);
	hash = logits_hash(s);
	keep(p, s, N_PIECE, 1);
	session_free(s);
	s = session_of(g, false);
	restore(p, s, backwards, N_PIECE, 512, 512); /* with MTP rows, which are passed over */
	sync_to(s, backwards, N_PIECE, 512);
	assert_true(logits_hash(s) == hash);
	keep(p, s, N_PIECE, 0);
	free(draft);
	session_free(s);
	prefix_store_close(p);
	engine_close(g, NULL);
	g = prefix_store_open_engine(1, true);
	p = open_store("apart", 0, g);
	s = session_of(g, false);
	restore(p, s, text, N_PIECE, 0, 0);
	sync_to(s, text, N_PIECE, 0);
	keep(p, s, N_PIECE, 1);
	assert_int_equal(prefix_store_stats(p).files, 4);
	session_free(s);
	prefix_store_close(p);
	engine_close(g, NULL);
}

static void test_damage(void **state)
{
	(void)state;
	struct engine *g = prefix_store_open_engine(1, false);
	struct prefix_store *p = open_store("damage", 0, g);
	struct session *s = session_of(g, false);
	sync_to(s, text, N_DAMAGE, 0);
	uint64_t hash = logits_hash(s);
	keep(p, s, N_DAMAGE, 2);
	struct dirent **l;
	int n = list("damage", &l);
	assert_int_equal(n, 4);
	struct rng r = {3};
	for (int round = IF_SLOW_BUILD(2, 0); round < 4; round++) {
		int which = 2 + round % 2; /* behind . and .. */
		char *path = mem_printf("%s/%s", temp_dir_path("damage"), l[which]->d_name);
		struct stat st;
		assert_int_equal(stat(path, &st), 0);
		off_t at = (off_t)(rng_u64(&r) % (uint64_t)st.st_size);
		int fd = open(path, O_RDWR);
		uint8_t byte;
		assert_int_equal(pread(fd, &byte, 1, at), 1);
		byte ^= (uint8_t)(1 << round % 8);
		if (round >= 3)
			assert_int_equal(ftruncate(fd, at), 0);
		else
			assert_int_equal(pwrite(fd, &byte, 1, at), 1);
		close(fd);
		session_rewind(s, 0);
		uint32_t good = 512 * (uint32_t)(which - 2);
		restore(p, s, text, N_DAMAGE, good, good);
		assert_int_equal(access(path, F_OK), -1); /* gone */
		sync_to(s, text, N_DAMAGE, good);
		assert_true(logits_hash(s) == hash);
		keep(p, s, N_DAMAGE, 1);
		free(path);
	}
	assert_int_equal(prefix_store_stats(p).blocks_damaged, IF_SLOW_BUILD(2, 4));
	/* a file under another's name: right in itself, but not what is asked for */
	char *first = mem_printf("%s/%s", temp_dir_path("damage"), l[2]->d_name);
	char *second = mem_printf("%s/%s", temp_dir_path("damage"), l[3]->d_name);
	assert_int_equal(rename(second, first), 0);
	session_rewind(s, 0);
	restore(p, s, text, N_DAMAGE, 0, 0);
	free(first);
	free(second);
	free_list(l, n);
	session_free(s);
	prefix_store_close(p);
	engine_close(g, NULL);
}

static uint64_t folder_bytes(const char *name)
{
	struct dirent **l;
	uint64_t sum = 0;
	int n = list(name, &l);
	for (int i = 0; i < n; i++) {
		struct stat st;
		char *path = mem_printf("%s/%s", temp_dir_path(name), l[i]->d_name);
		if (!stat(path, &st) && S_ISREG(st.st_mode))
			sum += (uint64_t)st.st_size;
		free(path);
	}
	free_list(l, n);
	return sum;
}

static void test_limit(void **state)
{
	(void)state;
	struct engine *g = prefix_store_open_engine(1, false);
	struct err e = {0};
	struct prefix_store *p;
	assert_int_equal(prefix_store_open(temp_dir_path("small"), 1000, g, &p, &e), ERR_USAGE);
	assert_non_null(strstr(e.text, "no room for one block"));
	assert_int_equal(prefix_store_open("/no/such/folder", 0, g, &p, &e), ERR_INPUT);

	struct session *s = session_of(g, false);
	p = open_store("limit", 0, g);
	sync_to(s, text, N_TEXT, 0);
	keep(p, s, N_TEXT, 2);
	uint64_t block = folder_bytes("limit") / 2;
	prefix_store_close(p);
	/* room for two: a second text, one block in common, pushes out the end of the first */
	p = open_store("limit", block * 5 / 2, g);
	sync_to(s, other, N_TEXT, N_PIECE);
	keep(p, s, N_TEXT, 1);
	assert_true(folder_bytes("limit") <= block * 5 / 2);
	assert_int_equal(prefix_store_stats(p).blocks_evicted, 1);
	session_rewind(s, 0);
	restore(p, s, other, N_TEXT, 1024, 1024); /* whole */
	session_rewind(s, 0);
	restore(p, s, text, N_TEXT, 512, 512); /* its last block is gone */
	/* now the other text gives way, from its end: what both begin with was used last */
	sync_to(s, text, N_TEXT, 512);
	keep(p, s, N_TEXT, 1);
	session_rewind(s, 0);
	restore(p, s, text, N_TEXT, 1024, 1024);
	session_rewind(s, 0);
	restore(p, s, other, N_TEXT, 512, 512);
	prefix_store_close(p);
	/* a limit below what is there is met at once, and one that holds less than a prompt keeps its
	 * beginning */
	p = open_store("limit", block * 3 / 2, g);
	assert_int_equal(prefix_store_stats(p).files, 1);
	assert_true(folder_bytes("limit") <= block * 3 / 2);
	sync_to(s, text, N_TEXT, 512);
	keep(p, s, N_TEXT, 0);
	session_rewind(s, 0);
	restore(p, s, text, N_TEXT, 512, 512);
	session_free(s);
	prefix_store_close(p);
	engine_close(g, NULL);
}

/* Blocks of another user in a common folder: they count as missing, and stay. Only root can play
 * another user; others play one who may not read. */
static void test_other_user(void **state)
{
	(void)state;
	const bool is_root = !geteuid();
	struct engine *g = prefix_store_open_engine(1, false);
	struct session *s = session_of(g, false);
	struct prefix_store *p = open_store("common", 0, g);
	struct err e = {0};
	struct dirent **l;
	sync_to(s, text, N_PIECE, 0);
	keep(p, s, N_PIECE, 1);
	const uint64_t block = prefix_store_stats(p).bytes;
	int n = list("common", &l);
	char *path = mem_printf("%s/%s", temp_dir_path("common"), l[2]->d_name);
	free_list(l, n);
	assert_int_equal(chmod(path, 0), 0);
	assert_int_equal(chmod(temp_dir_path("common"), 0777), 0);
	assert_int_equal(chmod(temp_dir(), 0711), 0);
	assert_int_equal(is_root ? seteuid(65534) : 0, 0);
	session_rewind(s, 0);
	restore(p, s, text, N_PIECE, 0, 0);
	assert_int_equal(access(path, F_OK), 0);
	assert_int_equal(prefix_store_stats(p).blocks_damaged, 0);
	prefix_store_close(p);
	assert_int_equal(is_root ? seteuid(0) : 0, 0);
	if (is_root) { /* a folder in which only the owner of a file removes it */
		assert_int_equal(chmod(temp_dir_path("common"), 01777), 0);
		assert_int_equal(seteuid(65534), 0);
		p = open_store("common", block * 3 / 2, g);
		sync_to(s, other + N_PIECE, 512, 0);
		assert_int_not_equal(prefix_store_keep(p, s, 512, &e), 0);
		assert_non_null(strstr(e.text, "may not remove"));
		assert_int_equal(prefix_store_stats(p).blocks_evicted, 0);
		assert_int_equal(prefix_store_stats(p).files, 1);
		assert_int_equal(prefix_store_stats(p).bytes, block);
		prefix_store_close(p);
		/* room for one block of its own; two would not fit without it either */
		p = open_store("common", block * 5 / 2, g);
		keep(p, s, 512, 1);
		prefix_store_close(p);
		p = open_store("common", block * 9 / 4, g);
		int32_t two_blocks[1024];
		for (int i = 0; i < 1024; i++)
			two_blocks[i] = text[1023 - i];
		sync_to(s, two_blocks, 1024, 0);
		assert_int_not_equal(prefix_store_keep(p, s, 1024, &e), 0);
		assert_int_equal(prefix_store_stats(p).blocks_evicted, 0);
		n = list("common", &l);
		free_list(l, n);
		assert_int_equal(n, 4); /* "." and ".." too */
		prefix_store_close(p);
		assert_int_equal(seteuid(0), 0);
	}
	free(path);
	session_free(s);
	engine_close(g, NULL);
}

static void put_old_file(const char *name)
{
	char *path = mem_printf("%s/%s", temp_dir_path("foreign"), name);
	FILE *f = fopen(path, "w");
	assert_non_null(f);
	assert_true(fputs("somebody's work", f) >= 0);
	assert_int_equal(fclose(f), 0);
	const struct timespec old[2] = {{.tv_sec = 1000000000}, {.tv_sec = 1000000000}};
	assert_int_equal(utimensat(AT_FDCWD, path, old, 0), 0);
	free(path);
}

/* Lets files grow to so many bytes. */
static void limit_files(rlim_t bytes)
{
	struct rlimit limit;
	assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
	limit.rlim_cur = MIN(bytes, limit.rlim_max);
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

/* A folder that takes no more is read on, written to no more for a while, and then again. */
static void test_full_folder(void **state)
{
	(void)state;
	struct err e = {0};
	struct engine *g = prefix_store_open_engine(1, false);
	struct prefix_store *p = open_store("full", 0, g);
	struct session *s = session_of(g, false);
	sync_to(s, text, N_PIECE, 0);
	keep(p, s, N_PIECE, 1);
	sync_to(s, text, 1030, N_PIECE);
	signal(SIGXFSZ, SIG_IGN);
	limit_files(4096);
	assert_int_not_equal(prefix_store_keep(p, s, 1030, &e), 0);
	assert_non_null(strstr(e.text, "nothing more is stored for 1 s"));
	keep(p, s, 1030, 0);
	session_free(s);
	s = session_of(g, false);
	restore(p, s, text, 1030, 512, 512);
	sync_to(s, text, 1030, 512);
	usleep(1100000);
	assert_int_not_equal(prefix_store_keep(p, s, 1030, &e), 0);
	assert_non_null(strstr(e.text, "nothing more is stored for 2 s"));
	limit_files(RLIM_INFINITY);
	keep(p, s, 1030, 0);
	usleep(2100000);
	keep(p, s, 1030, 1);
	session_free(s);
	prefix_store_close(p);
	engine_close(g, NULL);
}

/* The store removes nothing that it cannot have written: neither other programs' unfinished files
 * nor names that only resemble its own. */
static void test_foreign_files(void **state)
{
	(void)state;
	static const char *const foreign[] = {"movie.mkv.part", "a.part", ".part",
		"0123456789abcdef-000000-0123456789abcdef.rows.part",
		"0123456789abcdef-000000-0123456789abcdef.rows.12x.part",
		"0123456789abcdef-000000-0123456789abcdef.row.12.part",
		"0123456789abcdef-00000a-0123456789abcdef.rows", /* a block number is decimal */
		"----------------------------------------.rows",
		"0123456789ABCDEF-000000-0123456789abcdef.rows"};
	static const char own[] = "0123456789abcdef-000000-0123456789abcdef.rows.4711.part";
	struct engine *g = prefix_store_open_engine(1, false);
	assert_int_equal(mkdir(temp_dir_path("foreign"), 0700), 0);
	for (size_t i = 0; i < ARRAY_LEN(foreign); i++)
		put_old_file(foreign[i]);
	put_old_file(own);
	struct session *s = session_of(g, false);
	struct prefix_store *p = open_store("foreign", 0, g);
	assert_int_equal(prefix_store_stats(p).files, 0);
	sync_to(s, text, N_PIECE, 0);
	keep(p, s, N_PIECE, 1);
	uint64_t block = prefix_store_stats(p).bytes;
	prefix_store_close(p);
	p = open_store("foreign", block * 3 / 2, g); /* evicts if foreign files counted */
	assert_int_equal(prefix_store_stats(p).files, 1);
	struct dirent **l;
	int n = list("foreign", &l);
	assert_int_equal(n, 2 + (int)ARRAY_LEN(foreign) + 1);
	for (int i = 0; i < n; i++)
		assert_string_not_equal(l[i]->d_name, own);
	free_list(l, n);
	session_free(s);
	prefix_store_close(p);
	engine_close(g, NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_same_bits),
		cmocka_unit_test(test_mtp),
		cmocka_unit_test(test_apart),
		cmocka_unit_test(test_exact_prompts),
		cmocka_unit_test(test_damage),
		cmocka_unit_test(test_limit),
		cmocka_unit_test(test_other_user),
		cmocka_unit_test(test_full_folder),
		cmocka_unit_test(test_foreign_files),
	};
	return cmocka_run_group_tests(tests, prefix_store_setup, temp_dir_drop);
}
