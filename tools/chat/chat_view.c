/* SPDX-License-Identifier: MIT */
/* Events of the output parser -> two streams. Every coloured piece is closed at once, so that
 * nothing that happens in between (Ctrl+C, an error) leaves the terminal dimmed. */
#include "tools/chat/chat_view.h"

#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/format/json_parse.h"
#include "tools/output/terminal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DIM   "\033[2m"
#define CYAN  "\033[36m"
#define PLAIN "\033[0m"

static bool has_colours(int fd)
{
	const char *no = getenv("NO_COLOR");
	return terminal_has_escapes(fd) && !(no && *no);
}

void chat_view_init(struct chat_view *v, bool show_reasoning)
{
	v->out_terminal = isatty(STDOUT_FILENO);
	v->err_terminal = isatty(STDERR_FILENO);
	v->out_colours = has_colours(STDOUT_FILENO);
	v->err_colours = has_colours(STDERR_FILENO);
	v->show_reasoning = show_reasoning;
}

static void drop_calls(struct chat_view *v)
{
	for (size_t i = 0; i < v->n_calls; i++) {
		free(v->calls[i].name.data);
		json_decref(v->calls[i].arguments);
	}
	free(v->calls);
	v->calls = NULL;
	v->n_calls = 0;
}

void chat_view_fini(struct chat_view *v)
{
	drop_calls(v);
	buf_free(&v->piece);
	buf_free(&v->reasoning);
	buf_free(&v->answer);
}

/* To a terminal: control characters of both ranges, tab and line feed apart, become U+FFFD. */
static void write_text(FILE *f, const char *text, size_t n, bool terminal)
{
	size_t from = 0;
	for (size_t i = 0; i < n && terminal; i++) {
		unsigned char c = (unsigned char)text[i];
		bool low = (c < 32 && c != '\n' && c != '\t') || c == 127;
		bool high = c == 0xc2 && i + 1 < n && (unsigned char)text[i + 1] >= 0x80 &&
					(unsigned char)text[i + 1] < 0xa0;
		if (!low && !high)
			continue;
		fwrite(text + from, 1, i - from, f);
		fputs("\xef\xbf\xbd", f);
		i += high;
		from = i + 1;
	}
	if (from < n)
		fwrite(text + from, 1, n - from, f);
}

void chat_view_quote(const struct chat_view *v, const char *text, size_t n)
{
	write_text(stderr, text, n, v->err_terminal);
}

/* Reasoning and answer may share a terminal: leave a blank line between them. */
static void close_reasoning(struct chat_view *v)
{
	if (!v->reasoning_open)
		return;
	v->reasoning_open = false;
	fputs(v->out_terminal && v->err_terminal ? "\n\n" : "\n", stderr);
	fflush(stderr);
}

static void show_reasoning(struct chat_view *v, const char *text, size_t n)
{
	if (!v->show_reasoning)
		return;
	if (!v->reasoning_open) /* blanks in front say nothing */
		while (n && (*text == '\n' || *text == ' '))
			text++, n--;
	if (!n)
		return;
	v->reasoning_open = true;
	if (v->err_colours)
		fputs(DIM, stderr);
	write_text(stderr, text, n, v->err_terminal);
	if (v->err_colours)
		fputs(PLAIN, stderr);
	fflush(stderr);
}

static void show_answer(struct chat_view *v, const char *text, size_t n)
{
	if (!v->wrote && !v->raw) /* line feeds before the answer belong to the template, not to it */
		while (n && *text == '\n')
			text++, n--;
	if (!n)
		return;
	close_reasoning(v);
	v->wrote = true;
	v->last = text[n - 1];
	write_text(stdout, text, n, v->out_terminal);
	if (fflush(stdout) || ferror(stdout))
		v->lost = true;
}

static void show_call(struct chat_view *v, const struct chat_parsed_call *call)
{
	close_reasoning(v);
	struct buf line = {0};
	if (v->wrote && v->last != '\n')
		buf_putc(&line, '\n');
	buf_printf(&line, "call %.*s %.*s\n", (int)call->name.len, call->name.data,
		(int)call->arguments.len, call->arguments.data);
	if (v->out_colours)
		fputs(CYAN, stdout);
	show_answer(v, line.data, line.len);
	if (v->out_colours)
		fputs(PLAIN, stdout);
	buf_free(&line);
}

static void on_chat_event(void *user, const struct chat_event *event)
{
	struct chat_view *v = user;
	switch (event->kind) {
	case CHAT_EVENT_REASONING:
		buf_append(&v->reasoning, event->text, event->len);
		show_reasoning(v, event->text, event->len);
		break;
	case CHAT_EVENT_ANSWER:
		buf_append(&v->answer, event->text, event->len);
		show_answer(v, event->text, event->len);
		break;
	case CHAT_EVENT_CALL: {
		v->calls = mem_grow(v->calls, v->n_calls + 1, sizeof *v->calls);
		struct chat_call *c = &v->calls[v->n_calls++];
		c->name = chat_text_new(event->call->name.data, event->call->name.len);
		if (json_parse(event->call->arguments.data, event->call->arguments.len, JSON_ALLOW_NUL,
				&c->arguments, NULL) == ERR_INPUT)
			c->arguments = json_object();
		v->no_memory |= !c->arguments;
		show_call(v, event->call);
		break;
	}
	default:
		break;
	}
}

void chat_view_begin(struct chat_view *v, const struct tokenizer *t, bool raw, bool in_reasoning)
{
	drop_calls(v);
	buf_clear(&v->reasoning);
	buf_clear(&v->answer);
	v->tokenizer = t;
	v->raw = raw;
	v->wrote = v->reasoning_open = v->lost = v->no_memory = false;
	v->stream = (struct utf8_stream){0};
	if (!raw)
		chat_parse_init(&v->parse, t, NULL, in_reasoning, on_chat_event, v);
}

bool chat_view_token(struct chat_view *v, int32_t id)
{
	if (v->raw) {
		struct text_span s = tokenizer_token(v->tokenizer, id);
		buf_clear(&v->piece);
		utf8_stream_push(&v->stream, s.data, s.len, &v->piece);
		show_answer(v, buf_str(&v->piece), v->piece.len);
	} else {
		chat_parse_token(&v->parse, id);
	}
	return !v->lost;
}

void chat_view_end(struct chat_view *v, bool ended)
{
	if (v->raw) {
		buf_clear(&v->piece);
		utf8_stream_flush(&v->stream, &v->piece);
		show_answer(v, buf_str(&v->piece), v->piece.len);
	} else {
		chat_parse_finish(&v->parse, ended);
		chat_parse_fini(&v->parse);
	}
	if (v->reasoning_open) { /* it never came to an answer */
		v->reasoning_open = false;
		fputc('\n', stderr);
	}
	if (v->wrote && v->last != '\n')
		fputc('\n', stdout);
	if (fflush(stdout) || ferror(stdout))
		v->lost = true;
}

void chat_view_message(const struct chat_view *v, struct chat *c)
{
	struct chat_message *m = chat_add(c, CHAT_ASSISTANT, buf_str(&v->answer), v->answer.len);
	if (v->reasoning.len)
		m->reasoning = chat_text_new(v->reasoning.data, v->reasoning.len);
	if (!v->n_calls)
		return;
	m->calls = NEW_ARRAY(struct chat_call, v->n_calls);
	m->n_calls = v->n_calls;
	for (size_t i = 0; i < v->n_calls; i++) {
		m->calls[i].name = chat_text_new(v->calls[i].name.data, v->calls[i].name.len);
		m->calls[i].arguments = json_incref(v->calls[i].arguments);
	}
}
