/* SPDX-License-Identifier: MIT */
/*
 * The public boundary. An `engine` is a loaded model: weights, tokenizer, backend, expert source.
 * Its configuration and weights are constant once open; sessions share it. A `session` (session.h)
 * is one timeline of tokens. Command line and server use these two, generate.h and src/text.
 *
 * Order of use: engine_open, session_new, generate (or session_sync, session_extend, batch_step),
 * session_free, engine_close.
 *
 * Threads: one thread at a time computes with an engine and its sessions. Any thread may read the
 * tokenizer and the configuration, and call engine_cache_snapshot.
 */
#ifndef GLM_ENGINE_ENGINE_H
#define GLM_ENGINE_ENGINE_H

#include "kernels/backend.h"
#include "src/base/err.h"
#include "src/format/gguf.h"
#include "src/model/config.h"
#include "src/text/tokenizer.h"
#include "stream/check/expert_check.h"
#include "stream/expert_source.h"
#include "stream/reader/reader.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct engine;
struct ranks;

/* Where the latents of the KV caches lie. In pinned host memory a step fetches those that attention
 * reads (kv_cache.h); the logits are bit-identical. On the CPU both places are ordinary memory, and
 * AUTO is OFF. */
enum engine_kv_ram {
	/* ON if more than 131,072 positions (context * sessions) are asked for and the card lacks the
	 * memory for them, else OFF */
	ENGINE_KV_RAM_AUTO,
	ENGINE_KV_RAM_ON, /* host memory */
	ENGINE_KV_RAM_OFF /* the card's memory */
};

/* Zero-initialise; zero means the default everywhere. Strings are borrowed during engine_open. */
struct engine_options {
	const char *model_path; /* a GGUF or the first part of a split set */
	/* [n_replicas] files with the same content on other drives; single-file models only */
	const char *const *replicas;
	unsigned n_replicas;
	const char *backend; /* NULL or "auto", "cpu", "cuda" */
	int threads;         /* CPU threads; 0: all */
	/* The cards on which the layers lie, in order. Each entry is a stage: consecutive layers with a
	 * cache of their own. A card may be named again. n_cards 0: one stage, on card 0;
	 * ENGINE_CARDS_AUTO: a stage on every card. Ranks may share a card only if all of them name it
	 * here. */
	const uint32_t *cards;
	uint32_t n_cards;
	/* For tests: [n_cards - 1] the first layers of the stages behind the first, ascending; NULL:
	 * balanced by memory and time of a token (stage_cuts.h). */
	const uint32_t *cuts;
	/* The processes that compute together (ranks.h), each with some of the layers: all open the
	 * same model at the same time. Rank 0 then works as an engine of one process does, the others
	 * call engine_run_worker (rank_worker.h). NULL: this process has all layers. */
	struct ranks *ranks;
	bool no_graphs;     /* see struct backend_options */
	bool exact_prompts; /* see struct backend_options */
	bool fast_prompts;  /* see struct backend_options */
	uint32_t context;   /* positions of one session; 0: as memory and model allow */
	uint32_t sessions;  /* most sessions at a time; 0: 1 */
	uint32_t chunk;     /* most rows computed at once during prefill; 0: the backend's choice */
	bool kv_f32;        /* keep latents and index keys in float32 (parity) instead of 16 bit */
	bool kv_f8;  /* keep latents in 8 bits (backend.h: F8_E4M3): other logits; not with kv_f32 */
	bool no_mtp; /* do not load the MTP layer */
	enum engine_kv_ram kv_ram;

	/* Where the routed experts are.
	 * - cache_bytes 0 on the CPU: they are used where the file is mapped, and the kernel's page
	 *   cache decides.
	 * - cache_bytes 0 on a card: all of them are copied to the card if they fit; else as with
	 *   ENGINE_CACHE_AUTO.
	 * - else they are streamed through a cache of that budget. A number is a promise: it is never
	 *   changed silently. Above what all experts need it is capped, and a line says so. */
	/* first tier of each card; ENGINE_CACHE_AUTO: most of what is left of the memory */
	uint64_t cache_bytes;
	/* second tier of all cards; 0: none; ENGINE_CACHE_AUTO: what the host has left, and none on the
	 * CPU */
	uint64_t ram_bytes;
	/* Experts of the second tier of a card may be computed by the processor, where that is faster
	 * than copying them (host_experts.h). One stage only; a line says why not. */
	bool cpu_experts;
	bool cpu_experts_slow; /* for tests: also where the processor is far slower than the link */
	const struct numa_nodes *nodes; /* borrowed, for tests: replace the host's NUMA nodes */
	struct copier *copier; /* borrowed, for tests: replaces the backend's; NULL: the backend's */
	const char *policy;    /* "lru", "lfu", "sieve"; NULL: lfu */
	/* layers ahead to prefetch; 0: off; ENGINE_LOOKAHEAD_AUTO: 1 if experts come to a card */
	int lookahead;
	struct reader_options reader;
	/* What is read is compared with the check values of the file, if it has any: experts when they
	 * are read, other tensors when they are loaded. */
	enum check_mode verify;
	/* Progress, while the resident weights are loaded. NULL: not wanted. */
	void (*loading)(void *user, uint64_t done_bytes, uint64_t total_bytes);
	void *loading_user;
	const char *trace; /* file to record routing, tiers and waits in; NULL: none */
	bool force;        /* replace files that this program did not write (out_file.h) */
	/* Profile or trace that seeds the cache; NULL: none. The profile of this run is added to a
	 * profile at close; a file that does not exist yet becomes one. A trace is not changed. */
	const char *warm;
	/* Folder of profiles that are kept from run to run (profile_store.h): with streaming, and
	 * without `warm`, the one of this model seeds the cache and takes in this run at close. A first
	 * start with GLM-5.2 is seeded from published use. Nothing fails because of it. NULL: none. */
	const char *profile_folder;
	/* For instruments: puts an expert source of the caller between the model and the engine's own
	 * source `inner`. NULL: none.
	 * - Called for each stage, in order, while the engine opens; c: of the whole model.
	 * - Refused with ranks.
	 * - On success *out owns `inner` and closes it when the engine closes *out. After an error the
	 *   engine closes `inner`.
	 * - Sources of different stages may be used by different threads at the same time. */
	int (*wrap_source)(void *user, const struct model_config *c, struct expert_source *inner,
		struct expert_source **out, struct err *e);
	void *wrap_user;
};

#define ENGINE_CACHE_AUTO     UINT64_MAX
#define ENGINE_LOOKAHEAD_AUTO (-1)
#define ENGINE_CARDS_AUTO     UINT32_MAX

/* Opens the model, decides and prints the memory plan (plan.h), loads. Errors: ERR_INPUT (a file),
 * ERR_MEMORY (the plan does not fit; the hint says what would), ERR_USAGE (an option), ERR_RUN (the
 * backend, a lost file, another rank), -errno. */
int engine_open(const struct engine_options *options, struct engine **out, struct err *e);

/* Writes the profile and the end of the trace, then releases everything. Returns what failed while
 * writing, also in *e (may be NULL). NULL is fine. All sessions must have been freed. */
int engine_close(struct engine *g, struct err *e);

/* Identifies the model for traces, profiles and session files: a hash over shape, tensor names,
 * types and offsets. */
uint64_t engine_fingerprint(const struct engine *g);
uint64_t engine_fingerprint_of(const struct gguf *file); /* the same without an engine */

const struct model_config *engine_config(const struct engine *g);
const struct tokenizer *engine_tokenizer(const struct engine *g);
const struct gguf *engine_gguf(const struct engine *g);
uint32_t engine_context(const struct engine *g); /* positions a session may hold */
/* Ids from here on are padding: not to be sampled. */
int32_t engine_n_valid(const struct engine *g);
bool engine_has_mtp(const struct engine *g); /* the draft layer is loaded */
/* One line for people: model, where its experts are, backend, context. */
void engine_summary(const struct engine *g, char *out, size_t size);
const char *engine_backend_name(const struct engine *g); /* "cpu", "cuda" */
uint32_t engine_n_ranks(const struct engine *g);         /* processes that compute; 1: this one */
/* A step waits for neither a device nor a drive: the processor time of the thread that calls is its
 * duration, and other programs do not change it. */
bool engine_only_computes(const struct engine *g);
const char *engine_io_name(const struct engine *g); /* "mmap", "uring", "threads" */
/* Turns counting of busy and idle time (struct backend_usage) on or off, in the backends of all
 * stages and ranks. Waits for the devices. */
void engine_measure(struct engine *g, bool on);

/* From the next step on the observer sees what goes into the model's matrices; NULL: no longer. The
 * struct is borrowed. model_observe (src/forward/observe.h) says what is not seen, and which bits
 * change. */
struct model_observer;
void engine_observe(struct engine *g, const struct model_observer *observer);

/* Cumulative work of the expert source since the engine was opened; subtract two snapshots for an
 * interval. */
struct expert_stats engine_expert_stats(const struct engine *g);

/* The expert cache at one moment. */
struct engine_cache {
	uint32_t n_layers, n_experts; /* of the map: trunk layers, then n_mtp MTP layers */
	uint32_t n_mtp;
	bool streaming; /* false: no cache, every expert is resident; what follows is 0 then, but for
					 * checked, reread and wrong of the figures */
	const char *policy;
	int lookahead;             /* layers */
	uint64_t tier_bytes[2];    /* memory taken for the two tiers */
	uint64_t everything_bytes; /* a first tier in which every expert fits */
	uint64_t expert_bytes;     /* the average expert, as it is cached */
	struct expert_stats stats; /* as engine_expert_stats, of this moment */
};
enum engine_residency {
	ENGINE_NO_EXPERT, /* the layer is dense, or an MTP layer that was not loaded */
	ENGINE_ON_DISK,
	ENGINE_IN_RAM,  /* the second tier */
	ENGINE_LOADING, /* its bytes are on their way into the first tier */
	ENGINE_IN_VRAM, /* the first tier */
};
/* Any thread. map: [n_layers][n_experts] of enum engine_residency; NULL: not wanted. */
void engine_cache_snapshot(const struct engine *g, struct engine_cache *c, uint8_t *map);

/* With streaming: loads these experts into free slots of the first tier and, when it is full, of
 * the second. Without streaming it does nothing.
 * - keys: [n] distinct, best first; n <= n_layers * n_experts of struct engine_cache. Ids that do
 *   not exist are ignored.
 * - Returns at once; the experts are loaded in the background.
 * - Call before the first step. */
struct profile_key;
void engine_cache_warm(struct engine *g, const struct profile_key *keys, size_t n);

/* Takes the KV caches and the workspace from the system now, instead of when a session first
 * becomes so long or a step so wide: for programs that run long. Call before the first step. No
 * effect on a card, which has done so. */
void engine_populate(struct engine *g);

/* What every token reads: bytes of resident weights touched by one decode step (embedding row and
 * MTP layer excluded) and bytes of the routed experts one token uses. */
struct engine_sizes {
	uint64_t resident_bytes;     /* all resident weights as loaded */
	uint64_t resident_per_token; /* of which one decode step reads */
	uint64_t experts_bytes;      /* all routed experts of trunk layers, in the file */
	uint64_t experts_per_token;  /* n_used of every MoE layer */
	uint64_t kv_bytes;           /* caches of all sessions, on the card ... */
	uint64_t kv_host_bytes;      /* ... and in host memory (kv_ram) */
	uint64_t workspace_bytes;
};
struct engine_sizes engine_sizes(const struct engine *g);

#define STAGES_MAX 64 /* stages of an engine, all ranks together, at most */

/* A stage: consecutive layers on one card, with an expert cache of their own. */
struct engine_stage {
	uint32_t first_layer, end_layer; /* trunk layers first .. end - 1 */
	bool has_mtp;                    /* and the MTP layer */
	uint32_t rank, card;             /* the card's number on the host of that rank */
};
uint32_t engine_n_stages(const struct engine *g); /* of all ranks */
/* Any thread, rank 0: stage i, in the order of the layers. */
struct engine_stage engine_stage(const struct engine *g, uint32_t i);

/* What a stage has done since the engine opened. */
struct engine_stage_usage {
	uint64_t steps; /* that did not fail */
	/* Of these steps: from the arrival of the stage's rows until its results are there. It includes
	 * waits for experts, and no waits for other stages. */
	uint64_t computing_ns;
	struct backend_usage device;
};
/* out [engine_n_stages], in the order of the layers. Entries of a lost rank are not written. Waits
 * until only last stages have work in flight. */
void engine_stages_usage(struct engine *g, struct engine_stage_usage *out);

/* How the stages worked while micro-batches were in flight (batch_begin), since the start. */
struct engine_overlap {
	uint32_t n_stages;      /* that may compute at the same time; 1: nothing is ever in flight */
	uint64_t micro_batches; /* ended */
	uint64_t flight_ns;     /* with at least one in flight */
	/* the stages' compute times, summed; divided by flight_ns: the mean number of stages that
	 * computed at once */
	uint64_t computing_ns;
	/* of flight_ns: k stages computed at once. With ranks [0] and [1] are of this rank alone */
	uint64_t at_once_ns[STAGES_MAX + 1];
};
void engine_overlap(struct engine *g, struct engine_overlap *out);

#endif
