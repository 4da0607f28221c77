/* SPDX-License-Identifier: MIT */
/* The table of cards; what ops reach, measured on an H200. tests/e2e/bench/cluster.sh compares the
 * figures with tests/bench/RESULTS.md. */
#include "tools/plan/cards.h"

#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/engine/plan.h"
#include "tools/plan/model_headers.h"
#include "tools/trace/model_sizes.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NVIDIA "https://www.nvidia.com/en-us/"
#define AMPERE                                                                                     \
	"https://www.nvidia.com/content/PDF/nvidia-ampere-ga-102-gpu-architecture-whitepaper-v2.1.pdf"
#define GEFORCE   "https://images.nvidia.com/aem-dam/Solutions/geforce/"
#define ADA       GEFORCE "ada/nvidia-ada-gpu-architecture.pdf"
#define BLACKWELL GEFORCE "blackwell/nvidia-rtx-blackwell-gpu-architecture.pdf"

/* Data sheets of NVIDIA. PCIe 5.0 x16: 55.4 GB/s measured; 4.0 x16: 25, x8: 12.5.
 * Name, GiB, GB/s of memory, GB/s of the link, TFLOPS */
static const struct card cards[] = {
	{"RTX 4070", 12, 504, 25, 58, ADA},
	{"RTX 4080", 16, 717, 25, 97, ADA},
	{"RTX 5080", 16, 960, 55, 113, BLACKWELL},
	{"RTX 4060 Ti", 16, 288, 12.5, 44, ADA},
	{"RTX 4090", 24, 1008, 25, 165, ADA},
	{"RTX 3090", 24, 936, 25, 71, AMPERE},
	{"RTX 5090", 32, 1792, 55, 210, BLACKWELL},
	{"L40S", 48, 864, 25, 362, NVIDIA "data-center/l40s/"},
	{"RTX 6000 Ada", 48, 960, 25, 364, ADA},
	{"RTX A6000", 48, 768, 25, 155, AMPERE},
	{"H100", 80, 3350, 55, 989, NVIDIA "data-center/h100/"},
	{"A100", 80, 1935, 25, 312, NVIDIA "data-center/a100/"},
	{"RTX PRO 6000", 96, 1792, 55, 503, BLACKWELL},
	{"H200", 141, 4800, 55.4, 989, NVIDIA "data-center/h200/"},
};

#define H200_GB_S      4800
#define H200_TFLOPS    989
#define GLM52_MACS     39.3e9 /* multiply-adds of a prompt's row */
#define PROMPT_ROW_MS  0.55   /* 8,192 rows in one step: 8.4 s, of which 3.4 on the link */
#define PROMPT_STEP_MS 800    /* 512 rows: 4.2 s, of which 3.1 on the link */

const struct card *card_find(const char *text)
{
	const struct card *named = NULL, *part = NULL;
	int n_parts = 0;
	for (size_t i = 0; i < ARRAY_LEN(cards); i++) {
		const struct card *k = &cards[i];
		if (strcasestr(text, k->name) && (!named || strlen(k->name) > strlen(named->name)))
			named = k;
		if (strcasestr(k->name, text)) {
			part = k;
			n_parts++;
		}
	}
	return named ? named : n_parts == 1 ? part : NULL;
}

int card_find_named(const char *text, const struct card **out, struct err *e)
{
	char list[300] = "";
	size_t n = 0;
	if ((*out = card_find(text)))
		return 0;
	for (size_t i = 0; i < ARRAY_LEN(cards) && n < sizeof list; i++)
		n += (size_t)snprintf(list + n, sizeof list - n, "%s%s", i ? ", " : "", cards[i].name);
	err_set(e, ERR_USAGE, "--card: \"%.60s\" is not in the table of cards, or several are: %s",
		text, list);
	return err_hint(e, "--vram-gb, --card-gb-s and --pcie-gb-s describe any card");
}

struct card card_of_size(double sold_gb, double memory_gb_s)
{
	const struct card *first = NULL;
	for (size_t i = 0; i < ARRAY_LEN(cards); i++) {
		const struct card *k = &cards[i];
		if (k->sold_gb != sold_gb)
			continue;
		first = first ? first : k;
		if (memory_gb_s <= 0 || fabs(k->memory_gb_s - memory_gb_s) < 0.5)
			return *k;
	}
	struct card unknown = card_unknown(memory_gb_s);
	unknown.sold_gb = sold_gb;
	unknown.link_gb_s = first ? first->link_gb_s : 0;
	return unknown;
}

void card_print_name(const struct card *k, char *out, size_t size)
{
	if (k->name)
		snprintf(out, size, "%s", k->name);
	else
		snprintf(out, size, "a card with %g GB and %g GB/s", k->sold_gb, k->memory_gb_s);
}

int card_check_rates(const struct card *k, double sold_gb, struct err *e)
{
	if (k->memory_gb_s > 0 && k->link_gb_s > 0)
		return 0;
	err_set(e, ERR_USAGE, "the table has no card of %g GB", sold_gb);
	return err_hint(e, "add --card-gb-s (its memory's bandwidth) and --pcie-gb-s");
}

struct card card_unknown(double memory_gb_s)
{
	return (struct card){
		.memory_gb_s = memory_gb_s, .matrix_tflops = H200_TFLOPS * memory_gb_s / H200_GB_S};
}

uint64_t card_free_bytes(double sold_gb)
{
	return plan_card_bytes(sold_gb);
}

/* ---- computing ---- */

/* Of several rows for a tensor the first of its type counts, else the last: types that were not
 * measured are assumed to be as slow. */
static const struct {
	enum tensor_class class;
	const char *part; /* of the tensor's name; NULL: any */
	struct card_op_rate rate;
} op_rates[] = {
	{CLASS_HEAD, NULL, {"head", DTYPE_Q8_0, 94.4, "head, Q8_0; Q4_K", NULL}},
	{CLASS_HEAD, NULL, {"head", DTYPE_Q4_K, 89.9, "head, Q8_0; Q4_K", NULL}},
	{CLASS_DENSE, NULL, {"dense network", DTYPE_Q8_0, 84.5, "dense network, Q8_0", NULL}},
	{CLASS_DENSE, NULL,
		{"dense network", DTYPE_Q4_K, 62.6, NULL, "as o alone, Q4_K: not measured"}},
	{CLASS_SHARED, NULL,
		{"shared expert", DTYPE_Q8_0, 69.4, "shared expert, Q8_0, one launch", NULL}},
	{CLASS_SHARED, NULL,
		{"shared expert", DTYPE_Q4_K, 36.2, "shared expert, Q8_0, one launch", NULL}},
	{CLASS_ATTENTION, ".attn_q_",
		{"latents", DTYPE_Q8_0, 65.4, "latents (q_a, kv_a, q_b), Q8_0", NULL}},
	{CLASS_ATTENTION, ".attn_q_",
		{"latents", DTYPE_Q4_K, 27.7, "latents (q_a, kv_a, q_b), Q8_0", NULL}},
	{CLASS_ATTENTION, ".attn_kv_a",
		{"latents", DTYPE_Q8_0, 65.4, "latents (q_a, kv_a, q_b), Q8_0", NULL}},
	{CLASS_ATTENTION, ".attn_kv_a",
		{"latents", DTYPE_Q4_K, 27.7, "latents (q_a, kv_a, q_b), Q8_0", NULL}},
	{CLASS_ATTENTION, NULL,
		{"MLA and o", DTYPE_Q8_0, 71.4, "MLA attention with its output projection", NULL}},
	{CLASS_ATTENTION, NULL,
		{"MLA and o", DTYPE_Q4_K, 25, NULL,
			"fitted: recipe iq2-s then takes the 10.9 ms a token that were measured"}},
	{CLASS_INDEXER, NULL, {"indexers", DTYPE_Q8_0, 65.4, NULL, "as the latents: not measured"}},
	{CLASS_ROUTER, NULL, {"routers", DTYPE_F32, 53.0, "two routers with norm and top-k", NULL}},
	{CLASS_NORM, NULL, {"norms", DTYPE_F32, 53.0, NULL, "as the routers: not measured"}},
	{CLASS_EXPERTS, NULL, {"experts", DTYPE_Q2_K, 71.5, "experts Q2_K", NULL}},
	{CLASS_EXPERTS, NULL, {"experts", DTYPE_Q4_K, 66.7, "experts Q4_K", NULL}},
	{CLASS_EXPERTS, NULL, {"experts", DTYPE_Q8_0, 78.9, "experts Q8_0", NULL}},
	{CLASS_EXPERTS, NULL, {"experts", DTYPE_IQ2_XXS, 53.9, "experts IQ2_XXS", NULL}},
};

static bool same_part(const char *a, const char *b)
{
	return a == b || (a && b && !strcmp(a, b));
}

const struct card_op_rate *card_op_rate_of(
	const struct model_config *c, const struct gguf_tensor *t)
{
	const enum tensor_class class = tensor_classify(c, t->name);
	const struct card_op_rate *last = NULL;
	const char *part = NULL;
	for (size_t i = 0; i < ARRAY_LEN(op_rates); i++) {
		if (op_rates[i].class != class || (op_rates[i].part && !strstr(t->name, op_rates[i].part)))
			continue;
		if (last && !same_part(op_rates[i].part, part))
			break;
		last = &op_rates[i].rate;
		part = op_rates[i].part;
		if (op_rates[i].rate.type == (enum dtype)t->type)
			break;
	}
	return last;
}

void card_work_of(const struct gguf *file, const struct model_config *c, struct card_work *layers,
	struct card_work *head)
{
	*head = (struct card_work){0};
	memset(layers, 0, c->n_layers * sizeof *layers);
	for (size_t i = 0; i < file->n_tensors; i++) {
		const struct gguf_tensor *t = &file->tensors[i];
		const struct card_op_rate *rate = card_op_rate_of(c, t);
		unsigned layer;
		if (!rate)
			continue;
		const double copied = (double)t->bytes / rate->percent * 100;
		struct card_work *w =
			sscanf(t->name, "blk.%u.", &layer) == 1 && layer < c->n_layers ? &layers[layer] : head;
		if (tensor_classify(c, t->name) == CLASS_EXPERTS)
			w->expert += copied / c->n_experts;
		else
			w->dense += copied;
	}
}

struct card_times card_times_of(const struct card *k, const struct card_work *w, double row_part)
{
	const double ms = 1e3 / (k->memory_gb_s * 1e9 * CARD_COPY_PART);
	const double h200_ms = 1e3 / (H200_GB_S * 1e9 * CARD_COPY_PART);
	return (struct card_times){.dense_ms = w->dense * ms,
		.row_ms = w->dense * h200_ms * row_part * H200_TFLOPS / k->matrix_tflops,
		.expert_ms = w->expert * ms};
}

/* The first n_layers and the head. */
static struct card_work sum_work(
	const struct gguf *file, const struct model_config *c, uint32_t n_layers)
{
	struct card_work *layers = NEW_ARRAY(struct card_work, c->n_layers), sum;
	card_work_of(file, c, layers, &sum);
	for (uint32_t l = 0; l < n_layers; l++) {
		sum.dense += layers[l].dense;
		sum.expert += layers[l].expert;
	}
	free(layers);
	return sum;
}

double card_token_ms(const struct card *k, const struct gguf *file, const struct model_config *c)
{
	const struct card_work all = sum_work(file, c, c->n_layers);
	const struct card_times t = card_times_of(k, &all, 0);
	return CARD_OTHER_MS + t.dense_ms + t.expert_ms * c->n_used;
}

double card_distinct_experts(const struct model_config *c, double rows)
{
	return c->n_experts * (1 - pow(1 - (double)c->n_used / c->n_experts, rows));
}

int card_check_steps(const struct card_step **steps, int *n, struct err *e)
{
	static struct card_step list[] = {{"iq2", 78, 1, 9.21, 0}, {"iq2-s", 78, 1, 10.88, 0},
		{"q2", 78, 1, 9.17, 0}, {"iq2", 11, 1, 1.58, 0}, {"iq2", 11, 4, 2.88, 0},
		{"iq2", 11, 8, 4.17, 0}, {"iq2", 11, 16, 6.96, 0}, {"iq2", 11, 24, 10.39, 0},
		{"iq2", 11, 32, 12.19, 0}, {"iq2", 11, 48, 17.61, 0}, {"iq2", 11, 64, 21.23, 0}};
	int rc = 0;
	for (size_t i = 0; i < ARRAY_LEN(list) && !rc; i++) {
		struct card_step *s = &list[i];
		struct model_headers model;
		rc = model_headers_make(&model, s->recipe, e);
		if (!rc) {
			const struct card_work work = sum_work(model.file, &model.config, s->layers);
			const struct card_times t = card_times_of(card_find("H200"), &work, CARD_ROW_PART);
			s->model_ms = CARD_OTHER_MS + t.dense_ms +
						  (s->rows - 1) * (CARD_OTHER_ROW_MS + t.row_ms) +
						  t.expert_ms * card_distinct_experts(&model.config, s->rows);
		}
		model_headers_close(&model);
	}
	*steps = list;
	*n = rc ? 0 : (int)ARRAY_LEN(list);
	return rc;
}

double card_prompt_ms(
	const struct card *k, const struct gguf *file, const struct model_config *c, uint32_t rows)
{
	struct model_sizes sizes;
	model_sizes_count(file, c, &sizes);
	const double part = (double)sizes.macs_per_token / GLM52_MACS;
	return part * (PROMPT_STEP_MS + PROMPT_ROW_MS * rows * H200_TFLOPS / k->matrix_tflops);
}
