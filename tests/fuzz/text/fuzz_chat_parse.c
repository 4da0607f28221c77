/* SPDX-License-Identifier: MIT */
/*
 * The output parser. Input: a byte of options, then text; with its bit 2 runs of capital letters
 * stand for tags, so that structure is easy to reach. Checked: fed at once and in pieces it gives
 * the same events; event texts are valid UTF-8 and arguments valid JSON; no byte is lost: answer,
 * reasoning and raw calls put together are the repaired input, but for the think tags. The same
 * with live_calls, where the pieces of a call that ends are its arguments.
 */
#include "src/base/log.h"
#include "src/text/chat_parse.h"
#include "src/text/json_text.h"

#include <stdint.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *const tags[] = {"<think>", "</think>", "<tool_call>", "</tool_call>",
	"<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"};

struct seen {
	struct buf log;
	struct buf exact; /* texts and raw calls */
	struct buf live;  /* arguments reported of the call that is open */
	bool is_live, open;
	int last;
};

static void on_event(void *user, const struct chat_event *ev)
{
	struct seen *s = user;
	if (ev->kind == CHAT_EVENT_CALL_BEGIN) {
		buf_clear(&s->live);
		s->open = true;
		buf_printf(&s->log, "[begin %s]", ev->text);
	} else if (ev->kind == CHAT_EVENT_CALL_ARGUMENTS) {
		if (!ev->len || !s->open || utf8_valid_prefix(ev->text, ev->len) != ev->len)
			bug("a piece of arguments that is empty, of no call, or not valid UTF-8");
		buf_append(&s->live, ev->text, ev->len);
		buf_printf(&s->log, "%s", s->last == (int)ev->kind ? "" : "[arguments]");
		buf_append(&s->log, ev->text, ev->len);
	} else if (ev->kind == CHAT_EVENT_CALL) {
		const struct chat_parsed_call *c = ev->call;
		if (s->is_live && (!s->open || strcmp(buf_str(&s->live), c->arguments.data) != 0))
			bug("the pieces are not the arguments: %s", buf_str(&s->live));
		s->open = false;
		json_t *v = json_text_parse(c->arguments.data, c->arguments.len, false, NULL);
		/* keys with a zero byte are more than the JSON library takes */
		if (!v && !memmem(c->arguments.data, c->arguments.len, "\\u0000", 6))
			bug("arguments are not JSON: %s", c->arguments.data);
		json_decref(v);
		if (!c->name.len || utf8_valid_prefix(c->name.data, c->name.len) != c->name.len)
			bug("bad name");
		buf_printf(&s->log, "[call %s %s]", c->name.data, c->arguments.data);
		utf8_repair(c->raw.data, c->raw.len, &s->exact);
	} else {
		if (!ev->len || utf8_valid_prefix(ev->text, ev->len) != ev->len)
			bug("event text is empty or not valid UTF-8");
		if (s->last != (int)ev->kind)
			buf_printf(&s->log, "[%d]", ev->kind);
		buf_append(&s->log, ev->text, ev->len);
		buf_append(&s->exact, ev->text, ev->len);
	}
	s->last = (int)ev->kind;
}

static void fuzz_chat_parse_run(
	const struct buf *text, unsigned options, size_t step, const json_t *tools, struct seen *s)
{
	struct chat_parse p;
	*s = (struct seen){.last = -1, .is_live = options & 256};
	chat_parse_init(&p, NULL, options & 2 ? tools : NULL, options & 1, on_event, s);
	p.live_calls = s->is_live;
	for (size_t i = 0; i < text->len; i += step)
		chat_parse_text(&p, text->data + i, step < text->len - i ? step : text->len - i);
	chat_parse_finish(&p, options & 8);
	buf_free(&s->live);
	if (p.raw.len != text->len || (p.raw.len && memcmp(p.raw.data, text->data, p.raw.len)))
		bug("raw is not the input");
	chat_parse_fini(&p);
}

static void seen_free(struct seen *s)
{
	buf_free(&s->log);
	buf_free(&s->exact);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static json_t *tools;
	if (!tools)
		tools = json_loads(
			"[{\"name\":\"f\",\"parameters\":{\"properties\":{\"a\":{\"type\":\"string\"},"
			"\"b\":{\"type\":\"integer\"},"
			"\"c\":{\"type\":[\"object\",\"null\"]},\"d\":{\"type\":\"boolean\"}}}}]",
			0, NULL);
	if (!size)
		return 0;
	unsigned options = data[0];
	struct buf text = {0}, repaired = {0};
	for (size_t i = 1; i < size; i++) {
		if ((options & 4) && data[i] >= 'A' && data[i] < 'A' + 8)
			buf_puts(&text, tags[data[i] - 'A']);
		else
			buf_append(&text, &data[i], 1);
	}
	struct seen whole, pieces, bytes;
	fuzz_chat_parse_run(&text, options, text.len + 1, tools, &whole);
	fuzz_chat_parse_run(&text, options, 1 + options / 16, tools, &pieces);
	fuzz_chat_parse_run(&text, options, 1, tools, &bytes);
	if (strcmp(buf_str(&whole.log), buf_str(&bytes.log)) ||
		strcmp(buf_str(&whole.log), buf_str(&pieces.log)))
		bug("pieces give other events:\n%s\n%s", buf_str(&whole.log), buf_str(&bytes.log));
	/* only think tags may be missing */
	utf8_repair(buf_str(&text), text.len, &repaired);
	const char *a = buf_str(&repaired), *b = buf_str(&whole.exact), *a_end = a + repaired.len,
			   *b_end = b + whole.exact.len;
	size_t lost = (size_t)(a_end - a) - (size_t)(b_end - b);
	if (lost > repaired.len)
		bug("more comes out than went in");
	while (a < a_end) {
		if (b < b_end && *a == *b && !(a_end - a >= 7 && !memcmp(a, "<think>", 7)) &&
			!(a_end - a >= 8 && !memcmp(a, "</think>", 8))) {
			a++;
			b++;
			continue;
		}
		size_t n = a_end - a >= 8 && !memcmp(a, "</think>", 8)  ? 8
				   : a_end - a >= 7 && !memcmp(a, "<think>", 7) ? 7
																: 0;
		if (!n)
			bug("lost at %.20s", a);
		if ((size_t)(b_end - b) >= n && !memcmp(a, b, n))
			b += n; /* kept as text */
		a += n;
	}
	if (b != b_end)
		bug("added at the end: %s", b);
	seen_free(&whole);
	seen_free(&pieces);
	seen_free(&bytes);
	fuzz_chat_parse_run(&text, options | 256, text.len + 1, tools, &whole);
	fuzz_chat_parse_run(&text, options | 256, 1 + options / 16, tools, &pieces);
	if (strcmp(buf_str(&whole.log), buf_str(&pieces.log)))
		bug("live: pieces give other events:\n%s\n%s", buf_str(&whole.log), buf_str(&pieces.log));
	seen_free(&whole);
	seen_free(&pieces);
	buf_free(&text);
	buf_free(&repaired);
	return 0;
}
