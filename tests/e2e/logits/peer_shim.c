/* SPDX-License-Identifier: MIT */
/*
 * What the test against llama.cpp (llamacpp.sh) asks of it, in two functions that Python can call.
 * get_llamacpp.sh compiles this with llama.cpp's headers into build/llamacpp.
 */
#include <gguf.h>
#include <llama.h>

#include <stdio.h>
#include <stdlib.h>

int peer_logits(const char *path, const int32_t *ids, int n, int threads, float *out, int n_vocab);
int peer_quantize(const char *from, const char *to, int preset, int threads);
int peer_quantize_experts(const char *from, const char *to, const char *importance,
	const char *pattern, int type, int threads);

static void log_nothing(enum ggml_log_level level, const char *text, void *user)
{
	(void)level, (void)text, (void)user;
}

/* Logits of the last of n tokens, with caches in float32. 0, or which step failed. */
int peer_logits(const char *path, const int32_t *ids, int n, int threads, float *out, int n_vocab)
{
	llama_log_set(log_nothing, NULL);
	llama_backend_init();
	struct llama_model_params mp = llama_model_default_params();
	mp.n_gpu_layers = 0;
	struct llama_model *model = llama_model_load_from_file(path, mp);
	if (!model)
		return 1;
	struct llama_context_params cp = llama_context_default_params();
	cp.n_ctx = cp.n_batch = cp.n_ubatch = 512;
	cp.n_threads = cp.n_threads_batch = threads;
	cp.type_k = cp.type_v = GGML_TYPE_F32;
	cp.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
	struct llama_context *context = llama_init_from_model(model, cp);
	int failed = !context                                                            ? 2
				 : llama_vocab_n_tokens(llama_model_get_vocab(model)) != n_vocab     ? 3
				 : llama_decode(context, llama_batch_get_one((llama_token *)ids, n)) ? 4
																					 : 0;
	const float *last = failed ? NULL : llama_get_logits_ith(context, -1);
	for (int i = 0; last && i < n_vocab; i++)
		out[i] = last[i];
	if (context)
		llama_free(context);
	llama_model_free(model);
	return failed ? failed : last ? 0 : 5;
}

/* What `llama-quantize FROM TO PRESET` does. Presets of few bits want an importance matrix: they
 * get one that finds all columns equally important. */
int peer_quantize(const char *from, const char *to, int preset, int threads)
{
	llama_log_set(log_nothing, NULL);
	struct ggml_context *tensors = NULL;
	struct gguf_context *file =
		gguf_init_from_file(from, (struct gguf_init_params){.no_alloc = true, .ctx = &tensors});
	if (!file)
		return 1;
	int64_t n = gguf_get_n_tensors(file), most = 0;
	struct llama_model_imatrix_data *all = calloc((size_t)n + 1, sizeof *all);
	for (int64_t i = 0; i < n; i++) {
		const struct ggml_tensor *t = ggml_get_tensor(tensors, gguf_get_tensor_name(file, i));
		all[i].name = gguf_get_tensor_name(file, i);
		all[i].size = (size_t)(t->ne[0] * t->ne[2]);
		most = most > (int64_t)all[i].size ? most : (int64_t)all[i].size;
	}
	float *ones = malloc((size_t)most * sizeof *ones);
	for (int64_t i = 0; i < most; i++)
		ones[i] = 1;
	for (int64_t i = 0; i < n; i++)
		all[i].data = ones;
	struct llama_model_quantize_params p = llama_model_quantize_default_params();
	p.nthread = threads;
	p.ftype = (enum llama_ftype)preset;
	p.imatrix = all;
	p.allow_requantize = true;
	int code = (int)llama_model_quantize(from, to, &p);
	free(ones);
	free(all);
	gguf_free(file);
	ggml_free(tensors);
	return code;
}

/* An importance matrix in the .dat container, with names and values of its own. */
#define ENTRIES_MAX 512

struct importance {
	int n;
	struct llama_model_imatrix_data entries[ENTRIES_MAX + 1]; /* ends with a name of NULL */
};

/* Nonzero if it could not be read. */
static int importance_read(const char *path, struct importance *all)
{
	FILE *f = fopen(path, "rb");
	int32_t n = 0, length, after[2]; /* calls, values */
	if (!f)
		return 1;
	int failed = fread(&n, sizeof n, 1, f) != 1 || n > ENTRIES_MAX;
	while (!failed && all->n < n) {
		struct llama_model_imatrix_data *entry = &all->entries[all->n];
		failed = fread(&length, sizeof length, 1, f) != 1 || length < 1 || length > 1000;
		char *name = failed ? NULL : calloc((size_t)length + 1, 1);
		failed = failed || fread(name, 1, (size_t)length, f) != (size_t)length ||
				 fread(after, sizeof after, 1, f) != 1 || after[1] < 1;
		entry->name = name;
		entry->size = failed ? 0 : (size_t)after[1];
		float *values = calloc(entry->size + 1, sizeof *values);
		entry->data = values;
		all->n++;
		failed = failed || fread(values, sizeof *values, entry->size, f) != entry->size;
	}
	fclose(f);
	return failed;
}

static void importance_free(struct importance *all)
{
	for (int i = 0; i < all->n; i++) {
		free((void *)all->entries[i].name);
		free((void *)all->entries[i].data);
	}
}

/* What `llama-quantize --imatrix IMPORTANCE --tensor-type PATTERN=TYPE` does, with all other
 * tensors as BF16. */
int peer_quantize_experts(const char *from, const char *to, const char *importance,
	const char *pattern, int type, int threads)
{
	llama_log_set(log_nothing, NULL);
	struct importance all = {0};
	int code = importance_read(importance, &all) ? 100 : 0;
	const struct llama_model_tensor_override types[] = {
		{pattern, (enum ggml_type)type}, {".*", GGML_TYPE_BF16}, {NULL, GGML_TYPE_COUNT}};
	struct llama_model_quantize_params p = llama_model_quantize_default_params();
	p.nthread = threads;
	p.ftype = LLAMA_FTYPE_MOSTLY_Q2_K; /* no tensor takes its type from it */
	p.imatrix = all.entries;
	p.tt_overrides = types;
	p.output_tensor_type = p.token_embedding_type = GGML_TYPE_BF16;
	p.allow_requantize = true;
	if (!code)
		code = (int)llama_model_quantize(from, to, &p);
	importance_free(&all);
	return code;
}
