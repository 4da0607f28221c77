/* SPDX-License-Identifier: MIT */
/*
 * Order of the decisions:
 * 1. Do all experts fit on the card? Then nothing is streamed.
 * 2. The context, if no option says it, and with it the KV caches.
 * 3. The rest goes to the tiers of the expert cache.
 * A budget given as a number is a promise: it is taken as it is or refused.
 */
#include "src/engine/plan_internal.h"

#include "src/base/host/memory_left.h"
#include "src/base/log.h"
#include "src/base/num.h"
#include "src/forward/workspace.h"
#include "src/model/kv_cache.h"

#include <stdio.h>
#include <string.h>

#define CHUNK_MIN    512    /* rows of a prefill step when no option says it */
#define CHUNK_MAX    8192   /* on a card */
#define CHUNK_PART   32     /* 1 / the part of a free card that the workspace may take */
#define AUTO_CONTEXT 131072 /* the largest default context */
/* Without -c the KV caches take at most 1 / this part of the free memory. With streaming it is
 * memory that experts would have. */
#define AUTO_KV_PART        4
#define AUTO_KV_PART_STREAM 16
/* Left free on the host by --ram-gb auto (or a tenth, if that is more). */
#define HOST_RESERVE_AUTO ((size_t)8000000000)
/* scratch_bytes of a card that is not there: CUDA_SCRATCH_MOST of kernels/cuda. */
#define PLANNED_SCRATCH ((size_t)600000000)
/* Free slots of the second tier beyond all experts, in units of the device staging buffers. A
 * promoted expert keeps its slot until the copy is complete, and the first tier keeps some slots
 * free: with a slot for exactly every expert some would be read again and again. */
#define RAM_SLACK 4
/* 1 / the part of the first tier that --ram-gb auto adds to the second for inclusive copies: a
 * demotion whose bytes are still there needs no copy. In a trace of GLM-5.2's shape with 12,329
 * slots in the first tier, 12, 26, 48 and 53 % of the demotions with 5, 10, 15 and 20 GB more. */
#define RAM_COPIES_PART 6

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

struct kv_cache_bytes plan_kv_bytes(
	const struct model_config *c, const struct plan *p, uint32_t context)
{
	struct kv_cache_bytes kv = kv_cache_bytes(c, &p->kv_shape, context * p->sessions);
	if (!p->on_card) {
		kv.device += kv.host;
		kv.host = 0;
	}
	return kv;
}

uint32_t plan_fitting_context(const struct model_config *c, const struct plan *p, size_t budget)
{
	uint32_t best = MIN(c->n_context, CONTEXT_STEP);
	const size_t host_budget = bytes_left(p->host_available, p->host_reserve) / AUTO_KV_PART;
	for (uint32_t n = best; n < MIN(c->n_context, AUTO_CONTEXT);) {
		n = MIN(MIN(n + CONTEXT_STEP, c->n_context), AUTO_CONTEXT);
		const struct kv_cache_bytes kv = plan_kv_bytes(c, p, n);
		if (kv.device > budget || (p->host_available && kv.host > host_budget))
			break;
		best = n;
	}
	return best;
}

size_t plan_usable_bytes(const struct plan *p)
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
static size_t prompt_scratch(const struct plan_inputs *in, int rows)
{
	const struct model_config *c = in->config;
	const struct model_weights *w = in->weights;
	const struct backend *b = in->backend;
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
static int plan_context(
	const struct plan_inputs *in, size_t taken, unsigned kv_part, struct plan *p, struct err *e)
{
	const struct model_config *c = in->config;
	const struct engine_options *o = in->options;
	size_t fixed = p->resident + taken;
	uint32_t chunk = o->chunk ? o->chunk : default_chunk(c, p);
	if (!p->on_card) /* of the longest steps, until the context is known */
		p->scratch = prompt_scratch(in, (int)MIN(chunk, c->n_context));
	if (p->on_card)
		fixed += workspace_bytes(c, mtp_sessions(p), p->embed_row, chunk);
	size_t left = bytes_left(plan_usable_bytes(p), p->on_card ? fixed : p->resident);
	size_t budget = MIN(bytes_left(p->available, p->resident) / kv_part, left);
	p->context =
		o->context ? o->context : plan_fitting_context(c, p, p->available ? budget : SIZE_MAX);
	if ((uint64_t)p->context * p->sessions > INT32_MAX)
		return err_set(e, ERR_USAGE, "%u sessions of %u tokens are more than 2^31 cache rows",
			p->sessions, p->context);
	p->chunk = MIN(chunk, p->context);
	if (!p->on_card)
		p->scratch = prompt_scratch(in, (int)p->chunk);
	const struct kv_cache_bytes kv = plan_kv_bytes(c, p, p->context);
	p->kv = kv.device;
	p->kv_host = kv.host;
	p->workspace = workspace_bytes(c, mtp_sessions(p), p->embed_row, p->chunk);
	return 0;
}

/* Stages share a budget: what one of them has is not what an option says. */
static void log_capped(const struct plan *p, const char *tier, const char *option, uint64_t bytes)
{
	const double need = gigabytes(p->tiers.everything_bytes);
	if (p->part)
		log_info("%s: %.4f GB of %s for this stage, all its experts need %.4f GB: capped to that",
			tier, gigabytes(bytes), option, need);
	else
		log_info("%s: %.4f GB asked for, all experts need %.4f GB: capped to that", tier,
			gigabytes(bytes), need);
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
		log_capped(p, "cache", "--cache-gb", requested);
	return rc;
}

/* --cache-gb and --ram-gb with a number or auto, on the CPU: both tiers are the same memory, so
 * auto needs one only. */
static int stream_from_host(const struct plan_inputs *in, struct plan *p, struct err *e)
{
	const struct engine_options *o = in->options;
	int rc = plan_context(in, 0, AUTO_KV_PART, p, e);
	if (rc)
		return rc;
	if (o->ram_bytes == ENGINE_CACHE_AUTO)
		p->loader.tier_bytes[1] = 0;
	size_t fixed = p->resident + p->kv + p->workspace + p->loader.tier_bytes[1];
	if (o->cache_bytes == ENGINE_CACHE_AUTO)
		p->loader.tier_bytes[0] = bytes_left(plan_usable_bytes(p), fixed) / 10 * 9;
	return plan_tiers(p, o->cache_bytes != ENGINE_CACHE_AUTO, e);
}

/* --ram-gb auto: what is left of the host, up to all experts that the first tier has not, with
 * slack and room for inclusive copies. */
static void size_second_tier(struct plan *p)
{
	uint64_t *const tier = p->loader.tier_bytes;
	const size_t reserve = p->host_reserve + p->tiers.host_staging_bytes + p->kv_host;
	const size_t room = bytes_left(p->host_available, reserve);
	tier[1] = MIN(room, bytes_left(p->tiers.everything_bytes, tier[0]));
	if (!tier[1])
		return;
	const size_t wish = tier[1] + RAM_SLACK * p->tiers.device_staging_bytes;
	tier[1] = MIN(room, wish + tier[0] / RAM_COPIES_PART);
	p->ram_copies = bytes_left(tier[1], wish);
}

/* --cache-gb and --ram-gb with a number or auto, on a card. */
static int stream_to_card(const struct plan_inputs *in, struct plan *p, struct err *e)
{
	const struct engine_options *o = in->options;
	const bool given = o->cache_bytes && o->cache_bytes != ENGINE_CACHE_AUTO;
	const uint64_t ram = o->ram_bytes, unlimited = (uint64_t)1 << 50;
	/* first with unlimited tiers: what all experts need, and the staging buffers beside the tiers
	 */
	p->loader.tier_bytes[0] = given ? o->cache_bytes : unlimited;
	p->loader.tier_bytes[1] = ram == ENGINE_CACHE_AUTO ? unlimited : ram;
	int rc = plan_tiers(p, given, e);
	if (rc)
		return rc;
	const size_t staging = p->tiers.device_staging_bytes;
	if ((rc = plan_context(in, given ? p->tiers.tier_bytes[0] + staging : 0,
			 given ? AUTO_KV_PART : AUTO_KV_PART_STREAM, p, e)))
		return rc;
	const size_t left =
		bytes_left(plan_usable_bytes(p), p->resident + p->kv + p->workspace + staging);
	if (!given && left < p->tiers.floor_bytes)
		return plan_refuse_first_tier(in, p, left, e);
	if (!given)
		p->loader.tier_bytes[0] = MIN(left, p->tiers.everything_bytes);
	if (ram == ENGINE_CACHE_AUTO)
		size_second_tier(p);
	return plan_tiers(p, false, e);
}

static void log_plan_memory(const struct plan *p)
{
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
}

static void log_plan_experts(const struct plan *p)
{
	const struct loader_plan *t = &p->tiers;
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
			gigabytes(MIN(bytes_left(p->host_available, p->host_reserve),
				t->everything_bytes - t->tier_bytes[0])));
}

static void plan_log(const struct plan *p)
{
	log_plan_memory(p);
	log_plan_experts(p);
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

/* What the inputs say, before anything is decided. */
static struct plan plan_begin(const struct plan_inputs *in, const struct plan_machine *machine)
{
	const struct model_config *c = in->config;
	const struct engine_options *o = in->options;
	struct backend *b = in->backend;
	const bool on_card = b->ops->copier_open != NULL;
	const bool mtp = c->n_mtp && !o->no_mtp && config_has_end(c);
	const bool uploads_rows = (o->copier || on_card) && (!c->first_layer || mtp);
	return (struct plan){
		.sessions = o->sessions ? o->sessions : 1,
		.kv_shape = {.type = o->kv_f32 ? DTYPE_F32 : DTYPE_F16,
			.with_mtp = mtp,
			.latents_on_host = o->kv_ram == ENGINE_KV_RAM_ON,
			.latents_f8 = o->kv_f8},
		.mtp = mtp,
		.resident = in->resident,
		.embed_row = uploads_rows ? in->weights->embed.row_bytes : 0,
		.available = machine->card_bytes,
		.host_available = on_card ? machine->host_bytes : 0,
		.host_reserve =
			machine->host_reserve ? machine->host_reserve : plan_host_reserve(machine->host_bytes),
		.host_margin = machine->host_margin ? machine->host_margin : HOST_RESERVE,
		.on_card = on_card,
		.part = machine->part,
		.scratch = on_card ? b->scratch_bytes : 0,
		.streaming = o->cache_bytes != 0,
		.loader = plan_loader_options(c, o, in->file, b),
	};
}

/* What no machine could do. */
static int check_plan_options(
	const struct model_config *c, const struct engine_options *o, struct err *e)
{
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
	return 0;
}

/* All experts on the card if they fit; else p->streaming is set. */
static int try_without_streaming(const struct plan_inputs *in, struct plan *p, struct err *e)
{
	const struct model_config *c = in->config;
	p->experts = plan_expert_bytes(in->weights, c->n_layers + c->n_mtp);
	int rc = plan_context(in, p->experts, AUTO_KV_PART, p, e);
	if (rc)
		return rc;
	const size_t need = p->resident + p->kv + p->workspace + p->experts;
	if (!p->available || need <= plan_usable_bytes(p))
		return 0;
	log_verbose("experts: all of them take %.2f GB, and %.2f GB of the card are left: "
				"streamed, as with --cache-gb auto",
		gigabytes(p->experts), gigabytes(bytes_left(plan_usable_bytes(p), need - p->experts)));
	p->experts = 0;
	p->streaming = true;
	return 0;
}

/* With the latents in one place. */
static int plan_place(
	const struct plan_inputs *in, const struct plan_machine *machine, struct plan *p, struct err *e)
{
	const struct engine_options *o = in->options;
	*p = plan_begin(in, machine);
	int rc = check_plan_options(in->config, o, e);
	if (!rc && p->on_card && !p->streaming)
		rc = try_without_streaming(in, p, e);
	if (!rc && p->streaming)
		rc = p->on_card ? stream_to_card(in, p, e) : stream_from_host(in, p, e);
	else if (!rc && !p->on_card)
		rc = plan_context(in, 0, AUTO_KV_PART, p, e);
	if (rc)
		return rc;
	if (p->loader.lookahead == ENGINE_LOOKAHEAD_AUTO)
		p->loader.lookahead = p->streaming && p->on_card;
	if (p->streaming && o->ram_bytes != ENGINE_CACHE_AUTO &&
		o->ram_bytes > p->tiers.everything_bytes)
		log_capped(p, "second tier", "--ram-gb", o->ram_bytes);
	plan_log(p);
	return plan_check(in, p, e);
}

/* A context that is longer than any default and does not fit the card is tried with latents in host
 * memory; if that fails too, the error is that of the card. */
int plan_once(
	const struct plan_inputs *in, const struct plan_machine *machine, struct plan *p, struct err *e)
{
	const struct engine_options *o = in->options;
	struct engine_options on_host = *o;
	struct plan_inputs other = *in;
	struct plan q;
	const bool is_long = (uint64_t)o->context * MAX(o->sessions, 1) > AUTO_CONTEXT;
	if (o->kv_ram != ENGINE_KV_RAM_AUTO || !is_long || !in->backend->ops->copier_open)
		return plan_place(in, machine, p, e);
	on_host.kv_ram = ENGINE_KV_RAM_ON;
	other.options = &on_host;
	const enum log_level before = log_lower(LOG_WARN);
	const bool fits_on_host =
		plan_place(in, machine, &q, NULL) == ERR_MEMORY && !plan_place(&other, machine, &q, NULL);
	log_set_level(before);
	return plan_place(fits_on_host ? &other : in, machine, p, e);
}

int plan_on_machine(
	const struct plan_inputs *in, const struct plan_machine *machine, struct plan *p, struct err *e)
{
	int rc = plan_once(in, machine, p, e);
	if (rc != ERR_MEMORY || !e || !p->on_card || machine->part || !machine->card_bytes)
		return rc;
	const enum log_level before = log_lower(LOG_WARN);
	p->least = plan_hint_card(in, machine, e);
	log_set_level(before);
	return rc;
}

int plan_quietly(
	const struct plan_inputs *in, const struct plan_machine *machine, struct plan *p, struct err *e)
{
	const enum log_level before = log_lower(LOG_WARN);
	int rc = plan_on_machine(in, machine, p, e);
	log_set_level(before);
	return rc;
}

int plan_make(const struct plan_inputs *in, struct plan *p, struct err *e)
{
	const struct plan_machine here = {
		.card_bytes = in->backend->ops->free_bytes(in->backend), .host_bytes = memory_left()};
	return plan_on_machine(in, &here, p, e);
}

/* Planning takes a backend with copier_open for a card. */
static int planned_copier_open(struct backend *b, struct copier **out, struct err *e)
{
	(void)b;
	*out = NULL;
	return err_set(e, ERR_RUN, "a planned card copies nothing");
}

int plan_for_machine(
	const struct plan_inputs *in, const struct plan_machine *machine, struct plan *p, struct err *e)
{
	static const struct backend_ops ops = {.name = "the card", .copier_open = planned_copier_open};
	struct backend card = {.ops = &ops, .scratch_bytes = PLANNED_SCRATCH};
	struct plan_inputs on_card = *in;
	on_card.backend = &card;
	int rc = plan_quietly(&on_card, machine, p, e);
	p->loader.file = NULL;
	p->loader.backend = NULL;
	return rc;
}
