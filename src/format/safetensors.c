/* SPDX-License-Identifier: MIT */
/*
 * Safetensors headers: JSON -> a checked table of tensors. Files and data: safetensors_open.c,
 * safetensors_io.c. Only what the table needs is kept; the JSON tree is freed file by file.
 */
#include "src/format/safetensors_parse.h"

#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/format/json_parse.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
	const char *name;
	uint32_t bytes;
} dtypes[ST_DTYPE_COUNT] = {
	[ST_F64] = {"F64", 8},
	[ST_F32] = {"F32", 4},
	[ST_F16] = {"F16", 2},
	[ST_BF16] = {"BF16", 2},
	[ST_F8_E4M3] = {"F8_E4M3", 1},
	[ST_F8_E5M2] = {"F8_E5M2", 1},
	[ST_I64] = {"I64", 8},
	[ST_I32] = {"I32", 4},
	[ST_I16] = {"I16", 2},
	[ST_I8] = {"I8", 1},
	[ST_U64] = {"U64", 8},
	[ST_U32] = {"U32", 4},
	[ST_U16] = {"U16", 2},
	[ST_U8] = {"U8", 1},
	[ST_BOOL] = {"BOOL", 1},
};

#define NAME_MAX_BYTES 1024

const char *st_dtype_name(enum st_dtype t)
{
	return dtypes[t].name;
}

uint32_t st_dtype_bytes(enum st_dtype t)
{
	return dtypes[t].bytes;
}

/* A count or offset: a JSON integer that is not negative. */
static bool get_size(const json_t *v, uint64_t *out)
{
	if (!json_is_integer(v) || json_integer_value(v) < 0)
		return false;
	*out = (uint64_t)json_integer_value(v);
	return true;
}

static int check_name(const char *path, const char *name, struct err *e)
{
	size_t n = strlen(name);
	bool plain = n > 0 && n <= NAME_MAX_BYTES;
	for (size_t i = 0; i < n && plain; i++)
		plain = (uint8_t)name[i] >= 32 && name[i] != 127;
	if (!plain)
		return err_set(e, ERR_INPUT,
			"%s: a tensor's name has %zu bytes or control bytes, 1 to %d printable expected", path,
			n, NAME_MAX_BYTES);
	return 0;
}

/* One entry of the header. t->offset is relative to the data. */
static int read_entry(const char *path, const char *name, const json_t *v,
	struct safetensors_tensor *t, struct err *e)
{
	if (check_name(path, name, e))
		return ERR_INPUT;
	const json_t *dtype = json_object_get(v, "dtype"), *shape = json_object_get(v, "shape"),
				 *span = json_object_get(v, "data_offsets");
	if (!json_is_string(dtype) || !json_is_array(shape) || !json_is_array(span) ||
		json_object_size(v) != 3)
		return err_set(e, ERR_INPUT,
			"%s: %s: an object of dtype, shape and data_offsets is expected in the header", path,
			name);
	int type = 0;
	while (type < ST_DTYPE_COUNT && strcmp(json_string_value(dtype), dtypes[type].name))
		type++;
	if (type == ST_DTYPE_COUNT)
		return err_set(e, ERR_INPUT, "%s: %s: dtype %.40s is not supported", path, name,
			json_string_value(dtype));
	t->dtype = (enum st_dtype)type;
	if (json_array_size(shape) > SAFETENSORS_MAX_DIMS)
		return err_set(e, ERR_INPUT, "%s: %s: %zu dimensions, at most %d expected", path, name,
			json_array_size(shape), SAFETENSORS_MAX_DIMS);
	t->n_dims = (uint32_t)json_array_size(shape);
	t->bytes = dtypes[type].bytes;
	for (uint32_t d = 0; d < t->n_dims; d++) {
		if (!get_size(json_array_get(shape, d), &t->shape[d]))
			return err_set(e, ERR_INPUT, "%s: %s: shape[%u] is not a count", path, name, d);
		if (!num_mul(t->bytes, t->shape[d], &t->bytes))
			return err_set(
				e, ERR_INPUT, "%s: %s: the product of its shape is too large", path, name);
	}
	uint64_t end;
	if (json_array_size(span) != 2 || !get_size(json_array_get(span, 0), &t->offset) ||
		!get_size(json_array_get(span, 1), &end) || end < t->offset)
		return err_set(e, ERR_INPUT, "%s: %s: data_offsets is not [begin, end]", path, name);
	if (end - t->offset != t->bytes) {
		char text[SAFETENSORS_SHAPE_MAX];
		return err_set(e, ERR_INPUT,
			"%s: %s: data_offsets span %" PRIu64 " bytes, but %s of %s takes %" PRIu64, path, name,
			end - t->offset, safetensors_shape_text(t, text), dtypes[type].name, t->bytes);
	}
	return 0;
}

static int compare_data_offset(const void *a, const void *b)
{
	const struct safetensors_tensor *x = a, *y = b;
	if (x->offset != y->offset)
		return x->offset < y->offset ? -1 : 1;
	return x->bytes < y->bytes ? -1 : x->bytes > y->bytes; /* empty ones first */
}

/* The tensors, laid end to end, are exactly the data of the file. */
static int check_cover(const char *path, struct safetensors_tensor *t, size_t n, uint64_t data,
	uint64_t size, struct err *e)
{
	uint64_t at = 0;
	qsort(t, n, sizeof *t, compare_data_offset);
	for (size_t i = 0; i < n; i++) {
		if (t[i].offset < at)
			return err_set(e, ERR_INPUT, "%s: tensors %s and %s overlap at data offset %" PRIu64,
				path, t[i - 1].name, t[i].name, t[i].offset);
		if (t[i].offset > at)
			return err_set(e, ERR_INPUT,
				"%s: %" PRIu64 " bytes before tensor %s belong to no tensor", path,
				t[i].offset - at, t[i].name);
		at += t[i].bytes; /* no overflow: offset + bytes fitted in read_entry */
	}
	if (at > size - data)
		return err_set(e, ERR_INPUT,
			"%s: has %" PRIu64 " bytes, but its header describes %" PRIu64
			": the file is incomplete",
			path, size, data + at);
	if (at < size - data)
		return err_set(e, ERR_INPUT,
			"%s: has %" PRIu64 " bytes, but its header describes only %" PRIu64, path, size,
			data + at);
	return 0;
}

int safetensors_header_bytes(
	const uint8_t first[8], uint64_t file_bytes, const char *path, uint64_t *n, struct err *e)
{
	*n = load_u64(first);
	if (*n > SAFETENSORS_MAX_HEADER_BYTES)
		return err_set(e, ERR_INPUT,
			"%s: announces a header of %" PRIu64
			" bytes, at most %d expected: is it a safetensors file?",
			path, *n, SAFETENSORS_MAX_HEADER_BYTES);
	if (*n > file_bytes - 8)
		return err_set(e, ERR_INPUT,
			"%s: announces a header of %" PRIu64 " bytes, but the file has only %" PRIu64, path, *n,
			file_bytes);
	return 0;
}

static int read_metadata(const char *path, json_t *v, struct err *e)
{
	const char *key;
	json_t *item;
	if (!json_is_object(v))
		return err_set(e, ERR_INPUT, "%s: __metadata__ is not an object of strings", path);
	json_object_foreach(v, key, item) if (!json_is_string(item)) return err_set(
		e, ERR_INPUT, "%s: __metadata__ is not an object of strings", path);
	return 0;
}

/* Names of a file's tensors, one after the other in a block that `st` owns. */
static char *keep_names(struct safetensors *st, const json_t *root)
{
	size_t bytes = 0;
	const char *key;
	json_t *v;
	json_object_foreach((json_t *)(uintptr_t)root, key, v) bytes += strlen(key) + 1;
	st->names = mem_grow(st->names, st->n_names + 1, sizeof *st->names);
	return st->names[st->n_names++] = mem_new(bytes, 1);
}

int safetensors_parse_header(
	struct safetensors *st, uint32_t file, const char *json, size_t n, struct err *e)
{
	const char *path = st->files[file].path, *key;
	uint64_t size = st->files[file].size;
	json_t *root, *v;

	if (!n || json[0] != '{')
		return err_set(e, ERR_INPUT,
			"%s: its header does not begin with '{': is it a safetensors file?", path);
	int code = json_parse_part(path, "its header ", json, n, JSON_REJECT_DUPLICATES, &root, e);
	if (code)
		return code;
	size_t count = json_object_size(root);
	struct safetensors_tensor *grown =
		realloc(st->tensors, (st->n_tensors + count + 1) * sizeof *grown);
	if (!grown) {
		json_decref(root);
		return err_set(e, ERR_MEMORY, "%s: no memory for %zu tensors", path, count);
	}
	st->tensors = grown;
	struct safetensors_tensor *t = grown + st->n_tensors;
	char *names = keep_names(st, root);
	size_t found = 0;
	json_object_foreach(root, key, v)
	{
		if (!strcmp(key, "__metadata__")) {
			if ((code = read_metadata(path, v, e)))
				break;
			continue;
		}
		t[found] = (struct safetensors_tensor){.name = names, .file = file};
		strcpy(names, key);
		names += strlen(key) + 1;
		if ((code = read_entry(path, key, v, &t[found], e)))
			break;
		found++;
	}
	json_decref(root);
	if (!code)
		code = check_cover(path, t, found, 8 + n, size, e);
	if (code)
		return code;
	for (size_t i = 0; i < found; i++) {
		t[i].offset += 8 + n;
		st->tensor_bytes += t[i].bytes;
	}
	st->n_tensors += found;
	return 0;
}

static int compare_tensor_name(const void *a, const void *b)
{
	const struct safetensors_tensor *x = a, *y = b;
	return strcmp(x->name, y->name);
}

int safetensors_finish(struct safetensors *st, struct err *e)
{
	qsort(st->tensors, st->n_tensors, sizeof *st->tensors, compare_tensor_name);
	for (size_t i = 1; i < st->n_tensors; i++) {
		const struct safetensors_tensor *a = &st->tensors[i - 1], *b = &st->tensors[i];
		if (!strcmp(a->name, b->name))
			return err_set(e, ERR_INPUT, "%s: tensor %s is also in %s", st->files[b->file].path,
				b->name, st->files[a->file].path);
	}
	return 0;
}

uint32_t safetensors_add_file(struct safetensors *st, const char *path, uint64_t size)
{
	st->files = mem_grow(st->files, st->n_files + 1, sizeof *st->files);
	st->files[st->n_files] = (struct safetensors_file){
		.path = mem_strdup(path), .size = size, .fd = -1, .direct_fd = -1};
	return st->n_files++;
}

int safetensors_parse(const void *bytes, size_t n, uint64_t file_bytes, const char *name,
	struct safetensors **out, struct err *e)
{
	uint64_t header;
	*out = NULL;
	if (n < 8 || file_bytes < 8 || n > file_bytes)
		return err_set(e, ERR_INPUT,
			"%s: has only %" PRIu64 " bytes, too few for a safetensors file", name, file_bytes);
	if (safetensors_header_bytes(bytes, file_bytes, name, &header, e))
		return ERR_INPUT;
	if (header > n - 8)
		return err_set(e, ERR_INPUT, "%s: its header ends beyond the bytes at hand", name);
	struct safetensors *st = NEW(struct safetensors);
	safetensors_add_file(st, name, file_bytes);
	int code = safetensors_parse_header(st, 0, (const char *)bytes + 8, header, e);
	if (!code)
		code = safetensors_finish(st, e);
	if (code)
		safetensors_close(st);
	else
		*out = st;
	return code;
}

const struct safetensors_tensor *safetensors_find(const struct safetensors *st, const char *name)
{
	size_t lo = 0, hi = st->n_tensors;
	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;
		int order = strcmp(name, st->tensors[mid].name);
		if (!order)
			return &st->tensors[mid];
		if (order < 0)
			hi = mid;
		else
			lo = mid + 1;
	}
	return NULL;
}

char *safetensors_shape_text(const struct safetensors_tensor *t, char *out)
{
	int n = snprintf(out, SAFETENSORS_SHAPE_MAX, "[");
	for (uint32_t d = 0; d < t->n_dims; d++)
		n += snprintf(
			out + n, SAFETENSORS_SHAPE_MAX - (size_t)n, "%s%" PRIu64, d ? ", " : "", t->shape[d]);
	snprintf(out + n, SAFETENSORS_SHAPE_MAX - (size_t)n, "]");
	return out;
}

uint64_t safetensors_cols(const struct safetensors_tensor *t)
{
	return t->n_dims ? t->shape[t->n_dims - 1] : 1;
}

uint64_t safetensors_rows(const struct safetensors_tensor *t)
{
	/* overflows only if the tensor is empty, and then it does no harm */
	uint64_t rows = 1;
	for (uint32_t d = 0; d + 1 < t->n_dims; d++)
		rows *= t->shape[d];
	return rows;
}
