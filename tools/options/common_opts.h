/* SPDX-License-Identifier: MIT */
/* The options of every command that opens an engine, and opening it with them. */
#ifndef GLM_TOOLS_COMMON_OPTS_H
#define GLM_TOOLS_COMMON_OPTS_H

#include "src/base/args.h"
#include "src/base/err.h"
#include "src/engine/prefix_store.h"

#define COMMON_OPTS_MAX   25
#define COMMON_OPTS_TITLE "Model and machine"

enum common_backend { COMMON_BACKEND_AUTO, COMMON_BACKEND_CUDA, COMMON_BACKEND_CPU };

/* When the resident weights were loaded. */
struct common_loading {
	uint64_t first_ns, last_ns, bytes;
};

/* Zero-initialise, then common_opts_group, then parse, then common_opts_open. */
struct common_opts {
	const char *model; /* NULL: the pocket model */
	int backend;       /* enum common_backend */
	int threads;       /* 0: all */
	const char *cards; /* "0,1": on which the layers lie, or "auto"; NULL: on card 0 */
	uint32_t context;  /* 0: as memory and model allow */
	bool cache_given;
	uint64_t cache_bytes; /* 0: experts are used where the file is mapped; ENGINE_CACHE_AUTO */
	uint64_t ram_bytes;   /* second tier */
	int policy;           /* index into the words of --policy */
	bool policy_given, io_given;
	int cpu_experts; /* 0: off */
	int lookahead;   /* unless given: ENGINE_LOOKAHEAD_AUTO */
	bool lookahead_given;
	int io;            /* enum reader_engine */
	uint32_t io_depth; /* reads in flight on a drive; 0: found */
	int verify;        /* enum check_mode */
	bool no_direct;
	const char *trace, *warm;   /* NULL: none */
	const char *profile_folder; /* see profile_opts_apply; NULL: none */
	bool force;                 /* replace files that this program did not write */
	const char *replicas; /* "A,B": files with the model's content on other drives; NULL: none */
	uint32_t chunk;       /* most rows at once; 0: the engine's choice */
	bool exact_prompts;   /* two passes on a card, see struct backend_options */
	bool fast_prompts;    /* of the CPU, see struct backend_options */
	int kv_ram;           /* enum engine_kv_ram */
	int kv_f8;            /* index into the words of --kv-type */
	bool kv_f32;          /* this and those that follow are no options of all commands */
	/* an instrument around the expert source, see engine_options; NULL: none */
	int (*wrap_source)(void *user, const struct model_config *c, struct expert_source *inner,
		struct expert_source **out, struct err *e);
	void *wrap_user;
	struct common_loading *loading; /* filled while the engine opens; NULL: not wanted */
	uint32_t sessions;              /* most at a time; 0: 1 */
	bool no_mtp;                    /* the draft layer is not loaded */
	bool quiet, verbose;
	/* This engine only measures and a later one streams: no warning that options of streaming have
	 * no effect. */
	bool streams_later;
	bool no_summary; /* opening prints no line about model and machine: the command does */
	struct arg args[COMMON_OPTS_MAX];
};

/* The option group; its variables are in *c, which must stay where it is. */
struct arg_group common_opts_group(struct common_opts *c);

/* Applies -q and -v to the log. ERR_USAGE: both. */
int common_opts_log(const struct common_opts *c, struct err *e);

/* common_opts_log, then finds the model, opens the engine, which says what it decided (not
 * with -q: one line, with -v all of it). Options without effect in this engine are a warning.
 * ERR_USAGE: options that exclude each other, or that need another one. */
int common_opts_open(const struct common_opts *c, struct engine **out, struct err *e);

/* The name that backend_open takes. */
const char *common_opts_backend(const struct common_opts *c);

/* The numbers of --cards. ERR_USAGE: something else stands there, or too many. */
#define COMMON_CARDS_MAX 64
struct common_cards {
	uint32_t card[COMMON_CARDS_MAX];
	uint32_t n; /* 0: none were named; ENGINE_CARDS_AUTO */
};
int common_opts_cards(const struct common_opts *c, struct common_cards *cards, struct err *e);
/* The first of these, of which figures of one card are; 0 without numbers, or with bad ones. */
uint32_t common_opts_first_card(const struct common_opts *c);

/* The policies by the numbers in common_opts.policy; NULL behind the last. */
const char *common_opts_policy(int i);

/* The paths of --replicas. Release with free(r->text). ERR_USAGE: an empty one, or too many. */
#define COMMON_REPLICAS_MAX 16
struct common_replicas {
	char *text;
	const char *path[COMMON_REPLICAS_MAX];
	unsigned n;
};
int common_opts_replicas(const struct common_opts *c, struct common_replicas *r, struct err *e);

/* Closes the engine of a command that ended with `rc` (NULL is fine). Returns rc, or when that is 0
 * the fault of a trace or profile that could not be written. */
int common_opts_close(struct engine *g, int rc, struct err *e);

/* --no-profile, of the commands that answer. Zero-initialise. */
struct profile_opts {
	bool off;
	char *folder; /* what common_opts.profile_folder points to */
	struct arg args[1];
};
struct arg_group profile_opts_group(struct profile_opts *p); /* its variable is in *p */

/* Lets runs that stream experts keep a profile of their use, unless an option says otherwise. Makes
 * its folder where it may be needed. Release with free(p->folder) when the engine is closed. */
void profile_opts_apply(struct profile_opts *p, struct common_opts *c);

/* The options of a prefix store: --session-dir, --session-dir-gb. Zero-initialise. */
struct prefix_opts {
	const char *folder; /* NULL: no store */
	uint64_t bytes;     /* 0: the store's default */
	bool bytes_given;
	struct arg args[2];
};
struct arg_group prefix_opts_group(
	struct prefix_opts *p); /* its variables are in *p, which must stay where it is */

/* Before a large model is opened. ERR_USAGE: a size without a folder; ERR_INPUT:
 * --session-dir exists and is no folder. */
int prefix_opts_check(const struct prefix_opts *p, struct err *e);

/* *out: the store (prefix_store_close), or NULL when none is asked for. */
int prefix_opts_open(
	const struct prefix_opts *p, struct engine *g, struct prefix_store **out, struct err *e);

#endif
