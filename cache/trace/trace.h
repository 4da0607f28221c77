/* SPDX-License-Identifier: MIT */
/*
 * Traces: which experts every layer of every step used, which the lookahead had predicted, where
 * each expert was found, how long the layer waited. Recorded by a run, replayed by the
 * simulator.
 *
 * A file, little-endian:
 *
 *   "GLMTRACE" u32 version u32 0
 *   lz4 frame  header: u64 fingerprint, u32 n_layers, u32 n_experts, u32 top_k, u32 name_bytes,
 *              name, u64 expert_bytes[n_layers]
 *   lz4 frame  records, up to about 64 KiB of them
 *   ...
 *   lz4 frame  one END record
 *
 * Every frame has its content size and checksum and is written at once, so a killed run leaves
 * whole frames. A file without END is read up to its last whole frame, and trace.ends_early is set.
 * A record is
 *
 *   STEP        u8 1, u8 use, u16 rows, u32 position
 *               a forward pass over `rows` tokens begins
 *   ACCESS      u8 2, u8 use, u16 layer, u32 n, u16 ids[n], u8 tiers[n]
 *               one layer's experts, best first
 *   PREDICTION  u8 3, u8 distance, u16 layer, u32 n, u16 ids[n]
 *               the predicted experts of a later layer, best first
 *   WAIT        u8 4, u8 0, u16 layer, u32 0, u64 ns
 *               how long the layer waited: for a slot, behind its ACCESS (without one
 *               if that was interrupted), or for bytes. An ACCESS may have several
 *   END         u8 5, u8 0, u16 0, u32 0, u64 records before it
 *
 * in the order in which the decisions fell: a PREDICTION for layer 5 made while layer 4 ran stands
 * after layer 4's ACCESS.
 *
 * The reader trusts nothing. It also takes the GLTR1 files of synthetic traces: "GLTR1", u32
 * tokens, layers, top_k, experts; then per token and layer top_k routed and top_k predicted ids of
 * a byte each. They know no sizes, tiers or waits.
 */
#ifndef GLM_CACHE_TRACE_H
#define GLM_CACHE_TRACE_H

#include "cache/cache.h"
#include "src/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TRACE_VERSION 2 /* 1: the model's fingerprint was made by another function */

/* Where an access found its expert. */
enum trace_tier { TRACE_VRAM, TRACE_RAM, TRACE_DISK, TRACE_UNKNOWN, TRACE_N_TIERS };

enum trace_kind { TRACE_STEP = 1, TRACE_ACCESS, TRACE_PREDICTION, TRACE_WAIT, TRACE_END };

/* What a trace says of its model. */
struct trace_model {
	uint64_t fingerprint;         /* 0: unknown */
	uint32_t n_layers, n_experts; /* 1..4096, 1..65536; layers are numbered as in the model */
	uint32_t top_k;
	const char *name;             /* for people; at most 255 bytes are kept */
	const uint64_t *expert_bytes; /* [n_layers], 0: the layer has no routed experts */
};

/* ---- recording ---- */

struct trace_writer;

/* Creates PATH.partial and writes the header; trace_writer_close renames it to PATH. NULL with a
 * sentence in *e. The model is copied.
 * - At both names only an older trace or an empty file is replaced; with force any file.
 * - If another file has appeared at PATH by then, trace_writer_close fails and leaves PATH.partial.
 * - A killed process leaves PATH.partial, which can be read up to the last whole frame.
 * - A second writer of the same PATH is refused (ERR_RUN).
 * - A device or pipe at PATH is written directly. */
struct trace_writer *trace_writer_open(
	const char *path, bool force, const struct trace_model *model, struct err *e);

/* Append a record. Nothing is allocated; about every 64 KiB one write(2) happens. Not thread-safe.
 * - Ids, layers and n are valid for the model (else bug()).
 * - tiers: [n] of enum trace_tier; NULL: unknown.
 * - After a failed write records are dropped; trace_writer_close returns the failure. */
void trace_write_step(struct trace_writer *w, enum cache_use use, int rows, int position);
void trace_write_access(struct trace_writer *w, enum cache_use use, int layer, const int32_t *ids,
	const uint8_t *tiers, int n);
void trace_write_prediction(
	struct trace_writer *w, int layer, int distance, const int32_t *ids, int n);
void trace_write_wait(struct trace_writer *w, int layer, uint64_t ns);

/* Writes the rest and END, closes, frees; 0 or a negative code with the first failure in *e. NULL
 * is fine. */
int trace_writer_close(struct trace_writer *w, struct err *e);

/* Instead of trace_writer_close: removes PATH.partial and frees; PATH stays as it is. NULL is fine.
 */
void trace_writer_abort(struct trace_writer *w);

/* ---- reading ---- */

struct trace_event {
	uint8_t kind; /* enum trace_kind, never TRACE_END */
	union {
		uint8_t use;      /* STEP, ACCESS: enum cache_use, DECODE or PREFILL */
		uint8_t distance; /* PREDICTION: 1.. */
	};
	uint16_t layer;
	uint32_t n;     /* ACCESS, PREDICTION: ids; STEP: rows */
	uint64_t value; /* ACCESS, PREDICTION: index of the first id; STEP: position; WAIT: ns */
};

/* A whole trace in memory. Zero-initialise; trace_fini releases. */
struct trace {
	struct trace_model model; /* expert_bytes and name point into this struct's memory */
	char name[256];
	uint64_t *expert_bytes; /* [n_layers] */
	bool bytes_known;       /* false (GLTR1): expert_bytes is 1 for layers with experts, else 0 */
	bool synthetic;         /* GLTR1 */
	bool ends_early;        /* no END: the run was cut off; `note` says where */
	char note[200];
	struct trace_event *events;
	size_t n_events, cap_events;
	uint16_t *ids;  /* of all ACCESS and PREDICTION events */
	uint8_t *tiers; /* as long as ids; enum trace_tier, TRACE_UNKNOWN for predictions */
	size_t n_ids, cap_ids;
	uint64_t n_steps, n_tokens; /* tokens: rows of decode steps */
	uint64_t n_accesses;        /* expert ids in decode ACCESS events */
	uint32_t max_distance;      /* of predictions, 0: none */
};

/* Reads a file. 0, or ERR_INPUT (missing, malformed, unsupported) or ERR_MEMORY with a sentence
 * that begins with the path. A file that only ends early is not an error. */
int trace_open(const char *path, struct trace *t, struct err *e);
/* The same from memory; `name` stands for the path in sentences. */
int trace_parse(const void *data, size_t bytes, const char *name, struct trace *t, struct err *e);
void trace_fini(struct trace *t);

/* 0, or ERR_INPUT when the trace was recorded with another model than this (unknown fingerprints
 * and names are not compared; shapes and known sizes are). */
int trace_check_model(
	const struct trace *t, const char *path, const struct trace_model *model, struct err *e);

#endif
