/* SPDX-License-Identifier: MIT */
/* Answers and arguments that follow a JSON schema. */
#include "src/serve/api/request.h"

#include "src/base/host/clock.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/text/json_text.h"
#include "src/text/schema/schema_keywords.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STRICT_MAX        2000                     /* arguments of all strict tools */
#define STRICT_STATES_MAX (2 * GRAMMAR_STATES_MAX) /* of their grammars together */

/* schema_compile, within SCHEMA_COMPILE_NS of processor time for all schemas of a request. */
static int compile_counted(struct request *r, const json_t *root, const json_t *part,
	enum schema_form form, struct schema **out, struct err *err)
{
	if (r->schema_ns > SCHEMA_COMPILE_NS)
		return err_set(err, ERR_INPUT, "the schemas of the request take too long to compile");
	uint64_t start = clock_thread_ns();
	int rc = schema_compile(root, part, form, out, err);
	r->schema_ns += clock_thread_ns() - start;
	return rc;
}

/* A schema's error as a refusal that says which member it is in. */
static int refuse_schema(struct request_error *e, const char *param, const struct err *err)
{
	return request_refuse(e, 400, "invalid_schema", param, "%s: %s", param, err->text);
}

/* An answer by a schema ends where the schema says, whatever min_tokens and ignore_eos want. */
static int refuse_min_tokens(const struct request *r, const char *param, struct request_error *e)
{
	if (!r->output.min_new)
		return 0;
	return request_refuse(e, 400, "unsupported_parameter", param,
		"%s: min_tokens and ignore_eos do not go with an answer that follows a schema", param);
}

static int answer_schema(
	struct request *r, const json_t *schema, const char *param, struct request_error *e)
{
	struct err err = {0};
	schema_free(r->output.answer);
	r->output.answer = NULL;
	r->output.tokens = r->model->tokens;
	if (compile_counted(r, schema, schema, SCHEMA_JSON, &r->output.answer, &err))
		return refuse_schema(e, param, &err);
	if (request_hold(r, r->part.bytes + schema_bytes(r->output.answer), e))
		return -1;
	return refuse_min_tokens(r, param, e);
}

int request_format(
	struct request *r, const json_t *format, const char *param, struct request_error *e)
{
	const char *type = NULL;
	char where[80];
	if (!format || json_is_null(format))
		return 0;
	if (!json_is_object(format))
		return request_refuse(
			e, 400, NULL, param, "%s: expected an object, found %s", param, json_text_type(format));
	type = json_string_value(json_object_get(format, "type"));
	if (type && !strcmp(type, "text"))
		return 0;
	if (type && !strcmp(type, "json_object")) {
		const json_t *schema = json_object_get(format, "schema"); /* llama.cpp's form */
		return answer_schema(r, json_is_object(schema) ? schema : NULL, param, e);
	}
	if (!type || strcmp(type, "json_schema") != 0)
		return request_refuse(e, 400, "unsupported_parameter", param,
			"%s.type: expected text, json_object or json_schema", param);
	/* chat completions wrap it, responses and messages do not */
	const json_t *wrapped = json_object_get(format, "json_schema"),
				 *holder = json_is_object(wrapped) ? wrapped : format,
				 *schema = json_object_get(holder, "schema");
	snprintf(where, sizeof where, "%s%s.schema", param, holder == wrapped ? ".json_schema" : "");
	if (!json_is_object(schema) && !json_is_boolean(schema))
		return request_refuse(
			e, 400, NULL, where, "%s: expected a schema, found %s", where, json_text_type(schema));
	return answer_schema(r, schema, where, e);
}

/* A member that is not null: clients write null for what is absent. */
static const json_t *member_given(const json_t *object, const char *key)
{
	const json_t *v = json_object_get(object, key);
	return json_is_null(v) ? NULL : v;
}

/* Refuses parameters of a strict tool that the constraint cannot hold calls to. It obeys the names
 * of properties and "required"; the values follow their schemas. */
static int check_parameters(const char *tool, const json_t *parameters, struct request_error *e)
{
	static const char *const list[] = {"type", "properties", "required", "additionalProperties"};
	const json_t *properties = member_given(parameters, "properties"),
				 *required = member_given(parameters, "required"),
				 *more = member_given(parameters, "additionalProperties");
	const char *key;
	size_t i;
	json_t *v;
	if (parameters && !json_is_null(parameters) && !json_is_object(parameters))
		return request_refuse(e, 400, "invalid_schema", "tools",
			"tools: %.60s: parameters: expected an object, found %s", tool,
			json_text_type(parameters));
	json_object_foreach((json_t *)parameters, key, v)
	{
		bool fine = schema_is_annotation(key);
		for (i = 0; i < ARRAY_LEN(list); i++)
			fine = fine || !strcmp(list[i], key);
		if (!fine)
			return request_refuse(e, 400, "invalid_schema", "tools",
				"tools: %.60s: \"%.60s\" beside the properties of a strict tool is not supported",
				tool, key);
	}
	if (member_given(parameters, "type") && !(schema_types(parameters) & SCHEMA_OBJECT))
		return request_refuse(e, 400, "invalid_schema", "tools",
			"tools: %.60s: the parameters are an object, which their type does not allow", tool);
	if (properties && !json_is_object(properties))
		return request_refuse(e, 400, "invalid_schema", "tools",
			"tools: %.60s: properties: expected an object, found %s", tool,
			json_text_type(properties));
	if (required && !json_is_array(required))
		return request_refuse(e, 400, "invalid_schema", "tools",
			"tools: %.60s: required: expected an array, found %s", tool, json_text_type(required));
	if (more && !json_is_object(more) && !json_is_boolean(more))
		return request_refuse(e, 400, "invalid_schema", "tools",
			"tools: %.60s: additionalProperties: expected a schema, found %s", tool,
			json_text_type(more));
	if (json_object_size(properties) > CONSTRAINT_KEYS_MAX)
		return request_refuse(e, 400, "invalid_schema", "tools",
			"tools: %.60s: a strict tool has at most %d properties", tool, CONSTRAINT_KEYS_MAX);
	/* without properties keys are free, and so are their values */
	if (!properties && more && !json_is_boolean(more) && schema_constrains(more, NULL))
		return request_refuse(e, 400, "invalid_schema", "tools",
			"tools: %.60s: additionalProperties: a schema without properties is not supported for "
			"a strict tool",
			tool);
	json_array_foreach(required, i, v)
	{
		const char *name = json_string_value(v);
		if (!name || !*name || !json_object_get(properties, name))
			return request_refuse(e, 400, "invalid_schema", "tools",
				"tools: %.60s: \"%.60s\" is required but not among the properties", tool,
				name ? name : "(no string)");
	}
	return 0;
}

/* The values of one argument follow `part`, a place in `parameters`. */
static int strict_argument(struct request *r, const char *tool, const json_t *parameters,
	const char *key, const json_t *part, struct request_error *e)
{
	struct output_options *o = &r->output;
	struct constraint_argument a = {0};
	struct err err = {0};
	char where[96];
	snprintf(where, sizeof where, "tools: %.40s: %.40s", tool, key);
	if (o->n_strict == STRICT_MAX)
		return request_refuse(e, 400, NULL, "tools",
			"tools: strict tools have more than %d arguments together", STRICT_MAX);
	if (compile_counted(r, parameters, part, SCHEMA_ARGUMENT, &a.schema, &err)) {
		refuse_schema(e, where, &err);
		snprintf(e->param, sizeof e->param, "tools");
		return -1;
	}
	size_t states = schema_grammar(a.schema)->n_states;
	for (size_t i = 0; i < o->n_strict; i++)
		states += schema_grammar(o->strict[i].schema)->n_states;
	if (states > STRICT_STATES_MAX) {
		schema_free(a.schema);
		return request_refuse(e, 400, "invalid_schema", "tools",
			"tools: the schemas of strict tools are too large together: more than %d states",
			STRICT_STATES_MAX);
	}
	if (request_hold(r, r->part.bytes + schema_bytes(a.schema), e)) {
		schema_free(a.schema);
		return -1;
	}
	a.tool = mem_strdup(tool);
	a.key = mem_strdup(key);
	if (!a.tool || !a.key || !mem_grow_array(&o->strict, o->n_strict + 1, sizeof *o->strict)) {
		free(a.tool);
		free(a.key);
		schema_free(a.schema);
		return request_refuse_memory(e);
	}
	o->strict[o->n_strict++] = a;
	o->tokens = r->model->tokens;
	return 0;
}

int request_strict_tool(
	struct request *r, const char *tool, const json_t *parameters, struct request_error *e)
{
	json_t *properties = json_object_get(parameters, "properties"), *v;
	const char *key;
	if (check_parameters(tool, parameters, e))
		return -1;
	json_object_foreach(properties, key, v)
	{
		if (strict_argument(r, tool, parameters, key, v, e))
			return -1;
	}
	return 0;
}
