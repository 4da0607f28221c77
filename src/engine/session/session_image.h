/* SPDX-License-Identifier: MIT */
/*
 * The timeline of a session in ordinary memory: while it is there, others may use the session; put
 * back, into this session or another of the engine, it goes on with the same bits. As after
 * batch_copy_prefix there are no logits, and the last position's hidden state is gone
 * (session_can_draft).
 *
 * In order of use: session_image_take, session_image_restore, session_image_free. Threads: the one
 * that computes.
 */
#ifndef GLM_ENGINE_SESSION_IMAGE_H
#define GLM_ENGINE_SESSION_IMAGE_H

#include "src/engine/session/session.h"

struct session_image;

/* Bytes of memory that session_image_take takes. */
size_t session_image_bytes(const struct session *s);

/* Copies tokens and cache rows; the session does not change. ERR_MEMORY, or the device's failure.
 */
int session_image_take(const struct session *s, struct session_image **out, struct err *e);

/* Makes the timeline of `s`, a session of the same engine, that of the image, whatever it was. The
 * device's failure: the timeline is empty. */
int session_image_restore(struct session *s, const struct session_image *image, struct err *e);

void session_image_free(struct session_image *image); /* NULL is fine */

#endif
