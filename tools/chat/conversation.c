/* SPDX-License-Identifier: MIT */
/* Messages in, prompt ids out. */
#include "tools/chat/conversation.h"

#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/text/utf8.h"
#include "tools/options/run_opts.h"

#include <stdlib.h>
#include <string.h>

void conversation_fini(struct conversation *c)
{
	chat_fini(&c->chat);
	token_ids_free(&c->raw_ids);
	free(c->marks);
	*c = (struct conversation){0};
}

void conversation_set_think(struct conversation *c, int mode)
{
	c->chat.options.enable_thinking = mode == THINK_OFF ? CHAT_OFF : CHAT_UNSET;
	c->chat.options.effort_high = mode == THINK_HIGH;
}

int conversation_check(const char *text, size_t len, const char *what, struct err *e)
{
	size_t good = utf8_valid_prefix(text, len);
	if (good == len)
		return 0;
	return err_set(e, ERR_INPUT, "%.200s: byte %zu (0x%02x) is not valid UTF-8", what, good,
		(unsigned char)text[good]);
}

static bool has_system(const struct conversation *c)
{
	return c->chat.n_messages && c->chat.messages[0].role == CHAT_SYSTEM;
}

int conversation_set_system(struct conversation *c, const char *text, struct err *e)
{
	struct chat *chat = &c->chat;
	bool had = has_system(c), wants = text && *text;
	int rc = wants ? conversation_check(text, strlen(text), "the system message", e) : 0;
	if (rc)
		return rc;
	if (had) { /* to the end, and off */
		struct chat_message old = chat->messages[0];
		memmove(chat->messages, chat->messages + 1, (chat->n_messages - 1) * sizeof old);
		chat->messages[chat->n_messages - 1] = old;
		chat_truncate(chat, chat->n_messages - 1);
	}
	if (wants) {
		struct chat_message m = *chat_add(chat, CHAT_SYSTEM, text, strlen(text));
		memmove(chat->messages + 1, chat->messages, (chat->n_messages - 1) * sizeof m);
		chat->messages[0] = m;
	}
	for (size_t i = 0; i < c->n_turns && had != wants; i++)
		c->marks[i] = wants ? c->marks[i] + 1 : c->marks[i] - 1;
	return 0;
}

const char *conversation_system(const struct conversation *c)
{
	return has_system(c) ? c->chat.messages[0].content.data : NULL;
}

int conversation_add_user(struct conversation *c, const struct tokenizer *t, const char *text,
	size_t len, const char *what, struct err *e)
{
	int rc = conversation_check(text, len, what, e);
	if (rc)
		return rc;
	size_t mark = c->raw ? c->raw_ids.n : c->chat.n_messages;
	if (c->raw) {
		if ((rc = tokenizer_encode(t, text, len, TOKENIZER_PARSE_ADDED, &c->raw_ids, e)))
			return rc;
		if (!c->raw_ids.n)
			return err_set(e, ERR_INPUT, "%.200s: the prompt is empty", what);
	} else {
		chat_add(&c->chat, CHAT_USER, text, len);
	}
	c->marks = mem_grow(c->marks, c->n_turns + 1, sizeof *c->marks);
	c->marks[c->n_turns++] = mark;
	return 0;
}

bool conversation_undo(struct conversation *c)
{
	if (!c->n_turns)
		return false;
	size_t mark = c->marks[--c->n_turns];
	if (c->raw)
		c->raw_ids.n = mark;
	else
		chat_truncate(&c->chat, mark);
	return true;
}

const char *conversation_last_user(const struct conversation *c)
{
	return c->n_turns && !c->raw ? c->chat.messages[c->marks[c->n_turns - 1]].content.data : NULL;
}

void conversation_reset(struct conversation *c)
{
	c->n_turns = 0;
	c->raw_ids.n = 0;
	chat_truncate(&c->chat, has_system(c) ? 1 : 0);
}

int conversation_prompt(
	struct conversation *c, const struct tokenizer *t, struct token_ids *out, struct err *e)
{
	out->n = 0;
	if (!c->raw) {
		c->chat.options.add_generation_prompt = true;
		return chat_render_ids(&c->chat, t, out, e);
	}
	for (size_t i = 0; i < c->raw_ids.n; i++)
		if (token_ids_push(out, c->raw_ids.data[i]))
			return err_set(e, ERR_MEMORY, "no memory for %zu token ids", c->raw_ids.n);
	return 0;
}
