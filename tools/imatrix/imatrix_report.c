/* SPDX-License-Identifier: MIT */
#include "tools/imatrix/imatrix_report.h"

#include "src/format/gguf.h"
#include "tools/imatrix/imatrix_file.h"
#include "tools/output/json_out.h"

#include <inttypes.h>
#include <stdio.h>

#define NAMED_IN_LAYER 8 /* experts; of the others the number is said */

/* Experts of all layers; gate stands for up and down, which saw the same tokens. */
struct expert_use_counts {
	uint64_t n, n_rare;
	float fewest;
	uint32_t layer, expert; /* that had the fewest */
};

/* The layer of a tensor with a count for each expert. */
static bool is_gate(const struct imatrix_tensor *t, uint32_t *layer)
{
	enum gguf_expert_part part;
	return t->n_counts > 1 && gguf_expert_name(t->name, layer, &part) && part == GGUF_EXPERT_GATE;
}

static struct expert_use_counts count_experts(const struct imatrix_set *s, uint32_t rare)
{
	struct expert_use_counts u = {0};
	uint32_t layer;
	for (size_t i = 0; i < s->n; i++) {
		const struct imatrix_tensor *t = &s->tensors[i];
		for (uint64_t x = 0; is_gate(t, &layer) && x < t->n_counts; x++) {
			if (!u.n++ || t->counts[x] < u.fewest) {
				u.fewest = t->counts[x];
				u.layer = layer;
				u.expert = (uint32_t)x;
			}
			u.n_rare += t->counts[x] < (float)rare;
		}
	}
	return u;
}

static void print_rare_layer(const struct imatrix_tensor *t, uint32_t layer, uint32_t rare)
{
	uint64_t n = 0;
	for (uint64_t x = 0; x < t->n_counts; x++) {
		if (t->counts[x] >= (float)rare)
			continue;
		if (!n++)
			printf("rare     layer %u:", layer);
		if (n <= NAMED_IN_LAYER)
			printf("%s expert %" PRIu64 " (%.0f)", n > 1 ? "," : "", x, (double)t->counts[x]);
	}
	if (n > NAMED_IN_LAYER)
		printf(" and %" PRIu64 " more", n - NAMED_IN_LAYER);
	if (n)
		putchar('\n');
}

static void print_report_json(
	const struct imatrix_set *s, const char *path, const struct expert_use_counts *u, uint32_t rare)
{
	json_t *o = json_object(), *list = json_array();
	json_out_str(o, "file", path);
	json_out_uint(o, "chunks", s->chunk_count);
	json_out_uint(o, "chunk_size", s->chunk_size);
	json_out_uint(o, "tensors", s->n);
	json_out_uint(o, "experts", u->n);
	if (u->n)
		json_out_real(o, "fewest_tokens", u->fewest);
	json_out_uint(o, "rare_below", rare);
	uint32_t layer;
	for (size_t i = 0; i < s->n; i++) {
		const struct imatrix_tensor *t = &s->tensors[i];
		for (uint64_t x = 0; is_gate(t, &layer) && x < t->n_counts; x++) {
			if (t->counts[x] >= (float)rare)
				continue;
			json_t *one = json_object();
			json_out_uint(one, "layer", layer);
			json_out_uint(one, "expert", x);
			json_out_real(one, "tokens", t->counts[x]);
			json_array_append_new(list, one);
		}
	}
	json_object_set_new(o, "rare", list);
	json_out_line(stdout, o);
}

void imatrix_report_print(const struct imatrix_set *s, const char *path, uint32_t rare, bool json)
{
	const struct expert_use_counts u = count_experts(s, rare);
	uint32_t layer;
	if (json) {
		print_report_json(s, path, &u, rare);
		return;
	}
	printf("%s: %u chunks of %u tokens, %zu tensors\n", ERR_PLAIN(path), s->chunk_count,
		s->chunk_size, s->n);
	if (!u.n)
		return;
	printf("experts  %" PRIu64 ", fewest tokens %.0f (layer %u, expert %u), %" PRIu64
		   " with fewer than %u\n",
		u.n, (double)u.fewest, u.layer, u.expert, u.n_rare, rare);
	for (size_t i = 0; i < s->n; i++)
		if (is_gate(&s->tensors[i], &layer))
			print_rare_layer(&s->tensors[i], layer, rare);
	if (u.n_rare)
		printf("convert mixes every expert's columns with those of its layer, as %d more tokens\n",
			IMATRIX_PRIOR_TOKENS);
}
