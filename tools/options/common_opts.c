/* SPDX-License-Identifier: MIT */
/* Options that decide how a model is opened. */
#include "tools/options/common_opts.h"

#include "cache/policy/policy.h"
#include "cache/trace/profile_store.h"
#include "src/base/host/clock.h"
#include "src/base/host/cores.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/engine/ranks/rank_worker.h"
#include "src/forward/moe/lookahead.h"
#include "src/ranks/ranks.h"
#include "tools/options/pocket.h"
#include "tools/output/progress.h"
#include "tools/output/report.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PROGRESS_BYTES 500000000u

/* by enum common_backend */
static const struct arg_word backends[] = {
	{"auto", COMMON_BACKEND_AUTO}, {"cuda", COMMON_BACKEND_CUDA}, {"cpu", COMMON_BACKEND_CPU}, {0}};

static const struct arg_word sizes[] = {{"auto", -1}, {0}};
_Static_assert(ENGINE_CACHE_AUTO == UINT64_MAX, "the word auto is -1");
static const struct arg_word card_words[] = {{"auto", 0}, {0}};
static const struct arg_word lookaheads[] = {{"auto", ENGINE_LOOKAHEAD_AUTO}, {0}};
static const struct arg_word cpu_experts[] = {{"off", 0}, {"auto", 1}, {0}};
static const struct arg_word kv_ram_words[] = {
	{"auto", ENGINE_KV_RAM_AUTO}, {"on", ENGINE_KV_RAM_ON}, {"off", ENGINE_KV_RAM_OFF}, {0}};
static const struct arg_word kv_types[] = {{"f16", 0}, {"fp8", 1}, {0}};
static const struct arg_word policies[] = {{POLICY_DEFAULT, 0}, {"lru", 1}, {"sieve", 2}, {0}};
static const struct arg_word readers[] = {
	{"auto", READER_AUTO}, {"uring", READER_URING}, {"threads", READER_THREADS}, {0}};

static const struct arg_word verify_modes[] = {
	{"first", CHECK_FIRST}, {"always", CHECK_ALWAYS}, {"off", CHECK_OFF}, {0}};

struct arg_group common_opts_group(struct common_opts *c)
{
	const struct arg list[] = {
		{"model", 'm', ARG_STRING, .string = &c->model, .file = ARG_READS_MODEL, .value = "FILE",
			.help = POCKET_MODEL_HELP, .fallback = POCKET_FALLBACK},
		{"backend", 0, ARG_CHOICE, .i32 = &c->backend, .words = backends,
			.help = "where to compute", .fallback = "auto: the graphics card if one answers"},
		{"threads", 't', ARG_INT, .i32 = &c->threads, .min = 1, .max = 4096, .value = "N",
			.help = "CPU threads", .fallback = "all"},
		{"cards", 0, ARG_STRING, .string = &c->cards, .words = card_words, .value = "N,...|auto",
			.help = "cards on which the layers lie, consecutive ones on each; auto: all cards. A "
					"card that is named twice has two such stages",
			.fallback = "0"},
		{"ctx", 'c', ARG_UINT, .u32 = &c->context, .min = 1, .max = INT32_MAX, .value = "N",
			.help = "context: positions of prompt and answers together",
			.fallback = "as much as memory allows, at most the model's"},
		{"kv-ram", 0, ARG_CHOICE, .i32 = &c->kv_ram, .words = kv_ram_words, .value = "auto|on|off",
			.help =
				"of a card, keep the latents of the context in pinned host memory and fetch what "
				"attention reads; answers are the same. auto: where a --ctx above 131072 does not "
				"fit the "
				"card",
			.fallback = "auto"},
		{"kv-type", 0, ARG_CHOICE, .i32 = &c->kv_f8, .words = kv_types, .value = "f16|fp8",
			.help = "how latents of the context are kept; fp8: in 57 % of the bytes, with other "
					"answers",
			.fallback = "f16"},
		{"cache-gb", 0, ARG_SIZE_GB, .u64 = &c->cache_bytes, .given = &c->cache_given, .max = 1e9,
			.words = sizes, .value = "G|auto",
			.help = "stream the experts through a cache of G * 10^9 bytes (memory of each card; "
					"host memory on the CPU)",
			.fallback = "on the CPU none: they are used where the file is mapped; on a card none "
						"if all fit, else auto"},
		{"ram-gb", 0, ARG_SIZE_GB, .u64 = &c->ram_bytes, .max = 1e9, .words = sizes,
			.value = "G|auto",
			.help =
				"second tier of that cache in host memory, pinned for a card; all cards share it",
			.fallback = "none"},
		{"cpu-experts", 0, ARG_CHOICE, .i32 = &c->cpu_experts, .words = cpu_experts,
			.value = "auto|off",
			.help = "let the processor compute experts of --ram-gb where that is faster than "
					"copying them to the card; answers are the same",
			.fallback = "off"},
		{"policy", 0, ARG_CHOICE, .i32 = &c->policy, .given = &c->policy_given, .words = policies,
			.help = "which expert leaves a full cache", .fallback = POLICY_DEFAULT},
		{"lookahead", 0, ARG_INT, .i32 = &c->lookahead, .given = &c->lookahead_given,
			.max = LOOKAHEAD_MAX, .words = lookaheads, .value = "N|auto",
			.help = "fetch the experts of so many layers ahead; 0: off, auto: 1 where they come to "
					"a card",
			.fallback = "auto"},
		{"io", 0, ARG_CHOICE, .i32 = &c->io, .given = &c->io_given, .words = readers,
			.help = "how experts are read", .fallback = "auto"},
		{"io-depth", 0, ARG_UINT, .u32 = &c->io_depth, .min = 1, .max = READER_DEPTH_MAX,
			.value = "N", .help = "reads of about 1 MiB in flight on each drive",
			.fallback = "found for each drive while it is used, as their length is"},
		{"no-direct", 0, ARG_FLAG, .flag = &c->no_direct,
			.help = "read through the page cache, not past it"},
		{"verify", 0, ARG_CHOICE, .i32 = &c->verify, .words = verify_modes,
			.help = "compare experts with the check values of the file when they are first read or "
					"each time; what is wrong is read again once. Other weights: when they are "
					"loaded",
			.fallback = "first"},
		{"replicas", 0, ARG_STRING, .string = &c->replicas, .file = ARG_READS, .value = "FILE,...",
			.help =
				"files with the same content as the model on other drives, read at the same time",
			.fallback = "none"},
		{"chunk", 0, ARG_UINT, .u32 = &c->chunk, .min = 1, .max = 65536, .value = "N",
			.help =
				"most tokens of a prompt that are computed at once. On a card a prompt's numbers "
				"are the same for every N from 129 on",
			.fallback = "512"},
		{"exact-prompts", 0, ARG_FLAG, .flag = &c->exact_prompts,
			.help = "on a card, multiply prompts with activations of 22 bits instead of 11, in two "
					"passes; the CPU ignores it"},
		{"fast-prompts", 0, ARG_FLAG, .flag = &c->fast_prompts,
			.help = "on the CPU with AMX, multiply prompts of more than 64 tokens with activations "
					"of 16 bits instead of float32, at 1.3 to 2 times the rate"},
		{"trace", 0, ARG_STRING, .string = &c->trace, .file = ARG_WRITES, .value = "FILE",
			.help = "record routing, tiers and waits for `glmstream trace`"},
		{"warm", 0, ARG_STRING, .string = &c->warm, .file = ARG_UPDATES, .value = "FILE",
			.help = "fill the cache from a profile or trace at start; a profile takes in this run "
					"at exit, a new file becomes one"},
		{"force", 0, ARG_FLAG, .flag = &c->force,
			.help = "replace files that this program did not write"},
		{"quiet", 'q', ARG_FLAG, .flag = &c->quiet, .help = "only answers, warnings and errors"},
		{"verbose", 'v', ARG_FLAG, .flag = &c->verbose, .help = "say more about what happens"},
	};
	_Static_assert(ARRAY_LEN(list) <= COMMON_OPTS_MAX, "COMMON_OPTS_MAX");
	memcpy(c->args, list, sizeof list);
	return (struct arg_group){COMMON_OPTS_TITLE, c->args, ARRAY_LEN(list)};
}

const char *common_opts_backend(const struct common_opts *c)
{
	return backends[c->backend].word;
}

const char *common_opts_policy(int i)
{
	return policies[i].word;
}

int common_opts_replicas(const struct common_opts *c, struct common_replicas *r, struct err *e)
{
	*r = (struct common_replicas){0};
	if (!c->replicas)
		return 0;
	r->text = mem_strdup(c->replicas);
	for (char *at = r->text; at; r->n++) {
		char *comma = strchr(at, ',');
		if (comma)
			*comma = 0;
		if (!*at)
			return err_set(
				e, ERR_USAGE, "--replicas: an empty file name in \"%.200s\"", c->replicas);
		if (r->n == COMMON_REPLICAS_MAX)
			return err_set(e, ERR_USAGE, "--replicas: more than %d files", COMMON_REPLICAS_MAX);
		r->path[r->n] = at;
		at = comma ? comma + 1 : NULL;
	}
	return 0;
}

int common_opts_cards(const struct common_opts *c, struct common_cards *cards, struct err *e)
{
	*cards = (struct common_cards){0};
	if (!c->cards)
		return 0;
	if (!strcmp(c->cards, card_words[0].word)) {
		cards->n = ENGINE_CARDS_AUTO;
		return 0;
	}
	for (const char *at = c->cards;; at++) {
		size_t digits = strspn(at, "0123456789");
		if (!digits || digits > 4 || (at[digits] && at[digits] != ','))
			return err_set(e, ERR_USAGE,
				"--cards: \"%.200s\" is neither auto nor a list of numbers like 0,1", c->cards);
		if (cards->n == COMMON_CARDS_MAX)
			return err_set(e, ERR_USAGE, "--cards: more than %d numbers", COMMON_CARDS_MAX);
		cards->card[cards->n++] = (uint32_t)strtoul(at, NULL, 10);
		at += digits;
		if (!*at)
			return 0;
	}
}

uint32_t common_opts_first_card(const struct common_opts *c)
{
	struct common_cards cards;
	return common_opts_cards(c, &cards, NULL) || cards.n == ENGINE_CARDS_AUTO ? 0 : cards.card[0];
}

struct watch {
	struct progress progress;
	struct common_loading *loading;
	bool quiet;
};

/* A small model is there before anybody could read the line. */
static void on_loading(void *user, uint64_t done, uint64_t total)
{
	struct watch *w = user;
	struct progress *p = &w->progress;
	if (w->loading) {
		w->loading->last_ns = clock_ns();
		w->loading->bytes = done;
		if (!w->loading->first_ns)
			w->loading->first_ns = w->loading->last_ns;
	}
	if (w->quiet || total < PROGRESS_BYTES)
		return;
	if (!p->what)
		progress_begin(p, "loading", NULL, total);
	if (done < total)
		progress_update(p, done, total);
	else
		progress_end(p);
}

/* Without --bind-to mpirun binds each of up to two ranks to a core. */
static void warn_of_one_core(void)
{
	const struct ranks *r = ranks_here();
	const long cores = sysconf(_SC_NPROCESSORS_ONLN);
	if (r && cores_allowed() == 1 && cores > 1)
		log_warn("%s may use 1 of %ld cores: mpirun --bind-to none gives it all of them",
			ranks_name(r, ranks_me(r)), cores);
}

static char worker_end_text[192]; /* written before the handler is installed: ranks may be gone */

static void on_worker_end(int sig)
{
	static atomic_bool printed;
	(void)sig;
	if (!atomic_exchange(&printed, true))
		(void)!write(STDERR_FILENO, worker_end_text, strlen(worker_end_text));
}

/* The rest of a process that is another rank than 0: it carries out commands until rank 0 stops it.
 * Signals to all ranks are for rank 0, which may need any time to end in order. A rank 0 that has
 * ended or hangs is noticed as lost, so no signal ends a worker. */
static void end_worker(struct engine *g, int rc, struct err *e)
{
	struct sigaction a = {.sa_handler = on_worker_end, .sa_flags = SA_RESTART};
	sigemptyset(&a.sa_mask);
	snprintf(worker_end_text, sizeof worker_end_text,
		"%s: mpirun ends all ranks: one has ended, or it was to end\n",
		ranks_name(ranks_here(), ranks_me(ranks_here())));
	sigaction(SIGTERM, &a, NULL);
	signal(SIGINT, SIG_IGN);
	signal(SIGHUP, SIG_IGN);
	if (!rc)
		rc = engine_run_worker(g, e);
	rc = common_opts_close(g, rc, e);
	exit(report_end(rc, e));
}

/* Whether experts are streamed is known when the engine is open: a card may hold all of them. A
 * trace records the predictions of --lookahead also without streaming. Of a command that opens
 * several engines the first is warned of. */
static void warn_of_unused(const struct common_opts *c, const struct engine *g)
{
	static bool warned;
	struct engine_cache cache;
	engine_cache_snapshot(g, &cache, NULL);
	if (cache.streaming || c->streams_later || warned)
		return;
	warned = true;
	const bool reads = strcmp(engine_backend_name(g), "cpu") != 0; /* to fill the card */
	const struct {
		const char *name;
		bool unused;
	} options[] = {{"--policy", c->policy_given}, {"--lookahead", c->lookahead_given && !c->trace},
		{"--io", c->io_given && !reads}, {"--io-depth", c->io_depth && !reads},
		{"--no-direct", c->no_direct && !reads}};
	struct buf names = {0};
	for (size_t i = 0; i < ARRAY_LEN(options); i++)
		if (options[i].unused)
			buf_printf(&names, "%s%s", names.len ? ", " : "", options[i].name);
	if (names.len)
		log_warn("no effect without --cache-gb, as no experts are streamed: %s", buf_str(&names));
	buf_free(&names);
}

/* Warns once of a --kv-ram on that the CPU ignores. */
static void warn_of_kv_ram(const struct common_opts *c, const struct engine *g)
{
	static bool warned;
	if (warned || c->kv_ram != ENGINE_KV_RAM_ON || strcmp(engine_backend_name(g), "cpu") != 0)
		return;
	warned = true;
	log_warn("no effect on the CPU, where the context is in host memory: --kv-ram on");
}

int common_opts_log(const struct common_opts *c, struct err *e)
{
	if (c->quiet && c->verbose)
		return err_set(e, ERR_USAGE, "-q and -v exclude each other");
	log_set_level(c->verbose ? LOG_VERBOSE : c->quiet || ranks_is_worker() ? LOG_WARN : LOG_INFO);
	return 0;
}

int common_opts_open(const struct common_opts *c, struct engine **out, struct err *e)
{
	*out = NULL;
	const bool is_worker = ranks_is_worker();
	int rc = common_opts_log(c, e);
	if (rc)
		return rc;
	const char *model = pocket_or(c->model, e);
	if (!model)
		return e->code;
	struct common_replicas replicas;
	struct common_cards cards = {0};
	warn_of_one_core();
	rc = common_opts_replicas(c, &replicas, e);
	if (!rc)
		rc = common_opts_cards(c, &cards, e);
	struct engine_options options = {.model_path = model,
		.backend = common_opts_backend(c),
		.threads = c->threads,
		.cards = cards.card,
		.n_cards = cards.n,
		.ranks = ranks_here(),
		.context = c->context,
		.sessions = c->sessions,
		.exact_prompts = c->exact_prompts,
		.fast_prompts = c->fast_prompts,
		.kv_f32 = c->kv_f32,
		.kv_f8 = c->kv_f8 != 0,
		.kv_ram = (enum engine_kv_ram)c->kv_ram,
		.wrap_source = c->wrap_source,
		.wrap_user = c->wrap_user,
		.no_mtp = c->no_mtp,
		.cache_bytes = c->cache_bytes,
		.ram_bytes = c->ram_bytes,
		.cpu_experts = c->cpu_experts != 0,
		.policy = policies[c->policy].word,
		.lookahead = c->lookahead_given ? c->lookahead : ENGINE_LOOKAHEAD_AUTO,
		.reader = {.engine = (enum reader_engine)c->io,
			.buffered = c->no_direct,
			.depth = c->io_depth},
		.verify = (enum check_mode)c->verify,
		.trace = c->trace,
		.force = c->force,
		.warm = c->warm,
		.profile_folder = c->profile_folder,
		.chunk = c->chunk,
		.replicas = replicas.path,
		.n_replicas = replicas.n};
	struct watch watch = {.loading = c->loading, .quiet = c->quiet};
	if ((!c->quiet && !is_worker) || c->loading) {
		options.loading = on_loading;
		options.loading_user = &watch;
	}
	if (!rc && c->ram_bytes && !c->cache_bytes)
		rc = err_set(
			e, ERR_USAGE, "--ram-gb is the second tier of a cache: give --cache-gb as well");
	else if (!rc && c->replicas && !c->cache_bytes && !c->cache_given)
		rc = err_set(e, ERR_USAGE, "--replicas are read by streaming: give --cache-gb as well");
	if (c->cache_given && !c->cache_bytes)
		options.cache_bytes =
			1; /* a budget of nothing is a budget: refused with the smallest that works */
	if (!rc)
		rc = engine_open(&options, out, e); /* which says what it decided */
	progress_end(&watch.progress);
	if (is_worker)
		end_worker(*out, rc, e);
	free(replicas.text);
	if (!rc) {
		warn_of_unused(c, *out);
		warn_of_kv_ram(c, *out);
	}
	if (!rc && !c->no_summary) {
		char summary[512];
		engine_summary(*out, summary, sizeof summary);
		log_info("%s", summary);
	}
	return rc;
}

int common_opts_close(struct engine *g, int rc, struct err *e)
{
	struct err late = {0};
	int failed = engine_close(g, &late);
	if (rc || !failed)
		return rc;
	*e = late;
	return failed;
}

struct arg_group profile_opts_group(struct profile_opts *p)
{
	const struct arg list[] = {
		{"no-profile", 0, ARG_FLAG, .flag = &p->off,
			.help = "neither load the experts first that earlier runs used most, nor keep which "
					"ones this run uses"},
	};
	_Static_assert(sizeof list == sizeof p->args, "args");
	memcpy(p->args, list, sizeof list);
	return (struct arg_group){"Start", p->args, ARRAY_LEN(list)};
}

void profile_opts_apply(struct profile_opts *p, struct common_opts *c)
{
	const bool may_stream =
		c->cache_given || (HAVE_CUDA && strcmp(common_opts_backend(c), "cpu") != 0);
	if (p->off || c->warm || !may_stream || !(p->folder = profile_store_folder()))
		return;
	profile_store_make_folder(p->folder);
	c->profile_folder = p->folder;
}

struct arg_group prefix_opts_group(struct prefix_opts *p)
{
	const struct arg list[] = {
		{"session-dir", 0, ARG_STRING, .string = &p->folder, .value = "DIR",
			.help = "keep what prompts computed in this folder, and read it there instead of "
					"computing it again",
			.fallback = "none"},
		{"session-dir-gb", 0, ARG_SIZE_GB, .u64 = &p->bytes, .given = &p->bytes_given, .max = 1e9,
			.above_min = true, .value = "G",
			.help = "most bytes in that folder, in 10^9; what was unused for longest goes first",
			.fallback = "32"},
	};
	_Static_assert(sizeof list == sizeof p->args, "args");
	_Static_assert(PREFIX_STORE_DEFAULT_SIZE == 32000000000u, "the default in the help");
	memcpy(p->args, list, sizeof list);
	return (struct arg_group){"Stored prompts", p->args, ARRAY_LEN(list)};
}

int prefix_opts_check(const struct prefix_opts *p, struct err *e)
{
	struct stat st;
	if (p->folder && !*p->folder)
		return err_set(
			e, ERR_USAGE, "--session-dir: the name of a folder is expected, an empty one found");
	if (p->bytes_given && !p->folder)
		return err_set(
			e, ERR_USAGE, "--session-dir-gb limits a folder: give --session-dir as well");
	if (p->folder && !stat(p->folder, &st) && !S_ISDIR(st.st_mode))
		return err_set(e, ERR_INPUT, "--session-dir: %.400s is no folder", p->folder);
	return 0;
}

int prefix_opts_open(
	const struct prefix_opts *p, struct engine *g, struct prefix_store **out, struct err *e)
{
	*out = NULL;
	int rc = prefix_opts_check(p, e);
	return rc || !p->folder ? rc : prefix_store_open(p->folder, p->bytes, g, out, e);
}
