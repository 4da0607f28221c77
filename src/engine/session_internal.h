/* SPDX-License-Identifier: MIT */
/* The inside of a session, for the files of this folder that work on timelines. */
#ifndef GLM_ENGINE_SESSION_INTERNAL_H
#define GLM_ENGINE_SESSION_INTERNAL_H

#include "src/engine/engine_internal.h"
#include "src/engine/session.h"

struct session {
	struct engine *g;
	uint32_t slot;   /* index into g->taken */
	int32_t base;    /* first cache row */
	int32_t *tokens; /* [context] */
	uint32_t length; /* tokens whose cache rows are valid */
	/* Logits and hidden states of the last step: those of its n_rows last rows, if it was a
	 * verification, else of its last one. The last of them belongs to position length - 1. */
	uint32_t n_rows; /* with logits; 0: there are none */
	float *logits;   /* [n_vocab], of one row; shared memory, so the device writes it */
	float *rows;     /* [SESSION_ROWS_MAX][n_vocab], of several; NULL until they are needed */
	bool of_several; /* which of the two holds them */
	/* They are still where the model computed them, from row device_row of ws.logits on, as long as
	 * ws.logits_serial is this one; 0: they are in the memory above. */
	uint64_t device_serial;
	uint32_t device_row;
	/* The rows of a verification, for the expert source: it was step step_number of the engine, in
	 * which they begin with row first_row; 0: the source knows what is kept. */
	uint64_t step_number;
	uint32_t first_row;
	bool mtp;
	bool has_state;      /* the hidden state of position length - 1 is kept ... */
	uint32_t last_state; /* ... as this state of the slot (mtp.h) */
	/* Rows of the MTP layer's cache that are made from tokens[0 .. mtp_rows]: length - 1 when
	 * nothing is missing. The token behind a row may be one that was forgotten, tokens[length]. */
	uint32_t mtp_rows;
	uint32_t mtp_filled; /* rows before this one may be of tokens alone (session_fill_mtp_rows) */
	int32_t *pos, *bases, *states; /* [chunk] scratch of a step */
	struct session_taps *taps;
	uint32_t tap_rows; /* tokens computed since the taps were set */
};

/* ERR_INPUT when one of the n tokens is no id of the model, or when `length` is beyond the context.
 */
int session_check(
	const struct session *s, const int32_t *tokens, uint32_t n, uint64_t length, struct err *e);

/* ---- steps: used by session.c and batch.c, in this order ---- */

/* `token` is about to be written behind the last one: the MTP row that ends in another is void.
 * Then the tokens may be copied. */
void session_expect_token(struct session *s, int32_t token);
/* Where n rows' logits go; n > 1: the memory is taken first. NULL: ERR_MEMORY. */
float *session_row_buffer(struct session *s, uint32_t n, struct err *e);
/* Forgets the logits, not their memory. */
void session_drop_logits(struct session *s);
/* Before the step: the MTP rows of earlier positions that nobody made are filled. */
void session_fill_mtp_rows(struct session *s);
/* Whether MTP rows are written in the step that is coming; the states [n] of mtp_append for the
 * session's rows, which begin with row `first` of that step. */
bool session_mtp_states(const struct session *s, uint32_t n, uint32_t first, int32_t *states);
/* The step is done: n more tokens, with logits in session_row_buffer(s, n_rows) of the last n_rows;
 * `appended`: session_mtp_states said true and mtp_append was called. */
void session_advance(struct session *s, uint32_t n, uint32_t first, uint32_t n_rows, bool appended);
/* ERR_RUN when logits of the last step are not finite: the timeline is forgotten. */
int session_check_finite(struct session *s, struct err *e);

/* Whether the MTP layer has its rows of [first, n) as session_file.h keeps them, made from states:
 * those of a prefix that was filled are not worth keeping. */
bool session_has_mtp_rows(const struct session *s, uint32_t first, uint32_t n);
/* The sequence that drafts; the caller has checked session_check_draft. */
struct mtp_sequence;
void session_mtp_sequence(const struct session *s, struct mtp_sequence *out);
int session_check_draft(const struct session *s, int32_t next, uint32_t k, struct err *e);
/* The MTP row of the last position was written for a token that may not follow. */
void session_drafted(struct session *s);

#endif
