/* SPDX-License-Identifier: MIT */
/* The inside of an engine, for the files of this folder. */
#ifndef GLM_ENGINE_ENGINE_INTERNAL_H
#define GLM_ENGINE_ENGINE_INTERNAL_H

#include "cache/trace/expert_profile.h"
#include "src/base/host/numa.h"
#include "src/engine/engine.h"
#include "src/engine/stages/stage.h"

struct engine {
	struct gguf *gguf;
	struct check_values *check_values; /* NULL: nothing is compared, */
	bool verify_off;                   /* ... because nobody wants it */
	struct tokenizer *tokenizer;
	struct model_config config; /* of the whole model */
	struct stage *stages;       /* [n_stages] of the layers here, in order; at least one */
	uint32_t n_stages;
	struct engine_ranks *ranks;      /* other layers lie on other ranks; NULL: all are here */
	struct stage_pipeline *pipeline; /* NULL while opening and closing */
	struct numa_nodes nodes;         /* of the host */
	bool streaming;                  /* some stage, here or on another rank, streams its experts */
	struct engine_cache cache;       /* what of it does not change */
	uint64_t fingerprint;
	bool exact_prompts;         /* asked for, and the backend is a card */
	bool fast_prompts;          /* asked for, and the processor has them */
	bool drafts_left_out;       /* engine_leave_out_drafts has logged it */
	uint32_t library_version;   /* backend_library_version of the last stage */
	uint64_t rows_fingerprint;  /* session_fingerprint, 0 until it was asked for */
	struct trace_writer *trace; /* NULL: none */
	/* engine_profile.c: at most one of these three is set; only then are uses of experts counted */
	char *warm_path;        /* the profile of options.warm, which this run is added to; else NULL */
	char *profile_folder;   /* of options, with streaming and without options.warm; else NULL */
	bool counts_for_rank_0; /* this is another rank, and rank 0 keeps the profile */
	struct profile profile; /* the uses of this run */
	struct profile earlier; /* of earlier runs, as read when the engine opened */
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

/* The stage that has a layer of this rank; of the MTP layer: the last one. */
struct stage *engine_stage_of(const struct engine *g, uint32_t layer);

/* model_forward through all stages, on rank 0 also those of the other ranks. Hidden states are left
 * in the last one; a rank without the end of the model sends its rows on. After an error the
 * devices of all stages are idle. */
int engine_forward(
	struct engine *g, const struct forward_rows *rows, uint32_t first_hidden, struct err *e);

/* Takes back failures for want of memory, once no stage computes. engine_forward begins
 * with it. */
void engine_recover(struct engine *g);

/* There is no memory to compute drafts: takes back the failure of the last stage's backend, and
 * logs `why` the first time. */
void engine_leave_out_drafts(struct engine *g, const struct err *why);

/* Called after ops that only drafts need (mtp.h) were enqueued. Precondition: no failure was kept
 * before them. True: they failed for want of memory, and engine_leave_out_drafts was called. */
bool engine_drafts_lack_memory(struct engine *g);

/* Finds the cause of a step's result rc: ERR_RUN, with the sentence for it, if the model's files
 * have been lost or changed; else rc, and *e as it is. */
int engine_blame_file(const struct engine *g, int rc, struct err *e);

/* Waits for the devices of all stages. Returns a kept failure. */
int engine_wait(const struct engine *g, struct err *e);

/* Whether the device of a stage has failed, or another rank is lost. */
bool engine_has_failed(const struct engine *g);

/* Reports how many rows of the last step are kept (expert_source.h). */
void engine_keep_rows(struct engine *g, uint32_t first, uint32_t n);

/* ---- stages_usage.c ---- */

/* Called when the hidden states or logits of a step are there: ends the last stage's computing_ns.
 */
void engine_last_stage_done(struct engine *g);

/* engine_stages_usage for the stages of this process alone: out [g->n_stages]. */
void engine_stages_here(struct engine *g, struct engine_stage_usage *out);

/* ---- cache_rows.c: rows of a layer's latents or index keys, on whatever stage or rank ---- */

/* Of one row; 0: the layer has no such cache, or is an MTP layer that was not loaded. */
size_t engine_row_bytes(const struct engine *g, uint32_t layer, bool index_key);
/* The most bytes of a block of a session file, and of a message with rows. */
size_t engine_most_row_bytes(const struct engine *g);
/* n rows from cache row `row` on; host memory [n][engine_row_bytes], which may be reused on return.
 * Writing is enqueued: a failure shows in engine_wait or, of another rank, in the next step. */
int engine_read_rows(struct engine *g, uint32_t layer, bool index_key, uint32_t row, uint32_t n,
	void *out, struct err *e);
int engine_write_rows(struct engine *g, uint32_t layer, bool index_key, uint32_t row, uint32_t n,
	const void *data, struct err *e);
/* Copies n rows in the caches of all layers, n_mtp in those of the MTP layer. Waits. */
int engine_copy_rows(
	struct engine *g, uint32_t to, uint32_t from, uint32_t n, uint32_t n_mtp, struct err *e);

/* ---- engine.c ---- */

/* sum += part, n counters each. */
void engine_add_counters(uint64_t *sum, const uint64_t *part, size_t n);
/* sum += part for counters; the larger one for io_depth and io_slice_bytes. */
void engine_add_expert_stats(struct expert_stats *sum, const struct expert_stats *part);

/* ---- engine_profile.c ---- */

/* Reads the profile of earlier runs and seeds the caches with it. Precondition: stage_open of all
 * stages has succeeded, and the fingerprint is set. Only the profile of options.warm makes an
 * error: ERR_INPUT, -errno, ERR_MEMORY. */
int engine_profile_open(
	struct engine *g, const struct engine_options *o, const struct model_config *c, struct err *e);
/* On a rank other than 0, in place of engine_profile_open: counts uses of experts for the profile
 * that rank 0 keeps. ERR_MEMORY. */
int engine_profile_count(struct engine *g, const struct model_config *c, struct err *e);
/* keep: adds this run to the profile. Releases it in any case; a second call does nothing. Only the
 * profile of options.warm makes an error. */
int engine_profile_close(struct engine *g, bool keep, struct err *e);

#endif
