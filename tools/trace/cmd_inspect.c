/* SPDX-License-Identifier: MIT */
/* What is in a model file: shape, types and bytes by class, the IndexShare schedule, and what has
 * to fit where. Only the headers are touched, so a 400 GB file is inspected at once. */
#include "src/base/args.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/checkpoint/checkpoint.h"
#include "src/format/check_values.h"
#include "tools/commands/commands.h"
#include "tools/trace/inspect_cluster.h"
#include "tools/trace/inspect_fits.h"
#include "tools/trace/inspect_forecast.h"
#include "tools/output/json_out.h"
#include "tools/trace/model_sizes.h"
#include "tools/options/pocket.h"
#include "tools/output/report.h"
#include "tools/synth/synth_model.h"

#include <stdlib.h>
#include <string.h>

#define GB 1e9

/* "20.13 GB", "1.54 MB", "640 B" */
static const char *size_text(uint64_t bytes, char *out, size_t n)
{
	double v = (double)bytes;
	if (bytes >= 1000000000)
		snprintf(out, n, "%.2f GB", v / 1e9);
	else if (bytes >= 1000000)
		snprintf(out, n, "%.2f MB", v / 1e6);
	else if (bytes >= 10000)
		snprintf(out, n, "%.1f kB", v / 1e3);
	else
		snprintf(out, n, "%llu B", (unsigned long long)bytes);
	return out;
}

#define SIZE(bytes) size_text(bytes, (char[32]){0}, 32)

/* Keys of glmstream synth. false: not such a file; *alias is 0 when no layers share their experts'
 * bytes. */
static bool is_synthetic(const struct gguf *file, uint64_t *seed, uint32_t *alias)
{
	*alias = 0;
	(void)gguf_get_u32_or(file, SYNTH_ALIAS_KEY, 0, alias, NULL);
	return !gguf_get_u64(file, SYNTH_SEED_KEY, seed, NULL);
}

/* "file", "beside" or NULL: where the check values are. Faults of them are said and are no reason
 * to show nothing else. */
static const char *find_check_values(const struct gguf *file, uint64_t *n)
{
	struct check_values *v;
	struct err e = {0};
	if (check_values_open(file, &v, &e))
		log_warn("%s", e.text);
	if (!v)
		return NULL;
	const char *where = v->beside ? "beside" : "file";
	*n = check_map_n(&v->map);
	check_values_free(v);
	return where;
}

static void print_check_values(const struct gguf *file)
{
	uint64_t n;
	const char *where = find_check_values(file, &n);
	if (!where)
		printf("  check values    none; glmstream verify --write makes them\n");
	else
		printf("  check values    %llu, %s\n", (unsigned long long)n,
			strcmp(where, "file") ? "in the file beside it (" CHECK_VALUES_SUFFIX ")"
								  : "in the file");
}

static void print_shape(const struct gguf *file, const struct model_config *c)
{
	uint64_t bytes = 0;
	for (uint32_t i = 0; i < file->n_files; i++)
		bytes += file->files[i].size;
	printf("%s: %s%sglm-dsa, %s in %u file%s, %zu tensors, %zu keys, alignment %u\n",
		ERR_PLAIN(gguf_path(file)), c->name, c->name[0] ? ", " : "", SIZE(bytes), file->n_files,
		file->n_files == 1 ? "" : "s", file->n_tensors, file->n_kvs,
		file->files[file->n_files - 1].alignment);
	uint64_t seed;
	uint32_t alias;
	if (is_synthetic(file, &seed, &alias)) {
		printf(
			"synthetic: random weights of seed %llu, for measuring only", (unsigned long long)seed);
		if (alias)
			printf("; experts of %u layers on disk stand for those of all", alias);
		printf("\n");
	}
	printf("\nshape\n");
	printf("  layers          %u: %u dense, %u with experts%s; context %u\n", c->n_layers,
		c->n_dense, config_n_moe(c), c->n_mtp ? ", and an MTP layer" : "", c->n_context);
	printf("  width           %u; vocabulary %u rows\n", c->n_embd, c->n_vocab);
	printf("  attention       %u heads of %u + %u (rotary), values of %u; latents q %u, kv %u; "
		   "rope base %.10g\n",
		c->n_heads, c->head_nope, c->head_rope, c->head_value, c->q_rank, c->kv_rank,
		(double)c->rope_base);
	printf("  indexer         %u heads of %u, best %u positions\n", c->index_heads, c->index_dim,
		c->index_top_k);
	printf("  experts         %u per layer, %u used, width %u; shared width %u; dense width %u; "
		   "weights %s x %.4g\n",
		c->n_experts, c->n_used, c->ff_expert, c->ff_shared, c->ff_dense,
		c->norm_weights ? "normalised" : "plain", (double)c->weights_scale);
	if (c->n_group > 1)
		printf("  groups          %u of %u\n", c->n_group_used, c->n_group);
	printf("  norms           eps %.3g, latents %.3g, indexer %.3g\n", (double)c->rms_eps,
		(double)c->latent_eps, (double)c->index_eps);
	printf("  sampling        temperature %.4g, top-p %.4g\n", (double)c->sampling_temperature,
		(double)c->sampling_top_p);
	uint32_t n_full = 0;
	for (uint32_t i = 0; i < c->n_layers; i++)
		n_full += c->index_full[i];
	printf("  IndexShare      %u full, %u shared (%s)\n                  full:", n_full,
		c->n_layers - n_full, c->index_types_from ? c->index_types_from : "unknown source");
	for (uint32_t i = 0; i < c->n_layers + c->n_mtp; i++)
		if (c->index_full[i])
			printf(" %u%s", i, i >= c->n_layers ? " (MTP)" : "");
	printf("\n");
	print_check_values(file);
}

static void print_classes(const struct model_sizes *s)
{
	printf("\n%-20s %7s %12s  types\n", "weights", "tensors", "bytes");
	for (int i = 0; i < CLASS_LIMIT; i++) {
		const struct class_sizes *class = &s->classes[i];
		if (!class->tensors)
			continue;
		printf("%-20s %7llu %12s ", tensor_class_name(i), (unsigned long long)class->tensors,
			SIZE(class->bytes));
		for (int t = 0; t < DTYPE_LIMIT; t++)
			if (class->type_tensors[t])
				printf(" %s x %llu", dtype_name((uint32_t)t),
					(unsigned long long)class->type_tensors[t]);
		printf("\n");
	}
}

/* "9.73 MB" or "9.73 MB .. 12.39 MB" */
static const char *range_text(uint64_t low, uint64_t high, char *out, size_t n)
{
	if (low == high)
		return size_text(low, out, n);
	snprintf(out, n, "%s .. %s", SIZE(low), SIZE(high));
	return out;
}

static void print_sizes(const struct model_config *c, const struct model_sizes *s)
{
	printf("\nsizes\n");
	printf("  embedding       %s, read from the file a row a token\n",
		SIZE(s->classes[CLASS_EMBEDDING].bytes));
	printf("  resident        %s needed by every token%s%s%s\n", SIZE(s->resident_bytes),
		s->mtp_bytes ? "; MTP layer " : "", s->mtp_bytes ? SIZE(s->mtp_bytes) : "",
		s->mtp_bytes ? " more" : "");
	printf("  experts         %s in all: %llu of %s; one layer %s\n", SIZE(s->experts_bytes),
		(unsigned long long)s->n_experts,
		range_text(s->expert_min, s->expert_max, (char[80]){0}, 80),
		range_text(s->layer_min, s->layer_max, (char[80]){0}, 80));
	printf("  one token       %u experts: %s, the smallest budget; reads %s of weights in all\n",
		config_n_moe(c) * c->n_used, SIZE(s->working_set), SIZE(s->weights_per_token));
	printf("  KV cache        %s per token of 16-bit latents and index keys; %s at the full "
		   "context of %u\n",
		SIZE(s->kv_per_token), SIZE(s->kv_per_token * c->n_context), c->n_context);
	if (s->kv_mtp_per_token)
		printf("                  the MTP layer %s per token more\n", SIZE(s->kv_mtp_per_token));
}

static void print_tensors(const struct gguf *file, const struct model_config *c)
{
	printf("\n%-44s %-8s %-24s %14s %16s  %s\n", "tensor", "type", "shape", "bytes", "offset",
		"class");
	for (size_t i = 0; i < file->n_tensors; i++) {
		const struct gguf_tensor *t = &file->tensors[i];
		char shape[GGUF_SHAPE_MAX], where[32];
		snprintf(where, sizeof where, file->n_files > 1 ? "%u:%llu" : "%.0u%llu",
			file->n_files > 1 ? t->file + 1 : 0, (unsigned long long)t->offset);
		printf("%-44s %-8s %-24s %14llu %16s  %s\n", t->name, dtype_name(t->type),
			gguf_shape_text(t, shape), (unsigned long long)t->bytes, where,
			tensor_class_name(tensor_classify(c, t->name)));
	}
}

/* ---- JSON ---- */

static json_t *config_json(const struct model_config *c)
{
	json_t *o = json_object();
	const struct {
		const char *key;
		uint32_t v;
	} numbers[] = {
		{"layers", c->n_layers},
		{"mtp_layers", c->n_mtp},
		{"embedding", c->n_embd},
		{"vocab", c->n_vocab},
		{"context", c->n_context},
		{"heads", c->n_heads},
		{"q_rank", c->q_rank},
		{"kv_rank", c->kv_rank},
		{"head_nope", c->head_nope},
		{"head_rope", c->head_rope},
		{"head_value", c->head_value},
		{"dense_layers", c->n_dense},
		{"dense_width", c->ff_dense},
		{"moe_layers", config_n_moe(c)},
		{"experts", c->n_experts},
		{"experts_used", c->n_used},
		{"expert_width", c->ff_expert},
		{"shared_width", c->ff_shared},
		{"expert_groups", c->n_group},
		{"expert_groups_used", c->n_group_used},
		{"index_heads", c->index_heads},
		{"index_dim", c->index_dim},
		{"index_top_k", c->index_top_k},
	};
	for (size_t i = 0; i < ARRAY_LEN(numbers); i++)
		json_out_uint(o, numbers[i].key, numbers[i].v);
	json_object_set_new(o, "expert_weights_norm", json_boolean(c->norm_weights));
	json_out_real(o, "expert_weights_scale", c->weights_scale);
	json_out_real(o, "rope_base", c->rope_base);
	json_out_real(o, "rms_eps", c->rms_eps);
	json_out_real(o, "latent_eps", c->latent_eps);
	json_out_real(o, "sampling_temperature", c->sampling_temperature);
	json_out_real(o, "sampling_top_p", c->sampling_top_p);
	return o;
}

static json_t *index_json(const struct model_config *c)
{
	json_t *o = json_object(), *types = json_array(), *full = json_array();
	for (uint32_t i = 0; i < c->n_layers; i++) {
		json_array_append_new(types, json_string(c->index_full[i] ? "full" : "shared"));
		if (c->index_full[i])
			json_array_append_new(full, json_integer(i));
	}
	json_object_set_new(o, "full", full);
	json_object_set_new(o, "types", types);
	json_out_str(o, "from", c->index_types_from ? c->index_types_from : "");
	return o;
}

static json_t *classes_json(const struct model_sizes *s)
{
	json_t *o = json_object();
	for (int i = 0; i < CLASS_LIMIT; i++) {
		const struct class_sizes *class = &s->classes[i];
		if (!class->tensors)
			continue;
		json_t *item = json_object(), *types = json_object();
		json_out_uint(item, "tensors", class->tensors);
		json_out_uint(item, "bytes", class->bytes);
		for (int t = 0; t < DTYPE_LIMIT; t++) {
			if (!class->type_tensors[t])
				continue;
			json_t *type = json_object();
			json_out_uint(type, "tensors", class->type_tensors[t]);
			json_out_uint(type, "bytes", class->type_bytes[t]);
			json_object_set_new(types, dtype_name((uint32_t)t), type);
		}
		json_object_set_new(item, "types", types);
		json_object_set_new(o, tensor_class_key(i), item);
	}
	return o;
}

static json_t *sizes_json(const struct model_config *c, const struct model_sizes *s)
{
	json_t *o = json_object();
	const struct {
		const char *key;
		uint64_t v;
	} numbers[] = {
		{"resident_bytes", s->resident_bytes},
		{"mtp_bytes", s->mtp_bytes},
		{"experts_bytes", s->experts_bytes},
		{"n_experts", s->n_experts},
		{"expert_bytes", s->expert_max},
		{"expert_bytes_min", s->expert_min},
		{"layer_bytes", s->layer_max},
		{"layer_bytes_min", s->layer_min},
		{"working_set_experts", (uint64_t)config_n_moe(c) * c->n_used},
		{"working_set_bytes", s->working_set},
		{"weights_per_token_bytes", s->weights_per_token},
		{"kv_bytes_per_token", s->kv_per_token},
		{"kv_mtp_bytes_per_token", s->kv_mtp_per_token},
	};
	for (size_t i = 0; i < ARRAY_LEN(numbers); i++)
		json_out_uint(o, numbers[i].key, numbers[i].v);
	return o;
}

static json_t *tensors_json(const struct gguf *file, const struct model_config *c)
{
	json_t *list = json_array();
	for (size_t i = 0; i < file->n_tensors; i++) {
		const struct gguf_tensor *t = &file->tensors[i];
		json_t *o = json_object(), *shape = json_array();
		json_out_str(o, "name", t->name);
		json_out_str(o, "type", dtype_name(t->type));
		for (uint32_t d = 0; d < t->n_dims; d++)
			json_array_append_new(shape, json_integer((json_int_t)t->ne[d]));
		json_object_set_new(o, "shape", shape);
		json_out_uint(o, "bytes", t->bytes);
		json_out_uint(o, "file", t->file);
		json_out_uint(o, "offset", t->offset);
		json_out_str(o, "class", tensor_class_key(tensor_classify(c, t->name)));
		json_array_append_new(list, o);
	}
	return list;
}

static void print_json(const struct gguf *file, const struct model_config *c,
	const struct model_sizes *s, const struct inspect_fits *fits, bool tensors, json_t *traced)
{
	json_t *o = json_object(), *files = json_array();
	json_out_str(o, "name", c->name);
	json_out_str(o, "architecture", "glm-dsa");
	for (uint32_t i = 0; i < file->n_files; i++) {
		json_t *item = json_object();
		json_out_str(item, "path", file->files[i].path);
		json_out_uint(item, "bytes", file->files[i].size);
		json_out_uint(item, "data_offset", file->files[i].data_offset);
		json_out_uint(item, "alignment", file->files[i].alignment);
		json_array_append_new(files, item);
	}
	json_object_set_new(o, "files", files);
	uint64_t seed;
	uint32_t alias;
	if (is_synthetic(file, &seed, &alias)) {
		json_t *synthetic = json_object();
		json_out_uint(synthetic, "seed", seed);
		if (alias)
			json_out_uint(synthetic, "alias", alias);
		json_object_set_new(o, "synthetic", synthetic);
	}
	uint64_t n_values = 0;
	const char *where = find_check_values(file, &n_values);
	json_object_set_new(o, "check_values", where ? json_string(where) : json_null());
	json_out_uint(o, "n_check_values", n_values);
	json_out_uint(o, "n_tensors", file->n_tensors);
	json_out_uint(o, "tensor_bytes", file->tensor_bytes);
	json_object_set_new(o, "config", config_json(c));
	json_object_set_new(o, "index_share", index_json(c));
	json_object_set_new(o, "classes", classes_json(s));
	json_object_set_new(o, "sizes", sizes_json(c, s));
	json_object_set_new(o, "forecast", inspect_fits_json(fits));
	if (traced)
		json_object_set_new(o, "trace_forecast", traced);
	if (tensors)
		json_object_set_new(o, "tensors", tensors_json(file, c));
	json_out_tree(stdout, o);
}

int cmd_inspect(int argc, char **argv, struct err *e)
{
	const char *model = NULL, *option_model = NULL;
	bool json = false, tensors = false;
	float vram_gb = 0;
	uint32_t context = 0;
	struct inspect_fits fits;
	const struct arg options[] = {
		{"model", 'm', ARG_STRING, .string = &option_model, .file = ARG_READS, .value = "FILE",
			.help = "the same as MODEL"},
		{"ctx", 'c', ARG_UINT, .u32 = &context, .min = 1, .max = INT32_MAX, .value = "N",
			.help = "context for which caches are planned",
			.fallback = "32768; 4096 of each stream of a cluster"},
		{"vram-gb", 0, ARG_FLOAT, .f32 = &vram_gb, .max = 1e4, .above_min = true, .value = "G",
			.help = "memory of the card, as it is sold",
			.fallback = "the usual sizes; of a cluster's cards that of --card"},
		{"tensors", 0, ARG_FLAG, .flag = &tensors, .help = "list every tensor"},
		{"json", 0, ARG_FLAG, .flag = &json, .help = "print one JSON object"},
	};
	struct inspect_forecast forecast = {0};
	struct inspect_cluster cluster = {0};
	const struct arg_group groups[] = {{NULL, options, ARRAY_LEN(options)},
		inspect_forecast_group(&forecast), inspect_cluster_group(&cluster)};
	const struct arg positional = {
		.kind = ARG_STRING, .string = &model, .file = ARG_READS, .value = "MODEL"};
	const struct args args = {.command = "glmstream inspect",
		.usage = "[MODEL] [--tensors] [--trace FILE ...] [--hosts N --cards M --card NAME ...]",
		.about = "Shape of a model file, types and bytes by class, the IndexShare schedule, and "
				 "what fits into which memory. Reads headers only. Of a split file name the first "
				 "part; without MODEL the pocket model is shown. With a trace of a run: what "
				 "caches of other sizes would have made of its routing. With --hosts or --cards: a "
				 "forecast of that cluster's speed, with the figures that it is made of and where "
				 "each is from.",
		.example = "glmstream inspect glm-5.2-q2.gguf\n"
				   "glmstream inspect glm-5.2-q2.gguf --trace run.trace --cache-gb 40,80,120 "
				   "--disk-gb-s 5 --gpu-ms 40\n"
				   "glmstream inspect --hosts 1 --cards 2 --card H200",
		.groups = groups,
		.n_groups = ARRAY_LEN(groups),
		.positional = &positional,
		.n_positional = 1};
	int rc = report_parse(&args, argc, argv, e);
	if (rc)
		return rc == ARGS_HELP ? 0 : rc;
	if (model && option_model)
		return err_set(
			e, ERR_USAGE, "two models named, \"%.60s\" and \"%.60s\"", model, option_model);
	model = model ? model : option_model;
	if (cluster.on) {
		const struct inspect_shared shared = {model, &forecast, (double)vram_gb, context, json};
		return tensors ? err_set(e, ERR_USAGE, "--tensors lists a file, --hosts and --cards do not")
					   : inspect_cluster_run(&cluster, &shared, e);
	}
	const char *of_cluster = inspect_cluster_option(&cluster);
	if (of_cluster)
		return err_set(e, ERR_USAGE, "--%s needs --hosts N or --cards M", of_cluster);
	model = pocket_or(model, e);
	if (!model)
		return e->code;

	json_t *traced = NULL;
	struct gguf *file = NULL;
	struct model_config config;
	struct model_sizes *sizes = NEW(struct model_sizes);
	if ((rc = model_file_open(model, &file, e)) || (rc = config_read(file, &config, e)))
		goto out;
	model_sizes_count(file, &config, sizes);
	if (context > config.n_context) {
		rc = err_set(
			e, ERR_USAGE, "--ctx: %u found, the model was made for %u", context, config.n_context);
		goto out;
	}
	inspect_fits_find(&fits, file, &config, (double)vram_gb, context);
	if ((rc = inspect_forecast_run(&forecast, model, file, &config, e)))
		goto out;
	if (json) {
		if (forecast.trace)
			traced = inspect_forecast_json(&forecast);
		print_json(file, &config, sizes, &fits, tensors, traced);
	} else {
		print_shape(file, &config);
		print_classes(sizes);
		print_sizes(&config, sizes);
		inspect_fits_print(&fits);
		if (forecast.trace)
			inspect_forecast_print(&forecast);
		if (tensors)
			print_tensors(file, &config);
	}
out:
	inspect_forecast_fini(&forecast);
	gguf_close(file);
	free(sizes);
	return rc;
}
