/* SPDX-License-Identifier: MIT */
/*
 * The MTP layer as a source of drafts. A draft is drawn from the layer's logits as the token will
 * be drawn from the model's: with the same options and the random numbers of the same position.
 * This is a Gumbel coupling of the two distributions: the closer they are, the more often both
 * draws give the same token. The layer's likeliest token would be right only as often as the model
 * draws that token.
 */
#include "src/engine/draft/draft_mtp.h"

#include "src/base/host/clock.h"
#include "src/base/log.h"
#include "src/draw/draw.h"
#include "src/engine/batch.h"
#include "src/engine/engine_internal.h"
#include "src/engine/sampler.h"

/* Of one timeline, while its drafts are chosen. */
struct mtp_choice {
	const struct draft_proposal *proposal;
	int32_t n_valid;
	const struct sampler *sampler;
	struct draw_request requests[DRAFT_MAX];
};

/* The grade of a draft is by the probability that the layer gives it: the least one of each grade.
 */
static const float grade_least[DRAFT_GRADES] = {0, 0.1f, 0.2f, 0.35f, 0.5f, 0.65f, 0.8f, 0.92f};

static const struct draft_gate_source mtp_expects = {
	.chance = {0.15f, 0.25f, 0.35f, 0.45f, 0.6f, 0.7f, 0.8f, 0.92f},
	.first_chance = 0.7f,
	.costs = true,
};

static const struct sampler greedy; /* temperature 0: the likeliest id */

static void choice_init(
	struct mtp_choice *c, const struct draft_proposal *r, const struct engine *g)
{
	*c = (struct mtp_choice){
		.proposal = r, .n_valid = engine_n_valid(g), .sampler = r->sampler ? r->sampler : &greedy};
	for (uint32_t k = 0; k < r->k; k++) {
		c->requests[k] = sampler_request(c->sampler, r->position + k);
		c->requests[k].mass = true;
	}
}

/* Takes what the device drew, unless penalties, biases or a truncation may change it: then the host
 * draws. The grade is by the probability without them. */
static int32_t draft_choose(
	void *user, const struct draw_result *drawn, const float *logits, uint32_t step)
{
	struct mtp_choice *c = user;
	const struct draft_proposal *r = c->proposal;
	const struct draw_request *q = &c->requests[step];
	const uint32_t position = r->position + step;
	if (!logits && !sampler_accepts(c->sampler, c->n_valid, position, drawn))
		return BATCH_WANTS_LOGITS;
	struct draw_result of = *drawn;
	if (logits) {
		of.id = sampler_draw(r->sampler, logits, c->n_valid, NULL, position);
		of.logit = logits[of.id];
	}
	const float p = draw_result_probability(&of, q);
	uint8_t grade = DRAFT_GRADES - 1;
	while (p < grade_least[grade])
		grade--;
	r->chain->grades[step] = grade;
	return of.id;
}

/* Timelines that cannot draft now get no drafts. None does where there is no memory for them. */
static int mtp_propose(void *user, struct draft_proposal *proposals, uint32_t n, struct err *e)
{
	struct engine *g = user;
	struct batch_draft drafts[n];
	struct mtp_choice choices[n];
	uint32_t n_drafts = 0;
	for (uint32_t i = 0; i < n; i++) {
		const struct draft_proposal *r = &proposals[i];
		if (!session_can_draft(r->session))
			continue;
		r->chain->n = r->k;
		choice_init(&choices[n_drafts], r, g);
		drafts[n_drafts] = (struct batch_draft){.session = r->session,
			.next = r->next,
			.k = r->k,
			.ids = r->chain->ids,
			.draws = choices[n_drafts].requests,
			.choose = draft_choose,
			.user = &choices[n_drafts]};
		n_drafts++;
	}
	struct err why = {0};
	int rc = n_drafts ? batch_mtp_draft(drafts, n_drafts, &why) : 0;
	if (rc == ERR_MEMORY) {
		engine_leave_out_drafts(g, &why);
		for (uint32_t i = 0; i < n; i++)
			proposals[i].chain->n = 0;
		return 0;
	}
	if (rc && e)
		*e = why;
	return rc;
}

struct draft_source draft_mtp_source(struct engine *g)
{
	return (struct draft_source){
		.name = "mtp", .user = g, .expect = mtp_expects, .propose = mtp_propose};
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
