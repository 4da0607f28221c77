/* SPDX-License-Identifier: MIT */
/* Sorts tensors by name (specification section 4.3). Sums cannot overflow: the reader has checked
 * that all tensors lie inside files. */
#include "tools/trace/model_sizes.h"

#include "src/base/mem.h"
#include "src/base/num.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
	const char *name, *key;
} class_names[CLASS_LIMIT] = {
	[CLASS_EMBEDDING] = {"token embedding", "embedding"},
	[CLASS_HEAD] = {"output head", "head"},
	[CLASS_NORM] = {"norms", "norms"},
	[CLASS_ATTENTION] = {"attention", "attention"},
	[CLASS_INDEXER] = {"indexers", "indexers"},
	[CLASS_ROUTER] = {"routers", "routers"},
	[CLASS_DENSE] = {"dense networks", "dense"},
	[CLASS_SHARED] = {"shared experts", "shared_experts"},
	[CLASS_MTP] = {"MTP layer, resident", "mtp"},
	[CLASS_EXPERTS] = {"routed experts", "experts"},
	[CLASS_MTP_EXPERTS] = {"MTP routed experts", "mtp_experts"},
	[CLASS_UNUSED] = {"not used", "unused"},
};

const char *tensor_class_name(enum tensor_class c)
{
	return class_names[c].name;
}

const char *tensor_class_key(enum tensor_class c)
{
	return class_names[c].key;
}

static bool begins(const char *s, const char *with)
{
	return !strncmp(s, with, strlen(with));
}

/* The layer of "blk.N.rest" and where rest begins; false for other names. */
static bool split_name(const char *name, uint32_t *layer, const char **rest)
{
	if (!begins(name, "blk."))
		return false;
	char *end;
	unsigned long n = strtoul(name + 4, &end, 10);
	if (end == name + 4 || *end != '.' || n >= CONFIG_MAX_LAYERS)
		return false;
	*layer = (uint32_t)n;
	*rest = end + 1;
	return true;
}

static bool is_expert(const char *rest)
{
	return begins(rest, "ffn_gate_exps.") || begins(rest, "ffn_up_exps.") ||
		   begins(rest, "ffn_down_exps.");
}

enum tensor_class tensor_classify(const struct model_config *c, const char *name)
{
	uint32_t layer;
	const char *rest;
	if (begins(name, "token_embd."))
		return CLASS_EMBEDDING;
	if (begins(name, "output_norm."))
		return CLASS_NORM;
	if (begins(name, "output."))
		return CLASS_HEAD;
	if (!split_name(name, &layer, &rest) || layer >= c->n_layers + c->n_mtp)
		return CLASS_UNUSED;
	if (layer >= c->n_layers)
		return is_expert(rest) ? CLASS_MTP_EXPERTS : CLASS_MTP;
	if (is_expert(rest))
		return config_is_moe(c, layer) ? CLASS_EXPERTS : CLASS_UNUSED;
	if (begins(rest, "indexer."))
		return c->index_full[layer] ? CLASS_INDEXER : CLASS_UNUSED;
	if (begins(rest, "attn_") && !strstr(rest, "_norm."))
		return CLASS_ATTENTION;
	if (strstr(rest, "_norm."))
		return CLASS_NORM;
	if (begins(rest, "ffn_gate_inp.") || begins(rest, "exp_probs_b."))
		return CLASS_ROUTER;
	if (strstr(rest, "_shexp."))
		return CLASS_SHARED;
	if (begins(rest, "ffn_gate.") || begins(rest, "ffn_up.") || begins(rest, "ffn_down."))
		return CLASS_DENSE;
	return CLASS_UNUSED;
}

void model_sizes_count(
	const struct gguf *file, const struct model_config *c, struct model_sizes *out)
{
	*out = (struct model_sizes){0};
	uint64_t *layer_bytes = NEW_ARRAY(uint64_t, c->n_layers);
	uint64_t embedding_row = 0;
	for (size_t i = 0; i < file->n_tensors; i++) {
		const struct gguf_tensor *t = &file->tensors[i];
		enum tensor_class class = tensor_classify(c, t->name);
		struct class_sizes *s = &out->classes[class];
		s->tensors++;
		s->bytes += t->bytes;
		s->type_tensors[t->type]++;
		s->type_bytes[t->type] += t->bytes;
		uint32_t layer;
		const char *rest;
		if (class == CLASS_EXPERTS && split_name(t->name, &layer, &rest))
			layer_bytes[layer] += t->bytes;
		uint64_t values = t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3];
		if (class == CLASS_EXPERTS)
			out->macs_per_token += values / c->n_experts * c->n_used;
		else if (class < CLASS_MTP && class != CLASS_EMBEDDING && class != CLASS_HEAD &&
				 class != CLASS_NORM)
			out->macs_per_token += values;
		if (class == CLASS_EMBEDDING && t->ne[1])
			embedding_row = t->bytes / t->ne[1];
	}
	for (int i = 0; i < CLASS_MTP; i++)
		out->resident_bytes += i == CLASS_EMBEDDING ? 0 : out->classes[i].bytes;
	out->mtp_bytes = out->classes[CLASS_MTP].bytes;
	out->experts_bytes = out->classes[CLASS_EXPERTS].bytes;
	out->n_experts = (uint64_t)config_n_moe(c) * c->n_experts;
	for (uint32_t l = c->n_dense; l < c->n_layers; l++) {
		uint64_t expert = layer_bytes[l] / c->n_experts;
		bool first = l == c->n_dense;
		out->layer_min = first ? layer_bytes[l] : MIN(out->layer_min, layer_bytes[l]);
		out->layer_max = MAX(out->layer_max, layer_bytes[l]);
		out->expert_min = first ? expert : MIN(out->expert_min, expert);
		out->expert_max = MAX(out->expert_max, expert);
		out->working_set += expert * c->n_used;
	}
	out->weights_per_token = out->resident_bytes + embedding_row + out->working_set;
	uint32_t n_full = 0;
	for (uint32_t l = 0; l < c->n_layers; l++)
		n_full += c->index_full[l];
	out->kv_per_token =
		2 * ((uint64_t)c->n_layers * config_cache_width(c) + (uint64_t)n_full * c->index_dim);
	out->kv_mtp_per_token = 2 * (uint64_t)c->n_mtp * (config_cache_width(c) + c->index_dim);
	free(layer_bytes);
}
