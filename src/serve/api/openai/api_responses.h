/* SPDX-License-Identifier: MIT */
/* The parts of the responses API. */
#ifndef GLM_SERVE_API_RESPONSES_H
#define GLM_SERVE_API_RESPONSES_H

#include "src/serve/api/api.h"

int api_responses_parse(struct request *r, struct request_error *e);

/* *items: what the response that previous_response_id names answered and said; an empty array
 * without one. The caller's, also after a refusal. */
int api_responses_previous(struct request *r, json_t **items, struct request_error *e);
/* Keeps a finished response (its object as JSON), if the request wants that. */
void api_responses_keep(const struct request *q, const struct buf *response);

#endif
