/* SPDX-License-Identifier: MIT */
/*
 * The memory plan of a run, decided and printed before any memory is taken. On a card there are two
 * budgets:
 * - the card's: resident weights, KV caches, workspace, first tier, device staging buffers;
 * - the host's, all of it pinned: latents in host memory, second tier, host staging buffers.
 */
#ifndef GLM_ENGINE_PLAN_H
#define GLM_ENGINE_PLAN_H

#include "kernels/backend.h"
#include "src/engine/engine.h"
#include "src/model/kv_cache.h"
#include "src/model/weights.h"
#include "stream/loader/loader.h"

struct plan {
	uint32_t context, chunk, sessions;
	struct kv_cache_shape kv_shape;
	bool mtp;       /* as in kv_shape */
	bool on_card;   /* the backend cannot reach the mapped file */
	bool part;      /* as in struct plan_machine */
	bool streaming; /* experts come through a cache; else they are copied to the card or mapped */
	/* all in bytes */
	size_t available;      /* to the backend; 0: unknown */
	size_t host_available; /* on a card: to be pinned; 0: unknown */
	size_t host_reserve;   /* of which --ram-gb auto leaves so much free */
	size_t host_margin;    /* ... and a number of --ram-gb */
	size_t resident, kv, workspace;
	size_t kv_host;               /* on a card: latents in host memory, else 0 */
	size_t embed_row;             /* on a card: of the embedding, uploaded for a token; else 0 */
	size_t ram_copies;            /* --ram-gb auto: part of the second tier for inclusive copies */
	size_t scratch;               /* what ops take for themselves; on the CPU: fast prompts */
	size_t experts;               /* all experts when they are copied to the card, else 0 */
	size_t least;                 /* after a refusal, see plan_on_machine; else 0 */
	struct loader_options loader; /* final budgets; borrows from the engine's options */
	struct loader_plan tiers;     /* zeros without streaming */
};

/* The options of a loader of the experts of these layers, with the budgets of the options. It
 * borrows from all arguments. */
struct loader_options plan_loader_options(const struct model_config *c,
	const struct engine_options *o, const struct gguf *file, struct backend *b);

/* What --ram-gb auto leaves free of so many bytes of host memory. */
size_t plan_host_reserve(size_t host_available);

/* Free bytes of a card that is sold with so many GiB: driver and context take some. */
size_t plan_card_bytes(double sold_gib);
/* The sizes of cards, ascending, in GiB as they are sold, that a refusal names. */
#define PLAN_CARD_SIZES 12
extern const double plan_card_sizes[PLAN_CARD_SIZES];

/* What a plan is made of; all of it lent. */
struct plan_inputs {
	const struct model_config *config;
	const struct engine_options *options;
	const struct gguf *file;             /* its headers are read, no data */
	const struct model_weights *weights; /* bound ... */
	size_t resident;                     /* ... and so many bytes */
	struct backend *backend;             /* NULL for plan_for_machine alone */
};

/* Decides and logs. ERR_MEMORY when the machine has too little, with a hint what would fit, and the
 * size of card on which the plan would; ERR_USAGE for a context longer than the model's. */
int plan_make(const struct plan_inputs *in, struct plan *p, struct err *e);

/* Bytes that a card (on the CPU: the memory it computes in) and its host have free. */
struct plan_machine {
	size_t card_bytes, host_bytes;
	size_t host_reserve; /* of host_bytes, left free by --ram-gb auto; 0: plan_host_reserve of it */
	size_t host_margin;  /* ... by a number of --ram-gb; 0: HOST_RESERVE */
	bool part;           /* of a card, or for some of the layers: a refusal names no size of card */
};

/* plan_make with so much memory. Where it refuses because the card has too little, p->least is what
 * a card has to have free for the same options (with the smallest first tier, where the budget of
 * the options is below that). 0: no card of plan_card_sizes has so much. */
int plan_on_machine(const struct plan_inputs *in, const struct plan_machine *machine,
	struct plan *p, struct err *e);

/* The same; only warnings are logged. Sets the threshold of the log meanwhile (log.h). */
int plan_quietly(const struct plan_inputs *in, const struct plan_machine *machine, struct plan *p,
	struct err *e);

/* plan_quietly for a card that is only described; the errors are those of plan_make there.
 * p->loader.file and .backend are NULL. */
int plan_for_machine(const struct plan_inputs *in, const struct plan_machine *machine,
	struct plan *p, struct err *e);

/* Bytes of all experts of the first n_layers layers, as a card holds them. */
size_t plan_expert_bytes(const struct model_weights *w, uint32_t n_layers);

#endif
