/* SPDX-License-Identifier: MIT */
/* llama.cpp's paths that need the tokenizer and the template only. */
#include "src/serve/api/api.h"

#include "src/serve/api/json_write.h"
#include "src/text/json_text.h"
#include "src/text/utf8.h"

/* Parses no members: the functions below do. */
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

int api_tokenize(const struct request_model *model, const char *body, size_t len, struct buf *out,
	struct request_error *e)
{
	struct request r;
	struct err err = {0};
	struct token_ids ids = {0};
	struct json_write w = {.out = out};
	bool special = true, pieces = false;
	int rc = api_parse(&plain, model, body, len, &r, e) ||
					 request_bool(r.body, "parse_special", &special, e) ||
					 request_bool(r.body, "with_pieces", &pieces, e)
				 ? -1
				 : 0;
	const json_t *content = json_object_get(r.body, "content");
	if (!rc && !json_is_string(content))
		rc = request_refuse(e, 400, NULL, "content", "content: expected a string, found %s",
			json_text_type(content));
	if (!rc && tokenizer_encode(model->tokenizer, json_string_value(content),
				   json_string_length(content), special ? TOKENIZER_PARSE_ADDED : 0, &ids, &err))
		rc = request_refuse_err(e, &err);
	if (!rc) {
		json_write_open(&w, NULL, '{');
		json_write_open(&w, "tokens", '[');
		for (size_t i = 0; i < ids.n; i++) {
			if (pieces)
				write_piece(&w, model, ids.data[i]);
			else
				json_write_int(&w, NULL, ids.data[i]);
		}
		json_write_close(&w, ']');
		json_write_close(&w, '}');
	}
	token_ids_free(&ids);
	request_fini(&r);
	return rc;
}

int api_detokenize(const struct request_model *model, const char *body, size_t len, struct buf *out,
	struct request_error *e)
{
	struct request r;
	struct buf bytes = {0}, text = {0};
	struct json_write w = {.out = out};
	int64_t n_tokens = tokenizer_n_tokens(model->tokenizer);
	size_t i;
	json_t *v;
	int rc = api_parse(&plain, model, body, len, &r, e);
	const json_t *list = json_object_get(r.body, "tokens");
	if (!rc && !json_is_array(list))
		rc = request_refuse(
			e, 400, NULL, "tokens", "tokens: expected an array, found %s", json_text_type(list));
	json_array_foreach(list, i, v)
	{
		int64_t id = json_is_integer(v) ? json_integer_value(v) : -1;
		if (!rc && (id < 0 || id >= n_tokens))
			rc = request_refuse(e, 400, NULL, "tokens",
				"tokens: item %zu: expected a token id of 0 to %lld", i, (long long)n_tokens - 1);
		if (!rc) {
			struct text_span s = tokenizer_token(model->tokenizer, (int32_t)id);
			buf_append(&bytes, s.data, s.len);
		}
	}
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
