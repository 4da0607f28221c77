/* SPDX-License-Identifier: MIT */
/*
 * See extent.h. Nothing is stored per expert: extent_plan computes a plan from the layer's tensors.
 * extent_table_set has checked that offset + bytes lies inside a file of at
 * most 2^62 bytes, so the sums of a plan, which add at most two alignments to such numbers, cannot
 * overflow.
 */
#include "stream/extent.h"

#include "src/base/mem.h"
#include "src/base/num.h"

#include <errno.h>
#include <stdlib.h>

#define ALIGN_MAX     4096u
#define FILE_SIZE_MAX (1ull << 62)

struct extent_table {
	uint32_t n_layers, n_experts, n_files;
	bool unaligned; /* some tensor needs rounding. All slots then have space for it, so that layers
					   of equal shapes have slots of equal size */
	struct extent_file *files;
	struct extent_tensor (*tensors)[EXTENT_PARTS]; /* [n_layers]; bytes 0: absent */
};

_Static_assert((int)EXTENT_GATE == GGUF_EXPERT_GATE && (int)EXTENT_UP == GGUF_EXPERT_UP &&
				   (int)EXTENT_DOWN == GGUF_EXPERT_DOWN &&
				   (int)EXTENT_MATRICES == GGUF_EXPERT_PARTS,
	"parts have the same numbers here and in names");

int extent_table_new(struct extent_table **out, uint32_t n_layers, uint32_t n_experts,
	const struct extent_file *files, uint32_t n_files, struct err *e)
{
	*out = NULL;
	if (!n_layers || n_layers > EXTENT_LAYERS_MAX || !n_experts || n_experts > EXTENT_EXPERTS_MAX ||
		!n_files || n_files > READER_FILES_MAX)
		return err_set(e, ERR_INPUT,
			"experts: %u layers of %u experts in %u files, expected 1 to %u, %u, %u", n_layers,
			n_experts, n_files, EXTENT_LAYERS_MAX, EXTENT_EXPERTS_MAX, READER_FILES_MAX);
	for (uint32_t i = 0; i < n_files; i++) {
		const struct extent_file *f = &files[i];
		if (!num_is_pow2(f->align) || f->align > ALIGN_MAX || !num_is_pow2(f->memory_align) ||
			f->memory_align > ALIGN_MAX || f->size > FILE_SIZE_MAX)
			return err_set(e, ERR_INPUT,
				"experts: file %u: alignment %u (memory %u) or size %llu out of range", i, f->align,
				f->memory_align, (unsigned long long)f->size);
	}
	struct extent_table *t = NEW(struct extent_table);
	t->n_layers = n_layers;
	t->n_experts = n_experts;
	t->n_files = n_files;
	t->files = NEW_ARRAY(struct extent_file, n_files);
	memcpy(t->files, files, n_files * sizeof *files);
	t->tensors = mem_new(n_layers, sizeof *t->tensors);
	*out = t;
	return 0;
}

void extent_table_free(struct extent_table *t)
{
	if (!t)
		return;
	free(t->files);
	free(t->tensors);
	free(t);
}

/* Whether the bytes lie inside one of the table's files. */
static bool run_is_inside(const struct extent_table *t, const struct gguf_run *r)
{
	uint64_t end;
	return r->file < t->n_files && num_add(r->offset, r->bytes, &end) &&
		   end <= t->files[r->file].size;
}

/* The bytes of one expert's part. */
static struct gguf_run part_run(
	const struct extent_table *t, const struct extent_tensor *x, uint32_t expert)
{
	if (x->runs)
		return x->runs[expert];
	const uint64_t bytes = x->bytes / t->n_experts;
	return (struct gguf_run){x->file, x->offset + expert * bytes, bytes, NULL};
}

int extent_table_set(struct extent_table *t, uint32_t layer, enum extent_part part,
	const struct extent_tensor *x, struct err *e)
{
	if (layer >= t->n_layers || (unsigned)part >= EXTENT_PARTS || x->file >= t->n_files)
		return err_set(e, ERR_INPUT,
			"experts: layer %u, part %u, file %u: the table has %u, %u, %u", layer, (unsigned)part,
			x->file, t->n_layers, (unsigned)EXTENT_PARTS, t->n_files);
	const char *name = gguf_expert_part_names[part % EXTENT_MATRICES];
	if (!x->bytes || x->bytes % t->n_experts)
		return err_set(e, ERR_INPUT,
			"blk.%u %s experts: %llu bytes are no whole number for %u experts", layer, name,
			(unsigned long long)x->bytes, t->n_experts);
	const uint64_t each = x->bytes / t->n_experts;
	const struct gguf_run whole = {x->file, x->offset, x->bytes, NULL};
	for (uint32_t i = 0; i < (x->runs ? t->n_experts : 1); i++) {
		const struct gguf_run *r = x->runs ? &x->runs[i] : &whole;
		if (!run_is_inside(t, r))
			return err_set(e, ERR_INPUT,
				"blk.%u %s experts: %llu bytes at offset %llu of a file of %llu bytes", layer, name,
				(unsigned long long)r->bytes, (unsigned long long)r->offset,
				(unsigned long long)(r->file < t->n_files ? t->files[r->file].size : 0));
		if (x->runs && r->bytes != each)
			return err_set(e, ERR_INPUT, "blk.%u %s experts: expert %u has %llu bytes, not %llu",
				layer, name, i, (unsigned long long)r->bytes, (unsigned long long)each);
		if ((r->offset | each) & (t->files[r->file].align - 1))
			t->unaligned = true;
	}
	t->tensors[layer][part] = *x;
	return 0;
}

/* --- from a GGUF --- */

/* Number of layers up to the last one with experts, and of experts, with the checks that need no
 * table. */
static int count_gguf(const struct gguf *g, uint32_t *n_layers, uint32_t *n_experts, struct err *e)
{
	*n_layers = *n_experts = 0;
	for (size_t i = 0; i < g->n_tensors; i++) {
		const struct gguf_tensor *x = &g->tensors[i];
		uint32_t layer;
		enum gguf_expert_part part;
		if (!gguf_expert_name(x->name, &layer, &part))
			continue;
		const char *path = g->files[x->file].path;
		if (layer >= EXTENT_LAYERS_MAX)
			return err_set(
				e, ERR_INPUT, "%s: %s: more than %u layers", path, x->name, EXTENT_LAYERS_MAX);
		if (x->n_dims > 3 || !x->ne[2] || x->ne[2] > EXTENT_EXPERTS_MAX)
			return err_set(e, ERR_INPUT,
				"%s: %s: %u dimensions, %llu experts; expected 3, at most %u", path, x->name,
				x->n_dims, (unsigned long long)x->ne[2], EXTENT_EXPERTS_MAX);
		if (*n_experts && *n_experts != x->ne[2])
			return err_set(e, ERR_INPUT, "%s: %s: %llu experts where the tensors before have %u",
				path, x->name, (unsigned long long)x->ne[2], *n_experts);
		*n_experts = (uint32_t)x->ne[2];
		*n_layers = MAX(*n_layers, layer + 1);
	}
	if (!*n_layers)
		return err_set(e, ERR_INPUT, "%s: no expert tensors (blk.N.ffn_gate_exps.weight ...)",
			g->n_files ? gguf_path(g) : "gguf");
	return 0;
}

static int set_from_gguf(struct extent_table *t, const struct gguf *g, struct err *e)
{
	for (size_t i = 0; i < g->n_tensors; i++) {
		const struct gguf_tensor *x = &g->tensors[i];
		uint32_t layer;
		enum gguf_expert_part part;
		if (!gguf_expert_name(x->name, &layer, &part))
			continue;
		struct extent_tensor y = {
			x->file, x->offset, x->bytes, x->type, x->ne[0], x->ne[1], x->runs};
		if (t->tensors[layer][part].bytes)
			return err_set(e, ERR_INPUT, "%s: %s: a second tensor for this layer",
				g->files[x->file].path, x->name);
		int code = 0;
		if (x->scales) {
			y.bytes = x->scales->bytes * x->n_runs;
			y.runs = x->scales;
			code = extent_table_set(t, layer, (enum extent_part)(part + EXTENT_MATRICES), &y, e);
			y.bytes = gguf_values_bytes(x);
			y.runs = x->runs;
		}
		if (!code)
			code = extent_table_set(t, layer, (enum extent_part)part, &y, e);
		if (code) {
			err_prefix(e, "%s", g->files[x->file].path);
			return code;
		}
	}
	for (uint32_t layer = 0; layer < t->n_layers; layer++) {
		if (!extent_has_layer(t, layer))
			continue;
		for (unsigned p = 0; p < EXTENT_MATRICES; p++) {
			if (!t->tensors[layer][p].bytes)
				return err_set(e, ERR_INPUT, "%s: blk.%u.ffn_%s_exps.weight is missing",
					gguf_path(g), layer, gguf_expert_part_names[p]);
		}
	}
	return 0;
}

int extent_table_from_gguf(
	struct extent_table **out, const struct gguf *g, const struct reader *r, struct err *e)
{
	*out = NULL;
	uint32_t n_layers, n_experts;
	int code = count_gguf(g, &n_layers, &n_experts, e);
	if (code)
		return code;
	struct extent_file *files = NEW_ARRAY(struct extent_file, g->n_files);
	for (uint32_t i = 0; i < g->n_files && !code; i++) {
		files[i] = (struct extent_file){g->files[i].size, 1, 1};
		if (!r)
			continue;
		files[i].align = reader_file_align(r, i);
		files[i].memory_align = reader_file_memory_align(r, i);
		if (reader_file_size(r, i) != g->files[i].size)
			code = err_set(e, ERR_INPUT, "%s: %llu bytes now, %llu when its header was read",
				g->files[i].path, (unsigned long long)reader_file_size(r, i),
				(unsigned long long)g->files[i].size);
	}
	if (!code)
		code = extent_table_new(out, n_layers, n_experts, files, g->n_files, e);
	free(files);
	if (!code)
		code = set_from_gguf(*out, g, e);
	if (code) {
		extent_table_free(*out);
		*out = NULL;
	}
	return code;
}

void extent_table_confine(struct extent_table *t, uint32_t first, uint32_t end)
{
	for (uint32_t layer = 0; layer < t->n_layers; layer++)
		if (layer < first || layer >= end)
			memset(t->tensors[layer], 0, sizeof t->tensors[layer]);
}

/* --- plans --- */

uint32_t extent_n_layers(const struct extent_table *t)
{
	return t->n_layers;
}

uint32_t extent_n_experts(const struct extent_table *t)
{
	return t->n_experts;
}

const struct extent_tensor *extent_tensor(
	const struct extent_table *t, uint32_t layer, enum extent_part part)
{
	if (layer >= t->n_layers || (unsigned)part >= EXTENT_PARTS || !t->tensors[layer][part].bytes)
		return NULL;
	return &t->tensors[layer][part];
}

bool extent_has_layer(const struct extent_table *t, uint32_t layer)
{
	return extent_tensor(t, layer, EXTENT_GATE) || extent_tensor(t, layer, EXTENT_UP) ||
		   extent_tensor(t, layer, EXTENT_DOWN);
}

/* Where reads of a file may start in a slot. */
static uint64_t dst_align(const struct extent_file *f)
{
	return MAX(MAX(f->align, f->memory_align), EXTENT_DST_ALIGN);
}

/* The expert's runs that are present, in order of (file, offset). */
static unsigned sorted_parts(const struct extent_table *t, uint32_t layer, uint32_t expert,
	struct gguf_run run[EXTENT_PARTS], unsigned order[EXTENT_PARTS])
{
	const struct extent_tensor *x = t->tensors[layer];
	unsigned n = 0;
	for (unsigned p = 0; p < EXTENT_PARTS; p++) {
		if (!x[p].bytes)
			continue;
		run[p] = part_run(t, &x[p], expert);
		unsigned k = n++;
		for (; k; k--) {
			const struct gguf_run *q = &run[order[k - 1]];
			if (q->file < run[p].file || (q->file == run[p].file && q->offset <= run[p].offset))
				break;
			order[k] = order[k - 1];
		}
		order[k] = p;
	}
	return n;
}

int extent_plan(
	const struct extent_table *t, uint32_t layer, uint32_t expert, struct extent_plan *out)
{
	*out = (struct extent_plan){0};
	if (layer >= t->n_layers || expert >= t->n_experts)
		return -EINVAL;
	struct gguf_run runs[EXTENT_PARTS];
	unsigned order[EXTENT_PARTS], n = sorted_parts(t, layer, expert, runs, order);
	struct extent_read *last = NULL;
	for (unsigned i = 0; i < n; i++) {
		const struct gguf_run *y = &runs[order[i]];
		const struct extent_file *f = &t->files[y->file];
		uint64_t bytes = y->bytes, begin = y->offset;
		uint64_t lo = num_align_down(begin, f->align), hi = num_align_up(begin + bytes, f->align);
		if (last && last->file == y->file && lo <= last->offset + last->bytes) {
			last->bytes = MAX(last->bytes, hi - last->offset);
			last->need = MAX(last->need, begin + bytes - last->offset);
		} else {
			uint64_t at = last ? num_align_up(last->dst_offset + last->bytes, dst_align(f)) : 0;
			last = &out->reads[out->n_reads++];
			*last = (struct extent_read){y->file, lo, hi - lo, begin + bytes - lo, at};
		}
		out->parts[order[i]].dst_offset = last->dst_offset + (begin - last->offset);
		out->parts[order[i]].bytes = bytes;
		out->payload_bytes += bytes;
		out->dst_bytes = last->dst_offset + last->bytes;
	}
	for (unsigned i = 0; i < out->n_reads; i++)
		out->read_bytes += out->reads[i].bytes;
	return n ? 0 : -EINVAL;
}

/* n bytes rounded outward take at most align_up(n + align - 1, align). Merged reads take no more
 * than separate ones. A read starts at a multiple of its file's alignments, which are at most the
 * table's slot alignment. */
uint64_t extent_slot_bytes(const struct extent_table *t, uint32_t layer)
{
	uint64_t sum = 0;
	for (unsigned p = 0; p < EXTENT_PARTS; p++) {
		const struct extent_tensor *x = extent_tensor(t, layer, (enum extent_part)p);
		if (!x)
			continue;
		uint64_t bytes = x->bytes / t->n_experts, most = bytes;
		for (uint32_t i = 0; t->unaligned && i < (x->runs ? t->n_files : 1); i++) {
			const uint64_t align = t->files[x->runs ? i : x->file].align;
			most = MAX(most, num_align_up(bytes + align - 1, align));
		}
		sum += num_align_up(most, extent_slot_align(t));
	}
	return sum;
}

uint32_t extent_slot_align(const struct extent_table *t)
{
	uint64_t align = EXTENT_DST_ALIGN;
	for (uint32_t i = 0; i < t->n_files; i++)
		align = MAX(align, dst_align(&t->files[i]));
	return (uint32_t)align;
}
