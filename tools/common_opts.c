/* SPDX-License-Identifier: MIT */
/* Options that decide how a model is opened. Only what the engine really obeys is in the table: an option without effect
 * would be worse than none. */
#include "tools/common_opts.h"

#include "src/base/log.h"
#include "src/base/num.h"
#include "tools/pocket.h"

#include <string.h>
#include <unistd.h>

static const struct arg_word backends[] = {{"auto", 0}, {"cuda", 1}, {"cpu", 2}, {0}};

struct arg_group common_opts_group(struct common_opts *c)
{
	const struct arg list[] = {
		{.name = "model", .letter = 'm', .kind = ARG_STRING, .string = &c->model, .value = "FILE",
			.help = POCKET_MODEL_HELP, .fallback = POCKET_FALLBACK},
		{.name = "backend", .kind = ARG_CHOICE, .i32 = &c->backend, .words = backends, .help = "where to compute",
			.fallback = "auto: the graphics card if one answers"},
		{.name = "threads", .letter = 't', .kind = ARG_INT, .i32 = &c->threads, .min = 1, .max = 4096, .value = "N",
			.help = "CPU threads", .fallback = "all"},
		{.name = "ctx", .letter = 'c', .kind = ARG_UINT, .u32 = &c->context, .min = 1, .max = INT32_MAX, .value = "N",
			.help = "context: positions of prompt and answers together",
			.fallback = "as much as memory allows, at most the model's"},
		{.name = "quiet", .letter = 'q', .kind = ARG_FLAG, .flag = &c->quiet, .help = "only answers, warnings and errors"},
		{.name = "verbose", .letter = 'v', .kind = ARG_FLAG, .flag = &c->verbose, .help = "say more about what happens"},
	};
	_Static_assert(ARRAY_LEN(list) <= COMMON_OPTS_MAX, "COMMON_OPTS_MAX");
	memcpy(c->args, list, sizeof list);
	return (struct arg_group){"Model and machine", c->args, ARRAY_LEN(list)};
}

/* A few lines on what was opened; what the parts decided (backend, memory) they say themselves. */
static void banner(const char *path, const struct engine *g)
{
	const struct model_config *c = engine_config(g);
	struct engine_sizes s = engine_sizes(g);
	const char *slash = strrchr(path, '/');
	log_info("model    %s: %.60s%s%u layers, %u experts (%u used), vocabulary %u", slash ? slash + 1 : path, c->name,
		c->name[0] ? ", " : "", c->n_layers, c->n_experts, c->n_used, c->n_vocab);
	log_info("memory   %.3f GB resident, %.3f GB of experts (%.3f GB for a token), %.3f GB cache, %.3f GB workspace",
		(double)s.resident_bytes * 1e-9, (double)s.experts_bytes * 1e-9, (double)s.experts_per_token * 1e-9,
		(double)s.kv_bytes * 1e-9, (double)s.workspace_bytes * 1e-9);
	log_info("run      %s, context %u", engine_backend_name(g), engine_context(g));
}

int common_opts_open(const struct common_opts *c, struct engine **out, struct err *e)
{
	*out = NULL;
	log_set_level(c->quiet ? LOG_WARN : c->verbose ? LOG_VERBOSE : LOG_INFO);
	const char *model = pocket_or(c->model, e);
	if (!model)
		return e->code;
	const struct engine_options options = {.model_path = model, .backend = backends[c->backend].word,
		.threads = c->threads, .context = c->context, .kv_f32 = c->kv_f32};
	bool tell = isatty(STDERR_FILENO) || c->verbose;
	if (!tell && !c->quiet) /* nobody watches: only warnings */
		log_set_level(LOG_WARN);
	int rc = engine_open(&options, out, e);
	if (!rc && tell)
		banner(model, *out);
	return rc;
}
