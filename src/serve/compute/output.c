/* SPDX-License-Identifier: MIT */
/*
 * Tokens go through the chat parser (or a UTF-8 stream), text through the stop strings. Text that
 * might begin a stop string is held back. Tokens with probabilities wait in `rows` until text that
 * they wrote is given out: each remembers how many bytes of text there were before it.
 */
#include "src/serve/compute/output.h"

#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/text/chat_parse.h"
#include "src/text/utf8.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct output {
	const struct output_options *options;
	const struct tokenizer *tokenizer;
	output_fn *emit;
	void *user;
	struct constraint constraint;
	struct chat_parse parse;   /* chat */
	struct utf8_stream stream; /* not chat */
	struct buf piece;          /* scratch */
	struct buf held;           /* text that may begin a stop string */
	struct output_token *rows; /* [n_rows] not given out yet */
	size_t n_rows, rows_cap;
	size_t bytes_in, bytes_out; /* of text */
	int stop;
	bool reasoning;
	int32_t end_think;
	uint32_t n_reasoning;
	size_t n_calls;
};

void output_options_fini(struct output_options *o)
{
	json_decref(o->tools);
	for (size_t i = 0; i < o->n_stops; i++)
		free(o->stops[i]);
	free(o->stops);
	free(o->choice_name);
	schema_free(o->answer);
	for (size_t i = 0; i < o->n_strict; i++) {
		free(o->strict[i].tool);
		free(o->strict[i].key);
		schema_free(o->strict[i].schema);
	}
	free(o->strict);
	free(o->stop_ids);
	*o = (struct output_options){0};
}

/* ---- text ---- */

static void give_text(struct output *o, const char *text, size_t n)
{
	if (!n)
		return;
	o->bytes_out += n;
	size_t ready = 0;
	while (ready < o->n_rows && o->rows[ready].at < o->bytes_out)
		ready++;
	o->emit(o->user, OUTPUT_TEXT, (struct text_span){text, n}, o->rows, ready);
	o->n_rows -= ready;
	if (o->n_rows)
		memmove(o->rows, o->rows + ready, o->n_rows * sizeof *o->rows);
}

/* Length of the longest end of `text` that begins a stop string. */
static size_t may_begin_stop(const struct output *o, const char *text, size_t n)
{
	size_t best = 0;
	for (size_t i = 0; i < o->options->n_stops; i++) {
		const char *stop = o->options->stops[i];
		for (size_t len = MIN(strlen(stop) - 1, n); len > best; len--)
			if (!memcmp(text + n - len, stop, len))
				best = len;
	}
	return best;
}

static void on_text(struct output *o, const char *text, size_t n)
{
	o->bytes_in += n;
	if (o->stop >= 0)
		return;
	if (!o->options->n_stops) {
		give_text(o, text, n);
		return;
	}
	buf_append(&o->held, text, n);
	if (!o->held.data)
		return;
	size_t first = o->held.len;
	for (size_t i = 0; i < o->options->n_stops; i++) {
		const char *stop = o->options->stops[i];
		const char *at = memmem(o->held.data, o->held.len, stop, strlen(stop));
		if (at && (size_t)(at - o->held.data) < first) {
			first = (size_t)(at - o->held.data);
			o->stop = (int)i;
		}
	}
	size_t out = o->stop >= 0 ? first : o->held.len - may_begin_stop(o, o->held.data, o->held.len);
	give_text(o, o->held.data, out);
	size_t kept = o->stop >= 0 ? 0 : o->held.len - out;
	memmove(o->held.data, o->held.data + out, kept);
	o->held.len = kept;
}

/* Drops the rows of the latest tokens that have written no text: tags. */
static void forget_rows(struct output *o)
{
	while (o->n_rows && o->rows[o->n_rows - 1].at >= o->bytes_in)
		o->n_rows--;
}

static void on_parser_event(void *user, const struct chat_event *v)
{
	struct output *o = user;
	struct text_span text = {v->text, v->len};
	switch (v->kind) {
	case CHAT_EVENT_REASONING:
		forget_rows(o);
		o->emit(o->user, OUTPUT_REASONING, text, NULL, 0);
		break;
	case CHAT_EVENT_ANSWER:
		on_text(o, v->text, v->len);
		break;
	case CHAT_EVENT_CALL_BEGIN:
		forget_rows(o);
		if (o->stop >= 0)
			break;
		give_text(o, o->held.data, o->held.len); /* a stop string does not go on behind a call */
		o->held.len = 0;
		o->emit(o->user, OUTPUT_CALL, text, NULL, 0);
		break;
	case CHAT_EVENT_CALL_ARGUMENTS:
		if (o->stop < 0)
			o->emit(o->user, OUTPUT_ARGUMENTS, text, NULL, 0);
		break;
	case CHAT_EVENT_CALL:
		forget_rows(o);
		if (o->stop >= 0)
			break;
		o->n_calls++;
		o->emit(o->user, OUTPUT_CALL_END, (struct text_span){0}, NULL, 0);
		break;
	}
}

/* ---- probabilities ---- */

/* NaN counts as -infinity, as it does for the sampler. */
static float nan_to_minus_inf(float v)
{
	return isnan(v) ? -INFINITY : v;
}

static void token_measure(const struct output *o, int32_t id, const float *logits, int32_t n_valid,
	struct output_token *out)
{
	uint32_t want = MIN(o->options->n_top, OUTPUT_TOP_MAX);
	double sum = 0;
	float top = -INFINITY;
	*out = (struct output_token){.id = id};
	for (int32_t i = 0; i < n_valid; i++)
		top = fmaxf(top, nan_to_minus_inf(logits[i]));
	for (int32_t i = 0; i < n_valid; i++) {
		float v = nan_to_minus_inf(logits[i]);
		sum += exp((double)v - (double)top);
		if (!want || (out->n_top == want && v <= out->top[want - 1].logprob))
			continue;
		uint32_t k = out->n_top < want ? out->n_top++ : want - 1;
		for (; k && out->top[k - 1].logprob < v; k--)
			out->top[k] = out->top[k - 1];
		out->top[k].id = i;
		out->top[k].logprob = v;
	}
	double all = (double)top + log(fmax(sum, 1e-300));
	out->logprob = (float)((double)nan_to_minus_inf(logits[id]) - all);
	for (uint32_t k = 0; k < out->n_top; k++)
		out->top[k].logprob = (float)((double)out->top[k].logprob - all);
}

/* ---- public ---- */

struct output *output_new(const struct output_options *options, const struct tokenizer *t,
	const atomic_bool *cancel, output_fn *emit, void *user)
{
	struct output *o = NEW(struct output);
	if (!o)
		return NULL;
	*o = (struct output){.options = options,
		.tokenizer = t,
		.emit = emit,
		.user = user,
		.stop = -1,
		.reasoning = options->chat && options->in_reasoning,
		.end_think = tokenizer_find_added(t, "</think>")};
	if (options->chat) {
		const struct constraint_options c = {.in_reasoning = options->in_reasoning,
			.choice = options->choice,
			.tools = options->tools,
			.choice_name = options->choice_name,
			.answer = options->answer,
			.tokens = options->tokens,
			.cancel = cancel,
			.strict = options->strict,
			.n_strict = options->n_strict};
		constraint_init(&o->constraint, t, &c);
		chat_parse_init(&o->parse, t, options->tools, options->in_reasoning, on_parser_event, o);
		o->parse.live_calls = true;
	}
	return o;
}

void output_free(struct output *o)
{
	if (!o)
		return;
	if (o->options->chat)
		chat_parse_fini(&o->parse);
	constraint_fini(&o->constraint);
	buf_free(&o->piece);
	buf_free(&o->held);
	free(o->rows);
	free(o);
}

bool output_allows(struct output *o, int32_t id)
{
	return constraint_allows(&o->constraint, id);
}

void output_mask(struct output *o, float *logits, int32_t n_valid)
{
	constraint_mask(&o->constraint, logits, n_valid);
}

enum output_next output_push(struct output *o, int32_t id, const float *logits, int32_t n_valid)
{
	size_t calls = o->n_calls;
	if (!constraint_token(&o->constraint, id))
		return OUTPUT_INVALID;
	if (o->reasoning) {
		o->n_reasoning++;
		o->reasoning = id != o->end_think;
	}
	bool hidden = o->options->chat
					  ? tokenizer_is_added(o->tokenizer, id)
					  : !o->options->show_control && tokenizer_is_control(o->tokenizer, id);
	if (o->options->logprobs && !hidden) {
		size_t cap = o->n_rows < o->rows_cap ? o->rows_cap : o->rows_cap ? 2 * o->rows_cap : 16;
		if (cap == o->rows_cap || mem_grow_array(&o->rows, cap, sizeof *o->rows)) {
			o->rows_cap = cap;
			struct output_token *r = &o->rows[o->n_rows++];
			token_measure(o, id, logits, n_valid, r);
			r->at = o->bytes_in;
		}
	}
	if (o->options->chat) {
		chat_parse_token(&o->parse, id);
	} else if (!hidden) {
		struct text_span s = tokenizer_token(o->tokenizer, id);
		buf_clear(&o->piece);
		utf8_stream_push(&o->stream, s.data, s.len, &o->piece);
		if (o->piece.len)
			on_text(o, o->piece.data, o->piece.len);
	}
	if (o->stop >= 0)
		return OUTPUT_STOP_STRING;
	if (constraint_complete(&o->constraint))
		return OUTPUT_COMPLETE;
	return o->options->one_call && o->n_calls > calls ? OUTPUT_ONE_CALL : OUTPUT_GO_ON;
}

void output_finish(struct output *o, bool ended)
{
	if (o->options->chat) {
		chat_parse_finish(&o->parse, ended);
	} else {
		buf_clear(&o->piece);
		utf8_stream_flush(&o->stream, &o->piece);
		if (o->piece.len)
			on_text(o, o->piece.data, o->piece.len);
	}
	if (o->stop < 0)
		give_text(o, o->held.data, o->held.len);
	o->held.len = 0;
}

int output_stop_index(const struct output *o)
{
	return o->stop;
}

uint32_t output_reasoning_tokens(const struct output *o)
{
	return o->n_reasoning;
}

bool output_reasoning_open(const struct output *o)
{
	return o->reasoning;
}

bool output_in_call(const struct output *o)
{
	return o->options->chat && chat_parse_in_call(&o->parse);
}
