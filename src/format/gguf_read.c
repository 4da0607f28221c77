/* SPDX-License-Identifier: MIT */
/*
 * The GGUF parser: one pass over the header of a file.
 *
 *   "GGUF" u32 version  u64 n_tensors  u64 n_kvs
 *   n_kvs x     { string key, u32 type, value }                  string = u64 length, bytes
 *   n_tensors x { string name, u32 n_dims, u64 ne[n_dims], u32 type, u64 offset }
 *   padding to general.alignment; tensor data, offsets count from here (is_padded_to_default: the
 *   exception)
 *
 * All reading goes through a cursor that checks each size against the bytes that are left, so only
 * the cursor knows the end of the file. Before memory is allocated for n items, n is compared with
 * the least space that they can take in the file: memory use is bounded by a small multiple of the
 * file's size.
 */
#include "src/format/gguf_read.h"

#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/num.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIN_KV_BYTES     (8 + 1 + 4 + 1)
#define MIN_TENSOR_BYTES (8 + 1 + 4 + 8 + 4 + 8)
#define NAME_CHUNK       65536

struct gguf_cursor {
	const uint8_t *bytes;
	uint64_t pos, size;
	const char *path;
	struct err *e;
};

/* Bytes of one scalar of a type; 0 for strings and arrays and ids that do not exist. */
static uint32_t scalar_bytes(uint32_t type)
{
	static const uint8_t size[GGUF_TYPE_LIMIT] = {
		[GGUF_U8] = 1,
		[GGUF_I8] = 1,
		[GGUF_U16] = 2,
		[GGUF_I16] = 2,
		[GGUF_U32] = 4,
		[GGUF_I32] = 4,
		[GGUF_F32] = 4,
		[GGUF_BOOL] = 1,
		[GGUF_U64] = 8,
		[GGUF_I64] = 8,
		[GGUF_F64] = 8,
	};
	return type < GGUF_TYPE_LIMIT ? size[type] : 0;
}

static uint64_t cursor_left(const struct gguf_cursor *c)
{
	return c->size - c->pos;
}

/* The next n bytes, or NULL with a sentence that says what they should have been. */
static const uint8_t *cursor_take(struct gguf_cursor *c, uint64_t n, const char *what)
{
	if (n > cursor_left(c)) {
		err_set(c->e, ERR_INPUT,
			"%s: file ends inside %s: %" PRIu64 " bytes needed at offset %" PRIu64 ", %" PRIu64
			" are left",
			c->path, what, n, c->pos, cursor_left(c));
		return NULL;
	}
	const uint8_t *p = c->bytes + c->pos;
	c->pos += n;
	return p;
}

static int cursor_u32(struct gguf_cursor *c, const char *what, uint32_t *out)
{
	const uint8_t *p = cursor_take(c, 4, what);
	if (!p)
		return ERR_INPUT;
	*out = load_u32(p);
	return 0;
}

static int cursor_u64(struct gguf_cursor *c, const char *what, uint64_t *out)
{
	const uint8_t *p = cursor_take(c, 8, what);
	if (!p)
		return ERR_INPUT;
	*out = load_u64(p);
	return 0;
}

static int cursor_str(struct gguf_cursor *c, const char *what, struct gguf_str *out)
{
	uint64_t n;
	if (cursor_u64(c, what, &n))
		return ERR_INPUT;
	const uint8_t *p = cursor_take(c, n, what);
	if (!p)
		return ERR_INPUT;
	*out = (struct gguf_str){(const char *)p, n};
	return 0;
}

static char *keep_name(struct gguf_index *x, size_t *room, const char *s, size_t n)
{
	if (*room < n + 1) {
		x->names = mem_grow(x->names, x->n_names + 1, sizeof *x->names);
		x->names[x->n_names++] = mem_new(NAME_CHUNK, 1);
		*room = NAME_CHUNK;
	}
	char *p = x->names[x->n_names - 1] + (NAME_CHUNK - *room);
	memcpy(p, s, n);
	p[n] = 0;
	*room -= n + 1;
	return p;
}

/* A key or tensor name: copied and terminated. Control characters are refused so that names can
 * be printed. */
static int parse_name(struct gguf_cursor *c, struct gguf_index *x, size_t *room, const char *what,
	uint64_t i, const char **out)
{
	uint64_t at = c->pos;
	struct gguf_str s;
	if (cursor_str(c, what, &s))
		return ERR_INPUT;
	if (s.len == 0 || s.len > GGUF_NAME_MAX)
		return err_set(c->e, ERR_INPUT,
			"%s: %s %" PRIu64 " at offset %" PRIu64 " has %" PRIu64 " bytes, 1 to %d expected",
			c->path, what, i, at, s.len, GGUF_NAME_MAX);
	for (uint64_t k = 0; k < s.len; k++)
		if ((uint8_t)s.ptr[k] < 32 || s.ptr[k] == 127)
			return err_set(c->e, ERR_INPUT,
				"%s: %s %" PRIu64 " at offset %" PRIu64 " contains the control byte 0x%02x",
				c->path, what, i, at, (uint8_t)s.ptr[k]);
	*out = keep_name(x, room, s.ptr, s.len);
	char plain[GGUF_NAME_MAX + 1];
	if (strcmp(err_plain_copy(*out, plain, sizeof plain), *out) != 0)
		return err_set(c->e, ERR_INPUT,
			"%s: %s %" PRIu64 " at offset %" PRIu64
			" (\"%s\") contains a control character or is not UTF-8",
			c->path, what, i, at, plain);
	return 0;
}

static int check_bools(const struct gguf_cursor *c, const char *key, const uint8_t *p, uint64_t n)
{
	for (uint64_t i = 0; i < n; i++)
		if (p[i] > 1)
			return err_set(c->e, ERR_INPUT,
				"%s: key %s: %u found where a bool (0 or 1) is expected", c->path, key, p[i]);
	return 0;
}

/* n elements of one type. */
static int parse_elements(struct gguf_cursor *c, struct gguf_index *x, const char *key,
	uint32_t type, uint64_t n, struct gguf_array *out)
{
	char what[GGUF_NAME_MAX + 32];
	snprintf(what, sizeof what, "the value of key %s", key);
	*out = (struct gguf_array){.type = type, .n = n};
	if (type == GGUF_STRING) {
		if (n > cursor_left(c) / 8)
			return err_set(c->e, ERR_INPUT,
				"%s: key %s: %" PRIu64 " strings announced, but only %" PRIu64 " bytes are left",
				c->path, key, n, cursor_left(c));
		struct gguf_str *v = mem_try_new(n, sizeof *v);
		if (!v)
			return err_set(
				c->e, ERR_MEMORY, "%s: key %s: no memory for %" PRIu64 " strings", c->path, key, n);
		x->strings = mem_grow(x->strings, x->n_strings + 1, sizeof *x->strings);
		x->strings[x->n_strings++] = v;
		for (uint64_t i = 0; i < n; i++)
			if (cursor_str(c, what, &v[i]))
				return ERR_INPUT;
		out->strings = v;
		return 0;
	}
	uint64_t bytes, each = scalar_bytes(type);
	if (!each)
		return err_set(c->e, ERR_INPUT, "%s: key %s: unknown value type %u", c->path, key, type);
	if (!num_mul(n, each, &bytes) || bytes > cursor_left(c))
		return err_set(c->e, ERR_INPUT,
			"%s: key %s: %" PRIu64 " elements of type %s announced, but only %" PRIu64
			" bytes are left",
			c->path, key, n, gguf_type_name(type), cursor_left(c));
	out->data = cursor_take(c, bytes, what);
	return type == GGUF_BOOL ? check_bools(c, key, out->data, n) : 0;
}

static int parse_kv(
	struct gguf_cursor *c, struct gguf_index *x, size_t *room, uint64_t i, struct gguf_kv *kv)
{
	uint32_t type, elem;
	uint64_t n;
	char what[GGUF_NAME_MAX + 32];
	if (parse_name(c, x, room, "key", i, &kv->key))
		return ERR_INPUT;
	snprintf(what, sizeof what, "the value of key %s", kv->key);
	if (cursor_u32(c, what, &type))
		return ERR_INPUT;
	kv->type = type;
	if (type != GGUF_ARRAY)
		return parse_elements(c, x, kv->key, type, 1, &kv->value);
	if (cursor_u32(c, what, &elem) || cursor_u64(c, what, &n))
		return ERR_INPUT;
	if (elem == GGUF_ARRAY)
		return err_set(
			c->e, ERR_INPUT, "%s: key %s: an array of arrays is not supported", c->path, kv->key);
	return parse_elements(c, x, kv->key, elem, n, &kv->value);
}

/* One row of the tensor table. t->offset stays relative to the data section; locate_tensor makes it
 * absolute. */
static int parse_tensor(
	struct gguf_cursor *c, struct gguf_index *x, size_t *room, uint64_t i, struct gguf_tensor *t)
{
	uint32_t type;
	char what[GGUF_NAME_MAX + 32];
	if (parse_name(c, x, room, "tensor name", i, &t->name))
		return ERR_INPUT;
	snprintf(what, sizeof what, "the description of tensor %s", t->name);
	if (cursor_u32(c, what, &t->n_dims))
		return ERR_INPUT;
	if (t->n_dims < 1 || t->n_dims > 4)
		return err_set(c->e, ERR_INPUT, "%s: tensor %s: %u dimensions found, 1 to 4 expected",
			c->path, t->name, t->n_dims);
	uint64_t values = 1, rows = 1;
	for (uint32_t d = 0; d < 4; d++) {
		t->ne[d] = 1;
		if (d >= t->n_dims)
			continue;
		if (cursor_u64(c, what, &t->ne[d]))
			return ERR_INPUT;
		if (!t->ne[d])
			return err_set(
				c->e, ERR_INPUT, "%s: tensor %s: dimension %u is 0", c->path, t->name, d);
		if (!num_mul(values, t->ne[d], &values) || values > INT64_MAX ||
			(d && !num_mul(rows, t->ne[d], &rows)))
			return err_set(c->e, ERR_INPUT,
				"%s: tensor %s: the product of its dimensions is too large", c->path, t->name);
	}
	if (cursor_u32(c, what, &type) || cursor_u64(c, what, &t->offset))
		return ERR_INPUT;
	const struct dtype_info *info = dtype_gguf_info(type);
	if (!info)
		return err_set(
			c->e, ERR_INPUT, "%s: tensor %s: type %u is not supported", c->path, t->name, type);
	t->type = type;
	if (t->ne[0] % info->block_values)
		return err_set(c->e, ERR_INPUT,
			"%s: tensor %s: rows of %" PRIu64 " values, but type %s is stored in blocks of %u",
			c->path, t->name, t->ne[0], info->name, info->block_values);
	uint64_t row;
	if (!dtype_row_bytes(type, t->ne[0], &row) || !num_mul(row, rows, &t->bytes) ||
		t->bytes > INT64_MAX)
		return err_set(
			c->e, ERR_INPUT, "%s: tensor %s: its size in bytes is too large", c->path, t->name);
	return 0;
}

static int locate_tensor(
	const struct gguf_cursor *c, uint64_t data_offset, uint32_t alignment, struct gguf_tensor *t)
{
	uint64_t start, end;
	if (t->offset % alignment)
		return err_set(c->e, ERR_INPUT,
			"%s: tensor %s: offset %" PRIu64 " is not a multiple of the alignment %u", c->path,
			t->name, t->offset, alignment);
	if (!num_add(t->offset, data_offset, &start) || !num_add(start, t->bytes, &end) ||
		end > c->size)
		return err_set(c->e, ERR_INPUT,
			"%s: tensor %s: %" PRIu64 " bytes at data offset %" PRIu64
			" reach beyond the end of the file (%" PRIu64 " bytes): the file is incomplete",
			c->path, t->name, t->bytes, t->offset, c->size);
	t->offset = start;
	t->data = c->bytes + start;
	return 0;
}

static int compare_tensor_offset(const void *a, const void *b)
{
	const struct gguf_tensor *x = *(const struct gguf_tensor *const *)a,
							 *y = *(const struct gguf_tensor *const *)b;
	return x->offset < y->offset ? -1 : x->offset > y->offset;
}

static bool tensors_coincide(const struct gguf_tensor *a, const struct gguf_tensor *b)
{
	return a->offset == b->offset && a->bytes == b->bytes && a->type == b->type;
}

/* No byte may belong to two tensors: a file that says otherwise is damaged or hostile. With
 * `shared` (see GGUF_SHARED_DATA_KEY) two tensors may be the same bytes throughout. */
static int check_overlap(
	const struct gguf_cursor *c, const struct gguf_tensor *t, size_t n, bool shared)
{
	const struct gguf_tensor **order = mem_try_new(n, sizeof *order);
	if (!order)
		return err_set(c->e, ERR_MEMORY, "%s: no memory for %zu tensors", c->path, n);
	int code = 0;
	for (size_t i = 0; i < n; i++)
		order[i] = &t[i];
	qsort(order, n, sizeof *order, compare_tensor_offset);
	for (size_t i = 1; i < n && !code; i++)
		if (order[i - 1]->offset + order[i - 1]->bytes > order[i]->offset &&
			!(shared && tensors_coincide(order[i - 1], order[i])))
			code = err_set(c->e, ERR_INPUT, "%s: tensors %s and %s overlap at offset %" PRIu64,
				c->path, order[i - 1]->name, order[i]->name, order[i]->offset);
	free(order);
	return code;
}

static int compare_kv(const void *a, const void *b, void *kvs)
{
	const struct gguf_kv *v = kvs;
	return strcmp(v[*(const uint32_t *)a].key, v[*(const uint32_t *)b].key);
}

static int compare_tensor(const void *a, const void *b, void *tensors)
{
	const struct gguf_tensor *v = tensors;
	return strcmp(v[*(const uint32_t *)a].name, v[*(const uint32_t *)b].name);
}

static uint32_t *sorted_order(
	void *items, size_t n, int (*compare)(const void *, const void *, void *))
{
	uint32_t *order = mem_try_new(n, sizeof *order);
	if (!order)
		return NULL;
	for (size_t i = 0; i < n; i++)
		order[i] = (uint32_t)i;
	qsort_r(order, n, sizeof *order, compare, items);
	return order;
}

/* Sorts keys; *order is the caller's. */
static int sort_kvs(const struct gguf_cursor *c, struct gguf_kv *kvs, size_t n, uint32_t **order)
{
	*order = sorted_order(kvs, n, compare_kv);
	if (!*order)
		return err_set(c->e, ERR_MEMORY, "%s: no memory for %zu keys", c->path, n);
	for (size_t i = 1; i < n; i++)
		if (!strcmp(kvs[(*order)[i - 1]].key, kvs[(*order)[i]].key))
			return err_set(
				c->e, ERR_INPUT, "%s: key %s occurs twice", c->path, kvs[(*order)[i]].key);
	return 0;
}

static int read_split_keys(const struct gguf *g, struct gguf_split *s, struct err *e)
{
	int code;
	*s = (struct gguf_split){0};
	s->present = gguf_find(g, "split.count") != NULL;
	s->has_n_tensors = gguf_find(g, "split.tensors.count") != NULL;
	if (!s->present)
		return 0;
	if ((code = gguf_get_u64(g, "split.count", &s->count, e)) ||
		(code = gguf_get_u64(g, "split.no", &s->no, e)))
		return code;
	return s->has_n_tensors ? gguf_get_u64(g, "split.tensors.count", &s->n_tensors, e) : 0;
}

static int parse_header(struct gguf_cursor *c, uint64_t *n_tensors, uint64_t *n_kvs)
{
	uint32_t version;
	const uint8_t *magic = cursor_take(c, 4, "the magic number");
	if (!magic)
		return ERR_INPUT;
	if (memcmp(magic, "GGUF", 4))
		return err_set(c->e, ERR_INPUT,
			"%s: is not a GGUF file: it begins with %02x %02x %02x %02x instead of \"GGUF\"",
			c->path, magic[0], magic[1], magic[2], magic[3]);
	if (cursor_u32(c, "the header", &version))
		return ERR_INPUT;
	if (version != 3 && !(version & 0xffff))
		return err_set(
			c->e, ERR_INPUT, "%s: is a big-endian GGUF file, little-endian expected", c->path);
	if (version != 3)
		return err_set(c->e, ERR_INPUT, "%s: GGUF version %u found, 3 expected", c->path, version);
	if (cursor_u64(c, "the header", n_tensors) || cursor_u64(c, "the header", n_kvs))
		return ERR_INPUT;
	if (*n_kvs > cursor_left(c) / MIN_KV_BYTES)
		return err_set(c->e, ERR_INPUT,
			"%s: %" PRIu64 " keys announced, but only %" PRIu64 " bytes are left", c->path, *n_kvs,
			cursor_left(c));
	if (*n_tensors > cursor_left(c) / MIN_TENSOR_BYTES)
		return err_set(c->e, ERR_INPUT,
			"%s: %" PRIu64 " tensors announced, but only %" PRIu64 " bytes are left", c->path,
			*n_tensors, cursor_left(c));
	if (*n_kvs > UINT32_MAX || *n_tensors > UINT32_MAX)
		return err_set(c->e, ERR_INPUT, "%s: more keys or tensors than fit 32 bits", c->path);
	return 0;
}

/* Whether a file is padded to GGUF_DEFAULT_ALIGNMENT although its general.alignment is larger:
 * llama-quantize copies the key of its source and pads to the default. Either an offset is no
 * multiple of the key's alignment. Or all are, and the size decides: behind padding to the key's
 * alignment the data would end beyond the file, behind default padding exactly at its end. */
static bool is_padded_to_default(const struct gguf_cursor *c, const struct gguf_file *file,
	const struct gguf_tensor *t, uint64_t n)
{
	const uint64_t data = num_align_up(c->pos, GGUF_DEFAULT_ALIGNMENT);
	uint64_t end = 0, data_end; /* an offset into the data; into the file, padded */
	bool misaligned = false;
	if (file->alignment <= GGUF_DEFAULT_ALIGNMENT)
		return false;
	for (uint64_t i = 0; i < n; i++) {
		uint64_t tensor_end;
		if (t[i].offset % GGUF_DEFAULT_ALIGNMENT ||
			!num_add(t[i].offset, t[i].bytes, &tensor_end) || tensor_end > INT64_MAX)
			return false;
		misaligned |= t[i].offset % file->alignment != 0;
		end = MAX(end, tensor_end);
	}
	data_end = data + num_align_up(end, GGUF_DEFAULT_ALIGNMENT);
	if (misaligned)
		return data_end >= c->size; /* greater: locate_tensor refuses it, with a clearer sentence */
	return num_align_up(c->pos, file->alignment) + end > c->size && data_end == c->size;
}

/* The tensor table of one file, appended to g->tensors. */
static int parse_tensors(struct gguf_cursor *c, struct gguf *g, size_t *room, uint64_t n,
	struct gguf_file *file, bool shared)
{
	int code;
	size_t first = g->n_tensors;
	uint64_t total, bytes;
	if (!num_add(first, n, &total) || total > UINT32_MAX ||
		!num_mul(total, sizeof *g->tensors, &bytes))
		return err_set(c->e, ERR_INPUT, "%s: more tensors than fit 32 bits", c->path);
	struct gguf_tensor *grown = realloc(g->tensors, bytes ? bytes : 1);
	if (!grown)
		return err_set(c->e, ERR_MEMORY, "%s: no memory for %" PRIu64 " tensors", c->path, n);
	g->tensors = grown;
	struct gguf_tensor *t = grown + first;
	memset(t, 0, (size_t)n * sizeof *t);
	g->n_tensors = total;
	for (uint64_t i = 0; i < n; i++) {
		t[i].file = g->n_files;
		if ((code = parse_tensor(c, g->index, room, i, &t[i])))
			return code;
	}
	if (is_padded_to_default(c, file, t, n)) {
		if (!g->n_files)
			log_warn("%s: its general.alignment is %u, but its tensors lie at multiples of %d, as "
					 "llama-quantize writes them: read as they lie",
				c->path, file->alignment, GGUF_DEFAULT_ALIGNMENT);
		file->alignment = GGUF_DEFAULT_ALIGNMENT;
	}
	file->data_offset = num_align_up(c->pos, file->alignment);
	for (uint64_t i = 0; i < n; i++) {
		if ((code = locate_tensor(c, file->data_offset, file->alignment, &t[i])))
			return code;
		if (!num_add(g->tensor_bytes, t[i].bytes, &g->tensor_bytes))
			return err_set(c->e, ERR_INPUT, "%s: the sum of tensor sizes is too large", c->path);
	}
	return check_overlap(c, t, n, shared);
}

int gguf_read_file(struct gguf *g, const char *path, const uint8_t *bytes, uint64_t size,
	struct file_map *map, struct gguf_split *split, struct err *e)
{
	struct gguf_cursor c = {.bytes = bytes, .size = size, .path = path, .e = e};
	struct gguf_index *x = g->index;
	uint64_t n_tensors = 0, n_kvs = 0;
	size_t room = 0;
	int code;

	/* the file is added first, so that gguf_close releases it after an error too */
	g->files = mem_grow(g->files, g->n_files + 1, sizeof *g->files);
	struct gguf_file *file = &g->files[g->n_files];
	*file = (struct gguf_file){
		.path = mem_strdup(path), .size = size, .alignment = GGUF_DEFAULT_ALIGNMENT};
	g->n_files++;
	if (map) {
		file->map = *map;
		*map = (struct file_map){0};
	}
	if ((code = parse_header(&c, &n_tensors, &n_kvs)))
		return code;

	/* a small set of its own for the keys of this file; it ends up in g when this is the first file
	 */
	struct gguf_index order = {0};
	struct gguf own = {.files = file, .n_files = 1, .index = &order};
	own.kvs = mem_try_new(n_kvs, sizeof *own.kvs);
	if (!own.kvs)
		return err_set(e, ERR_MEMORY, "%s: no memory for %" PRIu64 " keys", path, n_kvs);
	own.n_kvs = n_kvs;
	for (uint64_t i = 0; i < n_kvs; i++)
		if ((code = parse_kv(&c, x, &room, i, &own.kvs[i])))
			goto out;
	if ((code = sort_kvs(&c, own.kvs, n_kvs, &order.kv_order)))
		goto out;
	if ((code = gguf_get_u32_or(
			 &own, "general.alignment", GGUF_DEFAULT_ALIGNMENT, &file->alignment, e)))
		goto out;
	if (!num_is_pow2(file->alignment) || file->alignment > GGUF_MAX_ALIGNMENT) {
		code =
			err_set(e, ERR_INPUT, "%s: general.alignment is %u, a power of two up to 2^30 expected",
				path, file->alignment);
		goto out;
	}
	if ((code = read_split_keys(&own, split, e)))
		goto out;
	g->n_files--; /* tensors count their file from here */
	code =
		parse_tensors(&c, g, &room, n_tensors, file, gguf_find(&own, GGUF_SHARED_DATA_KEY) != NULL);
	g->n_files++;
out:
	if (!code && g->n_files == 1) {
		g->kvs = own.kvs;
		g->n_kvs = n_kvs;
		x->kv_order = order.kv_order;
		return 0;
	}
	free(own.kvs);
	free(order.kv_order);
	return code;
}

int gguf_read_finish(struct gguf *g, struct err *e)
{
	struct gguf_tensor *t = g->tensors;
	uint32_t *order = g->index->tensor_order = sorted_order(t, g->n_tensors, compare_tensor);
	if (!order)
		return err_set(
			e, ERR_MEMORY, "%s: no memory for %zu tensors", g->files[0].path, g->n_tensors);
	for (size_t i = 1; i < g->n_tensors; i++) {
		const struct gguf_tensor *a = &t[order[i - 1]], *b = &t[order[i]];
		if (strcmp(a->name, b->name))
			continue;
		if (a->file == b->file)
			return err_set(
				e, ERR_INPUT, "%s: tensor %s occurs twice", g->files[a->file].path, a->name);
		return err_set(e, ERR_INPUT, "%s: tensor %s occurs also in %s", g->files[a->file].path,
			a->name, g->files[b->file].path);
	}
	return 0;
}

int gguf_index_tensors(struct gguf *g, struct err *e)
{
	free(g->index->tensor_order);
	return gguf_read_finish(g, e);
}

void gguf_drop_files(struct gguf *g)
{
	for (uint32_t i = 0; i < g->n_files; i++) {
		free(g->files[i].path);
		file_map_close(&g->files[i].map);
	}
	free(g->files);
	g->files = NULL;
	g->n_files = 0;
}

struct gguf *gguf_read_new(void)
{
	struct gguf *g = NEW(struct gguf);
	g->index = NEW(struct gguf_index);
	return g;
}

int gguf_parse(const void *bytes, size_t n, const char *name, struct gguf **out, struct err *e)
{
	struct gguf_split split;
	*out = NULL;
	struct gguf *g = gguf_read_new();
	int code = gguf_read_file(g, name, bytes, n, NULL, &split, e);
	if (!code)
		code = gguf_read_finish(g, e);
	if (code)
		gguf_close(g);
	else
		*out = g;
	return code;
}

void gguf_close(struct gguf *g)
{
	if (!g)
		return;
	if (g->folder_ops)
		g->folder_ops->close(g);
	struct gguf_index *x = g->index;
	for (size_t i = 0; i < x->n_names; i++)
		free(x->names[i]);
	for (size_t i = 0; i < x->n_strings; i++)
		free(x->strings[i]);
	free(x->names);
	free(x->strings);
	free(x->kv_order);
	free(x->tensor_order);
	free(x);
	gguf_drop_files(g);
	for (uint32_t i = 0; i < g->n_copies; i++) {
		free(g->copies[i].path);
		file_map_close(&g->copies[i].map);
	}
	free(g->copies);
	free(g->kvs);
	free(g->tensors);
	free(g);
}
