/* SPDX-License-Identifier: MIT */
/* The table of cards; efficiencies measured on an H200. */
#include "tools/plan/cards.h"

#include "src/base/num.h"
#include "tools/trace/model_sizes.h"

#include <string.h>

/* Data sheets of NVIDIA. PCIe 5.0 x16: 55.4 GB/s measured; 4.0 x16: 25, x8: 12.5.
 * Name, GiB, GB/s of memory, GB/s of the link, TFLOPS */
static const struct card cards[] = {
	{"RTX 4080", 16, 717, 25, 97},
	{"RTX 5080", 16, 960, 55, 113},
	{"RTX 4060 Ti", 16, 288, 12.5, 44},
	{"RTX 4090", 24, 1008, 25, 165},
	{"RTX 3090", 24, 936, 25, 71},
	{"RTX 5090", 32, 1792, 55, 210},
	{"L40S", 48, 864, 25, 362},
	{"RTX 6000 Ada", 48, 960, 25, 364},
	{"RTX A6000", 48, 768, 25, 155},
	{"H100", 80, 3350, 55, 989},
	{"A100", 80, 1935, 25, 312},
	{"RTX PRO 6000", 96, 1792, 55, 503},
	{"H200", 141, 4800, 55.4, 989},
};

#define H200_COPY_PART 0.883 /* 4,237 of 4,800 GB/s */
#define H200_TFLOPS    989
#define GLM52_MACS     39.3e9 /* multiply-adds of a prompt's row */
#define OTHER_MS       0.3    /* of a token: all that is no product */
#define PROMPT_ROW_MS  0.55   /* 8,192 rows in one step: 8.4 s, of which 3.4 on the link */
#define PROMPT_STEP_MS 800    /* 512 rows: 4.2 s, of which 3.1 on the link */

const struct card *card_at(int i)
{
	return i >= 0 && i < (int)ARRAY_LEN(cards) ? &cards[i] : NULL;
}

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

const struct card *card_of_size(double sold_gb)
{
	for (size_t i = 0; i < ARRAY_LEN(cards); i++)
		if (cards[i].sold_gb == sold_gb)
			return &cards[i];
	return NULL;
}

struct card card_unknown(double memory_gb_s)
{
	return (struct card){
		.memory_gb_s = memory_gb_s, .matrix_tflops = H200_TFLOPS * memory_gb_s / 4800};
}

uint64_t card_free_bytes(double sold_gb)
{
	return (uint64_t)(sold_gb * 1073741824.0 * 0.97);
}

/* The part of a copy's bandwidth that a product with one row of x reaches: with a resident matrix;
 * with experts. */
static double dense_part(enum dtype type)
{
	switch (type) {
	case DTYPE_Q8_0:
		return 0.70;
	case DTYPE_F32:
		return 0.54;
	default:
		return 0.45; /* Q4_K; types not measured are assumed to be as slow */
	}
}

static double expert_part(enum dtype type)
{
	switch (type) {
	case DTYPE_Q2_K:
		return 0.717;
	case DTYPE_Q4_K:
		return 0.672;
	case DTYPE_Q8_0:
		return 0.792;
	default:
		return 0.545; /* IQ2_XXS; types not measured are assumed to be as slow */
	}
}

double card_token_ms(const struct card *k, const struct gguf *file, const struct model_config *c)
{
	double copies = 0; /* bytes that a copy would move in the same time */
	for (size_t i = 0; i < file->n_tensors; i++) {
		const struct gguf_tensor *t = &file->tensors[i];
		enum tensor_class class = tensor_classify(c, t->name);
		if (class == CLASS_EXPERTS)
			copies +=
				(double)t->bytes * c->n_used / c->n_experts / expert_part((enum dtype)t->type);
		else if (class < CLASS_MTP && class != CLASS_EMBEDDING)
			copies += (double)t->bytes / dense_part((enum dtype)t->type);
	}
	return OTHER_MS + copies / (k->memory_gb_s * 1e9 * H200_COPY_PART) * 1e3;
}

double card_prompt_ms(
	const struct card *k, const struct gguf *file, const struct model_config *c, uint32_t rows)
{
	struct model_sizes sizes;
	model_sizes_count(file, c, &sizes);
	const double part = (double)sizes.macs_per_token / GLM52_MACS;
	return part * (PROMPT_STEP_MS + PROMPT_ROW_MS * rows * H200_TFLOPS / k->matrix_tflops);
}
