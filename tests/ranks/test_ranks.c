/* SPDX-License-Identifier: MIT */
/*
 * Messages between ranks, and how they end; engines of ranks whose commands fail. The program
 * starts itself under mpirun with the name of a role; each case looks at the status and at what was
 * written. Without mpirun they are skipped.
 */
#include "src/base/err.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/base/rng.h"
#include "src/engine/ranks/engine_ranks.h"
#include "src/engine/ranks/rank_cards.h"
#include "src/engine/ranks/rank_worker.h"
#include "src/ranks/ranks.h"
#include "tests/ranks/rank_test.h"
#include "tests/support/temp_dir.h"

#include <limits.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

/* ---- what a rank does ---- */

static void sleep_ms(long ms)
{
	nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
}

static uint8_t byte_of(uint32_t from, uint32_t to, size_t size, size_t i)
{
	return (uint8_t)(from * 7 + to * 3 + size + i * 31 + i / 4096);
}

/* Messages of many lengths from each rank to each other one, those of a pair in order. */
static int talk_in_pairs(struct ranks *r, struct err *e)
{
	static const size_t sizes[] = {0, 1, 100, 4096, 70000, 3000001};
	const uint32_t me = ranks_me(r), n = ranks_count(r);
	uint8_t *data = NEW_ARRAY(uint8_t, sizes[5]);
	int rc = 0;
	for (uint32_t from = 0; from < n; from++)
		for (uint32_t to = 0; to < n; to++)
			for (size_t k = 0; from != to && k < ARRAY_LEN(sizes) && !rc; k++) {
				size_t got = 99;
				if (me == from) {
					for (size_t i = 0; i < sizes[k]; i++)
						data[i] = byte_of(from, to, sizes[k], i);
					rc = ranks_send(r, to, data, sizes[k], e);
				} else if (me == to) {
					rc = ranks_receive(r, from, data, sizes[5], &got, e);
					if (!rc && got != sizes[k])
						rc = FAIL("%zu bytes of %zu", got, sizes[k]);
					for (size_t i = 0; i < sizes[k] && !rc; i++)
						if (data[i] != byte_of(from, to, sizes[k], i))
							rc = FAIL("byte %zu of %zu", i, sizes[k]);
				}
			}
	free(data);
	return rc;
}

static void fill_status(void *user, void *out)
{
	memcpy(out, user, 12);
}

static int talk(struct ranks *r, struct err *e)
{
	const uint32_t me = ranks_me(r), n = ranks_count(r);
	uint32_t all[RANKS_MAX] = {0}, mine = me * me + 5, sent_by_0 = me ? 0 : 4711;
	char status[12] = "of rank ", got[12] = "";
	int rc = talk_in_pairs(r, e);
	if (ranks_on_host(r) != n || strncmp(ranks_name(r, n - 1), "rank ", 5) != 0)
		return FAIL("names and hosts");
	if (rc || (rc = ranks_gather(r, &mine, sizeof mine, all, e)) ||
		(rc = ranks_broadcast(r, &sent_by_0, sizeof sent_by_0, e)))
		return rc;
	for (uint32_t i = 0; i < n && !me; i++)
		if (all[i] != i * i + 5)
			return FAIL("gathered %u of rank %u", all[i], i);
	if (sent_by_0 != 4711)
		return FAIL("sent_by_0 %u", sent_by_0);
	status[8] = (char)('0' + me);
	if (me)
		ranks_publish(r, sizeof status, fill_status, status);
	for (uint32_t i = 1; i < n && !me; i++) {
		while (!ranks_status(r, i, got, sizeof got))
			sleep_ms(10);
		if (got[8] != (char)('0' + i))
			return FAIL("status %.9s of rank %u", got, i);
	}
	rc = ranks_agree(r, 0, e);
	if (me)
		ranks_publish(r, 0, NULL, NULL);
	return rc;
}

static int disagree(struct ranks *r, struct err *e)
{
	struct err mine = {0};
	int rc = ranks_me(r) ? err_set(&mine, ERR_INPUT, "no file of rank %u", ranks_me(r)) : 0;
	rc = ranks_agree(r, rc, &mine);
	*e = mine;
	if (!ranks_is_orderly(r))
		return FAIL("not settled");
	return rc;
}

static int leave(struct ranks *r, struct err *e)
{
	char byte;
	return ranks_me(r) == 1 ? err_set(e, ERR_INPUT, "it had to go")
							: ranks_receive(r, 1, &byte, 1, NULL, e);
}

static int end_early(struct ranks *r, struct err *e)
{
	char byte;
	return ranks_me(r) == 1 ? 0 : ranks_receive(r, 1, &byte, 1, NULL, e);
}

/* Closing takes longer than silence may: rank 0 is done all that time. */
static int end_late(struct ranks *r, struct err *e)
{
	(void)e;
	if (ranks_me(r) == 1)
		sleep_ms(11000);
	return 0;
}

static int long_message(struct ranks *r, struct err *e)
{
	char bytes[8] = "1234567";
	return ranks_me(r) == 1 ? ranks_send(r, 0, bytes, 8, e)
							: ranks_receive(r, 1, bytes, 4, NULL, e);
}

static void on_loss(void *user, const char *sentence)
{
	const int calls = atomic_fetch_add((atomic_int *)user, 1) + 1;
	fprintf(stderr, "noticed %d: %s\n", calls, sentence);
}

/* Rank 1 leaves while rank 0 makes no call that would say so. */
static int notice(struct ranks *r, struct err *e)
{
	static atomic_int calls;
	ranks_on_loss(r, on_loss, &calls);
	if (ranks_me(r))
		return err_set(e, ERR_INPUT, "it had to go");
	for (int i = 0; i < 6000 && !atomic_load(&calls); i++)
		sleep_ms(10);
	sleep_ms(400); /* it is called once */
	return ranks_check(r, e);
}

/* Neither rank looks at messages when the third one hangs. */
static int hang(struct ranks *r, struct err *e)
{
	(void)e;
	if (ranks_me(r) == 2)
		raise(SIGSTOP);
	sleep_ms(60000);
	return 0;
}

static int die(struct ranks *r, struct err *e)
{
	char byte;
	if (ranks_me(r) == 1)
		raise(SIGKILL);
	return ranks_receive(r, 1, &byte, 1, NULL, e);
}

static int open_engine(struct ranks *r, bool fast_prompts, struct engine **g, struct err *e)
{
	const struct engine_options o = {.model_path = "tools/pocket/pocket.gguf",
		.backend = "cpu",
		.threads = 1,
		.context = 64,
		.chunk = 8,
		.fast_prompts = fast_prompts,
		.ranks = r};
	return engine_open(&o, g, e);
}

/* The engine finds this one (linked with --wrap). */
static uint32_t library_version;
uint32_t __wrap_backend_library_version(struct backend *b);
uint32_t __wrap_backend_library_version(struct backend *b)
{
	(void)b;
	return library_version;
}

static int open_library(struct ranks *r, uint32_t version, struct err *e)
{
	struct engine *g;
	library_version = version;
	int rc = open_engine(r, false, &g, e);
	return rc ? rc : engine_close(g, e);
}

/* Only rank 1 has another version of the library, or none. */
static int open_other_library(struct ranks *r, struct err *e)
{
	return open_library(r, ranks_me(r) == 1 ? 120802 : 130100, e);
}

static int open_no_library(struct ranks *r, struct err *e)
{
	return open_library(r, ranks_me(r) == 1 ? 0 : 130100, e);
}

/* Only rank 1 computes prompts in another way. */
static int open_fast_on_one(struct ranks *r, struct err *e)
{
	struct engine *g;
	return open_engine(r, ranks_me(r) == 1, &g, e);
}

/* Rank 1 streams its experts, rank 0 does not. Is a profile kept, and is the policy known? */
static int keep_profile(struct ranks *r, struct err *e)
{
	const bool is_worker = ranks_me(r);
	const struct engine_options o = {.model_path = "tools/pocket/pocket.gguf",
		.backend = "cpu",
		.threads = 1,
		.context = 64,
		.cache_bytes = is_worker ? 20000000 : 0,
		.profile_folder = "/nonexistent/profiles", /* no profile of earlier runs, and none after */
		.ranks = r};
	struct engine *g;
	int rc = engine_open(&o, &g, e);
	if (rc)
		return rc;
	struct engine_cache cache;
	engine_cache_snapshot(g, &cache, NULL);
	if (!is_worker)
		fprintf(stderr, "rank 0 keeps %s, policy %s\n", g->profile_folder ? "a profile" : "none",
			cache.streaming && cache.policy ? cache.policy : "none");
	else
		rc = engine_run_worker(g, e);
	const int failed = engine_close(g, e);
	return rc ? rc : failed;
}

/* Rank 1 leaves. Then rank 0 is refused every command with the sentence that names it. */
static int refuse_commands(struct ranks *r, struct err *e)
{
	struct engine *g;
	int rc = open_engine(r, false, &g, e), n = 0;
	if (rc)
		return rc;
	if (ranks_me(r))
		return err_set(e, ERR_INPUT, "it had to go");
	while (!ranks_check(r, e))
		sleep_ms(20);
	struct engine_ranks *k = g->ranks;
	const struct rank_command c = {.code = RANK_KEEP_ROWS, .n = 1};
	const struct forward_rows rows = {
		.n = 1, .tokens = (int32_t[]){5}, .pos = (int32_t[]){0}, .base = (int32_t[]){0}};
	const struct profile_key key = {0};
	struct rank_posted *sent = NULL;
	struct expert_stats before = engine_expert_stats(g), after = before;
	uint8_t data[65536] = {0};
	struct err why[5] = {0};
	n += engine_ranks_step(k, &rows, &why[0]) == ERR_RUN;
	n += engine_ranks_post_step(k, &rows, &sent, &why[1]) == ERR_RUN && !sent;
	n += engine_ranks_read_rows(k, &c, 1, data, &why[2]) == ERR_RUN;
	n += engine_ranks_write_rows(k, &c, 1, data, &why[3]) == ERR_RUN;
	n += engine_forward(g, &rows, 0, &why[4]) == ERR_RUN;
	for (size_t i = 0; i < ARRAY_LEN(why); i++)
		n += strstr(why[i].text, "has ended: it had to go") != NULL;
	engine_ranks_command(k, &c);
	engine_ranks_warm(k, &key, 1);
	engine_ranks_stats(k, &after, NULL);
	n += !memcmp(&before, &after, sizeof before) && engine_has_failed(g);
	fprintf(stderr, "%d of 11 are refused\n", n);
	return ERR_RUN;
}

/* Messages that no rank 0 sends, one after the other */
static const struct bad_command {
	struct rank_command c;
	size_t bytes; /* behind it */
} bad_commands[] = {
	{{.code = 99}, 0},
	{{.code = RANK_STEP}, 0},
	{{.code = RANK_STEP, .n = 1000}, 12000},
	{{.code = RANK_STEP, .n = 1}, 11},
	{{.code = RANK_STEP, .n = 1}, 12}, /* the token -1 */
	{{.code = RANK_READ_ROWS, .n = 1, .layer = 99}, 0},
	{{.code = RANK_READ_ROWS, .n = 65}, 0},
	{{.code = RANK_WRITE_ROWS, .n = 1}, 1},
	{{.code = RANK_COPY_ROWS, .n = 1, .row = 64}, 0},
	{{.code = RANK_COPY_ROWS, .n = 1, .from = 64}, 0},
	{{.code = RANK_KEEP_ROWS, .n = 9}, 0},
	{{.code = RANK_WARM, .n = 1}, 0},
};

/* Rank 1 refuses each of them, and the first message that is too short for a command. */
static int refuse_messages(struct ranks *r, struct err *e)
{
	static uint8_t message[sizeof(struct rank_command) + 12000];
	struct engine *g;
	int rc = open_engine(r, false, &g, e), n = 0;
	memset(message, 0xff, sizeof message);
	for (size_t i = 0; i < ARRAY_LEN(bad_commands) && !rc; i++) {
		const struct bad_command *b = &bad_commands[i];
		struct err why = {0};
		memcpy(message, &b->c, sizeof b->c);
		if (!ranks_me(r))
			rc = ranks_send(r, 1, message, sizeof b->c + b->bytes, e);
		else
			n += engine_run_worker(g, &why) == ERR_RUN && strstr(why.text, "makes no sense here");
	}
	if (rc)
		return rc;
	if (!ranks_me(r))
		return ranks_send(r, 1, message, 3, e);
	fprintf(stderr, "%d of %zu are refused\n", n, ARRAY_LEN(bad_commands));
	return engine_run_worker(g, e);
}

/* Cards with UUIDs of one repeated byte; 0 ends the list. */
static struct rank_cards cards_of(bool named, const uint8_t *bytes)
{
	struct rank_cards c = {.named = named};
	for (; bytes[c.n]; c.n++) {
		c.card[c.n].number = c.n + 2;
		memset(c.card[c.n].uuid, bytes[c.n], BACKEND_UUID_BYTES);
	}
	return c;
}

/* Rank 2 has a card of rank 1, which that one has named. */
static int share_a_card(struct ranks *r, struct err *e)
{
	static const uint8_t bytes[3][4] = {{0xa1, 0xa2}, {0xb1, 0xb2}, {0xc1, 0xb2}};
	const uint32_t me = ranks_me(r);
	const struct rank_cards mine = cards_of(me == 1, bytes[me]);
	int rc = rank_cards_check(r, &mine, e);
	if (!ranks_is_orderly(r))
		return FAIL("not settled");
	fprintf(stderr, "hint of %u: %s\n", me, e->hint);
	return rc;
}

/* All ranks have named the one card that they share. */
static int share_a_named_card(struct ranks *r, struct err *e)
{
	const struct rank_cards mine = cards_of(true, (const uint8_t[]){0xb2, 0});
	return rank_cards_check(r, &mine, e);
}

static const struct role {
	const char *name;
	int (*run)(struct ranks *r, struct err *e);
} roles[] = {{"talk", talk}, {"disagree", disagree}, {"leave", leave}, {"notice", notice},
	{"end_early", end_early}, {"end_late", end_late}, {"long_message", long_message},
	{"hang", hang}, {"die", die}, {"refuse_commands", refuse_commands},
	{"refuse_messages", refuse_messages}, {"open_fast_on_one", open_fast_on_one},
	{"open_other_library", open_other_library}, {"open_no_library", open_no_library},
	{"keep_profile", keep_profile}, {"share_a_card", share_a_card},
	{"share_a_named_card", share_a_named_card}};

static int run_role(const char *name)
{
	struct err e = {0};
	struct ranks *r = NULL;
	int rc = ranks_open(&r, &e);
	for (size_t i = 0; i < ARRAY_LEN(roles) && !rc; i++)
		if (!strcmp(roles[i].name, name))
			rc = roles[i].run(r, &e);
	rank_end(r, rc, &e);
}

/* ---- the cases ---- */

static void expect_said(const char *text)
{
	if (!strstr(mpirun_said, text))
		fail_msg("expected \"%s\" in:\n%s", text, mpirun_said);
}

static void test_messages(void **state)
{
	(void)state;
	NEED_MPIRUN();
	if (mpirun_self("talk", 3))
		fail_msg("%s", mpirun_said);
}

static void test_disagreement_names_the_lowest_rank(void **state)
{
	(void)state;
	NEED_MPIRUN();
	assert_int_equal(mpirun_self("disagree", 3), 3);
	/* by any rank: mpirun may end the others before they have said it */
	expect_said(": rank 1 (");
	expect_said("): no file of rank 1");
	assert_null(strstr(mpirun_said, "no file of rank 2"));
}

/* mpirun ends the other ranks when one has ended, and a rank ends 1 s after a loss: on a busy
 * machine one may not come to say its sentence. Then once more. status 0: any but 0. */
static void run_until_said(const char *role, int n, int status, const char *text)
{
	for (int i = 0; i < 5; i++) {
		const int got = mpirun_self(role, n);
		assert_true(status ? got == status : got != 0);
		if (strstr(mpirun_said, text))
			return;
	}
	expect_said(text);
}

static void test_rank_that_leaves_is_named(void **state)
{
	(void)state;
	NEED_MPIRUN();
	run_until_said("leave", 2, 3, "from 0: rank 1 (");
	expect_said("has ended: it had to go");
	run_until_said("notice", 2, 3, "noticed 1: rank 1 (");
	assert_null(strstr(mpirun_said, "noticed 2: "));
	assert_int_equal(mpirun_self("end_early", 2), 1);
	expect_said("has ended before this rank");
	run_until_said("long_message", 2, 1, "from 0: rank 1 (");
	expect_said(") MPI: MPI_ERR_TRUNCATE");
}

static void test_rank_that_ends_late_is_waited_for(void **state)
{
	(void)state;
	NEED_MPIRUN();
	if (mpirun_self("end_late", 2))
		fail_msg("%s", mpirun_said);
	expect_said("waiting for rank 1 (");
}

static void test_rank_that_hangs_is_named(void **state)
{
	(void)state;
	NEED_MPIRUN();
	assert_int_equal(mpirun_self("hang", 3), 1);
	expect_said("glmstream: rank ");
	expect_said(": rank 2 (");
	expect_said("has not answered for 7 s");
}

static void test_rank_that_is_killed_is_named(void **state)
{
	(void)state;
	NEED_MPIRUN();
	assert_int_not_equal(mpirun_self("die", 3), 0);
	expect_said(" noticed that process rank 1 "); /* mpirun, or prterun of Open MPI 5 */
}

static void test_commands_to_a_lost_rank(void **state)
{
	(void)state;
	NEED_MPIRUN();
	run_until_said("refuse_commands", 2, 0, "11 of 11 are refused");
}

static void test_commands_that_make_no_sense(void **state)
{
	(void)state;
	NEED_MPIRUN();
	assert_int_not_equal(mpirun_self("refuse_messages", 2), 0);
	expect_said("12 of 12 are refused");
	expect_said("rank 0 sent a command of 3 bytes");
}

static void test_cards_of_stages(void **state)
{
	(void)state;
	struct backend processor = {0}, card = {0};
	memset(card.uuid, 0xb2, sizeof card.uuid);
	const struct stage stages[] = {
		{.card = 3, .backend = &card}, {.card = 0, .backend = &processor}};
	const struct rank_cards c = rank_cards_describe(stages, 2, true);
	assert_int_equal(c.n, 2);
	assert_true(c.named);
	assert_int_equal(c.card[0].number, 3);
	assert_memory_equal(c.card[0].uuid, card.uuid, sizeof card.uuid);
	assert_int_equal(c.card[1].number, 0);
	assert_memory_equal(c.card[1].uuid, processor.uuid, sizeof card.uuid);
	assert_false(rank_cards_describe(stages, 2, false).named);
}

static void test_cards_that_collide(void **state)
{
	(void)state;
	uint32_t i = 9, k = 9;
	struct rank_cards a = cards_of(false, (const uint8_t[]){1, 2, 3, 0});
	struct rank_cards b = cards_of(false, (const uint8_t[]){4, 3, 0});
	assert_true(rank_cards_collide(&a, &b, &i, &k));
	assert_int_equal(i, 2);
	assert_int_equal(k, 1);
	/* one that names a card does not speak for the other */
	a.named = true;
	assert_true(rank_cards_collide(&a, &b, &i, &k));
	assert_true(rank_cards_collide(&b, &a, &k, &i));
	b.named = true;
	assert_false(rank_cards_collide(&a, &b, &i, &k));
	a.named = b.named = false;
	b.card[1].uuid[BACKEND_UUID_BYTES - 1] ^= 1;
	assert_false(rank_cards_collide(&a, &b, &i, &k));
	/* processors have no UUID: ranks of one host share them */
	memset(&a.card, 0, sizeof a.card);
	memset(&b.card, 0, sizeof b.card);
	assert_false(rank_cards_collide(&a, &b, &i, &k));
	b.n = UINT32_MAX; /* as a message may have it */
	assert_false(rank_cards_collide(&a, &b, &i, &k));
}

static void test_shared_card_is_refused(void **state)
{
	(void)state;
	NEED_MPIRUN();
	assert_int_equal(mpirun_self("share_a_card", 3), err_exit_status(ERR_USAGE));
	/* by any rank: mpirun may end the others before they have said it */
	expect_said(": rank 2 (");
	expect_said("): card 3 (GPU-b2b2b2b2-b2b2-b2b2-b2b2-b2b2b2b2b2b2) is also card 3 of rank 1 (");
	expect_said("): give each rank cards of its own with --cards");
	expect_said(": two ranks share a card if both name it with --cards");
	if (mpirun_self("share_a_named_card", 3))
		fail_msg("%s", mpirun_said);
}

/* --fast-prompts gives other bits, so all ranks must have it, or none. */
static void test_other_arithmetic_is_refused(void **state)
{
	(void)state;
	NEED_MPIRUN();
	struct backend *b;
	struct err e = {0};
	const struct backend_options o = {.name = "cpu", .threads = 1, .fast_prompts = true};
	assert_int_equal(backend_open(&o, &b, &e), 0);
	const bool has_amx = b->ops->decode_rows < INT_MAX;
	b->ops->close(b);
	if (!has_amx)
		skip();
	assert_int_equal(mpirun_self("open_fast_on_one", 2), err_exit_status(ERR_RUN));
	expect_said("the backend is cpu fast, that of rank 0 is cpu");
}

static void test_other_library_is_refused(void **state)
{
	(void)state;
	NEED_MPIRUN();
	assert_int_equal(mpirun_self("open_other_library", 2), err_exit_status(ERR_RUN));
	expect_said("cublasLt, which multiplies prompts, is 12.8.2, that of rank 0 is 13.1.0");
	assert_int_equal(mpirun_self("open_no_library", 2), err_exit_status(ERR_RUN));
	expect_said("is none, that of rank 0 is 13.1.0");
}

static void test_profile_where_a_worker_streams(void **state)
{
	(void)state;
	NEED_MPIRUN();
	if (mpirun_self("keep_profile", 2))
		fail_msg("%s", mpirun_said);
	expect_said("rank 0 keeps a profile, policy lfu");
}

static void test_without_mpirun(void **state)
{
	(void)state;
	assert_false(ranks_wanted());
	assert_null(ranks_here());
	bool abrupt = true;
	struct err e = {0};
	assert_int_equal(ranks_close(NULL, ERR_INPUT, &abrupt, &e), ERR_INPUT);
	assert_false(abrupt);
	setenv("OMPI_COMM_WORLD_SIZE", "1", 1);
	assert_false(ranks_wanted());
	setenv("OMPI_COMM_WORLD_SIZE", "2", 1);
	assert_true(ranks_wanted());
	unsetenv("OMPI_COMM_WORLD_SIZE");
}

int main(int argc, char **argv)
{
	if (argc == 2)
		return run_role(argv[1]);
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_without_mpirun),
		cmocka_unit_test(test_cards_of_stages),
		cmocka_unit_test(test_cards_that_collide),
		cmocka_unit_test(test_shared_card_is_refused),
		cmocka_unit_test(test_other_arithmetic_is_refused),
		cmocka_unit_test(test_other_library_is_refused),
		cmocka_unit_test(test_profile_where_a_worker_streams),
		cmocka_unit_test(test_messages),
		cmocka_unit_test(test_disagreement_names_the_lowest_rank),
		cmocka_unit_test(test_rank_that_leaves_is_named),
		cmocka_unit_test(test_rank_that_ends_late_is_waited_for),
		cmocka_unit_test(test_rank_that_hangs_is_named),
		cmocka_unit_test(test_rank_that_is_killed_is_named),
		cmocka_unit_test(test_commands_to_a_lost_rank),
		cmocka_unit_test(test_commands_that_make_no_sense),
	};
	return cmocka_run_group_tests(tests, temp_dir_make, temp_dir_drop);
}
