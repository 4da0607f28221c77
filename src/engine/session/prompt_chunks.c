/* SPDX-License-Identifier: MIT */
/*
 * The chunks of a prompt. Through several stages they follow each other, as many as there are
 * stages:
 *
 *      stage 0   chunk 0   chunk 1   chunk 2   ...
 *      stage 1             chunk 0   chunk 1   ...
 *
 * A stage computes the chunks in their order, and each of them reads the cache rows of those before
 * it in that stage only. The chunks are those that one stage would compute, so the bits are too.
 */
#include "src/base/num.h"
#include "src/engine/batch.h"
#include "src/engine/session/session_internal.h"
#include "src/engine/stages/pipeline.h"
#include "src/forward/moe/moe.h"

/* A device may compute steps of at most `few` rows (batch_decode_rows) in another way than larger
 * ones, with other bits. So the last chunk of a longer prompt must not be that small: the chunk
 * before it is shortened. That works for chunks of at least 2 * few + 1 rows, whose numbers are
 * then the same for every chunk size. Smaller chunks can leave a last one that is computed as a
 * decode step is. */
uint32_t session_chunk_rows(const struct engine *g, uint32_t rest)
{
	uint32_t few = batch_decode_rows(g), n = MIN(rest, g->chunk);
	if (few < g->chunk && rest > n && rest - n <= few && rest > 2 * few + 1)
		n = rest - (few + 1);
	return n;
}

bool session_pipelines_chunks(const struct session *s)
{
	const struct engine *g = s->g;
	return !s->taps && !engine_last(g)->model.observation && pipeline_depth(g) > 1 &&
		   !pipeline_in_flight(g->pipeline);
}

/* A prompt whose chunks are in flight. */
struct prompt_flight {
	struct session *s;
	const int32_t *tokens;
	const struct session_watch *watch; /* NULL: none */
	uint32_t n, begun, done;           /* tokens: all, in begun steps, in ended steps */
	uint32_t n_begun, n_ended;         /* chunks */
	struct {
		struct batch_run *run;
		uint32_t n;
	} chunks[STAGES_MAX]; /* chunk i at i % STAGES_MAX */
};

static void flight_layer(void *user, uint32_t layers, uint32_t n_layers)
{
	const struct prompt_flight *f = user;
	const uint32_t n = f->chunks[f->n_ended % STAGES_MAX].n;
	if (layers < n_layers)
		f->watch->partial(
			f->watch->user, f->done + (uint32_t)((uint64_t)n * layers / n_layers), f->n);
}

static int begin_chunk(struct prompt_flight *f, struct err *e)
{
	const struct engine *g = f->s->g;
	const uint32_t n = session_chunk_rows(g, f->n - f->begun), at = f->n_begun % STAGES_MAX;
	const struct session_watch *w = f->watch;
	/* an engine with short chunks computes prompts as decode steps are computed: session_step */
	const struct batch_part part = {.session = f->s,
		.tokens = f->tokens + f->begun,
		.n = n,
		.logits = f->begun + n == f->n,
		.prompt = g->chunk >= PREFILL_ROWS ? f->n : MIN(f->n, LONG_PROMPT - 1)};
	const struct batch_watch watch = {.cancel = w ? w->cancel : NULL,
		.on_layer = w && w->partial ? flight_layer : NULL,
		.user = f};
	f->chunks[at].n = n;
	int rc = batch_begin(&part, 1, &watch, &f->chunks[at].run, e);
	if (rc)
		return rc;
	f->begun += n;
	if (!f->n_begun++ && w && w->on_device_busy)
		w->on_device_busy(w->user);
	return 0;
}

static int end_chunk(struct prompt_flight *f, struct err *e)
{
	const uint32_t at = f->n_ended % STAGES_MAX, length = f->s->length;
	int rc = batch_end(f->chunks[at].run, e);
	if (!rc && !f->s->length) /* forgotten */
		rc = session_not_finite(f->s, length + f->chunks[at].n, e);
	f->n_ended++;
	if (rc)
		return rc;
	f->done += f->chunks[at].n;
	if (f->watch && f->watch->progress)
		f->watch->progress(f->watch->user, f->done, f->n);
	return 0;
}

int session_extend_in_flight(struct session *s, const int32_t *tokens, uint32_t n,
	const struct session_watch *watch, struct err *e)
{
	struct prompt_flight f = {.s = s, .tokens = tokens, .watch = watch, .n = n};
	const uint32_t depth = MIN(pipeline_depth(s->g), (uint32_t)STAGES_MAX);
	int rc = 0;
	while (f.done < n && !rc) {
		while (f.begun < n && f.n_begun - f.n_ended < depth && !rc)
			rc = begin_chunk(&f, e);
		if (!rc)
			rc = end_chunk(&f, e);
	}
	while (f.n_ended < f.n_begun) /* after a failure */
		batch_end(f.chunks[f.n_ended++ % STAGES_MAX].run, NULL);
	return rc;
}
