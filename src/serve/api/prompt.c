/* SPDX-License-Identifier: MIT */
/*
 * The template renders the whole conversation. In its segments an assistant turn runs from its
 * "<|assistant|>" to the next role's control token. No text can look like one (chat.h), so the
 * k-th turn of the segments is the k-th assistant message. The segments of a known turn are
 * replaced by its tokens.
 */
#include "src/serve/api/prompt.h"

#include "src/base/hash.h"
#include "src/base/mem.h"
#include "src/base/num.h"

#include <stdlib.h>
#include <string.h>

void prompt_talk_fini(struct prompt_talk *t)
{
	chat_fini(&t->chat);
	for (size_t i = 0; i < t->n_call_ids; i++)
		buf_free(&t->call_ids[i]);
	free(t->call_ids);
	*t = (struct prompt_talk){0};
}

void prompt_talk_call_id(struct prompt_talk *t, size_t i, const char *id, size_t len)
{
	if (i >= t->n_call_ids) {
		if (!mem_grow_array(&t->call_ids, i + 1, sizeof *t->call_ids))
			return;
		while (t->n_call_ids <= i)
			t->call_ids[t->n_call_ids++] = (struct buf){0};
	}
	for (size_t k = 0; k < len && id[k]; k++) /* line feeds separate ids */
		buf_putc(&t->call_ids[i], id[k] == '\n' ? ' ' : id[k]);
	buf_putc(&t->call_ids[i], '\n');
}

static bool is_control(const struct chat_prompt *p, size_t i, const char *token)
{
	const struct chat_segment *s = &p->segments[i];
	return s->control && s->len == strlen(token) && !memcmp(p->text.data + s->start, token, s->len);
}

static bool begins_turn(const struct chat_prompt *p, size_t i)
{
	static const char *const roles[] = {
		"<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"};
	for (size_t k = 0; k < ARRAY_LEN(roles); k++)
		if (is_control(p, i, roles[k]))
			return true;
	return false;
}

static int put_segments(const struct chat_prompt *p, size_t from, size_t to,
	const struct tokenizer *t, struct token_ids *out, struct err *e)
{
	struct chat_prompt part = {
		.text = p->text, .segments = p->segments + from, .n = to - from, .memory = p->memory};
	return chat_prompt_ids(&part, t, out, e);
}

/* Appends the tokens of message m behind its <think>, if the store has them; *out holds everything
 * before them, `before` is their hash. False: it does not, and *out is as it was. */
static bool put_known(const struct prompt_talk *t, size_t m, bool with_reasoning, uint64_t before,
	const struct tokenizer *tokenizer, struct turn_store *turns, struct token_ids *out)
{
	const struct chat_message *msg = &t->chat.messages[m];
	struct stored_turn turn = {.content = msg->content,
		.calls = msg->calls,
		.n_calls = msg->n_calls,
		.call_ids = m < t->n_call_ids ? buf_str(&t->call_ids[m]) : "",
		.before = before,
		.n_before = out->n,
		.reasoning = msg->reasoning};
	size_t n = out->n;
	int32_t end_think = tokenizer_find_added(tokenizer, "</think>");
	struct token_ids ids = {0};
	bool known = turn_store_get(turns, &turn, with_reasoning, &ids);
	if (known && !with_reasoning)
		known = !token_ids_push(out, end_think);
	for (size_t i = 0; known && i < ids.n; i++)
		known = !token_ids_push(out, ids.data[i]);
	if (!known)
		out->n = n;
	token_ids_free(&ids);
	return known;
}

int prompt_build(const struct prompt_talk *t, const struct tokenizer *tokenizer,
	struct turn_store *turns, size_t most_bytes, const struct tokenizer_memory *memory,
	struct token_ids *out, struct prompt_built *built, struct err *e)
{
	const struct chat *c = &t->chat;
	struct chat_prompt p = {.most_bytes = most_bytes, .memory = memory};
	int rc = chat_render(c, &p, e);
	size_t after_user = 0, m = 0, from = 0;
	*built = (struct prompt_built){.too_long = p.too_long, .text_len = p.text.len};
	struct hash_stream before; /* of the first `hashed` tokens; incremental, since turns are many */
	size_t hashed = 0;
	hash_stream_begin(&before);
	for (size_t i = 0; i < c->n_messages; i++)
		if (c->messages[i].role == CHAT_USER)
			after_user = i + 1;
	for (size_t i = 0; !rc && turns && i < p.n; i++) {
		if (!is_control(&p, i, "<|assistant|>"))
			continue;
		while (m < c->n_messages && c->messages[m].role != CHAT_ASSISTANT)
			m++;
		if (m == c->n_messages) /* the turn that the model is to write */
			break;
		size_t end = i + 2; /* behind <think> */
		if ((rc = put_segments(&p, from, end, tokenizer, out, e)))
			break;
		from = end;
		while (end < p.n && !begins_turn(&p, end))
			end++;
		bool goes_on = c->options.continue_last && m + 1 == c->n_messages;
		if (goes_on)
			built->goes_on = out->n;
		/* remember() in reply.c stores no answer whose reasoning has not ended */
		bool thinks = goes_on && chat_starts_in_reasoning(c);
		bool with_reasoning = c->options.clear_thinking == CHAT_OFF || m >= after_user;
		hash_stream_add(&before, out->data + hashed, (out->n - hashed) * sizeof *out->data);
		hashed = out->n;
		if (!thinks &&
			put_known(t, m, with_reasoning, hash_stream_value(&before), tokenizer, turns, out)) {
			from = end;
			built->replayed++;
		}
		i = end - 1;
		m++;
	}
	if (!rc)
		rc = put_segments(&p, from, p.n, tokenizer, out, e);
	chat_prompt_fini(&p);
	return rc;
}
