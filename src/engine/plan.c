/* SPDX-License-Identifier: MIT */
/*
 * Order of the decisions:
 * 1. Do all experts fit on the card? Then nothing is streamed.
 * 2. The context, if no option says it, and with it the KV caches.
 * 3. The rest goes to the tiers of the expert cache.
 * A budget given as a number is a promise: it is taken as it is or refused.
 */
#include "src/engine/plan.h"

#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/forward/workspace.h"
#include "src/model/kv_cache.h"

#include <stdio.h>
#include <string.h>

#define CHUNK_MIN    512    /* rows of a prefill step when no option says it */
#define CHUNK_MAX    8192   /* on a card */
#define CHUNK_PART   32     /* 1 / the part of a free card that the workspace may take */
#define AUTO_CONTEXT 131072 /* the largest default context */
#define CONTEXT_STEP 1024
/* Without -c the KV caches take at most 1 / this part of the free memory. With streaming it is
 * memory that experts would have. */
#define AUTO_KV_PART        4
#define AUTO_KV_PART_STREAM 16
/* Left free on a card, for captured graphs, the driver and other programs. */
#define CARD_RESERVE ((size_t)1400000000)
/* Left free on the host: by --ram-gb auto (or a tenth, if that is more), by a number. */
#define HOST_RESERVE_AUTO ((size_t)8000000000)
#define HOST_RESERVE      ((size_t)1000000000)
/* scratch_bytes of a card that is not there: CUDA_SCRATCH_MOST of kernels/cuda. */
#define PLANNED_SCRATCH ((size_t)600000000)
/* A recipe for small cards keeps its matrices in about so many bytes a value (Q4_K and a little
 * Q8_0); its resident weights are estimated by that. */
#define SMALL_VALUE_BYTES 0.5914
/* iq2-t in about so many; it helps a file whose matrices are at least Q4_K. */
#define TINY_VALUE_BYTES 0.4326
#define TINY_FROM_BYTES  0.5
/* Free slots of the second tier beyond all experts, in units of the device staging buffers. A
 * promoted expert keeps its slot until the copy is complete, and the first tier keeps some slots
 * free: with a slot for exactly every expert some would be read again and again. */
#define RAM_SLACK 4
/* 1 / the part of the first tier that --ram-gb auto adds to the second for inclusive copies: a
 * demotion whose bytes are still there needs no copy. In a trace of GLM-5.2's shape with 12,329
 * slots in the first tier, 12, 26, 48 and 53 % of the demotions with 5, 10, 15 and 20 GB more. */
#define RAM_COPIES_PART 6

/* Bisection for the least memory of a card ends with so many bytes. */
#define LEAST_STEP ((size_t)100000)

const double plan_card_sizes[PLAN_CARD_SIZES] = {8, 12, 16, 24, 32, 48, 80, 96, 141, 192, 256, 288};

size_t plan_card_bytes(double sold_gib)
{
	return (size_t)(sold_gib * 1073741824.0 * 0.97);
}

static double gigabytes(size_t bytes)
{
	return (double)bytes / 1e9;
}

static size_t bytes_left(size_t a, size_t b)
{
	return a > b ? a - b : 0;
}

size_t plan_expert_bytes(const struct model_weights *w, uint32_t n_layers)
{
	size_t sum = 0;
	for (uint32_t l = 0; l < n_layers; l++) {
		const struct gguf_tensor *t[] = {w->experts[l].gate, w->experts[l].up, w->experts[l].down};
		for (size_t i = 0; i < ARRAY_LEN(t); i++)
			sum += t[i] ? num_align_up(t[i]->bytes, 256) : 0;
	}
	return sum;
}

size_t plan_host_reserve(size_t host_available)
{
	return MAX(HOST_RESERVE_AUTO, host_available / 10);
}

/* Of the caches of all sessions. On the CPU all memory is the backend's. */
static struct kv_cache_bytes kv_bytes(
	const struct model_config *c, const struct plan *p, uint32_t context)
{
	struct kv_cache_bytes kv = kv_cache_bytes(c, &p->kv_shape, context * p->sessions);
	if (!p->on_card) {
		kv.device += kv.host;
		kv.host = 0;
	}
	return kv;
}

/* The longest context whose caches fit in `budget`, in steps; at least one step. */
static uint32_t fitting_context(const struct model_config *c, const struct plan *p, size_t budget)
{
	uint32_t best = MIN(c->n_context, CONTEXT_STEP);
	const size_t host_budget =
		bytes_left(p->host_available, plan_host_reserve(p->host_available)) / AUTO_KV_PART;
	for (uint32_t n = best; n < MIN(c->n_context, AUTO_CONTEXT);) {
		n = MIN(MIN(n + CONTEXT_STEP, c->n_context), AUTO_CONTEXT);
		const struct kv_cache_bytes kv = kv_bytes(c, p, n);
		if (kv.device > budget || (p->host_available && kv.host > host_budget))
			break;
		best = n;
	}
	return best;
}

/* What this run may take of the backend's memory. */
static size_t usable_bytes(const struct plan *p)
{
	return bytes_left(p->available, p->scratch + (p->on_card ? CARD_RESERVE : 0));
}

/* An expert of a layer, without its data. */
static struct weight expert_of(const struct gguf_tensor *t)
{
	struct weight w = expert_shape(t->type, t->ne[0], t->ne[1], t->ne[2], gguf_values_bytes(t));
	w.scales = t->scales ? t->scales[0].data : NULL;
	return w;
}

/* The most that products of the layers computed here take for themselves in steps of `rows` rows.
 * The head has the inputs of other products, and is not of every row. */
static size_t prompt_scratch(
	const struct model_config *c, const struct model_weights *w, const struct backend *b, int rows)
{
	if (!b->ops->matmul_scratch)
		return 0;
	size_t most = w->eh_proj.n_in ? b->ops->matmul_scratch(b, &w->eh_proj, rows) : 0;
	for (uint32_t i = c->first_layer; i < config_all_end(c, true); i++) {
		const struct layer_weights *l = &w->layers[i];
		const struct weight *all[] = {&l->q_a, &l->q_b, &l->kv_a, &l->k_b, &l->v_b, &l->attn_out,
			&l->index_q, &l->index_k, &l->index_proj, &l->gate, &l->up, &l->down};
		for (size_t k = 0; k < ARRAY_LEN(all); k++)
			if (all[k]->n_in)
				most = MAX(most, b->ops->matmul_scratch(b, all[k], rows));
		const struct expert_tensors *t = &w->experts[i];
		if (!t->gate)
			continue;
		const struct expert_job shape = {
			.gate = expert_of(t->gate), .up = expert_of(t->up), .down = expert_of(t->down)};
		most = MAX(most, b->ops->expert_scratch(b, &shape, rows, (int)c->n_used));
	}
	return most;
}

static uint32_t mtp_sessions(const struct plan *p)
{
	return p->mtp ? p->sessions : 0;
}

/* On a card every step of a prompt streams the experts that are not resident: the longer the steps,
 * the fewer times. */
static uint32_t default_chunk(const struct model_config *c, const struct plan *p)
{
	uint32_t n = p->on_card ? CHUNK_MAX : CHUNK_MIN;
	while (n > CHUNK_MIN &&
		   workspace_bytes(c, mtp_sessions(p), p->embed_row, n) > p->available / CHUNK_PART)
		n /= 2;
	return n;
}

/* Context, chunk, KV caches and workspace. `taken`: bytes that experts take for certain. */
static int plan_context(const struct model_config *c, const struct engine_options *o,
	const struct model_weights *w, size_t taken, unsigned kv_part, struct plan *p, struct err *e)
{
	const struct backend *b = p->loader.backend;
	size_t fixed = p->resident + taken;
	uint32_t chunk = o->chunk ? o->chunk : default_chunk(c, p);
	if (!p->on_card) /* of the longest steps, until the context is known */
		p->scratch = prompt_scratch(c, w, b, (int)MIN(chunk, c->n_context));
	if (p->on_card)
		fixed += workspace_bytes(c, mtp_sessions(p), p->embed_row, chunk);
	size_t left = bytes_left(usable_bytes(p), p->on_card ? fixed : p->resident);
	size_t budget = MIN(bytes_left(p->available, p->resident) / kv_part, left);
	p->context = o->context ? o->context : fitting_context(c, p, p->available ? budget : SIZE_MAX);
	if ((uint64_t)p->context * p->sessions > INT32_MAX)
		return err_set(e, ERR_USAGE, "%u sessions of %u tokens are more than 2^31 cache rows",
			p->sessions, p->context);
	p->chunk = MIN(chunk, p->context);
	if (!p->on_card)
		p->scratch = prompt_scratch(c, w, b, (int)p->chunk);
	const struct kv_cache_bytes kv = kv_bytes(c, p, p->context);
	p->kv = kv.device;
	p->kv_host = kv.host;
	p->workspace = workspace_bytes(c, mtp_sessions(p), p->embed_row, p->chunk);
	return 0;
}

/* loader_plan with the first tier capped at what all experts need. verbose: a line says so. */
static int plan_tiers(struct plan *p, bool verbose, struct err *e)
{
	uint64_t requested = p->loader.tier_bytes[0];
	int rc = loader_plan(&p->loader, &p->tiers, e);
	if (rc || requested <= p->tiers.everything_bytes)
		return rc;
	p->loader.tier_bytes[0] = p->tiers.everything_bytes;
	rc = loader_plan(&p->loader, &p->tiers, e);
	if (!rc && verbose) /* now: the second plan may have changed everything_bytes a little */
		log_info("cache: %.4f GB asked for, all experts need %.4f GB: capped to that",
			(double)requested / 1e9, gigabytes(p->tiers.everything_bytes));
	return rc;
}

/* --cache-gb and --ram-gb with a number or auto, on the CPU: both tiers are the same memory, so
 * auto needs one only. */
static int stream_from_host(const struct model_config *c, const struct engine_options *o,
	const struct model_weights *w, struct plan *p, struct err *e)
{
	int rc = plan_context(c, o, w, 0, AUTO_KV_PART, p, e);
	if (rc)
		return rc;
	if (o->ram_bytes == ENGINE_CACHE_AUTO)
		p->loader.tier_bytes[1] = 0;
	size_t fixed = p->resident + p->kv + p->workspace + p->loader.tier_bytes[1];
	if (o->cache_bytes == ENGINE_CACHE_AUTO)
		p->loader.tier_bytes[0] = bytes_left(usable_bytes(p), fixed) / 10 * 9;
	return plan_tiers(p, o->cache_bytes != ENGINE_CACHE_AUTO, e);
}

/* GB in tenths, rounded up: what is printed is enough. */
static double tenths_up(size_t bytes)
{
	return (double)((bytes + 99999999) / 100000000) / 10;
}

/* ", a card of 16 GB" into out: the first of plan_card_sizes that has so much free; empty: none. */
static const char *print_card_size(size_t bytes, char *out, size_t size)
{
	out[0] = 0;
	for (size_t i = 0; i < PLAN_CARD_SIZES && !out[0]; i++)
		if (plan_card_bytes(plan_card_sizes[i]) >= bytes)
			snprintf(out, size, ", a card of %g GB", plan_card_sizes[i]);
	return out;
}

/* Hints at what would make room on the card: a shorter context, a file with smaller resident
 * weights, or both. `least`: bytes that experts and their staging buffers need at least. */
static void hint_smaller(const struct model_config *c, const struct plan *p,
	const struct model_weights *w, size_t least, struct err *e)
{
	const size_t fixed = p->workspace + least, usable = usable_bytes(p);
	const uint32_t shortest = MIN(p->context, CONTEXT_STEP);
	const size_t kv_least = kv_bytes(c, p, shortest).device;
	const struct weight *m =
		&w->layers[c->first_layer].attn_out; /* what type most resident matrices have */
	const double value_bytes = (double)m->row_bytes / (double)m->n_in;
	const bool can_shrink = value_bytes > SMALL_VALUE_BYTES;
	const size_t small =
		can_shrink ? (size_t)((double)p->resident * SMALL_VALUE_BYTES / value_bytes) : p->resident;
	const size_t tiny =
		(size_t)((double)p->resident * TINY_VALUE_BYTES / MAX(value_bytes, SMALL_VALUE_BYTES));
	const bool small_fits = can_shrink && small + fixed + p->kv <= usable;
	char weights[80];
	snprintf(weights, sizeof weights, "about %.1f GB of weights in place of %.1f", gigabytes(small),
		gigabytes(p->resident));
	if (p->context > CONTEXT_STEP && p->resident + fixed + kv_least <= usable) {
		uint32_t n = fitting_context(c, p, usable - p->resident - fixed);
		if (small_fits)
			err_hint(e, "-c %u would fit, or a file of --recipe iq2-s or q2-s (%s)", n, weights);
		else
			err_hint(e, "-c %u would fit", n);
	} else if (value_bytes > TINY_FROM_BYTES && small + fixed + kv_least > usable &&
			   tiny + fixed + kv_least <= usable) {
		err_hint(e,
			"a file of --recipe iq2-t (about %.1f GB of weights in place of %.1f) would fit with "
			"-c %u",
			gigabytes(tiny), gigabytes(p->resident),
			MIN(p->context, fitting_context(c, p, usable - tiny - fixed)));
	} else if (!can_shrink || small + fixed + kv_least > usable) {
		const size_t need = small + fixed + kv_least + CARD_RESERVE + p->scratch;
		char sold[40], how[80] = "";
		if (can_shrink)
			snprintf(how, sizeof how, " (with -c %u and --recipe iq2-s or q2-s)", shortest);
		else if (p->context > shortest)
			snprintf(how, sizeof how, " (with -c %u)", shortest);
		err_hint(e, "this model needs a card with more memory: at least %.1f GB free%s%s",
			tenths_up(need), print_card_size(need, sold, sizeof sold), how);
	} else if (small_fits) {
		err_hint(e, "a file of --recipe iq2-s or q2-s would fit: %s", weights);
	} else {
		err_hint(e, "a file of --recipe iq2-s or q2-s (%s) would fit with -c %u", weights,
			fitting_context(c, p, usable - small - fixed));
	}
}

/* --cache-gb and --ram-gb with a number or auto, on a card. */
static int stream_to_card(const struct model_config *c, const struct engine_options *o,
	const struct model_weights *w, struct plan *p, struct err *e)
{
	bool given = o->cache_bytes && o->cache_bytes != ENGINE_CACHE_AUTO;
	uint64_t ram = o->ram_bytes;
	/* first with unlimited tiers: what all experts need, and the staging buffers beside the tiers
	 */
	p->loader.tier_bytes[0] = given ? o->cache_bytes : (uint64_t)1 << 50;
	p->loader.tier_bytes[1] = ram == ENGINE_CACHE_AUTO ? (uint64_t)1 << 50 : ram;
	int rc = plan_tiers(p, given, e);
	if (rc)
		return rc;
	size_t staging = p->tiers.device_staging_bytes;
	if ((rc = plan_context(c, o, w, given ? p->tiers.tier_bytes[0] + staging : 0,
			 given ? AUTO_KV_PART : AUTO_KV_PART_STREAM, p, e)))
		return rc;
	size_t left = bytes_left(usable_bytes(p), p->resident + p->kv + p->workspace + staging);
	if (!given && left < p->tiers.floor_bytes) {
		rc = err_set(e, ERR_MEMORY,
			"%.2f GB of the card are free: %.2f for weights, %.2f for the caches of %u tokens, "
			"%.2f for workspace and %.2f left free leave %.2f for experts, at least %.2f are "
			"needed",
			gigabytes(p->available), gigabytes(p->resident), gigabytes(p->kv),
			p->context * p->sessions, gigabytes(p->workspace + staging),
			gigabytes(p->scratch + CARD_RESERVE), gigabytes(left), gigabytes(p->tiers.floor_bytes));
		hint_smaller(c, p, w, p->tiers.floor_bytes + staging, e);
		return rc;
	}
	if (!given)
		p->loader.tier_bytes[0] = MIN(left, p->tiers.everything_bytes);
	if (ram == ENGINE_CACHE_AUTO) {
		size_t reserve =
			plan_host_reserve(p->host_available) + p->tiers.host_staging_bytes + p->kv_host;
		p->loader.tier_bytes[1] = MIN(bytes_left(p->host_available, reserve),
			bytes_left(p->tiers.everything_bytes, p->loader.tier_bytes[0]));
		if (p->loader.tier_bytes[1]) {
			size_t wish = p->loader.tier_bytes[1] + RAM_SLACK * staging;
			p->loader.tier_bytes[1] = MIN(bytes_left(p->host_available, reserve),
				wish + p->loader.tier_bytes[0] / RAM_COPIES_PART);
			p->ram_copies = bytes_left(p->loader.tier_bytes[1], wish);
		}
	}
	return plan_tiers(p, false, e);
}

static void plan_log(const struct plan *p)
{
	const struct loader_plan *t = &p->tiers;
	char scratch[40] = "", reserve[40] = "";
	if (p->scratch)
		snprintf(scratch, sizeof scratch, ", %.3f GB scratch of ops", gigabytes(p->scratch));
	if (p->on_card)
		snprintf(reserve, sizeof reserve, ", %.1f of them left free", gigabytes(CARD_RESERVE));
	log_verbose("memory: %.3f GB resident weights, %.3f GB caches (%u tokens x %u, %s), %.3f GB "
				"workspace (%u rows)%s; %.1f GB available%s",
		gigabytes(p->resident), gigabytes(p->kv), p->context, p->sessions,
		p->kv_shape.latents_f8 ? "F8_E4M3" : dtype_name(p->kv_shape.type), gigabytes(p->workspace),
		p->chunk, scratch, gigabytes(p->available), reserve);
	if (p->kv_host)
		log_info("caches: %.2f GB on the card (index keys, and the rows that a layer reads), %.2f "
				 "GB of latents in pinned host memory",
			gigabytes(p->kv), gigabytes(p->kv_host));
	if (p->streaming)
		log_verbose(
			"experts: streamed through %.4f GB + %.4f GB%s (%d and %d of %d fit, prompts borrow "
			"up to %d; smallest %.4f GB, all %.4f GB), policy %s, lookahead %d",
			gigabytes(t->tier_bytes[0]), gigabytes(t->tier_bytes[1]),
			p->on_card ? " of pinned host memory" : "", t->n_fit[0], t->n_fit[1], t->n_experts,
			t->n_prefill_slots, gigabytes(t->floor_bytes), gigabytes(t->everything_bytes),
			p->loader.policy ? p->loader.policy : POLICY_DEFAULT, p->loader.lookahead);
	else if (p->on_card)
		log_verbose("experts: all copied to the card, %.4f GB", gigabytes(p->experts));
	else
		log_verbose("experts: used where the file is mapped");
	if (p->streaming && p->on_card)
		log_info("experts: %d of %d fit the card, %d host memory", t->n_fit[0], t->n_experts,
			t->n_fit[1]);
	if (p->streaming && t->on_card) {
		char stay[64] = "";
		if (p->ram_copies)
			snprintf(stay, sizeof stay, ", %.1f GB of the second tier for inclusive copies",
				gigabytes(p->ram_copies));
		log_verbose(
			"copies: %.3f GB of the card for demotions, %.3f GB of pinned buffers%s; the host "
			"has %.1f GB",
			gigabytes(t->device_staging_bytes), gigabytes(t->host_staging_bytes), stay,
			gigabytes(p->host_available));
	}
	if (p->streaming && p->on_card && !t->tier_bytes[1] && t->tier_bytes[0] < t->everything_bytes)
		log_info(
			"hint: --ram-gb auto keeps up to %.1f GB more of the experts in pinned host memory",
			gigabytes(MIN(bytes_left(p->host_available, plan_host_reserve(p->host_available)),
				t->everything_bytes - t->tier_bytes[0])));
}

static int plan_check_host(const struct plan *p, struct err *e)
{
	const struct loader_plan *t = &p->tiers;
	size_t pinned = t->tier_bytes[1] + t->host_staging_bytes + p->kv_host;
	size_t need = pinned + (t->tier_bytes[1] || p->kv_host ? HOST_RESERVE : 0);
	char latents[64] = "";
	if ((!t->on_card && !p->kv_host) || !p->host_available || need <= p->host_available)
		return 0;
	if (p->kv_host)
		snprintf(latents, sizeof latents, ", %.2f GB of latents of %u tokens",
			gigabytes(p->kv_host), p->context * p->sessions);
	err_set(e, ERR_MEMORY,
		"the plan pins %.2f GB of host memory (%.2f of them --ram-gb%s) beside %.0f GB for "
		"everything else, and %.2f GB are available",
		gigabytes(pinned), gigabytes(t->tier_bytes[1]), latents, gigabytes(HOST_RESERVE),
		gigabytes(p->host_available));
	size_t fits = bytes_left(p->host_available, t->host_staging_bytes + p->kv_host + HOST_RESERVE);
	if (t->tier_bytes[1] && fits)
		err_hint(e, "--ram-gb %.2f would fit", (double)(fits / 10000000) / 100);
	else if (p->kv_host)
		err_hint(e, "a smaller -c needs less");
	return e ? e->code : ERR_MEMORY;
}

static int plan_check(const struct model_config *c, const struct plan *p,
	const struct model_weights *w, const struct backend *b, struct err *e)
{
	const struct loader_plan *t = &p->tiers;
	size_t second = t->on_card ? t->device_staging_bytes : t->tier_bytes[1];
	size_t experts = t->tier_bytes[0] + second + p->experts, fixed = p->resident + p->workspace;
	size_t need = fixed + p->kv + experts;
	if (!p->available || need <= usable_bytes(p))
		return plan_check_host(p, e);
	char beside[64] = "";
	if (p->on_card)
		snprintf(beside, sizeof beside, " beside %.2f GB scratch and %.1f GB left free,",
			gigabytes(p->scratch), gigabytes(CARD_RESERVE));
	else if (p->scratch)
		snprintf(beside, sizeof beside, " beside %.2f GB scratch,", gigabytes(p->scratch));
	err_set(e, ERR_MEMORY,
		"the plan needs %.2f GB (%.2f weights, %.2f caches, %.2f workspace, %.2f experts)%s and %s "
		"has %.2f GB free",
		gigabytes(need), gigabytes(p->resident), gigabytes(p->kv), gigabytes(p->workspace),
		gigabytes(experts), beside, b->ops->name, gigabytes(p->available));
	size_t least = kv_bytes(c, p, CONTEXT_STEP).device;
	if (experts && fixed + p->kv + second + t->floor_bytes <= usable_bytes(p))
		err_hint(e, "--cache-gb %.2f would fit",
			(double)((usable_bytes(p) - fixed - p->kv - second) / 10000000) / 100);
	else if (!experts && fixed + least <= usable_bytes(p))
		err_hint(e, "-c %u would fit", fitting_context(c, p, usable_bytes(p) - fixed));
	else if (p->on_card)
		hint_smaller(c, p, w, experts ? second + t->floor_bytes : 0, e);
	return e ? e->code : ERR_MEMORY;
}

struct loader_options plan_loader_options(const struct model_config *c,
	const struct engine_options *o, const struct gguf *file, struct backend *b)
{
	return (struct loader_options){
		.file = file,
		.backend = b,
		.copier = o->copier,
		.n_layers = (int)(c->n_layers + c->n_mtp),
		.first_layer = (int)c->first_layer,
		.end_layer = (int)config_all_end(c, true),
		.n_used = (int)c->n_used,
		.tier_bytes = {o->cache_bytes, o->ram_bytes},
		.policy = o->policy,
		.lookahead = o->lookahead,
		.reader = o->reader,
		.check_mode = o->verify,
		.replicas = o->replicas,
		.n_replicas = o->n_replicas,
		.nodes = o->nodes,
	};
}

/* With the latents in one place. */
static int plan_place(const struct model_config *c, const struct engine_options *o,
	const struct gguf *file, const struct model_weights *w, size_t resident, struct backend *b,
	const struct plan_machine *machine, struct plan *p, struct err *e)
{
	uint32_t n_layers = c->n_layers + c->n_mtp;
	const bool on_card = b->ops->copier_open != NULL;
	const bool mtp = c->n_mtp && !o->no_mtp && config_has_end(c);
	*p = (struct plan){
		.sessions = o->sessions ? o->sessions : 1,
		.kv_shape = {.type = o->kv_f32 ? DTYPE_F32 : DTYPE_F16,
			.with_mtp = mtp,
			.latents_on_host = o->kv_ram == ENGINE_KV_RAM_ON,
			.latents_f8 = o->kv_f8},
		.mtp = mtp,
		.resident = resident,
		.embed_row = (o->copier || on_card) && (!c->first_layer || mtp) ? w->embed.row_bytes : 0,
		.available = machine->card_bytes,
		.on_card = on_card,
		.scratch = on_card ? b->scratch_bytes : 0,
		.streaming = o->cache_bytes != 0,
		.loader = plan_loader_options(c, o, file, b),
	};
	if (p->on_card)
		p->host_available = machine->host_bytes;
	if (o->context > c->n_context)
		return err_set(e, ERR_USAGE,
			"a context of %u tokens was asked for, the model was made for %u", o->context,
			c->n_context);
	if (o->kv_f8 && o->kv_f32)
		return err_set(e, ERR_USAGE, "latents of 8 bits and of float32 exclude each other");
	if (o->kv_f8 && c->kv_rank % CACHE_F8_BLOCK)
		return err_set(e, ERR_USAGE,
			"latents of %u values have no whole blocks of %d: they cannot be kept in 8 bits",
			c->kv_rank, CACHE_F8_BLOCK);
	int rc;
	if (p->on_card && !p->streaming) {
		p->experts = plan_expert_bytes(w, n_layers);
		if ((rc = plan_context(c, o, w, p->experts, AUTO_KV_PART, p, e)))
			return rc;
		size_t need = resident + p->kv + p->workspace + p->experts;
		if (p->available && need > usable_bytes(p)) {
			log_verbose("experts: all of them take %.2f GB, and %.2f GB of the card are left: "
						"streamed, as with --cache-gb auto",
				gigabytes(p->experts), gigabytes(bytes_left(usable_bytes(p), need - p->experts)));
			p->experts = 0;
			p->streaming = true;
		}
	}
	if (!p->streaming)
		rc = p->on_card ? 0 : plan_context(c, o, w, 0, AUTO_KV_PART, p, e);
	else
		rc = p->on_card ? stream_to_card(c, o, w, p, e) : stream_from_host(c, o, w, p, e);
	if (rc)
		return rc;
	if (p->loader.lookahead == ENGINE_LOOKAHEAD_AUTO)
		p->loader.lookahead = p->streaming && p->on_card;
	if (p->streaming && o->ram_bytes != ENGINE_CACHE_AUTO &&
		o->ram_bytes > p->tiers.everything_bytes)
		log_info("second tier: %.4f GB asked for, all experts need %.4f GB: capped to that",
			gigabytes(o->ram_bytes), gigabytes(p->tiers.everything_bytes));
	plan_log(p);
	return plan_check(c, p, w, b, e);
}

/* Without hints at other cards. A context that is longer than any default and does not fit the card
 * is tried with latents in host memory; if that fails too, the error is that of the card. */
static int plan_once(const struct model_config *c, const struct engine_options *o,
	const struct gguf *file, const struct model_weights *w, size_t resident, struct backend *b,
	const struct plan_machine *machine, struct plan *p, struct err *e)
{
	struct engine_options other = *o;
	struct plan q;
	const bool is_long = (uint64_t)o->context * MAX(o->sessions, 1) > AUTO_CONTEXT;
	if (o->kv_ram != ENGINE_KV_RAM_AUTO || !is_long || !b->ops->copier_open)
		return plan_place(c, o, file, w, resident, b, machine, p, e);
	const enum log_level level = log_level();
	log_set_level(LOG_QUIET);
	if (plan_place(c, o, file, w, resident, b, machine, &q, NULL) == ERR_MEMORY) {
		other.kv_ram = ENGINE_KV_RAM_ON;
		if (plan_place(c, &other, file, w, resident, b, machine, &q, NULL))
			other.kv_ram = ENGINE_KV_RAM_AUTO;
	}
	log_set_level(level);
	return plan_place(c, &other, file, w, resident, b, machine, p, e);
}

/* What plan_on_machine gets, to plan again with another card. */
struct plan_request {
	const struct model_config *config;
	struct engine_options options;
	const struct gguf *file;
	const struct model_weights *weights;
	size_t resident;
	struct backend *backend;
	size_t host_bytes;
};

static bool fits_card(const struct plan_request *r, size_t card_bytes)
{
	const struct plan_machine m = {.card_bytes = card_bytes, .host_bytes = r->host_bytes};
	struct plan p;
	struct err e = {0};
	return !plan_once(
		r->config, &r->options, r->file, r->weights, r->resident, r->backend, &m, &p, &e);
}

/* The least free bytes of a card on which this fits, where so many are too few, and *size: the
 * first of plan_card_sizes that has them. 0: none has. */
static size_t find_least_card(const struct plan_request *r, size_t too_few, double *size)
{
	size_t fits = 0;
	for (size_t i = 0; i < PLAN_CARD_SIZES && !fits; i++) {
		const size_t bytes = plan_card_bytes(*size = plan_card_sizes[i]);
		if (bytes <= too_few)
			continue;
		if (fits_card(r, bytes))
			fits = bytes;
		else
			too_few = bytes;
	}
	while (fits && fits - too_few > LEAST_STEP) {
		const size_t middle = too_few + (fits - too_few) / 2;
		if (fits_card(r, middle))
			fits = middle;
		else
			too_few = middle;
	}
	return fits;
}

/* Adds to the hint of a refusal on which card the options as they are would fit. A first tier that
 * is too small for any card is taken as auto. Returns what that card has to have free. */
static size_t hint_card(struct plan_request *r, size_t available, struct err *e)
{
	char before[ERR_HINT_MAX];
	double size = 0;
	const char *what = "the options as they are need";
	const size_t host_bytes = r->host_bytes;
	r->host_bytes = 0; /* unknown: only the card can be too small */
	if (fits_card(r, available))
		return 0;
	r->host_bytes = host_bytes;
	size_t least = find_least_card(r, available, &size);
	if (!least && r->options.cache_bytes && r->options.cache_bytes != ENGINE_CACHE_AUTO) {
		r->options.cache_bytes = ENGINE_CACHE_AUTO;
		if (fits_card(r, available)) {
			err_hint(e, "--cache-gb auto would fit");
			return 0;
		}
		what = "with the smallest cache the model needs";
		least = find_least_card(r, available, &size);
	}
	if (!least)
		return 0;
	char need[60];
	snprintf(need, sizeof need, "%.1f GB free, a card of %g GB", tenths_up(least), size);
	snprintf(before, sizeof before, "%s", e->hint);
	if (!strstr(before, need)) /* hint_smaller may have said it */
		err_hint(e, "%s%s%s %s", before, before[0] ? "; " : "", what, need);
	return least;
}

int plan_on_machine(const struct model_config *c, const struct engine_options *o,
	const struct gguf *file, const struct model_weights *w, size_t resident, struct backend *b,
	const struct plan_machine *machine, struct plan *p, struct err *e)
{
	int rc = plan_once(c, o, file, w, resident, b, machine, p, e);
	if (rc != ERR_MEMORY || !e || !p->on_card || machine->part || !machine->card_bytes)
		return rc;
	struct plan_request r = {c, *o, file, w, resident, b, machine->host_bytes};
	const enum log_level level = log_level();
	log_set_level(LOG_QUIET);
	p->least = hint_card(&r, machine->card_bytes, e);
	log_set_level(level);
	return rc;
}

int plan_make(const struct model_config *c, const struct engine_options *o, const struct gguf *file,
	const struct model_weights *w, size_t resident, struct backend *b, struct plan *p,
	struct err *e)
{
	const struct plan_machine here = {
		.card_bytes = b->ops->free_bytes(b), .host_bytes = mem_available_bytes()};
	return plan_on_machine(c, o, file, w, resident, b, &here, p, e);
}

/* Planning takes a backend with copier_open for a card. */
static int planned_copier_open(struct backend *b, struct copier **out, struct err *e)
{
	(void)b;
	*out = NULL;
	return err_set(e, ERR_RUN, "a planned card copies nothing");
}

int plan_for_machine(const struct model_config *c, const struct engine_options *o,
	const struct gguf *file, const struct model_weights *w, size_t resident,
	const struct plan_machine *machine, struct plan *p, struct err *e)
{
	static const struct backend_ops ops = {.name = "the card", .copier_open = planned_copier_open};
	struct backend card = {.ops = &ops, .scratch_bytes = PLANNED_SCRATCH};
	int rc = plan_on_machine(c, o, file, w, resident, &card, machine, p, e);
	p->loader.file = NULL;
	p->loader.backend = NULL;
	return rc;
}
