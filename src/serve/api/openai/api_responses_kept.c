/* SPDX-License-Identifier: MIT */
/* Responses that were kept: looking one up, listing what it answered, forgetting it. */
#include "src/serve/api/openai/api_responses.h"

#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/serve/api/json_write.h"
#include "src/text/json_text.h"

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
		"(the newest %d are kept)",
		id, RESPONSE_STORE_MAX);
}

static int previous_not_found(struct request_error *e, const char *id)
{
	if (mem_scope_failed())
		return request_refuse_memory(e);
	return request_refuse(e, 400, "previous_response_not_found", "previous_response_id",
		"previous_response_id: there is no response \"%.60s\": it was not stored, was deleted, or "
		"has been forgotten (the newest %d are kept)",
		id, RESPONSE_STORE_MAX);
}

int api_responses_previous(struct request *r, json_t **items, struct request_error *e)
{
	const char *id = NULL;
	struct buf response = {0}, text = {0};
	*items = json_array();
	if (request_string(r->body, "previous_response_id", &id, e))
		return -1;
	if (!id || !*id)
		return 0;
	size_t before = r->part.bytes,
		   bytes = r->model->responses ? response_store_bytes(r->model->responses, id) : 0;
	if (!bytes)
		return previous_not_found(e, id);
	if (request_hold(r, before + TEXT_COPIES * bytes, e))
		return -1;
	if (!response_store_get(r->model->responses, id, &response, &text))
		return previous_not_found(e, id);
	size_t trees =
		api_json_bytes(buf_str(&response), response.len) + api_json_bytes(buf_str(&text), text.len);
	if (r->store) /* the list that is kept with the answer repeats them */
		before += TEXT_COPIES * (response.len + text.len);
	if (request_hold(r, before + trees + response.cap + text.cap, e)) {
		buf_free(&response);
		buf_free(&text);
		return -1;
	}
	json_t *old = json_text_parse(buf_str(&response), response.len, false, NULL),
		   *context = json_text_parse(buf_str(&text), text.len, false, NULL);
	int rc = 0;
	if (!json_is_object(old) || !json_is_array(context))
		rc = previous_not_found(e, id); /* a file that was changed */
	json_array_extend(*items, context);
	json_array_extend(*items, json_object_get(old, "output"));
	json_decref(old);
	json_decref(context);
	buf_free(&response);
	buf_free(&text);
	request_hold(r, before + trees, e); /* less than before */
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
	int rc = request_hold_part(&part, TEXT_COPIES * response_store_bytes(m->responses, id), e);
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
		rc = request_hold_part(&part, TEXT_COPIES * response_store_bytes(m->responses, id), e);
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
