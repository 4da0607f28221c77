/* SPDX-License-Identifier: MIT */
/* The inside of an engine, for the files of this folder. */
#ifndef GLM_ENGINE_ENGINE_INTERNAL_H
#define GLM_ENGINE_ENGINE_INTERNAL_H

#include "cache/trace/expert_profile.h"
#include "src/engine/engine.h"
#include "src/engine/stages/stage.h"

struct engine {
	struct gguf *gguf;
	struct check_values *check_values; /* NULL: nothing is compared, */
	bool verify_off;                   /* ... because nobody wants it */
	struct tokenizer *tokenizer;
	struct model_config config; /* of the whole model */
	struct stage *stages;       /* [n_stages] of the model's layers, in order; at least one */
	uint32_t n_stages;
	bool streaming;            /* some stage streams its experts */
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
	uint32_t context;       /* rows of one session; every stage has sessions * context */
	uint32_t chunk;         /* most rows of one step */
	uint32_t n_sessions;
	uint64_t n_steps; /* of all sessions */
	int32_t n_valid;  /* ids that stand for a token */
	bool *taken;      /* [n_sessions]: the run of cache rows belongs to a session */
};

/* ---- stage.c ---- */

/* The stage that has the end of the model: hidden states, logits, drafts. */
static inline struct stage *engine_last(const struct engine *g)
{
	return &g->stages[g->n_stages - 1];
}

/* The stage that has a layer; of the MTP layer: the last one. */
struct stage *engine_stage_of(const struct engine *g, uint32_t layer);

/* model_forward through all stages. Hidden states are left in the last one. After an error the
 * devices of all stages are idle. */
int engine_forward(
	struct engine *g, const struct forward_rows *rows, uint32_t first_hidden, struct err *e);

/* Waits for the devices of all stages. Returns a kept failure. */
int engine_wait(const struct engine *g, struct err *e);

/* Whether the device of a stage has failed. */
bool engine_has_failed(const struct engine *g);

/* ---- engine_profile.c ---- */

/* Reads the profile of earlier runs and seeds the caches with it. After the experts of all stages
 * were opened and the fingerprint set. */
int engine_profile_open(
	struct engine *g, const struct engine_options *o, const struct model_config *c, struct err *e);
/* keep: adds this run to it. Only a profile that was named makes an error. */
int engine_profile_close(struct engine *g, bool keep, struct err *e);

#endif
