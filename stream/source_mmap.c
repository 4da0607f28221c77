/* SPDX-License-Identifier: MIT */
/* acquire is an address computation; nothing is ever missing, pinned or released. */
#include "stream/source_mmap.h"

#include "src/base/mem.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

struct source_mmap {
	struct expert_source base; /* first: the pointers are exchanged */
	int n_layers;
	struct expert_tensors *layers;
};

static struct weight slice(const struct gguf_tensor *t, int32_t expert)
{
	uint64_t one = t->bytes / t->ne[2];
	return (struct weight){
		.data = t->data + (uint64_t)expert * one,
		.type = t->type,
		.n_in = (int64_t)t->ne[0],
		.n_out = (int64_t)t->ne[1],
		.n_stack = 1,
		.row_bytes = one / t->ne[1],
		.stack_bytes = one,
	};
}

static int mmap_acquire(
	struct expert_source *s, int layer, enum expert_use use, struct expert_ref *refs, int n, struct err *e)
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

static int mmap_await(struct expert_source *s, int layer, struct expert_ref *refs, int n, struct err *e)
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
	free(m->layers);
	free(m);
}

static const struct expert_source_ops mmap_ops = {
	.name = "mmap",
	.close = mmap_close,
	.acquire = mmap_acquire,
	.await = mmap_await,
	.release = mmap_release,
};

struct expert_source *source_mmap_open(const struct expert_tensors *layers, int n_layers)
{
	struct source_mmap *m = NEW(struct source_mmap);
	m->base.ops = &mmap_ops;
	m->base.window[EXPERT_DECODE] = m->base.window[EXPERT_PREFILL] = INT_MAX;
	m->n_layers = n_layers;
	m->layers = NEW_ARRAY(struct expert_tensors, (size_t)n_layers);
	memcpy(m->layers, layers, (size_t)n_layers * sizeof *layers);
	return &m->base;
}
