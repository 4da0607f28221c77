/* SPDX-License-Identifier: MIT */
/* acquire is an address computation; nothing is ever missing, pinned or released. On a card the
 * tensors are copies in one block of its memory, and the views of them differ from the file's in
 * nothing but the address. */
#include "stream/source_mmap.h"

#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/num.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

struct source_mmap {
	struct expert_source base; /* first: the pointers are exchanged */
	int n_layers;
	struct expert_tensors *layers;
	/* Copies on the card only: */
	struct backend *backend;     /* NULL: the mapped file is used */
	struct gguf_tensor *tensors; /* [n_layers * 3] */
	void *arena;
	size_t arena_bytes;
};

static struct weight slice(const struct gguf_tensor *t, int32_t expert)
{
	struct weight w = expert_shape(t->type, t->ne[0], t->ne[1], t->ne[2], t->bytes);
	w.data = t->data + (uint64_t)expert * w.stack_bytes;
	return w;
}

static int mmap_acquire(struct expert_source *s, int layer, enum expert_use use,
	struct expert_ref *refs, int n, struct err *e)
{
	(void)use;
	(void)e;
	const struct expert_tensors *t = &((struct source_mmap *)s)->layers[layer];
	for (int i = 0; i < n; i++) {
		refs[i].gate = slice(t->gate, refs[i].id);
		refs[i].up = slice(t->up, refs[i].id);
		refs[i].down = slice(t->down, refs[i].id);
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
	free(m->tensors);
	free(m->layers);
	free(m);
}

static const struct expert_source_ops mmap_ops = {
	.name = "mmap",
	.close = mmap_close,
	.acquire = mmap_acquire,
	.wait_ready = mmap_wait_ready,
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

/* The next tensor's place in the arena; with a NULL arena it only adds up. */
static const struct gguf_tensor *place(struct source_mmap *m, size_t i,
	const struct gguf_tensor *from, struct tensor_span *span, size_t *used)
{
	if (!from)
		return NULL;
	struct gguf_tensor *to = &m->tensors[i];
	*to = *from;
	if (m->arena) {
		to->data = (uint8_t *)m->arena + *used;
		span[i] = (struct tensor_span){
			from->file, from->offset, from->bytes, (uint8_t *)m->arena + *used};
		if (!tensor_load_serves(m->backend))
			m->backend->ops->upload(m->backend, span[i].dst, from->data, from->bytes);
	}
	*used = num_align_up(*used + from->bytes, 256);
	return to;
}

int source_device_open(const struct expert_tensors *layers, int n_layers,
	const struct tensor_load_options *lo, struct expert_source **out, struct err *e)
{
	*out = NULL;
	struct backend *b = lo->backend;
	struct source_mmap *m = (struct source_mmap *)source_mmap_open(layers, n_layers);
	size_t n = (size_t)n_layers * 3;
	struct tensor_span *spans = NEW_ARRAY(struct tensor_span, n);
	m->backend = b;
	m->tensors = NEW_ARRAY(struct gguf_tensor, n);
	int rc = 0;
	for (int pass = 0; !rc && pass < 2; pass++) {
		size_t used = 0;
		for (int l = 0; l < n_layers; l++) {
			m->layers[l].gate = place(m, (size_t)l * 3, layers[l].gate, spans, &used);
			m->layers[l].up = place(m, (size_t)l * 3 + 1, layers[l].up, spans, &used);
			m->layers[l].down = place(m, (size_t)l * 3 + 2, layers[l].down, spans, &used);
		}
		m->arena_bytes = used;
		if (!pass && used)
			rc = b->ops->alloc(b, MEM_DEVICE, used, &m->arena, e);
	}
	struct tensor_load_result r;
	if (!rc && tensor_load_serves(b) && !(rc = tensor_load(lo, spans, n, &r, e)))
		log_verbose("experts: %.3f GB loaded in %.2f s, %.2f GB/s", (double)r.bytes / 1e9,
			r.seconds, (double)r.bytes / 1e9 / r.seconds);
	free(spans);
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
