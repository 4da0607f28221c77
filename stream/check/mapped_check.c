/* SPDX-License-Identifier: MIT */
#include "stream/check/mapped_check.h"

#include "src/base/log.h"
#include "src/base/xxh3/xxh3.h"

int mapped_check_range(const struct check_values *v, const struct gguf_tensor *t, uint64_t i,
	bool *reread, struct err *e)
{
	const uint64_t number = v->map.first[t - v->map.file->tensors] + i,
				   expected = v->values[number];
	const struct check_range r = check_map_range(&v->map, number);
	*reread = false;
	uint64_t found = xxh3_of(r.run.data, r.run.bytes);
	if (found == expected)
		return 0;
	const struct gguf_file *f = &v->map.file->files[r.run.file];
	*reread = true;
	file_map_drop_cached(&f->map, r.run.offset, r.run.bytes);
	found = xxh3_of(r.run.data, r.run.bytes);
	return found == expected ? 0 : check_values_err(v, number, found, e);
}

int mapped_check_tensor(const struct check_values *v, const struct gguf_tensor *t, struct err *e)
{
	const uint64_t *first = v->map.first + (t - v->map.file->tensors);
	for (uint64_t i = 0; i < first[1] - first[0]; i++) {
		bool reread;
		int rc = mapped_check_range(v, t, i, &reread, e);
		if (rc) {
			if (e)
				e->code = ERR_INPUT;
			return ERR_INPUT;
		}
		if (reread)
			log_warn("%s: %s was read wrong, and right when it was read again",
				ERR_PLAIN(v->map.file->files[t->file].path), t->name);
	}
	return 0;
}
