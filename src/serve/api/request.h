/* SPDX-License-Identifier: MIT */
/*
 * A request of any API in one form: prompts, sampling, stop conditions, what the response shows. An
 * API's parser fills it in from JSON (api.h); nothing here knows sockets.
 *
 * A member of the body that no parser reads is refused by name: to ignore it could give a wrong
 * answer. Exceptions are members that are off (null, false, 0, empty), and a short list of those
 * that change no answer.
 */
#ifndef GLM_SERVE_REQUEST_H
#define GLM_SERVE_REQUEST_H

#include "src/base/err.h"
#include "src/engine/sampler.h"
#include "src/serve/compute/job.h"
#include "src/serve/compute/output.h"
#include "src/serve/api/prompt.h"
#include "src/serve/response_store.h"
#include "src/serve/compute/turn_store.h"
#include "src/text/tokenizer.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#define REQUEST_ANSWERS_MAX 16 /* prompts x n */
#define REQUEST_STOPS_MAX   16
#define REQUEST_STOP_BYTES  1024
#define REQUEST_TOOLS_MAX   256
#define REQUEST_NAME_MAX    256 /* bytes of a tool's name, and of its properties' */

/* What requests are parsed and answered against. Constant while the server runs, and used by all
 * connections' threads; turns, budget, client and responses are thread-safe. Each request has a
 * copy in which `client` is set. */
struct request_model {
	const struct tokenizer *tokenizer;
	const char *name;
	bool strict_name; /* refuse requests for other names */
	uint32_t longest; /* bytes of the longest token */
	uint32_t context; /* tokens of one session */
	int64_t created;  /* unix time, shown in lists */
	char fingerprint[24];
	struct sampler_options sampling;  /* defaults */
	struct turn_store *turns;         /* NULL: none */
	const struct token_trie *tokens;  /* for schemas */
	struct budget *budget;            /* NULL: memory is not counted */
	struct client *client;            /* of the request; borrowed; NULL: no limits for it */
	struct response_store *responses; /* NULL: none */
};

/* A refusal. status 0: none. */
struct request_error {
	int status;
	const char *code; /* OpenAI's "code": "model_not_found", ...; NULL: null */
	char param[96];   /* the member at fault; empty: none */
	unsigned retry_s; /* Retry-After; 0: none */
	char message[ERR_TEXT_MAX];
};

struct request {
	const struct request_model *model;
	const struct api *api; /* whose answer the client expects */
	json_t *body;          /* as it came; owned */
	char id[40];           /* with the API's prefix */
	int64_t created;
	bool stream;
	bool include_usage;        /* OpenAI chat and completions: a last chunk with it */
	bool return_progress;      /* llama.cpp's: JOB_PROGRESS becomes events of the stream */
	struct prompt_talk talk;   /* chat APIs */
	struct token_ids *prompts; /* [n_prompts] owned */
	size_t n_prompts;
	struct prompt_built built;
	uint32_t n;       /* answers for each prompt */
	uint32_t max_new; /* 0: compute the prompt only */
	struct sampler_options sampling;
	struct output_options output; /* of every answer */
	json_t *items;     /* responses: all items of the conversation before the answer; owned */
	bool store;        /* responses: keep the answer */
	bool think_is_set; /* the body turns reasoning on or off */
	size_t body_bytes;
	uint64_t schema_ns;      /* processor time that its schemas took */
	struct budget_part part; /* what the request holds, until `shared` does */
	/* Set by request_share: owns prompts, output and part from then on. NULL: the request does. */
	struct job_shared *shared;
};

/* Most bytes in the text of one prompt. A longer text has more tokens than the context, however it
 * is tokenized, or needs too much memory (REQUEST_PROMPT_BYTES). */
#define REQUEST_PROMPT_BYTES ((size_t)64 << 20)
static inline size_t request_most_bytes(const struct request_model *m)
{
	size_t context = (size_t)m->context * m->longest;
	return context < REQUEST_PROMPT_BYTES ? context : REQUEST_PROMPT_BYTES;
}

void request_fini(struct request *r); /* a zeroed struct is fine */

/* "chatcmpl-" and 24 random letters and digits. */
void request_make_id(char *out, size_t size, const char *prefix);

/* Writes the refusal; returns -1 so that `return request_refuse(...)` works. param may be NULL. */
int request_refuse(struct request_error *e, int status, const char *code, const char *param,
	const char *fmt, ...) __attribute__((format(printf, 5, 6)));
/* The same from an error: ERR_INPUT 400, ERR_MEMORY and ERR_INTERRUPTED 503, else 500. A path at
 * the beginning of its sentence ("messages[3].role: ") becomes the param of a 400. */
int request_refuse_err(struct request_error *e, const struct err *err);
/* Memory is exhausted: 503. After a failed allocation members may be missing, so a parser's result,
 * refusal or not, means nothing: callers in a scope (mem.h) check mem_scope_failed first. */
int request_refuse_memory(struct request_error *e);
/* The prompt is longer than request_most_bytes: 400 when the context is the reason, else 413. */
int request_refuse_length(const struct request *r, const char *param, struct request_error *e);

/* Sets the memory that the request holds to `bytes` in all (budget_hold). 0, or -1 with a refusal:
 * 413 when one request may not hold so much, 429 when others, or others of the client, hold too
 * much. */
int request_hold(struct request *r, size_t bytes, struct request_error *e);
int request_hold_part(struct budget_part *part, size_t bytes, struct request_error *e);
/* Moves the ownership of prompts, output and part to r->shared, which jobs can hold too. False in a
 * scope only, and then nothing changes. */
bool request_share(struct request *r);

/* ---- members of the body; all return 0, or -1 after request_refuse ---- */

/* Absent and null leave *out as it is; *given (may be NULL) says whether a value stood there. */
int request_number(const json_t *o, const char *key, double min, double max, double *out,
	bool *given, struct request_error *e);
int request_integer(const json_t *o, const char *key, int64_t min, int64_t max, int64_t *out,
	bool *given, struct request_error *e);
int request_bool(const json_t *o, const char *key, bool *out, struct request_error *e);
int request_string(const json_t *o, const char *key, const char **out, struct request_error *e);
/* *out is NULL when it is absent or null. */
int request_object(const json_t *o, const char *key, const json_t **out, struct request_error *e);
/* Refuses the member unless it is absent, null, false, 0, "" or empty. */
int request_unsupported(const json_t *o, const char *key, struct request_error *e);

/* ---- parts that APIs share ---- */

/* Whether `name` (which may end in ollama's ":latest") is that of the model. */
bool request_names_model(const struct request_model *m, const char *name);
/* With strict_name refuses the name of another model: 404. NULL is any model. */
int request_check_model(const struct request_model *m, const char *name, struct request_error *e);
/* "model", by request_check_model. */
int request_model_name(struct request *r, struct request_error *e);
/* Refuses members of the body that neither `members` (ends with NULL) nor what all APIs share
 * names. */
int request_known(const struct request *r, const char *const *members, struct request_error *e);
/* temperature, top_p, top_k, min_p, seed, penalties, logit_bias; ignore_eos, min_tokens,
 * stop_token_ids. */
int request_sampling(struct request *r, struct request_error *e);
/* Whether this "seed" is -1. ollama and llama.cpp mean a random seed by it, and their parsers leave
 * it out; for request_sampling it is a seed like others. seed may be NULL. */
bool request_is_random_seed(const json_t *seed);
/* A string or an array of strings. */
int request_stops(struct request *r, const char *key, struct request_error *e);
/* `effort` in OpenAI's words: "none" turns reasoning off; "max" and "xhigh" turn it on with GLM's
 * effort "Max", the others with "High". NULL changes nothing. */
int request_effort(
	struct request *r, const char *effort, const char *param, struct request_error *e);
/* chat_template_kwargs (enable_thinking, clear_thinking, reasoning_effort), enable_thinking,
 * thinking {type, clear_thinking}. After request_effort for the API's own effort. Reasoning is on
 * or off by the last one given of: efforts, thinking.type, enable_thinking,
 * chat_template_kwargs.enable_thinking. */
int request_template(struct request *r, struct request_error *e);
/* Tools in OpenAI's form ({"type": "function", "function": {...}} or flat) become the template's.
 */
int request_tools(struct request *r, const json_t *tools, struct request_error *e);
/* An answer's form: {"type": "text" | "json_object" | "json_schema", ...}, absent: text. param: its
 * name, for refusals. After request_sampling. */
int request_format(
	struct request *r, const json_t *format, const char *param, struct request_error *e);
/* The arguments of calls of this tool follow the schema. request_tools does this for tools with
 * "strict": true. */
int request_strict_tool(
	struct request *r, const char *tool, const json_t *parameters, struct request_error *e);
/* Which tools may be called. name: TOOL_CHOICE_REQUIRED: this tool, once; NULL: any. After
 * request_tools. */
int request_choice(struct request *r, enum tool_choice choice, const char *name, const char *param,
	struct request_error *e);
/* Messages in the form of OpenAI's chat API, to which the other APIs bring theirs. Results of calls
 * are put into the order of the calls: the template has no ids. */
int request_messages(struct request *r, const json_t *messages, struct request_error *e);
/* Appends the tokens of text[n] to *out, which is empty before, and counts them for the budget.
 * special: spellings of control tokens count as such. */
int request_encode(struct request *r, const char *text, size_t n, bool special,
	struct token_ids *out, struct request_error *e);
/* Makes the one prompt from r->talk, and sets the options of the output that depend on it. Last,
 * but for request_limit_new_tokens. */
int request_prompt(struct request *r, struct request_error *e);
/* Refuses prompts that the context cannot hold. Sets max_new to `asked`, or as many tokens as the
 * context leaves behind the longest prompt if these are fewer or asked is < 0. */
int request_limit_new_tokens(struct request *r, int64_t asked, struct request_error *e);

#endif
