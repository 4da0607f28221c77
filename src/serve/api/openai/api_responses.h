/* SPDX-License-Identifier: MIT */
/* The two halves of the responses API. */
#ifndef GLM_SERVE_API_RESPONSES_H
#define GLM_SERVE_API_RESPONSES_H

#include "src/serve/api/api.h"

int api_responses_parse(struct request *r, struct request_error *e);

#endif
