/* SPDX-License-Identifier: MIT */
#include "tools/convert/convert_units.h"

#include "src/base/mem.h"
#include "src/base/num.h"

#include <stdlib.h>

/* Whether columns of this tensor may be weighted by their energy, which takes a whole matrix: the
 * type is IQ2_XXS, and the imatrix lacks the tensor or may lack one of its matrices. */
static bool needs_energy(const struct convert_choices *c, uint32_t i)
{
	const struct convert_tensor *t = &c->plan->tensors[i];
	if (t->type != DTYPE_IQ2_XXS)
		return false;
	if (!c->has_importance[i] || t->n_slabs > 1)
		return true;
	float *importance = NEW_ARRAY(float, t->src_cols);
	const bool known = imatrix_file_get(c->imatrix, t->name, 0, t->src_cols, importance);
	free(importance);
	return !known;
}

void convert_units_init(struct convert_units *u, const struct convert_choices *c)
{
	*u = (struct convert_units){.choices = c, .whole = NEW_ARRAY(bool, c->plan->n_tensors)};
	for (uint32_t i = 0; i < c->plan->n_tensors; i++)
		u->whole[i] = c->plan->tensors[i].transposed || c->feedback[i] || needs_energy(c, i);
}

void convert_units_fini(struct convert_units *u)
{
	free(u->whole);
}

uint64_t convert_pieces(const struct convert_plan *p, const struct gguf_writer *w, size_t tensor)
{
	const uint64_t n = gguf_writer_ranges(w, tensor);
	return n == p->tensors[tensor].n_slabs ? n : 1;
}

bool convert_units_next(struct convert_units *u, const struct gguf_writer *w, const uint64_t *done,
	struct convert_unit *out)
{
	const struct convert_plan *p = u->choices->plan;
	struct convert_unit *next = &u->next;
	for (; next->tensor < p->n_tensors; *next = (struct convert_unit){.tensor = next->tensor + 1}) {
		const struct convert_tensor *t = &p->tensors[next->tensor];
		const uint64_t pieces = convert_pieces(p, w, next->tensor), n = done[next->tensor],
					   first = n >= pieces  ? t->n_slabs
							   : pieces > 1 ? n
											: 0;
		next->slab = MAX(next->slab, first);
		if (next->slab == t->n_slabs)
			continue;
		const uint64_t rows =
			u->whole[next->tensor] ? t->src_rows : MAX(1, CONVERT_UNIT_VALUES / t->src_cols);
		next->row1 = MIN(t->src_rows, next->row0 + rows);
		*out = *next;
		next->row0 = next->row1;
		if (next->row0 == t->src_rows) {
			next->row0 = 0;
			next->slab++;
		}
		return true;
	}
	return false;
}

uint64_t convert_unit_source_bytes(const struct convert_plan *p, const struct convert_unit *u)
{
	const struct convert_tensor *t = &p->tensors[u->tensor];
	return (u->row1 - u->row0) * t->src_cols * st_dtype_bytes(t->slabs[u->slab].src->dtype);
}

/* Bytes of one row as written. */
static uint64_t packed_row_bytes(const struct convert_tensor *t)
{
	uint64_t bytes = 0;
	dtype_row_bytes(t->type, t->ne[0], &bytes);
	return bytes;
}

uint64_t convert_unit_packed_bytes(const struct convert_plan *p, const struct convert_unit *u)
{
	const struct convert_tensor *t = &p->tensors[u->tensor];
	return packed_row_bytes(t) * (t->transposed ? t->src_cols : u->row1 - u->row0);
}

uint64_t convert_unit_offset(const struct convert_plan *p, const struct convert_unit *u)
{
	const struct convert_tensor *t = &p->tensors[u->tensor];
	const uint64_t rows = t->transposed ? t->src_cols : t->src_rows;
	return packed_row_bytes(t) * (u->slab * rows + u->row0);
}
