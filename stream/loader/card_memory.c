/* SPDX-License-Identifier: MIT */
#include "stream/loader/card_memory.h"

#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/num.h"

#include <stdlib.h>
#include <string.h>

#define HOST_STAGING_BYTES_MAX ((uint64_t)512 << 20)
#define BUFFERS_MIN            6
/* While a step is being pinned the driver blocks launches and copies of all threads: 20 ms a GiB
 * (H200). */
#define PIN_STEP_BYTES ((size_t)256 << 20)

struct card_memory_plan card_memory_plan(const struct extent_table *t, const struct reader *r,
	unsigned requests, bool has_tier1, bool checked)
{
	struct card_memory_plan p = {0};
	for (uint32_t i = 0; i < extent_n_layers(t); i++)
		p.slot_bytes = MAX(p.slot_bytes, extent_slot_bytes(t, i));
	uint64_t slice = reader_staging_bytes(r);
	p.buffer_bytes = num_align_up(slice + slice / 2, READER_SLICE_MIN) + READER_SLICE_MIN;
	uint64_t most = MAX(HOST_STAGING_BYTES_MAX / p.buffer_bytes, (uint64_t)BUFFERS_MIN);
	uint64_t wish = reader_staging_buffers(r) + (checked ? reader_useful_depth_max(r) : 0);
	p.n_buffers = (unsigned)MIN(MAX(wish, (uint64_t)BUFFERS_MIN), MIN(most, (uint64_t)requests));
	p.host_staging_bytes = p.n_buffers * p.buffer_bytes;
#ifdef LOADER_POISON
	p.host_staging_bytes += p.slot_bytes;
#endif
	p.device_staging_bytes = has_tier1 ? DEVICE_STAGING_SLOTS * p.slot_bytes : 0;
	return p;
}

static void tier1_step_pinned(void *arg)
{
	struct card_memory *m = arg;
	if (atomic_load(&m->tier1.state) == PINNED_READY)
		log_verbose("copies: %.2f GB of host memory pinned in %.2f s and pauses",
			(double)m->tier1.bytes / 1e9, m->tier1.seconds);
	if (card_memory_refused_bytes(m))
		log_warn("the second tier (--ram-gb) stays at %.3f of %.3f GB: %s",
			(double)atomic_load(&m->tier1.ready) / 1e9, (double)m->tier1.bytes / 1e9,
			m->tier1.why.text);
	m->notify(m->arg);
}

int card_memory_open(struct card_memory **out, const struct card_memory_options *o,
	const struct card_memory_plan *plan, struct err *e)
{
	struct card_memory *m = *out = NEW(struct card_memory);
	int rc;
	m->plan = *plan;
	m->notify = o->notify;
	m->arg = o->arg;
	m->copier = o->copier;
	if (!m->copier) {
		if ((rc = o->backend->ops->copier_open(o->backend, &m->copier, e)))
			return rc;
		m->owns_copier = true;
	}
	uint64_t staging = o->tier_bytes[1] ? plan->device_staging_bytes : 0;
	uint64_t staging_at = num_align_up(o->tier_bytes[0], 4096);
	m->device_bytes = staging_at + staging;
	if ((rc = m->copier->ops->alloc(m->copier, m->device_bytes, (void **)&m->tier0, e))) {
		err_prefix(e, "expert cache");
		return rc;
	}
	m->device_staging = m->tier0 + staging_at;
	size_t step = o->pin_step_bytes ? o->pin_step_bytes : PIN_STEP_BYTES;
	if (o->tier_bytes[1] && (rc = pinned_start(&m->tier1, m->copier, o->tier_bytes[1], step,
								 o->division, tier1_step_pinned, m, e)))
		return rc;
	pinned_request(&m->tier1, plan->slot_bytes); /* demotions request more, but only with a slot */
	if ((rc = pinned_start(
			 &m->host_staging, m->copier, plan->host_staging_bytes, 0, NULL, NULL, NULL, e)) ||
		(rc = pinned_wait(&m->host_staging, e)))
		return rc;
#ifdef LOADER_POISON
	m->poison = m->host_staging.base + plan->n_buffers * plan->buffer_bytes;
	memset(m->poison, READER_POISON, plan->slot_bytes);
#endif
	return 0;
}

uint64_t card_memory_refused_bytes(const struct card_memory *m)
{
	const struct pinned *p = &m->tier1;
	return atomic_load(&p->state) == PINNED_REFUSED ? p->bytes - atomic_load(&p->ready) : 0;
}

void card_memory_close(struct card_memory *m)
{
	if (!m)
		return;
	pinned_free(&m->tier1);
	pinned_free(&m->host_staging);
	if (m->copier && m->tier0)
		m->copier->ops->free(m->copier, m->tier0, m->device_bytes);
	if (m->owns_copier)
		m->copier->ops->close(m->copier);
	free(m);
}
