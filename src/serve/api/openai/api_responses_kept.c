/* SPDX-License-Identifier: MIT */
/* Responses that were kept: looking one up, listing what it answered, forgetting it. */
#include "src/serve/api/openai/api_responses.h"

#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/serve/api/json_write.h"
#include "src/text/json_text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ITEMS_DEFAULT 20
#define ITEMS_MAX     100
#define TEXT_COPIES   2    /* of a text in a buffer that doubles */
#define LISTED_BYTES  1024 /* of an item's copy in the list that is kept (listed_item) */

static int not_found(struct request_error *e, const char *id)
{
	if (mem_scope_failed()) /* the store could not look */
		return request_refuse_memory(e);
	return request_refuse(e, 404, "response_not_found", NULL,
		"there is no response \"%.60s\": it was not stored, was deleted, or has been forgotten "
		"(the %d used last are kept)",
		id, RESPONSE_STORE_MAX);
}

static int previous_not_found(struct request_error *e, const char *id)
{
	if (mem_scope_failed())
		return request_refuse_memory(e);
	return request_refuse(e, 400, "previous_response_not_found", "previous_response_id",
		"previous_response_id: there is no response \"%.60s\": it was not stored, was deleted, or "
		"has been forgotten (the %d used last are kept)",
		id, RESPONSE_STORE_MAX);
}

/* Reads a response and, unless `context` is NULL, the items that it answered. The caller owns both.
 * *response: NULL: it is not there. r holds the memory. 0, or -1 with a refusal. */
static int read_kept(
	struct request *r, const char *id, json_t **response, json_t **context, struct request_error *e)
{
	struct buf object = {0}, items = {0};
	size_t before = r->part.bytes, bytes = 0;
	if (r->model->responses)
		bytes = response_store_bytes(r->model->responses, id, true, context);
	if (!bytes)
		return 0;
	if (request_hold(r, before + TEXT_COPIES * bytes, e))
		return -1;
	if (!response_store_get(r->model->responses, id, &object, context ? &items : NULL))
		return 0;
	size_t trees =
		api_json_bytes(buf_str(&object), object.len) + api_json_bytes(buf_str(&items), items.len);
	if (r->store && context) /* the list that is kept with the answer repeats them */
		before += TEXT_COPIES * (object.len + items.len);
	int rc = request_hold(r, before + trees + object.cap + items.cap, e);
	if (!rc) {
		*response = json_text_parse(buf_str(&object), object.len, false, NULL);
		if (context)
			*context = json_text_parse(buf_str(&items), items.len, false, NULL);
	}
	buf_free(&object);
	buf_free(&items);
	if (!rc)
		request_hold(r, before + trees, e); /* less than before */
	return rc;
}

int api_responses_previous(struct request *r, json_t **items, struct request_error *e)
{
	const char *id = NULL;
	json_t *old = NULL, *context = NULL;
	*items = json_array();
	if (request_string(r->body, "previous_response_id", &id, e))
		return -1;
	if (!id || !*id)
		return 0;
	int rc = read_kept(r, id, &old, &context, e);
	if (!rc && (!json_is_object(old) || !json_is_array(context)))
		rc = previous_not_found(e, id); /* not there, or a file that was changed */
	json_array_extend(*items, context);
	json_array_extend(*items, json_object_get(old, "output"));
	json_decref(old);
	json_decref(context);
	return rc;
}

/* ---- references to items ---- */

/* {"type": "item_reference", "id": ...}; the type may be missing. */
static bool is_reference(const json_t *item)
{
	const json_t *type = json_object_get(item, "type");
	if (!type || json_is_null(type))
		return json_object_get(item, "id") && !json_object_get(item, "role");
	return json_is_string(type) && !strcmp(json_string_value(type), "item_reference");
}

/* The response of an item "<kind>_<R>_<i>" (api_responses_write.c) is "resp_<R>". False: the id is
 * none of these. */
static bool response_of(const char *item_id, char out[RESPONSE_ID_LEN + 1])
{
	const char *from = strchr(item_id, '_'), *to = from ? strchr(from + 1, '_') : NULL;
	int n = to ? snprintf(out, RESPONSE_ID_LEN + 1, "resp%.*s", (int)MIN(to - from, 64), from) : 0;
	return n == RESPONSE_ID_LEN;
}

/* *item: borrowed from `known`, the responses that were read, by id. NULL: there is none. */
static int find_item(
	struct request *r, const char *item_id, json_t *known, json_t **item, struct request_error *e)
{
	char id[RESPONSE_ID_LEN + 1];
	size_t i;
	json_t *response, *v;
	*item = NULL;
	if (!response_of(item_id, id))
		return 0;
	response = json_object_get(known, id);
	if (!response) {
		if (read_kept(r, id, &response, NULL, e))
			return -1;
		if (json_object_set_new(known, id, response ? response : json_null()))
			return request_refuse_memory(e);
	}
	json_array_foreach(json_object_get(response, "output"), i, v)
	{
		const char *s = json_string_value(json_object_get(v, "id"));
		if (s && !strcmp(s, item_id))
			*item = v;
	}
	return 0;
}

/* Many references may name one item, so each holds what a copy of it takes. */
static int hold_copy(struct request *r, const json_t *item, struct request_error *e)
{
	struct buf text = {0};
	json_text_dump(item, &text);
	size_t bytes =
		api_json_bytes(buf_str(&text), text.len) + (r->store ? TEXT_COPIES * text.len : 0);
	buf_free(&text);
	return request_hold(r, r->part.bytes + bytes, e);
}

int api_responses_resolve(struct request *r, size_t from, struct request_error *e)
{
	json_t *known = json_object(), *item;
	int rc = 0;
	for (size_t i = from; i < json_array_size(r->items) && !rc; i++) {
		const json_t *reference = json_array_get(r->items, i);
		if (!is_reference(reference))
			continue;
		const char *id = json_string_value(json_object_get(reference, "id"));
		rc = find_item(r, id ? id : "", known, &item, e);
		if (!rc && mem_scope_failed())
			rc = request_refuse_memory(e);
		if (!rc && !item)
			rc = request_refuse(e, 400, "item_not_found", "input",
				"input[%zu]: item_reference: there is no item \"%.60s\": its response was not "
				"stored, was deleted, or has been forgotten (the %d used last are kept)",
				i - from, id ? id : "", RESPONSE_STORE_MAX);
		if (!rc)
			rc = hold_copy(r, item, e);
		if (!rc)
			json_array_set(r->items, i, item);
	}
	json_decref(known);
	return rc;
}

int api_responses_hold_items(struct request *r, struct request_error *e)
{
	if (!r->store || !r->model->responses)
		return 0;
	return request_hold(r,
		r->part.bytes + TEXT_COPIES * r->body_bytes + LISTED_BYTES * json_array_size(r->items), e);
}

/* An item of the input as lists show it: with a type and an id. */
static json_t *listed_item(json_t *item)
{
	char id[40];
	json_t *copy = json_copy(item);
	const char *type = json_string_value(json_object_get(copy, "type"));
	if (!type)
		json_object_set_new(copy, "type", json_string(type = "message"));
	if (!json_object_get(copy, "id")) {
		request_make_id(id, sizeof id, !strcmp(type, "message") ? "msg_" : "item_");
		json_object_set_new(copy, "id", json_string(id));
	}
	json_t *content = json_object_get(copy, "content");
	if (json_is_string(content)) {
		const char *role = json_string_value(json_object_get(copy, "role"));
		const char *part = role && !strcmp(role, "assistant") ? "output_text" : "input_text";
		json_object_set_new(
			copy, "content", json_pack("[{s:s, s:O}]", "type", part, "text", content));
	}
	return copy;
}

void api_responses_keep(const struct request *q, const struct buf *response)
{
	if (!q->store || !q->model->responses)
		return;
	json_t *list = json_array(), *item;
	struct buf items = {0};
	size_t i;
	json_array_foreach(q->items, i, item)
	{
		json_array_append_new(list, listed_item(item));
	}
	json_text_dump(list, &items);
	response_store_put(q->model->responses, q->id, response, &items);
	json_decref(list);
	buf_free(&items);
}

int api_responses_get(
	const struct request_model *m, const char *id, struct buf *out, struct request_error *e)
{
	struct budget_part part = {.budget = m->budget, .client = client_hold(m->client)};
	int rc = request_hold_part(
		&part, TEXT_COPIES * response_store_bytes(m->responses, id, true, false), e);
	if (!rc && !response_store_get(m->responses, id, out, NULL))
		rc = not_found(e, id);
	budget_release(&part);
	return rc;
}

int api_responses_delete(
	const struct request_model *m, const char *id, struct buf *out, struct request_error *e)
{
	struct json_write w = {.out = out};
	if (!response_store_delete(m->responses, id))
		return not_found(e, id);
	json_write_open(&w, NULL, '{');
	json_write_string(&w, "id", id);
	json_write_string(&w, "object", "response");
	json_write_bool(&w, "deleted", true);
	json_write_close(&w, '}');
	return 0;
}

/* Appends at most `most` items of the array, from the one behind the id `after` on. */
static void write_items(
	json_t *items, size_t most, bool newest_first, const char *after, struct json_write *w)
{
	size_t n = json_array_size(items), from = 0;
#define ITEM(i) json_array_get(items, newest_first ? n - 1 - (i) : (i))
#define ID(i)   json_string_value(json_object_get(ITEM(i), "id"))
	for (size_t i = 0; after && i < n; i++)
		if (ID(i) && !strcmp(ID(i), after))
			from = i + 1;
	size_t to = MIN(n, from + most);
	json_write_open(w, NULL, '{');
	json_write_string(w, "object", "list");
	json_write_open(w, "data", '[');
	for (size_t i = from; i < to; i++)
		json_write_value(w, NULL, ITEM(i));
	json_write_close(w, ']');
	json_write_string(w, "first_id", from < to ? ID(from) : NULL);
	json_write_string(w, "last_id", from < to ? ID(to - 1) : NULL);
	json_write_bool(w, "has_more", to < n);
	json_write_close(w, '}');
#undef ITEM
#undef ID
}

int api_responses_items(const struct request_model *m, const char *id, const char *limit,
	const char *order, const char *after, struct buf *out, struct request_error *e)
{
	struct budget_part part = {.budget = m->budget, .client = client_hold(m->client)};
	struct buf text = {0};
	char *end = NULL;
	long most = limit ? strtol(limit, &end, 10) : ITEMS_DEFAULT;
	int rc = 0;
	if (most < 1 || most > ITEMS_MAX || (end && *end))
		rc =
			request_refuse(e, 400, NULL, "limit", "limit: expected a number of 1 to %d", ITEMS_MAX);
	else if (order && strcmp(order, "asc") && strcmp(order, "desc"))
		rc = request_refuse(
			e, 400, NULL, "order", "order: expected asc or desc, found \"%.20s\"", order);
	if (!rc)
		rc = request_hold_part(
			&part, TEXT_COPIES * response_store_bytes(m->responses, id, false, true), e);
	if (!rc && !response_store_get(m->responses, id, NULL, &text))
		rc = not_found(e, id);
	if (!rc) /* the text, its tree, and the list, which repeats the text at most */
		rc = request_hold_part(
			&part, text.cap + api_json_bytes(buf_str(&text), text.len) + TEXT_COPIES * text.len, e);
	if (!rc) {
		json_t *items = json_text_parse(buf_str(&text), text.len, false, NULL);
		write_items(items, (size_t)most, !order || !strcmp(order, "desc"), after,
			&(struct json_write){.out = out});
		json_decref(items);
	}
	buf_free(&text);
	budget_release(&part);
	return rc;
}
