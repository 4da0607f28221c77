/* SPDX-License-Identifier: MIT */
/*
 * llama.cpp's own /completion (and /completions without /v1): text in, text out. A request is
 * brought into the form of OpenAI's text completions, whose parser checks it. The spellings of
 * control tokens in the prompt count as such, as they do there.
 */
#include "src/serve/api/api.h"

#include "src/base/num.h"
#include "src/serve/api/json_write.h"

/* LLAMA_DEFAULT_SEED, which /props of llama.cpp shows: a random seed, as -1 is. */
#define DEFAULT_SEED UINT32_MAX

static int llamacpp_parse(struct request *r, struct request_error *e)
{
	/* these change how llama.cpp computes, not what */
	static const char *const internal[] = {
		"cache_prompt", "id_slot", "slot_id", "n_keep", "n_discard", "timings_per_token"};
	int64_t n_predict = -1, n_probs = 0;
	bool return_tokens = false, stream = false;
	if (request_integer(r->body, "n_predict", -2, INT32_MAX, &n_predict, NULL, e) ||
		request_integer(r->body, "n_probs", 0, OUTPUT_TOP_MAX, &n_probs, NULL, e) ||
		request_bool(r->body, "return_tokens", &return_tokens, e) ||
		request_bool(r->body, "stream", &stream, e))
		return -1;
	r->output.token_ids = return_tokens || stream;
	/* the body is shared with nobody */
	json_object_del(r->body, "n_predict");
	json_object_del(r->body, "n_probs");
	json_object_del(r->body, "return_tokens");
	for (size_t i = 0; i < ARRAY_LEN(internal); i++)
		json_object_del(r->body, internal[i]);
	const json_t *seed = json_object_get(r->body, "seed");
	if (request_is_random_seed(seed) || json_integer_value(seed) == DEFAULT_SEED)
		json_object_del(r->body, "seed");
	if (!json_object_get(r->body, "max_tokens") || n_predict >= 0)
		json_object_set_new(
			r->body, "max_tokens", json_integer(n_predict > 0 ? n_predict : INT32_MAX));
	if (n_probs)
		json_object_set_new(r->body, "logprobs", json_integer(n_probs));
	if (!json_object_get(r->body, "parse_special"))
		json_object_set_new(r->body, "parse_special", json_true());
	if (api_completions.parse(r, e))
		return -1;
	if (!n_predict) /* the prompt is computed, for the requests that follow */
		r->max_new = 0;
	return 0;
}

static void write_timings(struct json_write *w, const struct reply_answer *a)
{
	struct reply_times t = reply_times(a);
	double prompt_n = (double)a->prompt_tokens - a->cached_tokens, new_n = a->new_tokens;
	double prompt_ms = (double)t.prompt_ns / 1e6, new_ms = (double)t.answer_ns / 1e6;
	json_write_open(w, "timings", '{');
	json_write_int(w, "cache_n", a->cached_tokens);
	json_write_int(w, "prompt_n", (int64_t)prompt_n);
	json_write_real(w, "prompt_ms", prompt_ms);
	json_write_real(w, "prompt_per_second", prompt_ms > 0 ? prompt_n / prompt_ms * 1e3 : 0);
	json_write_int(w, "predicted_n", (int64_t)new_n);
	json_write_real(w, "predicted_ms", new_ms);
	json_write_real(w, "predicted_per_second", new_ms > 0 ? new_n / new_ms * 1e3 : 0);
	json_write_close(w, '}');
}

static void write_end(struct json_write *w, const struct reply *r, const struct reply_answer *a)
{
	json_write_string(w, "model", r->request->model->name);
	json_write_int(w, "tokens_predicted", a->new_tokens);
	json_write_int(w, "tokens_evaluated", a->prompt_tokens);
	json_write_int(w, "tokens_cached", a->cached_tokens);
	json_write_bool(w, "truncated", false);
	json_write_string(w, "stop_type",
		a->finish == JOB_LENGTH        ? "limit"
		: a->finish == JOB_STOP_STRING ? "word"
									   : "eos");
	json_write_string(w, "stopping_word", a->stop ? a->stop : "");
	write_timings(w, a);
}

/* "tokens": all that were drawn but the one that ended the answer, so those of a stop string too.
 */
static void write_ids(struct json_write *w, const int32_t *ids, size_t from, size_t n)
{
	json_write_open(w, "tokens", '[');
	for (size_t i = from; i < n; i++)
		json_write_int(w, NULL, ids[i]);
	json_write_close(w, ']');
}

static void write_probabilities(
	struct json_write *w, const struct reply *r, const struct output_token *rows, size_t n)
{
	if (r->request->output.logprobs && n)
		api_write_tokens(
			w, "completion_probabilities", r->request->model->tokenizer, rows, n, true);
}

static void llamacpp_begin(struct reply *r, struct buf *out)
{
	(void)r, (void)out;
}

static void llamacpp_event(
	struct reply *r, struct reply_answer *a, const struct job_event *v, struct buf *out)
{
	if (v->kind != JOB_TEXT && v->kind != JOB_END && v->kind != JOB_PROGRESS)
		return;
	struct buf json = {0};
	struct json_write w = {.out = &json};
	json_write_open(&w, NULL, '{');
	json_write_int(&w, "index", a->index);
	json_write_text(&w, "content", buf_str(&v->text), v->text.len);
	if (v->kind == JOB_END) /* those that wrote no text, or text that was held back for good */
		write_ids(&w, a->ids, a->n_ids_sent, a->n_ids);
	else
		write_ids(&w, v->ids.data, 0, v->ids.n);
	write_probabilities(&w, r, v->rows, v->n_rows);
	json_write_bool(&w, "stop", v->kind == JOB_END);
	if (v->kind == JOB_END)
		write_end(&w, r, a);
	api_write_progress(&w, v);
	json_write_close(&w, '}');
	api_sse_data(out, &json);
	buf_free(&json);
}

static void llamacpp_end(struct reply *r, struct buf *out)
{
	(void)r, (void)out; /* the event of JOB_END has "stop": true */
}

/* One prompt: an object; several: an array of them. */
static void llamacpp_whole(struct reply *r, struct buf *out)
{
	struct json_write w = {.out = out};
	bool list = r->n_answers > 1;
	if (list)
		json_write_open(&w, NULL, '[');
	for (uint32_t i = 0; i < r->n_answers; i++) {
		const struct reply_answer *a = &r->answers[i];
		json_write_open(&w, NULL, '{');
		json_write_int(&w, "index", i);
		json_write_text(&w, "content", buf_str(&a->text), a->text.len);
		write_ids(&w, a->ids, 0, r->request->output.token_ids ? a->n_ids : 0);
		write_probabilities(&w, r, a->rows, a->n_rows);
		json_write_bool(&w, "stop", true);
		write_end(&w, r, a);
		json_write_close(&w, '}');
	}
	if (list)
		json_write_close(&w, ']');
}

const struct api api_llamacpp = {
	.name = "/completion",
	.call_prefix = "call_",
	.parse = llamacpp_parse,
	.begin = llamacpp_begin,
	.event = llamacpp_event,
	.end = llamacpp_end,
	.broken = api_openai_broken,
	.ping = api_comment_ping,
	.whole = llamacpp_whole,
	.error = api_openai_error,
};
