/* SPDX-License-Identifier: MIT */
/* Members of the body about sampling and the end of answers; refusal of members that no parser
 * reads. */
#include "src/serve/api/request.h"

#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/text/json_text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define STOP_IDS_MAX 64

/* ---- members nobody knows ---- */

static bool is_listed(const char *key, const char *const *list)
{
	for (; *list; list++)
		if (!strcmp(*list, key))
			return true;
	return false;
}

/* Members that APIs share. In each list those behind the empty comment are ignored on purpose: they
 * change no answer. */
static const char *const members_shared[] = {"model", "stream", "temperature", "top_p", "top_k",
	"min_p", "seed", "repetition_penalty", "repeat_penalty", "presence_penalty",
	"frequency_penalty", "logit_bias", "ignore_eos", "stop_token_ids", "min_tokens",
	/* */
	"user", "metadata", "service_tier", "safety_identifier", "prompt_cache_key",
	"prompt_cache_retention", "request_id", "priority", "betas", NULL};

/* Samplers and modes of other servers, with the value that turns them off. */
static const struct {
	const char *key;
	double off;
} neutral[] = {
	{"typical_p", 1}, {"tfs_z", 1}, {"top_n_sigma", -1}, {"length_penalty", 1}, {"best_of", 1}};

/* Parameters of samplers that are off here: dry_multiplier, xtc_probability, mirostat and
 * dynatemp_range are refused unless they are 0. So these have no effect, whatever their values. */
static const char *const idle_parameters[] = {"dry_base", "dry_allowed_length",
	"dry_penalty_last_n", "dry_sequence_breakers", "xtc_threshold", "mirostat_tau", "mirostat_eta",
	"dynatemp_exponent", NULL};

static bool is_off(const char *key, const json_t *v)
{
	for (size_t i = 0; i < ARRAY_LEN(neutral); i++)
		if (!strcmp(neutral[i].key, key))
			return json_is_number(v) && json_number_value(v) == neutral[i].off;
	return is_listed(key, idle_parameters);
}

/* Which tokens the penalties count in llama.cpp and ollama: repeat_last_n bounds repetition,
 * presence and frequency alike; penalize_newline concerns repetition only. */
static const char *const penalty_ranges[] = {"repeat_last_n", "penalize_newline", NULL};

/* Here penalties have no range, and newlines count. Another range has no effect without a penalty.
 */
static int check_penalty_range(
	const struct request *r, const char *key, const json_t *v, struct request_error *e)
{
	const struct sampler_options *o = &r->model->sampling;
	double repetition = (double)o->repetition, presence = (double)o->presence,
		   frequency = (double)o->frequency;
	if (request_number(r->body, "repeat_penalty", -INFINITY, INFINITY, &repetition, NULL, e) ||
		request_number(r->body, "repetition_penalty", -INFINITY, INFINITY, &repetition, NULL, e) ||
		request_number(r->body, "presence_penalty", -INFINITY, INFINITY, &presence, NULL, e) ||
		request_number(r->body, "frequency_penalty", -INFINITY, INFINITY, &frequency, NULL, e))
		return -1;
	bool penalizes = repetition != 0 && repetition != 1;
	if (!strcmp(key, "repeat_last_n"))
		penalizes = penalizes || presence != 0 || frequency != 0;
	if (!penalizes || json_is_null(v) || json_is_true(v) ||
		(json_is_number(v) && json_number_value(v) == -1)) /* -1: the whole context */
		return 0;
	return request_refuse(e, 400, "unsupported_parameter", key,
		"%s is not supported by this server: penalties have no range, and newlines count", key);
}

int request_known(const struct request *r, const char *const *members, struct request_error *e)
{
	const char *key;
	json_t *v;
	json_object_foreach((json_t *)r->body, key, v)
	{
		if (is_listed(key, members) || is_listed(key, members_shared) || is_off(key, v))
			continue;
		if (is_listed(key, penalty_ranges)) {
			if (check_penalty_range(r, key, v, e))
				return -1;
			continue;
		}
		if (!strcmp(key, "grammar") || !strcmp(key, "guided_grammar") ||
			!strcmp(key, "guided_regex") || !strcmp(key, "guided_choice")) {
			if (json_is_null(v) || (json_is_string(v) && !json_string_length(v)))
				continue;
			return request_refuse(e, 400, "unsupported_parameter", key,
				"%s is not supported by this server: answers follow a JSON schema instead "
				"(response_format of /v1/chat/completions), whose strings may have a pattern",
				key);
		}
		if (request_unsupported(r->body, key, e))
			return -1;
	}
	return 0;
}

/* ---- sampling ---- */

static int bias_add(struct request *r, int64_t id, const json_t *v, struct request_error *e)
{
	struct sampler_options *o = &r->sampling;
	uint32_t n = tokenizer_n_tokens(r->model->tokenizer);
	/* false: llama.cpp's "never" */
	double add = json_is_false(v) ? -INFINITY : json_number_value(v);
	if (id < 0 || id >= n)
		return request_refuse(e, 400, NULL, "logit_bias",
			"logit_bias: expected token ids of 0 to %u, found %lld", n - 1, (long long)id);
	if ((!json_is_number(v) && !json_is_false(v)) || add > 100 || (json_is_number(v) && add < -100))
		return request_refuse(
			e, 400, NULL, "logit_bias", "logit_bias: expected numbers of -100 to 100");
	if (o->n_bias == SAMPLER_BIAS_MAX)
		return request_refuse(
			e, 400, NULL, "logit_bias", "logit_bias: more than %d tokens", SAMPLER_BIAS_MAX);
	/* -100 means "never" */
	o->bias[o->n_bias++] = (struct sampler_bias){(int32_t)id, add <= -100 ? -INFINITY : (float)add};
	return 0;
}

/* {"id": bias, ...} as OpenAI has it, or [[id, bias], ...] as llama.cpp does. */
static int parse_bias(struct request *r, struct request_error *e)
{
	json_t *all = json_object_get(r->body, "logit_bias"), *v;
	const char *key;
	size_t i;
	if (!all || json_is_null(all))
		return 0;
	if (!json_is_object(all) && !json_is_array(all))
		return request_refuse(e, 400, NULL, "logit_bias",
			"logit_bias: expected an object of token ids and numbers, found %s",
			json_text_type(all));
	json_object_foreach(all, key, v)
	{
		char *end;
		long long id = strtoll(key, &end, 10);
		if (end == key || *end)
			return request_refuse(e, 400, NULL, "logit_bias",
				"logit_bias: expected token ids as keys, found \"%.40s\"", key);
		if (bias_add(r, id, v, e))
			return -1;
	}
	json_array_foreach(all, i, v)
	{
		const json_t *id = json_array_get(v, 0);
		if (json_array_size(v) != 2 || !json_is_integer(id))
			return request_refuse(e, 400, NULL, "logit_bias",
				"logit_bias: expected pairs of a token id and a number");
		if (bias_add(r, json_integer_value(id), json_array_get(v, 1), e))
			return -1;
	}
	return 0;
}

/* ignore_eos, min_tokens, stop_token_ids */
static int parse_ends(struct request *r, struct request_error *e)
{
	const json_t *ids = json_object_get(r->body, "stop_token_ids");
	bool ignore = false;
	int64_t least = 0;
	size_t i;
	json_t *v;
	if (request_bool(r->body, "ignore_eos", &ignore, e) ||
		request_integer(r->body, "min_tokens", 0, INT32_MAX, &least, NULL, e))
		return -1;
	r->output.min_new = ignore ? UINT32_MAX : (uint32_t)least;
	if (!ids || json_is_null(ids))
		return 0;
	if (!json_is_array(ids) || json_array_size(ids) > STOP_IDS_MAX)
		return request_refuse(e, 400, NULL, "stop_token_ids",
			"stop_token_ids: expected an array of at most %d token ids", STOP_IDS_MAX);
	free(r->output.stop_ids);
	r->output.n_stop_ids = 0;
	r->output.stop_ids = NEW_ARRAY(int32_t, json_array_size(ids) + 1);
	if (!r->output.stop_ids)
		return request_refuse_memory(e);
	json_array_foreach(ids, i, v)
	{
		int64_t id = json_is_integer(v) ? json_integer_value(v) : -1;
		if (id < 0 || id >= tokenizer_n_tokens(r->model->tokenizer))
			return request_refuse(e, 400, NULL, "stop_token_ids",
				"stop_token_ids: item %zu: expected a token id of 0 to %u", i,
				tokenizer_n_tokens(r->model->tokenizer) - 1);
		r->output.stop_ids[r->output.n_stop_ids++] = (int32_t)id;
	}
	return 0;
}

bool request_is_random_seed(const json_t *seed)
{
	return json_is_integer(seed) && json_integer_value(seed) == -1;
}

int request_sampling(struct request *r, struct request_error *e)
{
	struct sampler_options *o = &r->sampling;
	*o = r->model->sampling;
	double temperature = (double)o->temperature, top_p = (double)o->top_p, min_p = (double)o->min_p,
		   repetition = o->repetition > 0 ? (double)o->repetition : 1,
		   presence = (double)o->presence, frequency = (double)o->frequency;
	int64_t top_k = o->top_k, seed = 0;
	bool seed_given;
	if (request_number(r->body, "temperature", 0, 2, &temperature, NULL, e) ||
		request_number(r->body, "top_p", 0, 1, &top_p, NULL, e) ||
		request_number(r->body, "min_p", 0, 1, &min_p, NULL, e) ||
		request_number(r->body, "repeat_penalty", 0.01, 10, &repetition, NULL, e) ||
		request_number(r->body, "repetition_penalty", 0.01, 10, &repetition, NULL, e) ||
		request_number(r->body, "presence_penalty", -2, 2, &presence, NULL, e) ||
		request_number(r->body, "frequency_penalty", -2, 2, &frequency, NULL, e) ||
		request_integer(r->body, "top_k", -1, INT32_MAX, &top_k, NULL, e) ||
		request_integer(r->body, "seed", INT64_MIN, INT64_MAX, &seed, &seed_given, e) ||
		parse_bias(r, e) || parse_ends(r, e))
		return -1;
	if (!seed_given)
		while (getrandom(&seed, sizeof seed, 0) != sizeof seed)
			;
	o->temperature = (float)temperature;
	o->top_p = top_p > 0 ? (float)top_p : 1e-9f; /* 0: the likeliest token only */
	o->min_p = MIN((float)min_p, 0.9999999f);
	o->top_k = (int)MAX(top_k, 0);
	o->repetition = (float)repetition;
	o->presence = (float)presence;
	o->frequency = (float)frequency;
	o->seed = (uint64_t)seed;
	return 0;
}
