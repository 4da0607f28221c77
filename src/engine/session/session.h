/* SPDX-License-Identifier: MIT */
/*
 * One mutable timeline of tokens over an engine. The caller states the tokens it wants computed;
 * the session reuses the common prefix, rewinds or extends. Logits of the last position are kept.
 *
 * Order of use: session_new, session_enable_mtp if drafts are wanted, then session_sync for a
 * prompt and session_extend for what follows; session_free. Threads: the one that computes.
 *
 * With drafts a decode step computes several rows of one timeline:
 *   1. a token is drawn from session_logits;
 *   2. session_mtp_draft (or another source) drafts the tokens behind it;
 *   3. session_verify computes the token and the drafts, and keeps the logits of every row;
 *   4. the caller draws from row 0, 1, ... as long as the draft of the next row is what it drew
 *      (3 can have the device draw from all rows: struct session_draws);
 *   5. session_keep_rows forgets the rows behind that. The last token drawn, which is not computed
 *      yet, takes the place of the token of 1; continue with 2.
 * Row r of session_verify has the bits that session_extend gives it one by one.
 */
#ifndef GLM_ENGINE_SESSION_H
#define GLM_ENGINE_SESSION_H

#include "src/engine/engine.h"

#include <stdatomic.h>

struct session;

#define SESSION_ROWS_MAX   8 /* rows of a verification */
#define SESSION_DRAFTS_MAX (SESSION_ROWS_MAX - 1)

/* Creates an empty timeline of up to engine_context() positions. Its cache rows were allocated by
 * engine_open. ERR_MEMORY: options.sessions of them exist, or there is no memory for token ids and
 * logits. */
int session_new(struct engine *g, struct session **out, struct err *e);
void session_free(struct session *s); /* NULL is fine */
struct engine *session_engine(const struct session *s);

/* Callbacks of a long computation. Zero-initialise; every field is optional. */
struct session_watch {
	void (*progress)(void *user, uint32_t done, uint32_t total); /* after each chunk of tokens */
	/* Between these, after layers of a chunk: the work done so far, expressed in tokens. The tokens
	 * of the chunk are not in the session yet. */
	void (*partial)(void *user, uint32_t done, uint32_t total);
	/* Called once, when the device computes the first chunk and the thread would only wait: the
	 * place for work that is not urgent. Pointers from session_logits and session_row_logits that
	 * were taken before the computation are still valid. Not called when it ends early. */
	void (*on_device_busy)(void *user);
	void *user;
	/* Set by any thread or a signal handler: the computation stops within its layer (on a
	 * device that cannot stop an op, behind it) with ERR_INTERRUPTED. The session then holds the
	 * chunks that were finished, and stays usable. */
	atomic_bool *cancel;
};

/* Makes the timeline equal to tokens[0..n).
 * - Reuses the longest common prefix and computes the rest in chunks. The last token is computed
 *   again if its logits are not available.
 * - *n_reused (may be NULL): tokens that were not computed.
 * - ERR_INPUT for an id out of range, n = 0, or n beyond the context: the session is unchanged.
 * - ERR_RUN when the last logits are not finite: the timeline is then empty, because its caches may
 *   be damaged.
 * - After any other error the session holds the chunks that were finished, without logits:
 *   ERR_INTERRUPTED (watch->cancel), ERR_RUN when bytes of a mapped model are lost, ERR_MEMORY, a
 *   failure of the backend, of a read or of another rank. */
int session_sync(struct session *s, const int32_t *tokens, uint32_t n,
	const struct session_watch *watch, uint32_t *n_reused, struct err *e);

/* Appends n tokens and computes them in chunks; n = 0: does nothing. rows (may be NULL): out,
 * [n][vocab] logits of every appended position, host; they are not checked for finite values.
 * Errors as session_sync. */
int session_extend(struct session *s, const int32_t *tokens, uint32_t n, float *rows,
	const struct session_watch *watch, struct err *e);

/* Draws by the device from the rows of a verification (op `draw` of kernels/backend.h). */
struct draw_request;
struct draw_result;
struct session_draws {
	const struct draw_request *requests; /* [rows] */
	struct draw_result *results;         /* [rows] out */
};

/* session_extend for 1 <= n <= SESSION_ROWS_MAX tokens in one step, with the logits of all n rows
 * kept in the session (session_row_logits). draws: the device also draws from each row; NULL: it
 * does not. Errors as session_sync, ERR_INPUT also when n exceeds batch_max_rows (batch.h), and
 * ERR_MEMORY for the rows' logits on the first call with n > 1. */
int session_verify(struct session *s, const int32_t *tokens, uint32_t n,
	const struct session_draws *draws, const struct session_watch *watch, struct err *e);

/* [vocab] logits of row `row` of the last verification, host memory, valid until the next step of
 * this session has been computed; NULL when there is no such row. Row 0 belongs to the first token
 * of that step. After any other step there is one row, 0, and it is session_logits. */
const float *session_row_logits(const struct session *s, uint32_t row);

/* Keeps the first n_keep rows of the last verification and forgets the rest; 1 <= n_keep <= its
 * rows. Length, logits and the hidden state that drafts begin with are then those of row
 * n_keep - 1. Logits of the rows kept stay where they are. Computes nothing. Without this call all
 * rows are kept. Call it before the engine's next step: the expert cache learns by it which experts
 * were of use. */
void session_keep_rows(struct session *s, uint32_t n_keep);

/* Forgets all but the first n tokens. n <= length. The logits are gone until something is computed,
 * unless n equals the length. */
void session_rewind(struct session *s, uint32_t n);

/* How many of tokens[0..n) the timeline begins with. */
uint32_t session_common_prefix(const struct session *s, const int32_t *tokens, uint32_t n);

uint32_t session_length(const struct session *s);
const int32_t *session_tokens(const struct session *s); /* [length], valid until the next change */

/* [vocab] logits of the last position, host memory, valid until the next change; NULL when they are
 * not available. Those from engine_n_valid on are of padding rows: not to be sampled. */
const float *session_logits(const struct session *s);

/* Downloads the logits of the last step if batch_step left them on the device (batch_part.draws);
 * session_logits and session_row_logits are NULL before. Does nothing when they are on the host.
 * Precondition: no session of the engine has computed anything since, drafts included: the device
 * keeps the logits of one step only. Returns 0 or the backend's failure. */
int session_fetch_logits(struct session *s, struct err *e);

/* From now on also fills the MTP layer's caches, which drafts need: two projections a token.
 * ERR_INPUT when the model has no MTP layer. */
int session_enable_mtp(struct session *s, struct err *e);

/* Whether session_mtp_draft can draft now: MTP is enabled, the last position was computed by this
 * session since, and there was memory for its MTP row.
 *
 * MTP rows without hidden states. The MTP layer's cache row of a position is made from the hidden
 * state of that position and the next token. Hidden states are not stored, so some are missing:
 * - after rewinding, restoring or copying a timeline: the state of the last position. Its row is
 *   lost unless the same token follows as before;
 * - after restoring a timeline that was stored without MTP rows: the states of all positions.
 * These rows are made from the tokens alone, so every row that is read has been written. The text
 * does not change, drafts may: one such row has no visible effect; where all rows of the prompt are
 * such rows, 63 % of the first drafts are right instead of 69 % (pocket model). */
bool session_can_draft(const struct session *s);

/* Drafts, given that `next` follows the last position: ids[0] is the likeliest token after `next`,
 * ids[1] the one after ids[0], ... The timeline does not change.
 * - 1 <= k <= SESSION_DRAFTS_MAX, and length + k - 1 within the context, else ERR_INPUT.
 * - ids [k]; logits (may be NULL): [k][vocab] host.
 * - ERR_RUN when session_can_draft is false. */
int session_mtp_draft(
	struct session *s, int32_t next, uint32_t k, int32_t *ids, float *logits, struct err *e);

/* Intermediate results, for parity tests; filled by session_extend and session_sync while set.
 * Arrays of the caller; NULL: not wanted. "Last": of the last position computed. Not with ranks. */
struct session_taps {
	float *resid_last;     /* [layers][n_embd] residual stream after each layer */
	uint16_t *router;      /* [router_rows][moe layers][n_used] expert ids, ascending */
	uint32_t router_rows;  /* capacity in tokens */
	int32_t *index_last;   /* [layers][top_k] selection, ascending; full layers only */
	int32_t *n_index_last; /* [layers] how many; 0 for shared layers */
};
void session_set_taps(struct session *s, struct session_taps *taps); /* NULL: off */

#endif
