/* SPDX-License-Identifier: MIT */
/* acquire is an address computation; nothing is ever missing, pinned or released. On a card the
 * tensors are copies in one block of its memory, values of a tensor before its scales, and the
 * views of them differ from the file's in nothing but the addresses. */
#include "stream/source_mmap.h"

#include "src/base/host/clock.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "stream/check/mapped_check.h"

#include <limits.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

struct source_mmap {
	struct expert_source base; /* first: the pointers are exchanged */
	int n_layers;
	struct expert_tensors *layers;
	struct expert_check check;
	atomic_uint_fast64_t checked, reread, wrong; /* as in base.stats, for other threads */
	/* Copies on the card only: */
	struct backend *backend;     /* NULL: the mapped file is used */
	struct gguf_tensor *tensors; /* [n_layers * 3]; owns their scales */
	void *arena;
	size_t arena_bytes;
};

static struct weight slice(const struct gguf_tensor *t, int32_t expert)
{
	struct weight w = expert_shape(t->type, t->ne[0], t->ne[1], t->ne[2], gguf_values_bytes(t));
	w.data = t->runs ? t->runs[expert].data : t->data + (uint64_t)expert * w.stack_bytes;
	w.scales = t->scales ? t->scales[expert].data : NULL;
	return w;
}

/* Compares one expert that is due for a check. It runs in the compute thread, which would wait for
 * these bytes anyway: hashing reads them into the page cache. */
static int check_mapped_expert(struct source_mmap *m, int layer, int expert, struct err *e)
{
	struct expert_stats *stats = &m->base.stats;
	const struct expert_tensors *t = &m->layers[layer];
	const struct gguf_tensor *parts[] = {t->gate, t->up, t->down};
	const uint64_t start = clock_ns();
	bool any_reread = false;
	int rc = 0;
	for (size_t i = 0; i < 2 * ARRAY_LEN(parts) && !rc; i++) { /* values and scales of each */
		const struct gguf_tensor *part = parts[i / 2];
		bool reread;
		if (i % 2 && !part->scales)
			continue;
		rc = mapped_check_range(
			m->check.values, part, (i % 2 ? part->n_runs : 0) + (uint64_t)expert, &reread, e);
		any_reread |= reread;
	}
	stats->check_ns += clock_ns() - start;
	stats->checked++;
	stats->reread += any_reread;
	stats->wrong += rc != 0;
	atomic_store(&m->checked, stats->checked);
	atomic_store(&m->reread, stats->reread);
	atomic_store(&m->wrong, stats->wrong);
	if (rc)
		err_prefix(e, "expert %d of layer %d", expert, layer);
	else
		expert_check_passed(&m->check, layer, expert);
	return rc;
}

static int mmap_acquire(struct expert_source *s, int layer, enum expert_use use,
	struct expert_ref *refs, int n, struct err *e)
{
	(void)use;
	struct source_mmap *m = (struct source_mmap *)s;
	const struct expert_tensors *t = &m->layers[layer];
	for (int i = 0; i < n; i++) {
		int rc;
		if (expert_check_due(&m->check, layer, refs[i].id) &&
			(rc = check_mapped_expert(m, layer, refs[i].id, e)))
			return rc;
		refs[i].gate = slice(t->gate, refs[i].id);
		refs[i].up = slice(t->up, refs[i].id);
		refs[i].down = slice(t->down, refs[i].id);
		refs[i].tier = EXPERT_VRAM;
		refs[i].on_host = false;
		refs[i].ready = true;
	}
	s->stats.hit_vram += (uint64_t)n;
	return 0;
}

static int mmap_wait_ready(
	struct expert_source *s, int layer, struct expert_ref *refs, int n, struct err *e)
{
	(void)s, (void)layer, (void)refs, (void)n, (void)e;
	return 0;
}

static void mmap_release(struct expert_source *s, int layer, const struct expert_ref *refs, int n)
{
	(void)s, (void)layer, (void)refs, (void)n;
}

static void mmap_close(struct expert_source *s)
{
	struct source_mmap *m = (struct source_mmap *)s;
	if (m->backend)
		m->backend->ops->free(m->backend, MEM_DEVICE, m->arena, m->arena_bytes);
	expert_check_fini(&m->check);
	for (int i = 0; m->tensors && i < m->n_layers * 3; i++)
		free((void *)m->tensors[i].scales);
	free(m->tensors);
	free(m->layers);
	free(m);
}

static const struct expert_source_ops mmap_ops = {
	.name = "mmap",
	.close = mmap_close,
	.acquire = mmap_acquire,
	.wait_ready = mmap_wait_ready,
	.poll_ready = mmap_wait_ready, /* all are ready */
	.release = mmap_release,
};

struct expert_source *source_mmap_open(const struct expert_tensors *layers, int n_layers)
{
	struct source_mmap *m = NEW(struct source_mmap);
	m->base.ops = &mmap_ops;
	m->base.max_pinned[EXPERT_DECODE] = m->base.max_pinned[EXPERT_PREFILL] = INT_MAX;
	m->n_layers = n_layers;
	m->layers = NEW_ARRAY(struct expert_tensors, (size_t)n_layers);
	memcpy(m->layers, layers, (size_t)n_layers * sizeof *layers);
	return &m->base;
}

/* The most experts that a layer has. */
static uint64_t most_experts(const struct source_mmap *m)
{
	uint64_t n = 0;
	for (int l = 0; l < m->n_layers; l++)
		if (m->layers[l].gate)
			n = MAX(n, m->layers[l].gate->ne[2]);
	return n;
}

void source_mmap_check(
	struct expert_source *s, const struct check_values *values, enum check_mode mode)
{
	struct source_mmap *m = (struct source_mmap *)s;
	expert_check_init(&m->check, values, mode, m->n_layers, (int)most_experts(m));
}

void source_mmap_figures(const struct expert_source *s, struct expert_stats *out)
{
	const struct source_mmap *m = (const struct source_mmap *)s;
	out->checked = atomic_load(&m->checked);
	out->reread = atomic_load(&m->reread);
	out->wrong = atomic_load(&m->wrong);
}

/* What is copied to the card. */
struct device_spans {
	struct tensor_span *spans;
	size_t n, cap;
};

static void add_span(struct source_mmap *m, struct device_spans *d, const struct gguf_tensor *t,
	const struct gguf_run *r, uint64_t range, uint8_t *dst)
{
	if (d->n == d->cap) {
		d->cap = 2 * d->cap + 256;
		d->spans = mem_grow(d->spans, d->cap, sizeof *d->spans);
	}
	d->spans[d->n++] = (struct tensor_span){r->file, r->offset, r->bytes, dst, t, range};
	if (!tensor_load_serves(m->backend))
		m->backend->ops->upload(m->backend, dst, r->data, r->bytes);
}

/* The next tensor's place in the arena, where its matrices lie one after another, and then their
 * scales; with a NULL arena it only adds up. */
static const struct gguf_tensor *place(struct source_mmap *m, size_t i,
	const struct gguf_tensor *from, struct device_spans *d, size_t *used)
{
	if (!from)
		return NULL;
	const size_t values = *used, scales = num_align_up(values + gguf_values_bytes(from), 256);
	*used = num_align_up(scales + from->bytes - gguf_values_bytes(from), 256);
	struct gguf_tensor *to = &m->tensors[i];
	if (!m->arena)
		return to;
	*to = *from;
	to->runs = NULL;
	to->scales = NULL;
	uint8_t *dst = (uint8_t *)m->arena + values;
	to->data = dst;
	const struct gguf_run whole = {from->file, from->offset, from->bytes, from->data};
	const uint64_t n = from->runs ? from->n_runs : 1;
	for (uint64_t k = 0; k < n; k++) {
		const struct gguf_run *r = from->runs ? &from->runs[k] : &whole;
		add_span(m, d, from, r, k, dst);
		dst += r->bytes;
	}
	if (!from->scales)
		return to;
	struct gguf_run *copies = NEW_ARRAY(struct gguf_run, n);
	dst = (uint8_t *)m->arena + scales;
	for (uint64_t k = 0; k < n; k++) {
		copies[k] = from->scales[k];
		copies[k].data = dst;
		add_span(m, d, from, &from->scales[k], n + k, dst);
		dst += copies[k].bytes;
	}
	to->scales = copies;
	return to;
}

/* Counts the experts of which tensor_load reads a matrix again, each once. */
struct reread_experts {
	const struct check_map *map;
	uint64_t n_layers, n_experts; /* n_experts: of a layer */
	bool *seen;                   /* [n_layers * n_experts] */
	uint64_t n;
};

static void count_reread(void *user, uint64_t range)
{
	struct reread_experts *k = user;
	const struct check_range r = check_map_range(k->map, range);
	uint32_t layer;
	enum gguf_expert_part part;
	if (!gguf_expert_name(r.tensor->name, &layer, &part) || layer >= k->n_layers)
		return;
	bool *seen = &k->seen[layer * k->n_experts + r.expert];
	k->n += !*seen;
	*seen = true;
}

static uint64_t count_experts(const struct source_mmap *m)
{
	uint64_t n = 0;
	for (int l = 0; l < m->n_layers; l++)
		n += m->layers[l].gate ? m->layers[l].gate->ne[2] : 0;
	return n;
}

/* Loads the experts of all layers and counts them. */
static int load_experts(struct source_mmap *m, const struct tensor_load_options *lo,
	struct tensor_span *spans, size_t n_spans, struct err *e)
{
	struct tensor_load_options o = *lo;
	struct tensor_load_result r;
	struct reread_experts again = {.n_layers = (uint64_t)m->n_layers, .n_experts = most_experts(m)};
	if (o.check_values) {
		again.map = &o.check_values->map;
		again.seen = NEW_ARRAY(bool, again.n_layers *again.n_experts);
		o.reread = count_reread;
		o.reread_user = &again;
	}
	int rc = tensor_load(&o, spans, n_spans, &r, e);
	free(again.seen);
	if (rc)
		return rc;
	log_verbose("experts: %.3f GB loaded in %.2f s, %.2f GB/s", (double)r.bytes / 1e9, r.seconds,
		(double)r.bytes / 1e9 / r.seconds);
	/* each of its ranges was compared, however many it has */
	m->base.stats.checked = o.check_values ? count_experts(m) : 0;
	m->base.stats.reread = again.n;
	m->base.stats.check_ns = r.checks.ns;
	atomic_store(&m->checked, m->base.stats.checked);
	atomic_store(&m->reread, m->base.stats.reread);
	return 0;
}

int source_device_open(const struct expert_tensors *layers, int n_layers,
	const struct tensor_load_options *lo, struct expert_source **out, struct err *e)
{
	*out = NULL;
	struct backend *b = lo->backend;
	struct source_mmap *m = (struct source_mmap *)source_mmap_open(layers, n_layers);
	size_t n = (size_t)n_layers * 3;
	struct device_spans spans = {0};
	m->backend = b;
	m->tensors = NEW_ARRAY(struct gguf_tensor, n);
	int rc = 0;
	for (int pass = 0; !rc && pass < 2; pass++) {
		size_t used = 0;
		for (int l = 0; l < n_layers; l++) {
			m->layers[l].gate = place(m, (size_t)l * 3, layers[l].gate, &spans, &used);
			m->layers[l].up = place(m, (size_t)l * 3 + 1, layers[l].up, &spans, &used);
			m->layers[l].down = place(m, (size_t)l * 3 + 2, layers[l].down, &spans, &used);
		}
		m->arena_bytes = used;
		if (!pass && used)
			rc = b->ops->alloc(b, MEM_DEVICE, used, &m->arena, e);
	}
	if (!rc && tensor_load_serves(b))
		rc = load_experts(m, lo, spans.spans, spans.n, e);
	free(spans.spans);
	if (rc)
		err_prefix(e, "experts on %s", b->ops->name);
	else
		rc = b->ops->wait(b, e);
	if (rc) {
		mmap_close(&m->base);
		return rc;
	}
	*out = &m->base;
	return 0;
}
