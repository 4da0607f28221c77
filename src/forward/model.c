/* SPDX-License-Identifier: MIT */
/* Builds and releases what a step needs: rotary frequencies, workspace, plan of the experts. */
#include "src/forward/model.h"

#include "src/base/mem.h"
#include "src/forward/observe.h"

#include <math.h>
#include <stdlib.h>

/* f_i = base^(-2i / dim), every step in float32 as the reference engines do (specification 2.2). */
static int inv_freq_init(struct model *m, struct err *e)
{
	uint32_t n = m->config.head_rope / 2;
	struct backend *b = m->backend;
	int rc = b->ops->alloc(b, MEM_DEVICE, n * sizeof(float), (void **)&m->inv_freq, e);
	if (rc)
		return rc;
	float *f = NEW_ARRAY(float, n);
	for (uint32_t i = 0; i < n; i++)
		f[i] = 1.0f / powf(m->config.rope_base, (float)(2 * i) / (float)m->config.head_rope);
	b->ops->upload(b, m->inv_freq, f, n * sizeof *f);
	free(f);
	return 0;
}

int model_init(struct model *m, const struct model_config *c, struct model_weights *w,
	uint32_t mtp_sessions, struct backend *b, struct expert_source *source, size_t embed_row_bytes,
	uint32_t max_rows, struct err *e)
{
	*m = (struct model){.config = *c, .weights = *w, .backend = b, .source = source};
	*w = (struct model_weights){0};
	m->has_mtp = mtp_sessions > 0;
	int rc = moe_plan_init(&m->plan, c, max_rows);
	if (rc)
		err_set(e, rc, "no memory for the expert plan of %u rows", max_rows);
	if (rc || (rc = inv_freq_init(m, e)) ||
		(rc = workspace_init(&m->ws, c, mtp_sessions, embed_row_bytes, max_rows, b, e)))
		goto out;
	m->step_host = mem_try_new(workspace_step_bytes(&m->ws, max_rows), 1);
	if (!m->step_host)
		rc = err_set(e, ERR_MEMORY, "no memory for the tokens of %u rows", max_rows);
out:
	if (rc)
		model_fini(m);
	return rc;
}

void model_fini(struct model *m)
{
	struct backend *b = m->backend;
	if (!b)
		return;
	if (m->plan.refs)
		moe_drain(m, NULL);
	model_observe(m, NULL);
	b->ops->segments_drop(b);
	workspace_fini(&m->ws, b);
	b->ops->free(b, MEM_DEVICE, m->inv_freq, m->config.head_rope / 2 * sizeof(float));
	moe_plan_fini(&m->plan);
	free(m->step_host);
	weights_free(&m->weights, b);
	*m = (struct model){0};
}
