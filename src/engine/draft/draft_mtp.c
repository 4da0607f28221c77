/* SPDX-License-Identifier: MIT */
/*
 * The MTP layer as a source of drafts. A draft is drawn from the layer's logits as the token will
 * be drawn from the model's: with the same options and the random numbers of the same position.
 * This is a Gumbel coupling of the two distributions: the closer they are, the more often both
 * draws give the same token. The layer's likeliest token would be right only as often as the model
 * draws that token.
 */
#include "src/engine/draft/draft_mtp.h"

#include "src/base/clock.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/draw/draw.h"
#include "src/engine/batch.h"
#include "src/engine/sampler.h"

#include <math.h>
#include <stdlib.h>

struct mtp_source;

/* Of one timeline, while its drafts are chosen. */
struct mtp_choice {
	struct mtp_source *source;
	const struct draft_proposal *proposal;
};

struct mtp_source {
	struct engine *engine;
	float *maxima; /* [draw_blocks(n_valid)] scratch of draw_scan_row */
};

/* The grade of a draft is by the probability that the layer gives it: the least one of each grade.
 */
static const float grade_least[DRAFT_GRADES] = {0, 0.1f, 0.2f, 0.35f, 0.5f, 0.65f, 0.8f, 0.92f};

static const struct draft_gate_source mtp_expects = {
	.chance = {0.15f, 0.25f, 0.35f, 0.45f, 0.6f, 0.7f, 0.8f, 0.92f},
	.first_chance = 0.7f,
	.costs = true,
};

/* softmax(logits / t)[id], without penalties and truncation. t about 0 (greedy): of the logits
 * themselves. */
static float id_probability(const struct mtp_source *m, const float *logits, int32_t id, float t)
{
	struct draw_row row;
	struct draw_sum before = {0}, all = {0};
	float inv_t = t > 0.01f ? 1 / t : 1;
	draw_scan_row(logits, engine_n_valid(m->engine), m->maxima, &row);
	if (!isfinite(row.top))
		return 0;
	draw_before(logits, &row, draw_unit_scale((double)inv_t), id, &before, &all);
	float mass = ldexpf((float)all.mass, -DRAW_UNIT_BITS);
	return expf((logits[id] - row.top) * inv_t) / mass;
}

static int32_t draft_choose(void *user, const float *logits, uint32_t step)
{
	struct mtp_choice *c = user;
	const struct draft_proposal *r = c->proposal;
	struct sampler greedy = {0}; /* temperature 0: the likeliest id */
	struct sampler *sampler = r->sampler ? r->sampler : &greedy;
	int32_t id =
		sampler_draw(sampler, logits, engine_n_valid(c->source->engine), NULL, r->position + step);
	float p = id_probability(c->source, logits, id, sampler->options.temperature);
	sampler_fini(&greedy);
	uint8_t grade = DRAFT_GRADES - 1;
	while (p < grade_least[grade])
		grade--;
	r->chain->grades[step] = grade;
	return id;
}

/* Timelines that cannot draft now get no drafts. */
static int mtp_propose(void *user, struct draft_proposal *proposals, uint32_t n, struct err *e)
{
	struct mtp_source *m = user;
	struct batch_draft drafts[n];
	struct mtp_choice choices[n];
	uint32_t n_drafts = 0;
	for (uint32_t i = 0; i < n; i++) {
		const struct draft_proposal *r = &proposals[i];
		if (!session_can_draft(r->session))
			continue;
		r->chain->n = r->k;
		choices[n_drafts] = (struct mtp_choice){.source = m, .proposal = r};
		drafts[n_drafts] = (struct batch_draft){.session = r->session,
			.next = r->next,
			.k = r->k,
			.ids = r->chain->ids,
			.choose = draft_choose,
			.user = &choices[n_drafts]};
		n_drafts++;
	}
	return n_drafts ? batch_mtp_draft(drafts, n_drafts, e) : 0;
}

static void mtp_close(void *user)
{
	struct mtp_source *m = user;
	free(m->maxima);
	free(m);
}

struct draft_source draft_mtp_source(struct engine *g)
{
	struct mtp_source *m = NEW(struct mtp_source);
	m->engine = g;
	m->maxima = NEW_ARRAY(float, draw_blocks(engine_n_valid(g)));
	return (struct draft_source){.name = "mtp",
		.user = m,
		.expect = mtp_expects,
		.propose = mtp_propose,
		.close = mtp_close};
}

struct drafter *drafter_open(struct engine *g, int mode)
{
	struct drafter_options o = {
		.limit = mode == DRAFT_AUTO ? DRAFT_MAX : (uint32_t)mode, .always = mode != DRAFT_AUTO};
	bool computes_only = engine_only_computes(g);
	if (computes_only)
		o.clock = clock_thread_ns;
	if (!engine_has_mtp(g) || (computes_only && mode == DRAFT_AUTO))
		return drafter_new(&o);
	const struct draft_source mtp = draft_mtp_source(g);
	o.source = &mtp;
	return drafter_new(&o);
}

struct draft_timeline *draft_timeline_open(struct drafter *d, struct session *s)
{
	struct err e;
	if (!d)
		return NULL;
	if (drafter_source(d)->propose == mtp_propose && session_enable_mtp(s, &e))
		bug("a loaded MTP layer is refused: %s", e.text);
	return draft_timeline_new(d, s);
}
