/* SPDX-License-Identifier: MIT */
/* What the files of the responses API share. */
#ifndef GLM_SERVE_API_RESPONSES_H
#define GLM_SERVE_API_RESPONSES_H

#include "src/serve/api/api.h"

int api_responses_parse(struct request *r, struct request_error *e);

/* *items: the input and then the output items of the response that previous_response_id names; an
 * empty array without one. The caller owns it, also after a refusal. r holds the memory that it
 * takes. 0, or -1 with a refusal. */
int api_responses_previous(struct request *r, json_t **items, struct request_error *e);
/* Replaces each reference among r->items, from index `from` on, by the item that it names: one of
 * the output of a response that is kept. r holds the memory. 0, or -1 with a refusal. */
int api_responses_resolve(struct request *r, size_t from, struct request_error *e);
/* Holds the memory that api_responses_keep takes for the items of the body, and for the ids and
 * types that it adds to any item. The texts of earlier and of referenced items are held by
 * api_responses_previous and api_responses_resolve. 0, or -1 with a refusal. */
int api_responses_hold_items(struct request *r, struct request_error *e);
/* Keeps a finished response (its object as JSON), if the request wants that. */
void api_responses_keep(const struct request *q, const struct buf *response);

#endif
