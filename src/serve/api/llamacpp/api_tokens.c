/* SPDX-License-Identifier: MIT */
/* llama.cpp's paths that need the tokenizer and the template only. */
#include "src/serve/api/api.h"

#include "src/serve/api/json_write.h"
#include "src/text/json_text.h"
#include "src/text/utf8.h"

#define JSON_FACTOR 12   /* a byte as \u0000, in a buffer that doubles */
#define TOKENS_HELD 1024 /* tokens that are written before memory is counted again */

/* Reads no members. The functions below read theirs, ignore those that all APIs share (model,
 * temperature, ...), and refuse others. */
static int take_body(struct request *r, struct request_error *e)
{
	(void)r, (void)e;
	return 0;
}

static const struct api plain = {.parse = take_body};

static void write_piece(struct json_write *w, const struct request_model *m, int32_t id)
{
	struct text_span s = tokenizer_token(m->tokenizer, id);
	json_write_open(w, NULL, '{');
	json_write_int(w, "id", id);
	if (utf8_valid_prefix(s.data, s.len) == s.len) {
		json_write_text(w, "piece", s.data, s.len);
	} else { /* a part of a character: its bytes */
		json_write_open(w, "piece", '[');
		for (size_t i = 0; i < s.len; i++)
			json_write_int(w, NULL, (unsigned char)s.data[i]);
		json_write_close(w, ']');
	}
	json_write_close(w, '}');
}

/* Appends the tokens, and counts what is appended. */
static int write_tokens(struct json_write *w, struct request *r, const struct token_ids *ids,
	bool pieces, struct request_error *e)
{
	const size_t held = r->part.bytes;
	json_write_open(w, NULL, '{');
	json_write_open(w, "tokens", '[');
	for (size_t i = 0; i < ids->n; i++) {
		if (i % TOKENS_HELD == 0 && request_hold(r, held + 2 * w->out->cap, e))
			return -1;
		if (pieces)
			write_piece(w, r->model, ids->data[i]);
		else
			json_write_int(w, NULL, ids->data[i]);
	}
	json_write_close(w, ']');
	json_write_close(w, '}');
	return 0;
}

int api_tokenize(const struct request_model *model, const char *body, size_t len, struct buf *out,
	struct request_error *e)
{
	/* add_special has no effect: GLM's tokenizer adds no BOS token */
	static const char *const members[] = {
		"content", "parse_special", "with_pieces", "add_special", NULL};
	struct request r;
	struct token_ids ids = {0};
	struct json_write w = {.out = out};
	bool special = true, pieces = false;
	int rc = api_parse(&plain, model, body, len, &r, e) || request_known(&r, members, e) ||
					 request_bool(r.body, "parse_special", &special, e) ||
					 request_bool(r.body, "with_pieces", &pieces, e)
				 ? -1
				 : 0;
	const json_t *content = json_object_get(r.body, "content");
	if (!rc && !json_is_string(content))
		rc = request_refuse(e, 400, NULL, "content", "content: expected a string, found %s",
			json_text_type(content));
	if (!rc)
		rc = request_encode(
			&r, json_string_value(content), json_string_length(content), special, &ids, e);
	if (!rc)
		rc = write_tokens(&w, &r, &ids, pieces, e);
	token_ids_free(&ids);
	request_fini(&r);
	return rc;
}

/* The bytes of the tokens in a list. */
static int join_tokens(
	struct request *r, const json_t *list, struct buf *bytes, struct request_error *e)
{
	const struct tokenizer *t = r->model->tokenizer;
	int64_t n_tokens = tokenizer_n_tokens(t);
	size_t held = r->part.bytes, i;
	json_t *v;
	json_array_foreach(list, i, v)
	{
		int64_t id = json_is_integer(v) ? json_integer_value(v) : -1;
		if (id < 0 || id >= n_tokens)
			return request_refuse(e, 400, NULL, "tokens",
				"tokens: item %zu: expected a token id of 0 to %lld", i, (long long)n_tokens - 1);
		if (i % TOKENS_HELD == 0 && request_hold(r, held + 2 * bytes->cap, e))
			return -1;
		struct text_span s = tokenizer_token(t, (int32_t)id);
		buf_append(bytes, s.data, s.len);
	}
	return 0;
}

int api_detokenize(const struct request_model *model, const char *body, size_t len, struct buf *out,
	struct request_error *e)
{
	static const char *const members[] = {"tokens", NULL};
	struct request r;
	struct buf bytes = {0}, text = {0};
	struct json_write w = {.out = out};
	int rc = api_parse(&plain, model, body, len, &r, e) || request_known(&r, members, e) ? -1 : 0;
	const json_t *list = json_object_get(r.body, "tokens");
	size_t held = r.part.bytes;
	if (!rc && !json_is_array(list))
		rc = request_refuse(
			e, 400, NULL, "tokens", "tokens: expected an array, found %s", json_text_type(list));
	if (!rc)
		rc = join_tokens(&r, list, &bytes, e);
	if (!rc) /* repaired, a byte becomes three at most */
		rc = request_hold(&r, held + bytes.cap + (6 + JSON_FACTOR) * bytes.len, e);
	if (!rc) {
		utf8_repair(buf_str(&bytes), bytes.len, &text);
		json_write_open(&w, NULL, '{');
		json_write_text(&w, "content", buf_str(&text), text.len);
		json_write_close(&w, '}');
	}
	buf_free(&bytes);
	buf_free(&text);
	request_fini(&r);
	return rc;
}

int api_apply_template(const struct request_model *model, const char *body, size_t len,
	struct buf *out, struct request_error *e)
{
	struct request r;
	struct err err = {0};
	struct buf text = {0};
	struct json_write w = {.out = out};
	int rc = api_parse(&api_chat, model, body, len, &r, e);
	if (!rc) /* rendered once more, in a buffer that doubles; its copy; the answer */
		rc = request_hold(&r, r.part.bytes + (2 + 2 + JSON_FACTOR) * r.built.text_len, e);
	if (!rc && chat_render_text(&r.talk.chat, &text, &err))
		rc = request_refuse_err(e, &err);
	if (!rc) {
		json_write_open(&w, NULL, '{');
		json_write_text(&w, "prompt", buf_str(&text), text.len);
		json_write_close(&w, '}');
	}
	buf_free(&text);
	request_fini(&r);
	return rc;
}
