/* SPDX-License-Identifier: MIT */
/* The inside of a session, for the files of this folder that work on timelines. */
#ifndef GLM_ENGINE_SESSION_INTERNAL_H
#define GLM_ENGINE_SESSION_INTERNAL_H

#include "src/engine/engine_internal.h"
#include "src/engine/session/session.h"

struct session {
	struct engine *g;
	uint32_t slot;   /* index into g->taken */
	int32_t base;    /* first cache row */
	int32_t *tokens; /* [context] */
	uint32_t length; /* tokens whose cache rows are valid */
	uint32_t ahead;  /* tokens behind `length` whose steps are in flight (batch_begin) */
	bool broken;     /* a step failed: those in flight behind it fail too */
	/* Logits and hidden states of the last step: those of its n_rows last rows, if it was a
	 * verification, else of its last one. The last of them belongs to position length - 1. */
	uint32_t n_rows; /* with logits; 0: there are none */
	float *logits;   /* [n_vocab], of one row; shared memory, so the device writes it */
	float *rows;     /* [SESSION_ROWS_MAX][n_vocab], of several; NULL until they are needed */
	bool of_several; /* they are in `rows`, else in `logits` */
	/* Not 0: the logits are on the device only, from row device_row of ws.logits on. They are valid
	 * while ws.logits_serial equals device_serial. 0: they are in the memory above. */
	uint64_t device_serial;
	uint32_t device_row;
	/* Of a verification: the number of the engine's step, and the session's first row in it. 0: the
	 * expert source knows how many of its rows are kept (settle_rows). */
	uint64_t step_number;
	uint32_t first_row;
	bool mtp;
	bool has_state;      /* the hidden state of position length - 1 is kept ... */
	uint32_t last_state; /* ... as this state of the slot (mtp.h) */
	/* Valid rows of the MTP layer's cache: [0, mtp_rows). Row i is made from position i and
	 * tokens[i + 1]. length - 1 when nothing is missing; length where the last row was made with a
	 * token that has been forgotten since and is still at tokens[length]. */
	uint32_t mtp_rows;
	uint32_t mtp_filled; /* rows before this one may lack states (session_fill_mtp_rows) */
	int32_t *pos, *bases, *states; /* [chunk] scratch of a step */
	struct session_taps *taps;
	uint32_t tap_rows; /* tokens computed since the taps were set */
};

/* ERR_INPUT when one of the n tokens is no id of the model, or when `length` is beyond the context.
 */
int session_check(
	const struct session *s, const int32_t *tokens, uint32_t n, uint64_t length, struct err *e);

/* ---- steps: used by session.c and batch.c, in this order ---- */

/* Called before `token` is written to s->tokens[length]. Drops the last position's MTP row if it
 * was made with another token, or if it can be made anew because the hidden state is kept. Also
 * reports to the expert sources which rows of the last verification are kept, if session_keep_rows
 * has not: all of them; none after session_rewind. */
void session_expect_token(struct session *s, int32_t token);
/* The memory for n rows' logits, [n][n_vocab]; allocated on the first call with n > 1. NULL with
 * ERR_MEMORY in *e. */
float *session_row_buffer(struct session *s, uint32_t n, struct err *e);
/* Forgets the logits, not their memory. */
void session_drop_logits(struct session *s);
/* Before the step: makes the missing MTP rows of all positions but the last, from tokens alone
 * (session_can_draft). Enqueued. Where there is no memory for that they stay missing. */
void session_fill_mtp_rows(struct session *s);
/* Whether the coming step writes MTP rows for this session: MTP is enabled, and no row but the last
 * position's is missing. Stays the same until session_advance. */
bool session_appends_mtp(const struct session *s);
/* Returns session_appends_mtp(s). If that is true, sets states[n] to the states for mtp_append of
 * the session's n rows, the first of which is row `first` of the step. */
bool session_mtp_states(const struct session *s, uint32_t n, uint32_t first, int32_t *states);
/* The step is done: the timeline grows by n tokens, which were rows [first, first + n) of the step.
 * Logits of the last n_rows of them are in session_row_buffer(s, n_rows). appended:
 * session_appends_mtp is true, and mtp_append was called and has not failed. Without it the session
 * cannot draft before its next step. */
void session_advance(struct session *s, uint32_t n, uint32_t first, uint32_t n_rows, bool appended);
/* ERR_RUN when logits of the last step are not finite; the timeline is then emptied. drawn: results
 * of the draws from all its rows, which say so; NULL: looks at the logits on the host. */
int session_check_finite(struct session *s, const struct draw_result *drawn, struct err *e);
/* Sets *e for logits behind token n that are not finite, or for the change of the model's file that
 * explains them. Returns ERR_RUN. */
int session_not_finite(const struct session *s, uint32_t n, struct err *e);

/* ---- prompt_chunks.c ---- */

/* Should the chunks of a prompt be computed by session_extend_in_flight? */
bool session_pipelines_chunks(const struct session *s);
/* session_extend with rows NULL, through the pipeline: the first stage computes chunk k + 1 while
 * the second one computes chunk k. Precondition: session_check of the tokens. */
int session_extend_in_flight(struct session *s, const int32_t *tokens, uint32_t n,
	const struct session_watch *watch, struct err *e);
/* How many rows the next step computes of a prompt that has `rest` tokens left. */
uint32_t session_chunk_rows(const struct engine *g, uint32_t rest);

/* ---- MTP rows and drafts ---- */

/* Whether the MTP rows of positions [first, n) are there and were made from hidden states, so that
 * session_file.h stores them. Rows made from tokens alone can be made again at any time. */
bool session_has_mtp_rows(const struct session *s, uint32_t first, uint32_t n);
/* For drafts: session_check_draft first (errors as session_mtp_draft), then session_mtp_sequence,
 * which sets state, pos and base of *out, and session_drafted before mtp_draft. */
struct mtp_sequence;
void session_mtp_sequence(const struct session *s, struct mtp_sequence *out);
int session_check_draft(const struct session *s, int32_t next, uint32_t k, struct err *e);
/* mtp_draft writes the last position's MTP row for a token that may not follow: drops the row. */
void session_drafted(struct session *s);

/* ---- cache rows in memory of the host: session_file.c, session_image.c ---- */

/* Raised when a version computes rows whose last bits differ from those of the version before. */
#define SESSION_ARITHMETIC 2u
/* What computes the rows of this engine: "cpu", "cpu fast" (fast_prompts), "cuda", "cuda exact"
 * (exact_prompts), or "cuda blas130100" (kernels/library.h). Rows of different names differ in the
 * last bits. */
#define SESSION_MAKER_BYTES 16
void session_rows_maker(const struct engine *g, char out[SESSION_MAKER_BYTES]);

struct cache_rows {
	uint32_t layer;
	bool index_key;   /* else the latents */
	uint32_t from, n; /* positions of the session */
	size_t row_bytes;
};

/* The rows of cache number *at (two to a layer; *at begins at 0) that belong to positions [first,
 * n); false behind the last. With `mtp` the layer behind the trunk belongs to it. Caches without
 * rows are left out. */
bool session_next_rows(const struct session *s, uint32_t first, uint32_t n, bool mtp, uint32_t *at,
	struct cache_rows *r);
/* n rows from row from + done on, to or from host memory. Writing is enqueued. */
int session_read_rows(const struct session *s, const struct cache_rows *r, uint32_t done,
	uint32_t n, void *out, struct err *e);
int session_write_rows(struct session *s, const struct cache_rows *r, uint32_t done, uint32_t n,
	const void *data, struct err *e);

#endif
