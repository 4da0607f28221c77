/* SPDX-License-Identifier: MIT */
/* Makes the jobs of a request, and enters their events into its answers. */
#include "src/serve/api/reply.h"

#include "src/base/hash.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/text/json_text.h"

#include <stdlib.h>
#include <string.h>

#define MASK_BYTES ((size_t)1 << 20) /* of an answer that follows a schema (grammar_run.h) */
#define RATE_NS    200000000u        /* a rate is not shown before so much time */
#define HOLD_STEP  ((size_t)256 << 10)
#define ROW_JSON   80 /* bytes of JSON for a token or a rival */

static struct job *make_job(struct reply *r, uint32_t index)
{
	const struct request *q = r->request;
	struct job *j = job_new(r->mail, index);
	if (!j)
		return NULL;
	job_share(j, q->shared, index / q->n);
	j->max_new = q->max_new;
	j->sampling = q->sampling;
	j->sampling.seed += index; /* several answers are to differ */
	return j;
}

static int refuse_answer(enum scheduler_answer answer, const struct client *client,
	unsigned retry_s, struct request_error *e)
{
	switch (answer) {
	case SCHEDULER_TAKEN:
		return 0;
	case SCHEDULER_FULL:
		request_refuse(e, 429, "queue_full", NULL,
			"too many requests are waiting; try again in %u s", retry_s);
		e->retry_s = retry_s;
		return -1;
	case SCHEDULER_SHARE:
		request_refuse(e, 429, "client_share", NULL,
			"too many requests of this client are waiting: one client may take %u %% of the places "
			"that others leave; try again in %u s",
			client_percent(client), retry_s);
		e->retry_s = retry_s;
		return -1;
	default:
		request_refuse(e, 503, "shutting_down", NULL, "the server is shutting down");
		e->retry_s = 5;
		return -1;
	}
}

int reply_possible(struct scheduler *s, struct client *client, struct request_error *e)
{
	unsigned retry_s = 1;
	return refuse_answer(scheduler_check_room(s, client, &retry_s), client, retry_s, e);
}

int reply_begin(struct reply *r, struct request *request, struct scheduler *s,
	const char *call_prefix, struct request_error *e)
{
	*r = (struct reply){.request = request, .mail = mailbox_new(), .call_prefix = call_prefix};
	uint32_t n = (uint32_t)request->n_prompts * request->n;
	r->answers = NEW_ARRAY(struct reply_answer, n);
	struct job *jobs[REQUEST_ANSWERS_MAX];
	if (!r->mail || !r->answers || !request_share(request))
		return request_refuse_memory(e);
	for (; r->n_answers < n; r->n_answers++) {
		uint32_t i = r->n_answers;
		r->answers[i].index = i;
		if (!(jobs[i] = r->answers[i].job = make_job(r, i)))
			return request_refuse_memory(e);
	}
	bool masked = request->output.answer || request->output.n_strict;
	struct budget_part *part = &request->shared->part;
	if (masked && request_hold_part(part, part->bytes + n * MASK_BYTES, e))
		return -1;
	r->before = part->bytes;
	unsigned retry_s = 1;
	return refuse_answer(
		scheduler_submit(s, jobs, r->n_answers, &retry_s), request->model->client, retry_s, e);
}

/* Stores the answer's tokens in the turn store: the next request may send the answer back. Done
 * before the client sees its end. */
static void remember(struct reply *r, struct reply_answer *a)
{
	const struct request *q = r->request;
	const struct job *j = a->job;
	int32_t end_think = tokenizer_find_added(q->model->tokenizer, "</think>");
	if (!q->output.chat || !q->model->turns || output_reasoning_open(j->output) || j->cut_in_call ||
		(a->finish != JOB_STOP_TOKEN && a->finish != JOB_ONE_CALL && a->finish != JOB_LENGTH))
		return;
	/* behind <think>: what the prompt has of the turn (at least </think> when there is no
	 * reasoning), then what was written */
	const struct chat_message *last =
		q->built.goes_on ? &q->talk.chat.messages[q->talk.chat.n_messages - 1] : NULL;
	size_t from = last ? q->built.goes_on : j->prompt.n - !q->output.in_reasoning;
	size_t n = 0, reasoning = 0;
	int32_t *ids = NEW_ARRAY(int32_t, j->prompt.n - from + j->generated.n + 1);
	struct chat_call *calls = NEW_ARRAY(struct chat_call, a->n_calls + 1);
	if (!ids || !calls) {
		free(ids);
		free(calls);
		return;
	}
	for (size_t i = from; i < j->prompt.n; i++)
		ids[n++] = j->prompt.data[i];
	for (size_t i = 0; i < j->generated.n; i++)
		ids[n++] = j->generated.data[i];
	while (reasoning < n && ids[reasoning++] != end_think)
		;
	struct buf content = {0}, thought = {0};
	if (last) {
		buf_append(&content, last->content.data, last->content.len);
		buf_append(&thought, last->reasoning.data, last->reasoning.len);
	}
	buf_append(&content, a->text.data, a->text.len);
	buf_append(&thought, a->reasoning.data, a->reasoning.len);
	struct buf call_ids = {0};
	bool good = true;
	for (size_t i = 0; i < a->n_calls; i++) {
		calls[i].name = (struct chat_text){a->calls[i].name.data, a->calls[i].name.len};
		calls[i].arguments =
			json_text_parse(a->calls[i].arguments.data, a->calls[i].arguments.len, true, NULL);
		good = good && calls[i].arguments;
		buf_printf(&call_ids, "%s\n", a->calls[i].id);
	}
	struct stored_turn turn = {.content = {content.data, content.len},
		.calls = calls,
		.n_calls = a->n_calls,
		.call_ids = buf_str(&call_ids),
		.before = hash_bytes(HASH_START, j->prompt.data, from * sizeof *j->prompt.data),
		.n_before = from,
		.reasoning = {thought.data, thought.len}};
	if (good && !mem_scope_failed())
		turn_store_put(q->model->turns, &turn, ids, n, reasoning);
	for (size_t i = 0; i < a->n_calls; i++)
		json_decref(calls[i].arguments);
	free(calls);
	free(ids);
	buf_free(&call_ids);
	buf_free(&content);
	buf_free(&thought);
}

static void enter_end(struct reply *r, struct reply_answer *a, const struct job_event *v)
{
	const struct job *j = a->job;
	a->ended = true;
	r->n_ended++;
	a->finish = v->finish;
	a->prompt_tokens = (uint32_t)j->prompt.n;
	a->cached_tokens = j->cached;
	a->new_tokens = (uint32_t)j->generated.n;
	a->ids = j->generated.data;
	a->n_ids = j->generated.n;
	a->n_ids_sent = j->n_ids_sent;
	if (v->kind != JOB_END || !j->output)
		return;
	a->reasoning_tokens = output_reasoning_tokens(j->output);
	a->stop = v->stop >= 0 ? r->request->output.stops[v->stop] : NULL;
	struct mem_scope scope; /* an answer that is not remembered is an answer */
	bool incomplete = mem_scope_failed();
	mem_scope_begin(&scope);
	if (!incomplete)
		remember(r, a);
	mem_scope_end(&scope);
}

static void enter_call(struct reply *r, struct reply_answer *a, const struct job_event *v)
{
	if (!mem_grow_array(&a->calls, a->n_calls + 1, sizeof *a->calls))
		return;
	struct reply_call *c = &a->calls[a->n_calls++];
	*c = (struct reply_call){0};
	if (r->call_prefix)
		request_make_id(c->id, sizeof c->id, r->call_prefix);
	buf_append(&c->name, v->text.data, v->text.len);
	c->text_at = a->text.len;
	c->rows_at = a->n_rows;
}

void reply_call_object(const struct reply_call *c, struct buf *out)
{
	if (c->complete) {
		buf_append(out, c->arguments.data, c->arguments.len);
		return;
	}
	/* up to the last comma of the object, or to the end when that closes a value: a key comes with
	 * its colon, a value other than a string comes whole */
	const char *s = buf_str(&c->arguments);
	size_t depth = 0, good = 1;
	bool in_string = false;
	char last = 0;
	for (size_t i = 0; i < c->arguments.len; i++) {
		if (in_string && s[i] == '\\')
			i++;
		else if (s[i] == '"')
			in_string = !in_string;
		else if (!in_string && (s[i] == '{' || s[i] == '['))
			depth++;
		else if (!in_string && (s[i] == '}' || s[i] == ']'))
			depth--;
		else if (!in_string && s[i] == ',' && depth == 1)
			good = i;
		if (i < c->arguments.len && s[i] != ' ')
			last = s[i];
	}
	if (!in_string && depth == 1 && last != ':' && last != ',')
		good = c->arguments.len;
	if (c->arguments.len)
		buf_append(out, s, good);
	else
		buf_putc(out, '{');
	buf_putc(out, '}');
}

/* Holds what the answers need of the budget: each text twice (it is written into the response), and
 * tokens with their rivals, without a stream also as JSON. In steps of HOLD_STEP, since budget_hold
 * takes a lock. */
static void answers_hold(struct reply *r)
{
	const struct request *q = r->request;
	size_t row = sizeof(struct output_token) + (q->stream ? 0 : ROW_JSON * (q->output.n_top + 1)),
		   bytes = 0;
	for (uint32_t i = 0; i < r->n_answers; i++) {
		const struct reply_answer *a = &r->answers[i];
		bytes += 2 * (a->text.cap + a->reasoning.cap) + row * a->n_rows;
		for (size_t k = 0; k < a->n_calls; k++)
			bytes += sizeof a->calls[k] + 2 * a->calls[k].arguments.cap;
	}
	if (bytes <= r->held || r->refusal.status)
		return;
	r->held = bytes + HOLD_STEP;
	request_hold_part(&q->shared->part, r->before + r->held, &r->refusal);
}

double reply_prompt_left(const struct reply *r)
{
	uint32_t computed = r->progress_done - MIN(r->progress_cached, r->progress_done);
	if (!computed || r->progress_ns < RATE_NS)
		return 0;
	return 1e-9 * (double)r->progress_ns * (r->progress_total - r->progress_done) / computed;
}

struct job_event *reply_next(struct reply *r, int timeout_ms, struct reply_answer **answer)
{
	struct job_event *v = mailbox_take(r->mail, timeout_ms);
	if (!v)
		return NULL;
	struct reply_answer *a = *answer = &r->answers[v->index];
	switch (v->kind) {
	case JOB_PROGRESS:
		r->progress_done = v->done;
		r->progress_total = v->total;
		r->progress_cached = v->cached;
		r->progress_ns = v->reading_ns;
		a->prompt_tokens = v->total;
		a->cached_tokens = v->cached;
		break;
	case JOB_REASONING:
		buf_append(&a->reasoning, v->text.data, v->text.len);
		break;
	case JOB_TEXT:
		buf_append(&a->text, v->text.data, v->text.len);
		if (v->n_rows && mem_grow_array(&a->rows, a->n_rows + v->n_rows, sizeof *a->rows)) {
			memcpy(a->rows + a->n_rows, v->rows, v->n_rows * sizeof *a->rows);
			a->n_rows += v->n_rows;
		}
		break;
	case JOB_CALL:
		enter_call(r, a, v);
		break;
	case JOB_ARGUMENTS:
		if (!a->n_calls) /* its beginning found no memory */
			break;
		buf_append(&a->calls[a->n_calls - 1].arguments, v->text.data, v->text.len);
		break;
	case JOB_CALL_END:
		if (!a->n_calls)
			break;
		a->calls[a->n_calls - 1].complete = true;
		break;
	case JOB_END:
	case JOB_ERROR:
		enter_end(r, a, v);
		break;
	}
	answers_hold(r);
	return v;
}

struct reply_times reply_times(const struct reply_answer *a)
{
	const struct job *j = a->job;
	struct reply_times t = {0};
	if (!j || !j->ended_ns || !j->started_ns)
		return t;
	uint64_t first = j->first_token_ns ? j->first_token_ns : j->ended_ns;
	t.wait_ns = j->started_ns - j->submitted_ns;
	t.prompt_ns = first - j->started_ns;
	t.answer_ns = j->ended_ns - first;
	t.total_ns = j->ended_ns - j->submitted_ns;
	return t;
}

static bool is_blank(const char *s, size_t n)
{
	while (n && memchr(" \t\r\n", s[n - 1], 4))
		n--;
	return !n;
}

bool reply_segment(const struct reply_answer *a, size_t k, struct reply_segment *out)
{
	size_t from = k ? a->calls[k - 1].text_at : 0,
		   to = k < a->n_calls ? a->calls[k].text_at : a->text.len;
	size_t first = k ? a->calls[k - 1].rows_at : 0,
		   end = k < a->n_calls ? a->calls[k].rows_at : a->n_rows;
	*out = (struct reply_segment){
		buf_str(&a->text) + from, to - from, end > first ? a->rows + first : NULL, end - first};
	return out->len && !is_blank(out->text, out->len);
}

void reply_end(struct reply *r)
{
	for (uint32_t i = 0; i < r->n_answers; i++) {
		struct reply_answer *a = &r->answers[i];
		if (a->job && !a->ended)
			atomic_store(&a->job->cancel, true);
		job_drop(a->job);
		buf_free(&a->reasoning);
		buf_free(&a->text);
		for (size_t k = 0; k < a->n_calls; k++) {
			buf_free(&a->calls[k].name);
			buf_free(&a->calls[k].arguments);
		}
		free(a->calls);
		free(a->rows);
	}
	free(r->answers); /* jobs that were made and not submitted have no other holder */
	mailbox_drop(r->mail);
	*r = (struct reply){0};
}
