/* SPDX-License-Identifier: MIT */
/* One request of an API from its body to its last byte: parse, queue, then a whole answer or a
 * stream. */
#ifndef GLM_SERVE_RESPOND_H
#define GLM_SERVE_RESPOND_H

#include "src/serve/api/api.h"
#include "src/serve/http/http.h"
#include "src/serve/http/request_log.h"
#include "src/serve/compute/scheduler.h"

/* Answers x by the rules of `api`. A client that leaves ends its jobs. A stream without an event
 * gets a ping about every 2 s. */
void respond(struct exchange *x, const struct api *api, const struct request_model *model,
	struct scheduler *s, struct metrics *m, struct request_log *log);

/* Answers x with a refusal in the form of `api`. */
void respond_refusal(struct exchange *x, const struct api *api, const struct request_error *e);

#endif
