/* SPDX-License-Identifier: MIT */
/*
 * The public boundary. An `engine` is a loaded model: weights, tokenizer, backend, expert source; immutable once open
 * and shared by its sessions. A `session` (session.h) is one timeline of tokens. Command line and server see these two,
 * generate.h and src/text, nothing else.
 *
 * Threads: one thread at a time may compute with an engine and its sessions. The tokenizer and the configuration may
 * be read by any thread.
 */
#ifndef GLM_ENGINE_ENGINE_H
#define GLM_ENGINE_ENGINE_H

#include "src/base/err.h"
#include "src/format/gguf.h"
#include "src/model/config.h"
#include "src/text/tokenizer.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct engine;

/* Zero-initialise; zero means the default everywhere. Strings are borrowed during engine_open. */
struct engine_options {
	const char *model_path; /* a GGUF, the first part of a split set, or several copies/parts separated by ':' */
	const char *backend;    /* NULL or "auto", "cpu", "cuda" */
	int threads;            /* CPU threads; 0: all */
	uint32_t context;       /* positions all sessions together may hold; 0: as budget and model allow */
	uint32_t chunk;         /* most rows computed at once during prefill; 0: the backend's choice */
	bool kv_f32;            /* keep latents and index keys in float32 (parity) instead of 16 bit */
	bool no_mtp;            /* do not load the MTP layer */
};

int engine_open(const struct engine_options *options, struct engine **out, struct err *e);
void engine_close(struct engine *g); /* NULL is fine; all sessions must be freed before */

const struct model_config *engine_config(const struct engine *g);
const struct tokenizer *engine_tokenizer(const struct engine *g);
const struct gguf *engine_gguf(const struct engine *g);
uint32_t engine_context(const struct engine *g);     /* positions a session may hold */
const char *engine_backend_name(const struct engine *g); /* "cpu", "cuda" */

/* Cumulative work since the engine was opened; subtract two snapshots for an interval. */
struct engine_stats {
	uint64_t expert_uses;   /* (row, rank) products asked of the source */
	uint64_t hit_vram;      /* distinct expert requests served from the first tier (or mapped memory) */
	uint64_t hit_ram;       /* ... from the second tier */
	uint64_t miss;          /* ... that had to be read */
	uint64_t bytes_read;    /* bytes read from storage for experts */
	uint64_t prefetch_useful;
	uint64_t prefetch_wasted;
	uint64_t wait_ns;       /* time the compute side waited for experts */
};
void engine_stats(const struct engine *g, struct engine_stats *out);

#endif
