/* SPDX-License-Identifier: MIT */
/*
 * Links between stages of two ranks: which carrier both ends agree on, the rows that arrive, and
 * ranks whose weights could not be loaded, so that no link is opened.
 * The program starts itself under mpirun; without mpirun the case is skipped. The messages are
 * those of MPI. This file defines NCCL's functions (nccl.h) in place of the library's: a channel is
 * a FIFO, and each case names the call that fails.
 */
#include "kernels/backend.h"
#include "kernels/nccl.h"
#include "src/base/err.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/engine/ranks/engine_ranks.h"
#include "src/engine/ranks/rank_link.h"
#include "src/forward/model.h"
#include "src/ranks/ranks.h"
#include "tests/ranks/rank_test.h"
#include "tests/support/temp_dir.h"

#include <errno.h>
#include <setjmp.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

enum { SENDER = 1, LAYER = 1, MOST = 4, N_EMBD = 6, TOP_K = 3 };

static const struct link_case {
	const char *name, *carrier; /* in what the receiver logs */
	uint32_t most;              /* rows of a step, for which the link is opened */
	bool missing[2];            /* the rank has no library */
	bool no_id, one_card, refused[2];
	bool full; /* the later stage selects for itself: no selection is handed over */
} cases[] = {
	{"nccl", "by NCCL 0.0.1", .most = MOST},
	{"nccl without a selection", "by NCCL 0.0.1", .most = MOST, .full = true},
	{"missing here", "by MPI: rank 0 has no library", .most = MOST, .missing = {true, false}},
	{"missing there", "by MPI: rank 1 has no library", .most = MOST, .missing = {false, true}},
	{"no id", "by MPI: no id is left", .most = MOST, .no_id = true, .full = true},
	{"one card", "by MPI: both ranks compute on one card", .most = MOST, .one_card = true},
	{"refused here", "by MPI: rank 0 opens no channel", .most = MOST, .refused = {true, false}},
	{"refused there", "by MPI: rank 1 opens no channel", .most = MOST, .refused = {false, true}},
	{"too long", "by NCCL 0.0.1", .most = INT_MAX / sizeof(float) / N_EMBD + 1},
};

/* ---- NCCL ---- */

static const struct link_case *now;
static uint32_t me;
static int n_open, n_aborted; /* channels */

struct fifo { /* behind a struct nccl_channel * */
	int fd;
	char path[NCCL_ID_BYTES];
};

static const char *said_by_me(const char *what)
{
	static char text[64];
	snprintf(text, sizeof text, "rank %u %s", me, what);
	return text;
}

const char *nccl_missing(const struct backend *b)
{
	(void)b;
	return now->missing[me] ? said_by_me("has no library") : NULL;
}

const char *nccl_version(void)
{
	return "0.0.1";
}

int nccl_make_id(uint8_t id[NCCL_ID_BYTES], struct err *e)
{
	if (now->no_id)
		return err_set(e, ERR_RUN, "no id is left");
	const char *folder = getenv("TMPDIR");
	int n = snprintf((char *)id, NCCL_ID_BYTES, "%s/rank_link_%d_%d", folder ? folder : "/tmp",
		getpid(), (int)(now - cases));
	return n < NCCL_ID_BYTES ? 0 : err_set(e, ERR_RUN, "TMPDIR is too long");
}

int nccl_channel_open(struct backend *b, const uint8_t id[NCCL_ID_BYTES], bool sends,
	struct nccl_channel **out, struct err *e)
{
	(void)b;
	*out = NULL;
	if (sends != (me == SENDER))
		return err_set(e, ERR_RUN, "the wrong end");
	if (now->refused[me])
		return err_set(e, ERR_RUN, "%s", said_by_me("opens no channel"));
	struct fifo *c = NEW(struct fifo);
	memcpy(c->path, id, sizeof c->path);
	/* whoever comes first makes it; with O_RDWR neither end waits for the other */
	c->fd = mkfifo(c->path, 0600) && errno != EEXIST ? -1 : open(c->path, O_RDWR);
	n_open++;
	*out = (struct nccl_channel *)c;
	return c->fd < 0 ? err_errno(e, errno, "%s", c->path) : 0;
}

void nccl_channel_send(struct nccl_channel *channel, const struct nccl_part *parts, int n)
{
	struct fifo *c = (struct fifo *)channel;
	for (int i = 0; i < n; i++)
		if (write(c->fd, parts[i].data, parts[i].bytes) != (ssize_t)parts[i].bytes)
			abort();
}

void nccl_channel_receive(struct nccl_channel *channel, const struct nccl_part *parts, int n)
{
	struct fifo *c = (struct fifo *)channel;
	for (int i = 0; i < n; i++)
		for (size_t at = 0; at < parts[i].bytes;) {
			ssize_t got = read(c->fd, (char *)parts[i].data + at, parts[i].bytes - at);
			if (got <= 0)
				abort();
			at += (size_t)got;
		}
}

void nccl_channel_abort(struct nccl_channel *c, const char *why)
{
	n_aborted += c && !strcmp(why, "a rank is lost");
}

void nccl_channel_close(struct nccl_channel *channel)
{
	struct fifo *c = (struct fifo *)channel;
	if (!c)
		return;
	n_open--;
	close(c->fd);
	unlink(c->path); /* both ends are open, or one was refused */
	free(c);
}

/* ---- what a rank does ---- */

static float value_of(uint32_t step, uint32_t i)
{
	return (float)(1000 * step + i);
}

static void fill_rows(struct workspace *ws, uint32_t step)
{
	for (uint32_t i = 0; i < MOST * N_EMBD; i++)
		ws->x[i] = value_of(step, i);
	for (uint32_t i = 0; i < MOST; i++)
		ws->n_sel[i] = (int32_t)(step + i);
	for (uint32_t i = 0; i < MOST * TOP_K; i++)
		ws->sel[i] = (int32_t)(10 * step + i);
}

/* Are these the n rows of a step? */
static int check_received(
	uint32_t step, uint32_t n, const float *x, const int32_t *n_sel, const int32_t *sel)
{
	for (uint32_t i = 0; i < n * N_EMBD; i++)
		if (x[i] != value_of(step, i))
			return FAIL("%s, step %u: x[%u] is %g", now->name, step, i, (double)x[i]);
	for (uint32_t i = 0; i < n * TOP_K && !now->full; i++)
		if (n_sel[i / TOP_K] != (int32_t)(step + i / TOP_K) || sel[i] != (int32_t)(10 * step + i))
			return FAIL("%s, step %u: selection %u", now->name, step, i);
	return 0;
}

/* Three steps, two that failed, one of more rows than the receiver expects. */
static int send_steps(struct stage_link *l, struct model *m, struct err *e)
{
	const struct err why = {.code = ERR_MEMORY, .text = "no memory for a step"};
	int rc = 0;
	for (uint32_t step = 1; step <= 3 && !rc; step++) {
		fill_rows(&m->ws, step);
		rc = l->ops->send(l, m, step + 1, e);
	}
	if (!rc && !(rc = rank_link_send_error(l, &why, false, e)))
		rc = rank_link_send_error(l, &why, true, e);
	return rc ? rc : l->ops->send(l, m, 2, e);
}

static bool no_memory; /* for the rows of a step */
static int (*cpu_alloc)(
	struct backend *b, enum mem_kind kind, size_t bytes, void **out, struct err *e);

static int alloc_or_fail(
	struct backend *b, enum mem_kind kind, size_t bytes, void **out, struct err *e)
{
	return no_memory ? err_set(e, ERR_MEMORY, "no memory") : cpu_alloc(b, kind, bytes, out, e);
}

static int receive_steps(struct stage_link *l, struct model *m, struct err *e)
{
	struct stage_rows rows = {0};
	struct err got = {0};
	int rc = l->ops->receive(l, m, 2, e);
	if (rc || (rc = check_received(1, 2, m->ws.x, m->ws.n_sel, m->ws.sel)))
		return rc;
	no_memory = true; /* the rows of step 2 are lost, those of step 3 are not */
	if (rank_link_receive_rows(l, m, 3, &rows, &got) != ERR_MEMORY)
		rc = FAIL("%s: there was memory", now->name);
	no_memory = false;
	if (!rc)
		rc = rank_link_receive_rows(l, m, 4, &rows, e);
	if (!rc)
		rc = check_received(3, 4, rows.x, rows.n_sel, rows.sel);
	if (!rc && rank_link_received_error(l))
		rc = FAIL("%s: rows are no error", now->name);
	if (!rc && rank_link_receive_rows(l, m, 3, &rows, &got) != ERR_MEMORY)
		rc = FAIL("%s: no error came", now->name);
	if (!rc && (!rank_link_received_error(l) || !strstr(got.text, "rank 1 (")))
		rc = FAIL("%s: the error is \"%s\"", now->name, got.text);
	if (!rc && (l->ops->receive(l, m, 3, &got) != ERR_MEMORY ||
				   strcmp(got.text, "no memory for a step") != 0))
		rc = FAIL("%s: the named error is \"%s\"", now->name, got.text);
	if (!rc && (l->ops->receive(l, m, 1, &got) != ERR_RUN || !strstr(got.text, " sent 2 rows in ")))
		rc = FAIL("%s: rows of another step: \"%s\"", now->name, got.text);
	stage_rows_free(&rows);
	return rc;
}

static int run_case(struct ranks *r, struct model *m, struct err *e)
{
	const bool sends = me == SENDER, long_rows = now->most > MOST;
	struct stage_link *l = NULL;
	struct err why = {0};
	memset(m->backend->uuid, now->one_card ? 7 : (int)me + 1, sizeof m->backend->uuid);
	m->config.index_full[LAYER] = now->full;
	n_open = n_aborted = 0;
	int rc = rank_link_open(r,
		&(struct rank_link_ends){!me, sends, m->backend, &m->config, LAYER, now->most}, &l, &why);
	if (long_rows && rc == ERR_USAGE && strstr(why.text, "too long for a message"))
		return l || n_open ? FAIL("%s: it is open", now->name) : 0;
	if (rc || long_rows)
		return FAIL("%s: opening gives %d: %s", now->name, rc, why.text);
	const bool by_nccl = strstr(now->carrier, "NCCL");
	if (n_open != by_nccl)
		rc = FAIL("%s: %d channels", now->name, n_open);
	if (!rc)
		rc = sends ? send_steps(l, m, e) : receive_steps(l, m, e);
	rank_link_abort(l, "a rank is lost");
	rank_link_abort(NULL, "a rank is lost");
	if (!rc && n_aborted != by_nccl)
		rc = FAIL("%s: %d channels are aborted", now->name, n_aborted);
	l->ops->close(l);
	if (!rc && n_open)
		rc = FAIL("%s: a channel is left open", now->name);
	return rc;
}

/* One rank could not load its weights. Both end with its sentence, and no link is opened. */
static int fail_loading(struct ranks *r, const struct model *m, uint32_t failing, struct err *e)
{
	struct stage stage = {.config = m->config, .backend = m->backend, .plan.chunk = MOST};
	struct engine g = {.config = m->config, .stages = &stage, .n_stages = 1};
	const struct rank_figures figures = {.n_stages = 1};
	struct err why = {0};
	int loaded = 0;
	if (me == failing)
		loaded = err_set(&why, ERR_MEMORY, "no memory for the weights of rank %u", me);
	g.ranks = NEW(struct engine_ranks);
	g.ranks->ranks = r;
	stage.config.first_layer = me == SENDER ? 0 : LAYER;
	stage.config.end_layer = me == SENDER ? LAYER : LAYER + 1;
	now = &cases[0];
	int rc = engine_ranks_ready(&g, &figures, loaded, &why);
	char expected[64];
	snprintf(expected, sizeof expected, "no memory for the weights of rank %u", failing);
	const bool opened = g.ranks->in || g.ranks->out;
	engine_ranks_free(g.ranks);
	if (rc == ERR_MEMORY && strstr(why.text, expected) && !opened)
		return 0;
	err_set(e, ERR_RUN, "rank %u did not load: %s", failing, why.text);
	return FAIL("rank %u did not load: %d, \"%s\"", failing, rc, why.text);
}

/* A model with what a link looks at, on the CPU's ops under another name: rows of the CPU never go
 * by NCCL. */
static int run_cases(struct ranks *r, struct err *e)
{
	struct model *m = NEW(struct model);
	struct backend *b = NULL;
	int rc = backend_open(&(struct backend_options){.name = "cpu", .threads = 1}, &b, e);
	if (rc)
		return rc;
	const struct backend_ops *ops = b->ops;
	struct backend_ops card_ops = *ops;
	card_ops.name = "card";
	card_ops.alloc = alloc_or_fail;
	cpu_alloc = ops->alloc;
	b->ops = &card_ops;
	m->backend = b;
	m->config.n_embd = N_EMBD;
	m->config.index_top_k = TOP_K;
	m->ws.x = NEW_ARRAY(float, MOST *N_EMBD);
	m->ws.n_sel = NEW_ARRAY(int32_t, MOST);
	m->ws.sel = NEW_ARRAY(int32_t, MOST * TOP_K);
	for (size_t i = 0; i < ARRAY_LEN(cases) && !rc; i++) {
		now = &cases[i];
		rc = ranks_agree(r, run_case(r, m, e), e);
	}
	for (uint32_t failing = 0; failing < 2 && !rc; failing++)
		rc = fail_loading(r, m, failing, e);
	b->ops = ops;
	ops->close(b);
	free(m->ws.x);
	free(m->ws.n_sel);
	free(m->ws.sel);
	free(m);
	return rc;
}

static int run_rank(void)
{
	struct err e = {0};
	struct ranks *r = NULL;
	log_set_level(LOG_INFO);
	int rc = ranks_open(&r, &e);
	if (!rc) {
		me = ranks_me(r);
		rc = run_cases(r, &e);
	}
	rank_end(r, rc, &e);
}

/* ---- the case ---- */

static void test_carriers(void **state)
{
	(void)state;
	NEED_MPIRUN();
	const int status = mpirun_self("rank", 2);
	if (status)
		fail_msg("status %d:\n%s", status, mpirun_said);
	const char *at = mpirun_said; /* the receiver's lines, in the order of the cases */
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		at = strstr(at, "rows of rank 1 (");
		if (!at)
			fail_msg("%zu lines in:\n%s", i, mpirun_said);
		at = strstr(at, ") come ") + strlen(") come ");
		if (strncmp(at, cases[i].carrier, strlen(cases[i].carrier)) != 0)
			fail_msg("%s: %.80s", cases[i].name, at);
	}
}

/* Rows of caches are sent while a request is answered, where memory may be short: the message has
 * room for the longest ones from the start. */
static void test_message(void **state)
{
	(void)state;
	struct engine_ranks k = {0};
	struct engine g = {.config.index_dim = 128,
		.chunk = 8192,
		.cache = {.n_layers = 79, .n_experts = 256},
		.ranks = &k};
	const size_t rows = engine_most_row_bytes(&g), keys = 79 * 256 * sizeof(struct profile_key);
	assert_int_equal(engine_ranks_reserve(&g, NULL), 0);
	assert_non_null(k.message);
	assert_true(k.capacity >= sizeof(struct rank_command) + rows);
	assert_true(k.capacity >= sizeof(struct rank_command) + keys);
	assert_true(k.capacity >= sizeof(struct rank_command) + 13 * g.chunk);
	memset(k.message, 1, k.capacity);
	free(k.message);
}

int main(int argc, char **argv)
{
	(void)argv;
	if (argc == 2)
		return run_rank();
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_carriers), cmocka_unit_test(test_message)};
	return cmocka_run_group_tests(tests, temp_dir_make, temp_dir_drop);
}
