/* SPDX-License-Identifier: MIT */
/*
 * What the ranks of an engine send each other. Rank 0 has everything that a command line or a
 * server needs, and the last layers, with head, MTP layer and sampling. Ranks 1 .. n - 1 have the
 * layers before, in order: rows go 1 -> 2 -> ... -> n - 1 -> 0. So tokens go out with the command,
 * rows come in at the end, and no hidden state needs a way back.
 *
 * Opening; every rank, in this order (engine_ranks.h):
 *   agree       the file is open
 *   broadcast   struct rank_start: what must be the same everywhere
 *   agree       it is
 *   gather      struct rank_cards (rank_cards.h): on which cards each computes
 *   broadcast   the same of all ranks
 *   agree       no two share a card by accident
 *   gather      struct rank_room: what each could hold and how fast it is
 *   broadcast   struct rank_cuts: which layers each gets
 *   agree       each has a memory plan
 *   gather      struct rank_limits of it
 *   broadcast   the least context and chunk of them, with which each plans again
 *   agree       each has; nobody allocates before
 *   gather      struct rank_limits of the second plan
 *   broadcast   whether any rank streams its experts
 *   agree       the layers are loaded
 *   -           each opens its links (rank_link.h)
 *   agree       they are open
 *   gather      struct rank_figures
 *
 * Then rank 0 sends commands, each one message: a struct rank_command, then its data. The workers
 * execute them in order (rank_worker.h).
 *   STEP        n rows: tokens [n], pos [n], base [n] (int32), with `draft` also draft [n] (bytes).
 *               Each rank takes the rows of the one before, computes, sends them on (rank_link.h).
 *               Several may be in flight: the rows come back in the order of the commands
 *   READ_ROWS   n rows of a cache of `layer`, from `row` on: answered with their bytes
 *   WRITE_ROWS  the same rows; their bytes follow
 *   COPY_ROWS   n rows of each cache, from `from` to `row`
 *   KEEP_ROWS   n rows of the last step from `row` on are kept (expert_source.h)
 *   STATS       answered with rank_stats_bytes(stages of the rank) of a struct rank_stats
 *   MEASURE     `on`: as engine_measure
 *   WARM        n struct profile_key: as engine_cache_warm
 *   POPULATE    as engine_populate
 *   STOP        the end; if uses are counted, answered with them, double [n_layers][n_experts]
 * READ_ROWS and WRITE_ROWS go to the rank of the layer, all others to every rank. An answer is a
 * struct rank_answer, then its data or, if the code is not 0, a struct err.
 *
 * Heartbeats carry the places of the experts (struct rank_status), for whoever draws a map.
 */
#ifndef GLM_ENGINE_RANK_PROTOCOL_H
#define GLM_ENGINE_RANK_PROTOCOL_H

#include "kernels/backend.h"
#include "src/engine/engine.h"
#include "src/engine/stages/stage.h"
#include "src/engine/stages/stage_cuts.h"
#include "src/ranks/ranks.h"

#include <stddef.h>

struct rank_start {
	char version[32], backend[16];
	uint64_t fingerprint, rows_fingerprint; /* of the model file */
	uint32_t kv_f32, kv_f8, sessions;
	uint32_t exact_prompts;
	uint32_t library_version; /* kernels/library.h; 0: none */
	uint32_t counts;          /* uses of experts are counted, for a profile of rank 0 */
};

struct rank_room {
	uint32_t n_stages;
	struct stage_capacity stages[STAGES_MAX];
};

/* Stages of all ranks in the order of the layers. */
struct rank_cuts {
	uint32_t first[STAGES_MAX + 1];      /* first layer of each; behind the last: n_layers */
	uint32_t first_stage[RANKS_MAX + 1]; /* of the ranks in order, 1 .. n - 1, 0 */
};

/* Of the memory plan of a rank. */
struct rank_limits {
	uint32_t context, chunk;
	uint32_t streaming; /* not 0: some of its stages stream their experts */
};

/* What of a rank does not change. */
struct rank_figures {
	uint32_t first_layer, end_layer, n_stages;
	uint32_t card[STAGES_MAX]; /* of its stages */
	uint32_t streaming, lookahead;
	uint64_t tier_bytes[2], everything_bytes; /* of its cache */
	uint64_t expert_bytes, n_experts;         /* of those that it may stream, all together */
	struct engine_sizes sizes;
	char io[16];
};

enum rank_command_code {
	RANK_STEP = 1,
	RANK_READ_ROWS,
	RANK_WRITE_ROWS,
	RANK_COPY_ROWS,
	RANK_KEEP_ROWS,
	RANK_STATS,
	RANK_MEASURE,
	RANK_WARM,
	RANK_POPULATE,
	RANK_STOP,
};

struct rank_command {
	uint32_t code; /* enum rank_command_code */
	uint32_t n;
	uint32_t row, from, layer;
	uint8_t is_index_key; /* READ_ROWS, WRITE_ROWS: else it is the cache of latents */
	uint8_t draft, long_prompt, answers; /* STEP */
	uint8_t in_flight;                   /* STEP: others may be in flight with it (pipeline.h) */
	uint8_t on;                          /* MEASURE */
};

struct rank_answer {
	int32_t code; /* 0, or that of the error that follows */
	uint32_t n;   /* of a step: rows */
};

struct rank_stats {
	struct expert_stats experts;
	uint64_t computing_ns; /* rows of steps that may be in flight with others */
	struct engine_stage_usage stages[STAGES_MAX]; /* [n_stages], of the rank */
};

/* Length of the message of a rank with n stages. */
static inline size_t rank_stats_bytes(uint32_t n)
{
	return offsetof(struct rank_stats, stages) + n * sizeof(struct engine_stage_usage);
}

struct rank_status {
	struct expert_stats experts;
	uint8_t places[]; /* [n_layers + n_mtp][n_experts] of enum engine_residency; own layers only */
};

#endif
