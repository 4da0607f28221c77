/* SPDX-License-Identifier: MIT */
/*
 * One line on stderr for each request, when its last byte is sent:
 *
 *     14:02:59 POST /v1/chat/completions 200, 13 + 24 tokens, 812 ms
 *     14:03:10 POST /v1/messages 400 (messages[0].role), 1 ms
 *
 * and one for each name of a model that is not here, when it is first asked for. Never what the
 * client or the model said. Lines of /health, /metrics and the page's own files and streams, which
 * programs fetch all the time, need -v unless they fail. Any thread.
 */
#ifndef GLM_SERVE_REQUEST_LOG_H
#define GLM_SERVE_REQUEST_LOG_H

#include "src/serve/http/http.h"

struct request_log;

struct request_log *request_log_new(void);
void request_log_free(struct request_log *l); /* NULL is fine */

/* The request asked for `asked` and is answered by `served`. */
void request_log_model(struct request_log *l, const char *asked, const char *served);
void request_log_done(struct request_log *l, const struct exchange *x, const struct http_done *d);

#endif
