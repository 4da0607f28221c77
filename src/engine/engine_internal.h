/* SPDX-License-Identifier: MIT */
/* The inside of an engine, for the files of this folder. */
#ifndef GLM_ENGINE_ENGINE_INTERNAL_H
#define GLM_ENGINE_ENGINE_INTERNAL_H

#include "cache/trace/expert_profile.h"
#include "src/engine/engine.h"
#include "src/forward/model.h"

struct engine {
	struct gguf *gguf;
	struct check_values *check_values; /* NULL: nothing is compared, */
	bool verify_off;                   /* ... because nobody wants it */
	struct tokenizer *tokenizer;
	struct backend *backend;
	struct expert_source *source; /* what the model asks: `experts`, or a wrapper around it */
	struct expert_source *experts;
	bool streaming;            /* `experts` is a loader, else mapped memory */
	struct engine_cache cache; /* what of it does not change */
	uint64_t fingerprint;
	uint64_t rows_fingerprint;  /* session_fingerprint, 0 until it was asked for */
	struct trace_writer *trace; /* NULL: none */
	/* engine_profile.c */
	char *warm_path;        /* profile that was named and takes in this run; NULL: none */
	char *profile_folder;   /* of the one that is kept unasked; NULL: none */
	struct profile profile; /* of this run; counts only when one of the two is set */
	struct profile earlier; /* read from there */
	double token_accesses;  /* experts that a token uses, in all layers */
	struct model model;     /* holds the configuration and the weights */
	struct kv_cache kv;     /* sessions * context rows */
	uint32_t context;       /* rows of one session */
	uint32_t chunk;         /* most rows of one step */
	uint32_t n_sessions;
	uint64_t n_steps; /* of all sessions */
	int32_t n_valid;  /* ids that stand for a token */
	bool *taken;      /* [n_sessions]: the run of cache rows belongs to a session */
};

/* ---- engine_profile.c ---- */

/* Reads the profile of earlier runs and seeds the cache with it. After the expert source was opened
 * and the fingerprint set. */
int engine_profile_open(
	struct engine *g, const struct engine_options *o, const struct model_config *c, struct err *e);
/* keep: adds this run to it. Only a profile that was named makes an error. */
int engine_profile_close(struct engine *g, bool keep, struct err *e);

#endif
