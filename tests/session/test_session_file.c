/* SPDX-License-Identifier: MIT */
/*
 * Saved timelines on a small model: what is read back goes on with the same bits, whatever
 * engine reads it; everything that is not the file it should be is refused, and a save that is
 * killed leaves the file of before. GLM_KILLS sets how many saves are killed (20), GLM_BACKEND
 * where it all happens (cpu); elsewhere none is killed, for a card does not survive a fork.
 */
#include "src/base/hash.h"
#include "src/base/host/clock.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/base/rng.h"
#include "src/engine/generate.h"
#include "src/engine/session/session_blocks.h"
#include "src/engine/session/session_file.h"
#include "tests/support/engine_help.h"
#include "tests/support/mutate_model.h"
#include "tests/support/slow_build.h"
#include "tests/support/temp_dir.h"

#include <stdarg.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>
#if HAVE_LZ4
#include <lz4frame.h>
#endif

#define N_PROMPT 200 /* more than index_topk 128: sparse selection is in use */
#define N_FIRST  20  /* greedy tokens before the save */
#define N_AFTER  40  /* and after it */

static int32_t text[N_PROMPT];

static struct engine_options defaults = {.backend = "cpu", .context = 512};

static void ok(int rc, const struct err *e)
{
	if (rc)
		fail_msg("%s", e->text);
}

/* n greedy tokens behind the timeline (or behind prompt[0..n_prompt)); the hash of their logits. */
static uint64_t go_on(
	struct session *s, const int32_t *prompt, uint32_t n_prompt, uint32_t n, uint32_t *reused)
{
	struct err e = {0};
	struct generate_options o = {.max_new = n, .ignore_stop = true};
	struct generate_result r;
	o.sampler.top_p = 1;
	uint32_t length = prompt ? n_prompt : session_length(s);
	int32_t *tokens = NEW_ARRAY(int32_t, length);
	memcpy(tokens, prompt ? prompt : session_tokens(s), length * sizeof *tokens);
	ok(generate(s, tokens, length, &o, &r, &e), &e);
	free(tokens);
	assert_int_equal(r.new_tokens, n);
	if (reused)
		*reused = r.reused_tokens;
	return r.logits_hash;
}

static uint8_t *read_all(const char *path, size_t *n)
{
	struct stat st;
	FILE *f = fopen(path, "rb");
	assert_non_null(f);
	assert_int_equal(fstat(fileno(f), &st), 0);
	uint8_t *data = NEW_ARRAY(uint8_t, (size_t)st.st_size + 1);
	*n = fread(data, 1, (size_t)st.st_size, f);
	assert_int_equal(*n, st.st_size);
	fclose(f);
	return data;
}

static void write_all(const char *path, const void *data, size_t n)
{
	FILE *f = fopen(path, "wb");
	assert_non_null(f);
	assert_int_equal(fwrite(data, 1, n, f), n);
	assert_int_equal(fclose(f), 0);
}

static int load_bytes(struct session *s, uint8_t *data, size_t n, struct err *e)
{
	*e = (struct err){0};
	FILE *f = fmemopen(data, n, "rb");
	assert_non_null(f);
	int rc = session_file_read(s, f, "bytes", NULL, NULL, e);
	fclose(f);
	return rc;
}

static int session_file_setup(void **state)
{
	if (getenv("GLM_BACKEND"))
		defaults.backend = getenv("GLM_BACKEND");
	struct rng r = {5};
	for (size_t i = 0; i < N_PROMPT; i++)
		text[i] = (int32_t)rng_below(&r, 8000);
	int failed = temp_dir_make(state);
	defaults.model_path = small_model();
	return failed;
}

/* Saves after N_FIRST tokens, goes on to get the hash of the unbroken run, and reads the file with
 * every other engine. */
static void continues(bool kv_f32, bool mtp)
{
	struct err e = {0};
	struct engine_options o = defaults;
	o.kv_f32 = kv_f32;
	struct engine *g = engine_of(&o);
	struct session *s = session_of(g, mtp);
	const char *path = temp_dir_path("continues.session");
	go_on(s, text, N_PROMPT, N_FIRST, NULL);
	struct session_file_info saved, read;
	ok(session_file_save(s, session_length(s), path, false, "note", 4, &saved, &e), &e);
	assert_int_equal(saved.n, N_PROMPT + N_FIRST);
	struct stat st;
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_size, saved.bytes);
	assert_int_equal(st.st_mode & 0777, 0600);
	assert_true(saved.bytes <= session_file_bytes(s, saved.n, 4));
	uint64_t want = go_on(s, NULL, 0, N_AFTER, NULL);
	float *draft = NULL, *other = NULL;
	uint32_t n_vocab = engine_config(g)->n_vocab;
	if (mtp) {
		draft = NEW_ARRAY(float, n_vocab);
		other = NEW_ARRAY(float, n_vocab);
		draft_of(s, 42, draft);
	}
	session_free(s);
	engine_close(g, NULL);

	static const struct {
		uint32_t chunk, context, sessions;
		uint64_t cache_bytes;
		bool mtp;
	} others[] = {{0, 512, 1, 0, true}, {7, 300, 1, 0, true}, {64, 1024, 2, 0, true},
		{0, 512, 1, 2000000, true}, {0, 512, 1, 4000000, false}};
	for (size_t i = IF_SLOW_BUILD(mtp, 0); i < (kv_f32 ? 2 : ARRAY_LEN(others));
		 i += IF_SLOW_BUILD(2, 1)) {
		o.chunk = others[i].chunk;
		o.context = others[i].context;
		o.sessions = others[i].sessions;
		o.kv_ram = i % 2 ? ENGINE_KV_RAM_ON : ENGINE_KV_RAM_OFF;
		o.cache_bytes = strcmp(defaults.backend, "cpu") ? 0 : others[i].cache_bytes;
		g = engine_of(&o);
		struct session *apart =
			o.sessions > 1 ? session_of(g, false) : NULL; /* another place in the pool */
		bool has_mtp = mtp && others[i].mtp; /* rows that nobody wants are passed over */
		s = session_of(g, has_mtp);
		struct buf note = {0};
		ok(session_file_load(s, path, &note, &read, &e), &e);
		assert_string_equal(buf_str(&note), "note");
		assert_int_equal(read.bytes, saved.bytes);
		assert_int_equal(session_length(s), saved.n);
		assert_null(session_logits(s));
		uint32_t reused;
		assert_true(go_on(s, NULL, 0, N_AFTER, &reused) == want);
		assert_int_equal(reused, saved.n - 1); /* exactly the last token was computed again */
		if (has_mtp) {
			draft_of(s, 42, other);
			assert_memory_equal(draft, other, n_vocab * sizeof *draft);
		}
		/* once more, over a timeline that holds something else */
		session_rewind(s, 100);
		int32_t seven = 7;
		ok(session_extend(s, &seven, 1, NULL, NULL, &e), &e);
		ok(session_file_load(s, path, NULL, NULL, &e), &e);
		assert_true(go_on(s, NULL, 0, N_AFTER, NULL) == want);
		buf_free(&note);
		session_free(apart);
		session_free(s);
		engine_close(g, NULL);
	}
	free(draft);
	free(other);
}

/* Latents of 8 bits go on from a file with the same bits, and only with latents of 8 bits. */
static void test_8_bits(void **state)
{
	(void)state;
	struct err e = {0};
	struct engine_options o = defaults;
	const char *path = temp_dir_path("narrow.session");
	o.kv_f8 = true;
	struct engine *g = engine_of(&o);
	struct session *s = session_of(g, false);
	go_on(s, text, N_PROMPT, N_FIRST, NULL);
	ok(session_file_save(s, session_length(s), path, false, NULL, 0, NULL, &e), &e);
	const uint64_t want = go_on(s, NULL, 0, N_AFTER, NULL);
	session_free(s);
	engine_close(g, NULL);
	o.kv_ram = ENGINE_KV_RAM_ON;
	g = engine_of(&o);
	s = session_of(g, false);
	ok(session_file_load(s, path, NULL, NULL, &e), &e);
	assert_true(go_on(s, NULL, 0, N_AFTER, NULL) == want);
	session_free(s);
	engine_close(g, NULL);
	g = engine_of(&defaults);
	s = session_of(g, false);
	assert_int_equal(session_file_load(s, path, NULL, NULL, &e), ERR_INPUT);
	assert_non_null(strstr(e.text, "holds 8-bit caches, expected 16-bit ones"));
	session_free(s);
	engine_close(g, NULL);
}

static void test_continues_16bit(void **state)
{
	(void)state;
	continues(false, false);
}

static void test_continues_f32(void **state)
{
	(void)state;
	continues(true, false);
}

static void test_continues_mtp(void **state)
{
	(void)state;
	continues(false, true);
}

static void assert_same_bytes(const char *a, const char *b)
{
	FILE *x = fopen(a, "rb"), *y = fopen(b, "rb");
	int c;
	assert_true(x && y);
	do {
		c = getc(x);
		assert_int_equal(c, getc(y));
	} while (c != EOF);
	fclose(x);
	fclose(y);
}

/* A file of the first n tokens is, bit for bit, that of a timeline which never had more. */
static void test_first_tokens(void **state)
{
	(void)state;
	struct err e = {0};
	struct engine *g = engine_of(&defaults);
	struct session *s = session_of(g, true);
	const char *shorter = temp_dir_path("shorter.session"),
			   *longer = temp_dir_path("longer.session");
	go_on(s, text, 100, 0, NULL);
	ok(session_file_save(s, 100, shorter, false, "note", 4, NULL, &e), &e);
	go_on(s, text, 150, 30, NULL);
	ok(session_file_save(s, 100, longer, false, "note", 4, NULL, &e), &e);
	assert_same_bytes(shorter, longer);
	session_free(s);
	engine_close(g, NULL);
}

static void test_rewound(void **state)
{
	(void)state;
	struct err e = {0};
	struct engine *g = engine_of(&defaults);
	struct session *s = session_of(g, false);
	const char *path = temp_dir_path("rewound.session");
	uint32_t reused;
	/* the last token alone, as after the file: a card's rows have equal bits in equal steps */
	go_on(s, text, 149, 0, NULL);
	uint64_t want = go_on(s, text, 150, 30, NULL);
	session_rewind(s, 170);
	ok(session_file_save(s, session_length(s), path, false, NULL, 0, NULL, &e), &e);
	session_rewind(s, 0);
	ok(session_file_load(s, path, NULL, NULL, &e), &e);
	assert_int_equal(session_length(s), 170);
	/* back to where the prompt ended: nothing but its last token is computed, and the answer is the
	 * same */
	session_rewind(s, 150);
	assert_true(go_on(s, text, 150, 30, &reused) == want);
	assert_int_equal(reused, 149);
	/* an empty timeline */
	session_rewind(s, 0);
	ok(session_file_save(s, session_length(s), path, false, "x", 1, NULL, &e), &e);
	go_on(s, text, 10, 1, NULL);
	ok(session_file_load(s, path, NULL, NULL, &e), &e);
	assert_int_equal(session_length(s), 0);
	session_free(s);
	engine_close(g, NULL);
}

/* ---- refusals ---- */

static void refused(struct session *s, const char *path, const char *says)
{
	struct err e = {0};
	int32_t before[N_PROMPT];
	uint32_t length = session_length(s);
	memcpy(before, session_tokens(s), length * sizeof *before);
	uint64_t hash =
		session_logits(s) ? generate_hash(GENERATE_HASH_START, session_logits(s), 100) : 0;
	assert_int_equal(session_file_load(s, path, NULL, NULL, &e), ERR_INPUT);
	if (!strstr(e.text, says) || !strstr(e.text, path))
		fail_msg("\"%s\" should name the file and say \"%s\"", e.text, says);
	assert_int_equal(session_length(s), length);
	assert_memory_equal(session_tokens(s), before, length * sizeof *before);
	if (hash)
		assert_true(generate_hash(GENERATE_HASH_START, session_logits(s), 100) == hash);
}

static void test_session_file_refusals(void **state)
{
	(void)state;
	struct err e = {0};
	struct engine *g = engine_of(&defaults);
	struct session *s = session_of(g, false);
	char *path = temp_dir_path("refused.session"), *bad = temp_dir_path("bad.session");
	ok(session_sync(s, text, N_PROMPT, NULL, NULL, &e), &e);
	ok(session_file_save(s, session_length(s), path, false, "n", 1, NULL, &e), &e);
	size_t n;
	uint8_t *data = read_all(path, &n);

	refused(s, "/no/such/file", "No such file");
	refused(s, temp_dir(), "is not a regular file");
	write_all(bad, data, 100);
	refused(s, bad, "has 100 bytes, expected a session file");
	write_all(bad, data, n - 1);
	refused(s, bad, "ends early");
	data[n] = 0;
	write_all(bad, data, n + 1);
	refused(s, bad, "goes on behind the last block");
	data[0] ^= 1;
	write_all(bad, data, n);
	refused(s, bad, "is not a session file");
	data[0] ^= 1;
	store_u32(data + 8, 1);
	write_all(bad, data, n);
	refused(s, bad, "is a session file of version 1, expected version 2");
	store_u32(data + 8, 2);
	/* two blocks of one length change places: the layers 1 and 2 */
	data[n - 1] ^= 64;
	write_all(bad, data, n);
	refused(s, bad, "is damaged: check value");
	free(data);
	/* a part of a prefix store is no session */
	ok(session_rows_save(s, 10, 20, bad, NULL, &e), &e);
	refused(s, bad, "is a part of a prefix store (rows 10 to 20)");
	/* devices are no place for one */
	assert_int_equal(
		session_file_save(s, session_length(s), "/dev/null", false, NULL, 0, NULL, &e), ERR_INPUT);
	assert_int_equal(
		session_file_save(s, session_length(s), "/no/such/folder/x", false, NULL, 0, NULL, &e),
		ERR_INPUT);
	session_free(s);
	engine_close(g, NULL);

	/* other caches, a smaller context, drafts */
	struct engine_options o = defaults;
	o.kv_f32 = true;
	g = engine_of(&o);
	s = session_of(g, false);
	refused(s, path, "holds 16-bit caches, expected float32 ones");
	session_free(s);
	engine_close(g, NULL);
	o = defaults;
	o.kv_f8 = true;
	g = engine_of(&o);
	s = session_of(g, false);
	refused(s, path, "holds 16-bit caches, expected 8-bit ones");
	session_free(s);
	engine_close(g, NULL);
	o = defaults;
	o.context = 199;
	g = engine_of(&o);
	s = session_of(g, false);
	refused(s, path, "holds 200 tokens, the context has room for 199");
	session_free(s);
	engine_close(g, NULL);

	/* the same weights with another number in the configuration, and other weights of the same
	 * shape */
	struct gguf *file;
	ok(gguf_open(small_model(), &file, &e), &e);
	char *other = temp_dir_path("other.gguf");
	mutate_model(
		file, &(struct mutation){.f32_key = "glm-dsa.rope.freq_base", .f32 = 10000}, other);
	const struct gguf_tensor *t = gguf_find_tensor(file, "blk.2.attn_kv_a_mqa.weight");
	assert_non_null(t);
	uint64_t middle = t->offset + t->bytes / 2;
	gguf_close(file);
	o = defaults;
	o.model_path = other;
	g = engine_of(&o);
	s = session_of(g, false);
	refused(s, path, "was saved with the model");
	session_free(s);
	engine_close(g, NULL);
	data = read_all(small_model(), &n);
	data[middle] ^= 1;
	write_all(other, data, n);
	free(data);
	g = engine_of(&o);
	s = session_of(g, false);
	refused(s, path, "was saved with the model");
	session_free(s);
	engine_close(g, NULL);
}

/* Every byte of a small file, changed in three ways: refused with a sentence, always. */
static void test_every_byte(void **state)
{
	(void)state;
	struct err e = {0};
	struct engine_options o = defaults;
	o.context = 16;
	struct engine *g = engine_of(&o);
	struct session *s = session_of(g, true), *empty;
	char *path = temp_dir_path("bytes.session");
	ok(session_sync(s, text, 3, NULL, NULL, &e), &e);
	char note[400];
	memset(note, 'a', sizeof note); /* compressed, when there is lz4 */
	ok(session_file_save(s, session_length(s), path, false, note, sizeof note, NULL, &e), &e);
	session_free(s);
	empty = session_of(g, true);
	size_t n;
	uint8_t *data = read_all(path, &n);
	assert_int_equal(load_bytes(empty, data, n, &e), 0);
	session_rewind(empty, 0);
	static const uint8_t flips[] = {0x01, 0x80, 0xff};
	for (size_t i = 0; i < n; i++) {
		uint8_t was = data[i];
		data[i] = was ^ flips[i % 3];
		if (load_bytes(empty, data, n, &e) != ERR_INPUT || !e.text[0] || session_length(empty))
			fail_msg("byte %zu changed by %02x was not refused: %s", i, flips[i % 3], e.text);
		data[i] = was;
	}
	for (size_t i = 0; i < n; i += i < 1000 ? 1 : 37)
		assert_int_equal(load_bytes(empty, data, i, &e), ERR_INPUT);
	free(data);
	session_free(empty);
	engine_close(g, NULL);
}

/* Numbers that a head with a right check value could hold all the same. */
static void test_absurd_heads(void **state)
{
	(void)state;
	static const struct {
		uint32_t at, value;
		const char *says;
	} cases[] = {{24, 3, "unknown caches"}, {28, 8, "was saved with the model"},
		{32, 2, "2 MTP layers"}, {36, 577, "was saved with the model"},
		{40, 127, "was saved with the model"}, {44, 5, "begins with row 5 of 3"},
		{44, 1, "is a part of a prefix store"}, {48, 4000000000u, "holds 4000000000 tokens"},
		{48, 17, "holds 17 tokens"}, {48, 2, "is damaged"}, {48, 0, "is damaged"},
		{56, 70000000, "has a note"}, {56, 7, "is damaged"}, {60, 1, "has a note"}};
	struct err e = {0};
	struct engine_options o = defaults;
	o.context = 16;
	struct engine *g = engine_of(&o);
	struct session *s = session_of(g, false);
	char *path = temp_dir_path("absurd.session");
	ok(session_sync(s, text, 3, NULL, NULL, &e), &e);
	ok(session_file_save(s, session_length(s), path, false, "note", 4, NULL, &e), &e);
	size_t n;
	uint8_t *data = read_all(path, &n);
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		uint32_t was = load_u32(data + cases[i].at);
		store_u32(data + cases[i].at, cases[i].value);
		store_u64(
			data + SESSION_FILE_HEAD_ENDS, hash_bytes(HASH_START, data, SESSION_FILE_HEAD_ENDS));
		assert_int_equal(load_bytes(s, data, n, &e), ERR_INPUT);
		if (!strstr(e.text, cases[i].says))
			fail_msg("case %zu: \"%s\" should say \"%s\"", i, e.text, cases[i].says);
		store_u32(data + cases[i].at, was);
	}
	store_u64(data + SESSION_FILE_HEAD_ENDS, hash_bytes(HASH_START, data, SESSION_FILE_HEAD_ENDS));
	assert_int_equal(load_bytes(s, data, n, &e), 0);
	free(data);
	session_free(s);
	engine_close(g, NULL);
}

/* ---- kill -9 ---- */

/* Saves a longer and a shorter timeline by turns until it is killed. */
static _Noreturn void save_forever(struct session *s, const char *path)
{
	uint32_t note = 0;
	struct err e = {0};
	for (;;) {
		if (session_file_save(s, session_length(s), path, false, &note, sizeof note, NULL, &e))
			_exit(1);
		note++;
	}
}

static void test_killed(void **state)
{
	(void)state;
	if (strcmp(defaults.backend, "cpu") != 0)
		skip();
	const char *wish = getenv("GLM_KILLS");
	int kills = wish ? atoi(wish) : IF_SLOW_BUILD(8, 20);
	struct err e = {0};
	struct engine *g = engine_of(&defaults);
	struct session *s = session_of(g, false);
	char *path = temp_dir_path("killed.session");
	ok(session_sync(s, text, N_PROMPT, NULL, NULL, &e), &e);
	ok(session_file_save(s, session_length(s), path, false, &(uint32_t){0}, 4, NULL, &e), &e);
	uint64_t start = clock_ns();
	for (int i = 0; i < 5; i++)
		ok(session_file_save(s, session_length(s), path, false, &(uint32_t){0}, 4, NULL, &e), &e);
	uint64_t one_ns = (clock_ns() - start) / 5;
	struct rng r = {clock_ns()};
	print_message(
		"seed %llu, one save takes %.1f ms\n", (unsigned long long)r.state, (double)one_ns * 1e-6);
	uint32_t saves = 0;
	for (int i = 0; i < kills; i++) {
		pid_t child =
			fork(); /* which computes nothing, so the threads that it lacks are not missed */
		assert_true(child >= 0);
		if (!child)
			save_forever(s, path);
		usleep((useconds_t)(rng_unit(&r) * 4e-3 * (double)one_ns));
		kill(child, SIGKILL);
		int status;
		assert_int_equal(waitpid(child, &status, 0), child);
		assert_true(WIFSIGNALED(status));
		struct buf note = {0};
		session_rewind(s, 0);
		ok(session_file_load(s, path, &note, NULL, &e), &e);
		assert_int_equal(session_length(s), N_PROMPT);
		assert_int_equal(note.len, 4);
		saves += load_u32(note.data);
		buf_free(&note);
	}
	print_message("%d kills, %u whole saves before them\n", kills, saves);
	ok(session_sync(s, text, N_PROMPT, NULL, NULL, &e), &e);
	session_free(s);
	engine_close(g, NULL);
}

/* ---- blocks ---- */

/* Without memory to expand a block it is ERR_MEMORY, not a damaged file. The linker gives calls of
 * these functions of lz4 to the ones here (--wrap), which fail when the case wants it. */
#if HAVE_LZ4
static bool no_context, no_buffer;

typedef LZ4F_errorCode_t create_fn(LZ4F_dctx **out, unsigned version);
typedef size_t decompress_fn(LZ4F_dctx *d, void *to, size_t *to_bytes, const void *from,
	size_t *from_bytes, const LZ4F_decompressOptions_t *o);
create_fn __real_LZ4F_createDecompressionContext, __wrap_LZ4F_createDecompressionContext;
decompress_fn __real_LZ4F_decompress, __wrap_LZ4F_decompress;

LZ4F_errorCode_t __wrap_LZ4F_createDecompressionContext(LZ4F_dctx **out, unsigned version)
{
	return no_context ? (LZ4F_errorCode_t)-9 /* ERROR_allocation_failed */
					  : __real_LZ4F_createDecompressionContext(out, version);
}

size_t __wrap_LZ4F_decompress(LZ4F_dctx *d, void *to, size_t *to_bytes, const void *from,
	size_t *from_bytes, const LZ4F_decompressOptions_t *o)
{
	return no_buffer ? (size_t)-9 : __real_LZ4F_decompress(d, to, to_bytes, from, from_bytes, o);
}

static uint8_t zeros[BLOCK_MAX_BYTES], block_read_back[BLOCK_MAX_BYTES];

static int read_block_again(FILE *f, struct err *e)
{
	struct block_stream b;
	rewind(f);
	assert_int_equal(block_stream_init(&b, f, "the file", 0, e), 0);
	memset(block_read_back, 1, sizeof block_read_back);
	int rc = block_read(&b, block_read_back, sizeof block_read_back, e);
	block_stream_fini(&b);
	return rc;
}

static void test_no_memory_for_blocks(void **state)
{
	(void)state;
	struct block_stream b;
	struct err e = {0};
	FILE *f = tmpfile();
	assert_non_null(f);
	assert_int_equal(block_stream_init(&b, f, "the file", 0, &e), 0);
	assert_int_equal(block_write(&b, zeros, sizeof zeros, &e), 0);
	assert_true(b.stored_bytes < b.raw_bytes);
	block_stream_fini(&b);
	no_context = true;
	assert_int_equal(read_block_again(f, &e), ERR_MEMORY);
	no_context = false;
	no_buffer = true;
	assert_int_equal(read_block_again(f, &e), ERR_MEMORY);
	assert_non_null(strstr(e.text, "the file: no memory to expand block 0"));
	no_buffer = false;
	assert_int_equal(read_block_again(f, &e), 0);
	assert_memory_equal(block_read_back, zeros, sizeof block_read_back);
	fclose(f);
}
#else
static void test_no_memory_for_blocks(void **state)
{
	(void)state;
	skip();
}
#endif

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_8_bits),
		cmocka_unit_test(test_continues_16bit),
		cmocka_unit_test(test_continues_f32),
		cmocka_unit_test(test_continues_mtp),
		cmocka_unit_test(test_rewound),
		cmocka_unit_test(test_first_tokens),
		cmocka_unit_test(test_session_file_refusals),
		cmocka_unit_test(test_every_byte),
		cmocka_unit_test(test_absurd_heads),
		cmocka_unit_test(test_killed),
		cmocka_unit_test(test_no_memory_for_blocks),
	};
	return cmocka_run_group_tests(tests, session_file_setup, temp_dir_drop);
}
