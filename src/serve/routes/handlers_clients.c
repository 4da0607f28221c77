/* SPDX-License-Identifier: MIT */
/* What ollama's and llama.cpp's clients ask about the model and the server. */
#if HAVE_HTTP
#include "src/serve/server_internal.h"

#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/serve/api/json_write.h"
#include "src/text/json_text.h"
#include "src/text/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The version of ollama's API that the paths under /api follow; clients refuse older ones. */
#define OLLAMA_API "0.12.6"

#define NEVER "2318-01-01T00:00:00Z" /* the model is not unloaded */

typedef int body_fn(const struct request_model *model, const char *body, size_t len,
	struct buf *out, struct request_error *e);

static void answer_body(
	struct server *s, struct exchange *x, const struct api *error_api, body_fn *answer)
{
	size_t len;
	const char *text = exchange_body(x, &len);
	struct request_error e = {0};
	struct buf body = {0};
	struct request_model model = s->model;
	model.client = exchange_client(x);
	if (answer(&model, text, len, &body, &e)) {
		buf_free(&body);
		respond_refusal(x, error_api, &e);
	} else {
		exchange_reply(x, 200, JSON_TYPE, &body);
	}
}

/* ---- the model ---- */

struct model_facts {
	uint64_t parameters;
	const char *type; /* of most of its bytes */
};

static struct model_facts model_facts_of(const struct gguf *file)
{
	struct model_facts f = {.type = "F32"};
	uint64_t bytes[256] = {0}, most = 0;
	for (size_t i = 0; i < file->n_tensors; i++) {
		const struct gguf_tensor *t = &file->tensors[i];
		f.parameters += t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3];
		unsigned type = (unsigned)t->type;
		if (type >= ARRAY_LEN(bytes))
			continue;
		bytes[type] += t->bytes;
		if (bytes[type] > most) {
			most = bytes[type];
			f.type = dtype_name(type);
		}
	}
	return f;
}

static void write_details(struct json_write *w, const struct model_facts *f)
{
	char size[32];
	double n = (double)f->parameters;
	if (n >= 1e9)
		snprintf(size, sizeof size, "%.1fB", n / 1e9);
	else
		snprintf(size, sizeof size, "%.1fM", n / 1e6);
	json_write_open(w, "details", '{');
	json_write_string(w, "parent_model", "");
	json_write_string(w, "format", "gguf");
	json_write_string(w, "family", "glm-dsa");
	json_write_open(w, "families", '[');
	json_write_string(w, NULL, "glm-dsa");
	json_write_close(w, ']');
	json_write_string(w, "parameter_size", size);
	json_write_string(w, "quantization_level", f->type);
	json_write_close(w, '}');
}

/* Opens the object of the one model and writes what all lists show; the caller closes it. */
static void write_model_head(struct json_write *w, struct server *s)
{
	const struct gguf *file = engine_gguf(s->engine);
	struct model_facts facts = model_facts_of(file);
	char when[40], digest[40];
	uint64_t bytes = 0;
	for (uint32_t i = 0; i < file->n_files; i++)
		bytes += file->files[i].size;
	api_time_text((time_t)s->model.created, when);
	snprintf(digest, sizeof digest, "%016llx", (unsigned long long)engine_fingerprint(s->engine));
	json_write_open(w, NULL, '{');
	json_write_string(w, "name", s->model.name);
	json_write_string(w, "model", s->model.name);
	json_write_string(w, "modified_at", when);
	json_write_int(w, "size", (int64_t)bytes);
	json_write_string(w, "digest", digest);
	write_details(w, &facts);
}

void handle_ollama_tags(struct server *s, struct exchange *x, const char *rest)
{
	(void)rest;
	struct buf body = {0};
	struct json_write w = {.out = &body};
	json_write_open(&w, NULL, '{');
	json_write_open(&w, "models", '[');
	write_model_head(&w, s);
	json_write_close(&w, '}');
	json_write_close(&w, ']');
	json_write_close(&w, '}');
	exchange_reply(x, 200, JSON_TYPE, &body);
}

void handle_ollama_ps(struct server *s, struct exchange *x, const char *rest)
{
	(void)rest;
	struct buf body = {0};
	struct json_write w = {.out = &body};
	struct engine_cache cache = {0};
	struct engine_sizes sizes = engine_sizes(s->engine);
	engine_cache_snapshot(s->engine, &cache, NULL);
	bool card = strcmp(engine_backend_name(s->engine), "cpu") != 0;
	uint64_t experts = cache.streaming ? cache.tier_bytes[0] : sizes.experts_bytes;
	json_write_open(&w, NULL, '{');
	json_write_open(&w, "models", '[');
	write_model_head(&w, s);
	json_write_string(&w, "expires_at", NEVER);
	json_write_int(&w, "size_vram",
		card ? (int64_t)(sizes.resident_bytes + sizes.kv_bytes + sizes.workspace_bytes + experts)
			 : 0);
	json_write_int(&w, "context_length", s->model.context);
	json_write_close(&w, '}');
	json_write_close(&w, ']');
	json_write_close(&w, '}');
	exchange_reply(x, 200, JSON_TYPE, &body);
}

void handle_ollama_version(struct server *s, struct exchange *x, const char *rest)
{
	(void)rest;
	struct buf body = {0};
	struct json_write w = {.out = &body};
	json_write_open(&w, NULL, '{');
	json_write_string(&w, "version", OLLAMA_API);
	json_write_string(&w, "glmstream", s->options.version);
	json_write_close(&w, '}');
	exchange_reply(x, 200, JSON_TYPE, &body);
}

#define SHORT_BODY 4096 /* bytes: of requests that say next to nothing */

/* The body of /api/show: {"model": NAME} */
static int check_show(
	const struct request_model *model, const char *body, size_t len, struct request_error *e)
{
	struct err err = {0};
	if (len > SHORT_BODY)
		return request_refuse(e, 400, NULL, NULL, "the body has more than %d bytes", SHORT_BODY);
	json_t *v = json_text_parse(body, len, true, &err);
	const char *name = json_string_value(json_object_get(v, "model"));
	if (!name)
		name = json_string_value(json_object_get(v, "name"));
	int rc = 0;
	if (!v)
		rc = request_refuse(e, 400, NULL, NULL, "the body cannot be read as JSON: %s", err.text);
	else if (!name)
		rc = request_refuse(e, 400, NULL, "model", "model: expected a string");
	else
		rc = request_check_model(model, name, e);
	json_decref(v);
	return rc;
}

void handle_ollama_show(struct server *s, struct exchange *x, const char *rest)
{
	(void)rest;
	static const char *const can[] = {"completion", "tools", "thinking"};
	size_t len;
	const char *text = exchange_body(x, &len);
	struct request_error e = {0};
	struct buf body = {0};
	struct json_write w = {.out = &body};
	char when[40], parameters[120];
	const struct model_config *c = engine_config(s->engine);
	struct model_facts facts = model_facts_of(engine_gguf(s->engine));
	if (check_show(&s->model, text, len, &e)) {
		respond_refusal(x, &api_ollama_chat, &e);
		return;
	}
	api_time_text((time_t)s->model.created, when);
	snprintf(parameters, sizeof parameters, "num_ctx %u\ntemperature %g\ntop_p %g",
		s->model.context, (double)s->model.sampling.temperature, (double)s->model.sampling.top_p);
	json_write_open(&w, NULL, '{');
	json_write_string(&w, "modelfile", "");
	json_write_string(&w, "parameters", parameters);
	json_write_string(&w, "template", "{{ .Prompt }}"); /* GLM's own, which is part of the server */
	json_write_string(&w, "modified_at", when);
	write_details(&w, &facts);
	json_write_open(&w, "model_info", '{');
	json_write_string(&w, "general.architecture", "glm-dsa");
	json_write_string(&w, "general.basename", s->model.name);
	json_write_int(&w, "general.parameter_count", (int64_t)facts.parameters);
	json_write_int(&w, "glm-dsa.context_length", s->model.context);
	json_write_int(&w, "glm-dsa.embedding_length", c->n_embd);
	json_write_int(&w, "glm-dsa.block_count", c->n_layers);
	json_write_int(&w, "glm-dsa.attention.head_count", c->n_heads);
	json_write_int(&w, "glm-dsa.expert_count", c->n_experts);
	json_write_int(&w, "glm-dsa.expert_used_count", c->n_used);
	json_write_close(&w, '}');
	json_write_open(&w, "capabilities", '[');
	for (size_t i = 0; i < ARRAY_LEN(can); i++)
		json_write_string(&w, NULL, can[i]);
	json_write_close(&w, ']');
	json_write_close(&w, '}');
	exchange_reply(x, 200, JSON_TYPE, &body);
}

static void answer_loaded(struct server *s, struct exchange *x, bool chat)
{
	struct buf body = {0};
	struct json_write w = {.out = &body};
	char when[40];
	api_time_text(time(NULL), when);
	json_write_open(&w, NULL, '{');
	json_write_string(&w, "model", s->model.name);
	json_write_string(&w, "created_at", when);
	if (chat) {
		json_write_open(&w, "message", '{');
		json_write_string(&w, "role", "assistant");
		json_write_string(&w, "content", "");
		json_write_close(&w, '}');
	} else {
		json_write_string(&w, "response", "");
	}
	json_write_bool(&w, "done", true);
	json_write_string(&w, "done_reason", "load");
	json_write_close(&w, '}');
	buf_putc(&body, '\n');
	exchange_reply(x, 200, JSON_TYPE, &body);
}

/* Whether the body has `key` absent or empty: ollama's clients load a model that way. */
static bool is_load_request(const json_t *body, const char *key)
{
	const json_t *what = json_object_get(body, key);
	return json_is_object(body) &&
		   (!what || json_is_null(what) || (json_is_string(what) && !json_string_length(what)) ||
			   (json_is_array(what) && !json_array_size(what)));
}

/* Answers a request whose question is its member `key`. */
static void respond_or_load(
	struct server *s, struct exchange *x, const struct api *api, const char *key)
{
	struct request_error e = {0};
	size_t len;
	const char *text = exchange_body(x, &len);
	json_t *body = len > SHORT_BODY ? NULL : json_text_parse(text, len, true, NULL);
	const bool loads = is_load_request(body, key);
	if (loads)
		request_check_model(&s->model, json_string_value(json_object_get(body, "model")), &e);
	json_decref(body);
	if (!loads)
		server_respond(s, x, api);
	else if (e.status)
		respond_refusal(x, api, &e);
	else
		answer_loaded(s, x, api == &api_ollama_chat);
}

void handle_ollama_chat(struct server *s, struct exchange *x, const char *rest)
{
	(void)rest;
	respond_or_load(s, x, &api_ollama_chat, "messages");
}

void handle_ollama_generate(struct server *s, struct exchange *x, const char *rest)
{
	(void)rest;
	respond_or_load(s, x, &api_ollama_generate, "prompt");
}

/* ---- llama.cpp ---- */

void handle_tokenize(struct server *s, struct exchange *x, const char *rest)
{
	(void)rest;
	answer_body(s, x, &api_chat, api_tokenize);
}

void handle_detokenize(struct server *s, struct exchange *x, const char *rest)
{
	(void)rest;
	answer_body(s, x, &api_chat, api_detokenize);
}

void handle_template(struct server *s, struct exchange *x, const char *rest)
{
	(void)rest;
	answer_body(s, x, &api_chat, api_apply_template);
}

void handle_props(struct server *s, struct exchange *x, const char *rest)
{
	(void)rest;
	struct buf body = {0}, text = {0};
	struct json_write w = {.out = &body};
	struct gguf_str template = {0};
	const struct sampler_options *o = &s->model.sampling;
	char build[64];
	snprintf(build, sizeof build, "glmstream %s", s->options.version);
	gguf_get_str(engine_gguf(s->engine), "tokenizer.chat_template", &template, NULL);
	json_write_open(&w, NULL, '{');
	json_write_open(&w, "default_generation_settings", '{');
	json_write_int(&w, "n_ctx", s->model.context);
	json_write_open(&w, "params", '{');
	json_write_real(&w, "temperature", (double)o->temperature);
	json_write_int(&w, "top_k", o->top_k);
	json_write_real(&w, "top_p", (double)o->top_p);
	json_write_real(&w, "min_p", (double)o->min_p);
	json_write_int(&w, "n_predict", -1);
	json_write_bool(&w, "stream", false);
	json_write_close(&w, '}');
	json_write_close(&w, '}');
	json_write_int(&w, "total_slots", s->options.sessions);
	json_write_string(&w, "model_alias", s->model.name);
	json_write_string(&w, "model_path", s->model.name); /* where it lies is nobody's business */
	json_write_open(&w, "modalities", '{');
	json_write_bool(&w, "vision", false);
	json_write_bool(&w, "audio", false);
	json_write_close(&w, '}');
	utf8_repair(template.ptr ? template.ptr : "", template.len, &text);
	json_write_text(&w, "chat_template", buf_str(&text), text.len);
	buf_free(&text);
	json_write_string(&w, "build_info", build);
	json_write_bool(&w, "is_sleeping", false);
	json_write_close(&w, '}');
	exchange_reply(x, 200, JSON_TYPE, &body);
}

void handle_slots(struct server *s, struct exchange *x, const char *rest)
{
	(void)rest;
	struct buf body = {0};
	struct json_write w = {.out = &body};
	struct scheduler_snapshot snapshot;
	scheduler_snapshot(s->scheduler, &snapshot);
	json_write_open(&w, NULL, '[');
	for (uint32_t i = 0; i < snapshot.n_sessions; i++) {
		const struct scheduler_session *at = &snapshot.sessions[i];
		json_write_open(&w, NULL, '{');
		json_write_int(&w, "id", i);
		json_write_int(&w, "n_ctx", s->model.context);
		json_write_bool(&w, "speculative", false);
		json_write_bool(&w, "is_processing", at->state != SCHEDULER_IDLE);
		json_write_int(&w, "n_prompt_tokens", at->prompt);
		json_write_int(&w, "n_prompt_tokens_processed", at->done);
		json_write_int(&w, "n_decoded", at->new_tokens);
		json_write_close(&w, '}');
	}
	json_write_close(&w, ']');
	exchange_reply(x, 200, JSON_TYPE, &body);
}

#endif
