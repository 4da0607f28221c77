/* SPDX-License-Identifier: MIT */
/*
 * The GGUF writer. Keys are kept in their encoded form as they are declared, tensors in a table;
 * plan() cuts the table into parts and encodes one header per part, after which every offset is
 * known. Tensors stay in declaration order, a part holds a run of them.
 *
 * After create() the struct is constant but for the file descriptors' contents: pwrite needs no
 * lock.
 */
#include "src/format/gguf_write.h"

#include "src/base/buf.h"
#include "src/base/hash.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/base/out_file.h"
#include "src/base/version.h"
#include "src/base/xxh3/xxh3.h"
#include "src/format/check_values.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define READ_BACK_BYTES (1u << 20)
#define MAX_PARTS       65535 /* split.no is a u16 */

struct out_tensor {
	char *name;
	enum dtype type;
	uint32_t n_dims;
	uint64_t ne[4];
	uint64_t bytes;
	uint64_t relative; /* offset from the start of the part's data */
	size_t part;
	size_t shares;        /* id + 1 of the tensor whose data these are; 0: its own */
	uint64_t first_range; /* number of its first check value */
};

struct out_part {
	struct gguf_write_part info;
	struct buf header; /* with padding */
	char *path;        /* final name; NULL before create */
	char *partial;
	int fd;
	bool renamed;
};

struct gguf_writer {
	uint32_t alignment;
	uint64_t split_bytes;
	struct buf kvs; /* encoded keys of the first part */
	uint64_t n_kvs;
	char **keys; /* [n_kvs] names, to find repetitions */
	struct out_tensor *tensors;
	size_t n_tensors, cap_tensors;
	uint32_t *name_slots; /* hash table of tensor names: index + 1, 0 empty */
	size_t n_slots;       /* power of two */
	struct out_part *parts;
	size_t n_parts;
	bool planned;
	bool has_check_values;
	bool force;               /* of gguf_writer_check_output; true if it was not called */
	uint64_t n_ranges;        /* check values of all tensors */
	uint64_t check_values_at; /* where the first one stands in the header of the first part */
};

struct gguf_writer *gguf_writer_new(const struct gguf_write_options *options)
{
	struct gguf_writer *w = NEW(struct gguf_writer);
	w->alignment = options && options->alignment ? options->alignment : GGUF_WRITE_ALIGNMENT;
	w->split_bytes = options ? options->split_bytes : 0;
	w->force = true;
	if (!num_is_pow2(w->alignment) || w->alignment > GGUF_MAX_ALIGNMENT)
		bug("GGUF alignment %u is not a power of two up to 2^30", w->alignment);
	return w;
}

static void part_close(struct out_part *p)
{
	if (p->fd >= 0)
		close(p->fd);
	free(p->path);
	free(p->partial);
	p->path = p->partial = NULL;
	p->fd = -1;
}

void gguf_writer_free(struct gguf_writer *w)
{
	if (!w)
		return;
	for (size_t i = 0; i < w->n_kvs; i++)
		free(w->keys[i]);
	for (size_t i = 0; i < w->n_tensors; i++)
		free(w->tensors[i].name);
	for (size_t i = 0; i < w->n_parts; i++) {
		part_close(&w->parts[i]);
		buf_free(&w->parts[i].header);
	}
	free(w->keys);
	free(w->tensors);
	free(w->name_slots);
	free(w->parts);
	buf_free(&w->kvs);
	free(w);
}

/* ---- keys ---- */

static void append_u32(struct buf *b, uint32_t v)
{
	buf_append(b, &v, sizeof v);
}

static void append_u64(struct buf *b, uint64_t v)
{
	buf_append(b, &v, sizeof v);
}

static void append_str(struct buf *b, const char *s, size_t n)
{
	append_u64(b, n);
	buf_append(b, s, n);
}

static void append_scalar(
	struct buf *b, const char *key, enum gguf_type type, const void *v, size_t bytes)
{
	append_str(b, key, strlen(key));
	append_u32(b, type);
	buf_append(b, v, bytes);
}

static void begin_key(struct gguf_writer *w, const char *key)
{
	if (w->planned)
		bug("key %s is declared after the plan", key);
	if (!*key || strlen(key) > GGUF_NAME_MAX || !strcmp(key, "general.alignment") ||
		!strcmp(key, OUT_MODEL_KEY) || !strncmp(key, "split.", 6))
		bug("key \"%s\" cannot be declared", key);
	for (size_t i = 0; i < w->n_kvs; i++)
		if (!strcmp(w->keys[i], key))
			bug("key %s is declared twice", key);
	w->keys = mem_grow(w->keys, w->n_kvs + 1, sizeof *w->keys);
	w->keys[w->n_kvs++] = mem_strdup(key);
}

static void set_scalar(
	struct gguf_writer *w, const char *key, enum gguf_type type, const void *v, size_t bytes)
{
	begin_key(w, key);
	append_scalar(&w->kvs, key, type, v, bytes);
}

static void begin_array(struct gguf_writer *w, const char *key, enum gguf_type type, size_t n)
{
	begin_key(w, key);
	append_str(&w->kvs, key, strlen(key));
	append_u32(&w->kvs, GGUF_ARRAY);
	append_u32(&w->kvs, type);
	append_u64(&w->kvs, n);
}

void gguf_writer_set_u32(struct gguf_writer *w, const char *key, uint32_t v)
{
	set_scalar(w, key, GGUF_U32, &v, sizeof v);
}

void gguf_writer_set_u64(struct gguf_writer *w, const char *key, uint64_t v)
{
	set_scalar(w, key, GGUF_U64, &v, sizeof v);
}

void gguf_writer_set_f32(struct gguf_writer *w, const char *key, float v)
{
	set_scalar(w, key, GGUF_F32, &v, sizeof v);
}

void gguf_writer_set_bool(struct gguf_writer *w, const char *key, bool v)
{
	uint8_t byte = v;
	set_scalar(w, key, GGUF_BOOL, &byte, 1);
}

void gguf_writer_set_bytes(struct gguf_writer *w, const char *key, const void *v, size_t n)
{
	begin_key(w, key);
	append_str(&w->kvs, key, strlen(key));
	append_u32(&w->kvs, GGUF_STRING);
	append_str(&w->kvs, v, n);
}

void gguf_writer_set_str(struct gguf_writer *w, const char *key, const char *v)
{
	gguf_writer_set_bytes(w, key, v, strlen(v));
}

void gguf_writer_set_u32s(struct gguf_writer *w, const char *key, const uint32_t *v, size_t n)
{
	begin_array(w, key, GGUF_U32, n);
	buf_append(&w->kvs, v, n * sizeof *v);
}

void gguf_writer_set_i32s(struct gguf_writer *w, const char *key, const int32_t *v, size_t n)
{
	begin_array(w, key, GGUF_I32, n);
	buf_append(&w->kvs, v, n * sizeof *v);
}

void gguf_writer_set_bools(struct gguf_writer *w, const char *key, const bool *v, size_t n)
{
	begin_array(w, key, GGUF_BOOL, n);
	for (size_t i = 0; i < n; i++)
		buf_putc(&w->kvs, v[i] ? 1 : 0);
}

void gguf_writer_set_strs(
	struct gguf_writer *w, const char *key, const struct gguf_str *v, size_t n)
{
	begin_array(w, key, GGUF_STRING, n);
	for (size_t i = 0; i < n; i++)
		append_str(&w->kvs, v[i].ptr, v[i].len);
}

/* ---- tensors ---- */

/* The slot that holds this name or the empty one where it belongs. */
static uint32_t *find_slot(struct gguf_writer *w, const char *name)
{
	size_t i = hash_bytes(HASH_START, name, strlen(name)) & (w->n_slots - 1);
	while (w->name_slots[i] && strcmp(w->tensors[w->name_slots[i] - 1].name, name))
		i = (i + 1) & (w->n_slots - 1);
	return &w->name_slots[i];
}

static void grow_slots(struct gguf_writer *w)
{
	free(w->name_slots);
	w->n_slots = w->n_slots ? w->n_slots * 2 : 64;
	w->name_slots = NEW_ARRAY(uint32_t, w->n_slots);
	for (size_t i = 0; i < w->n_tensors; i++)
		*find_slot(w, w->tensors[i].name) = (uint32_t)i + 1;
}

int gguf_writer_add_tensor(struct gguf_writer *w, const char *name, enum dtype type,
	uint32_t n_dims, const uint64_t *ne, size_t *id, struct err *e)
{
	if (w->planned)
		bug("tensor %s is declared after the plan", name);
	size_t len = strlen(name);
	if (!len || len > GGUF_NAME_MAX)
		return err_set(e, ERR_INPUT, "tensor name \"%.40s...\" has %zu bytes, 1 to %d expected",
			name, len, GGUF_NAME_MAX);
	const struct dtype_info *info = dtype_gguf_info(type);
	if (!info)
		return err_set(e, ERR_INPUT, "tensor %s: type %u is not supported", name, type);
	if (n_dims < 1 || n_dims > 4)
		return err_set(e, ERR_INPUT, "tensor %s: %u dimensions, 1 to 4 expected", name, n_dims);
	struct out_tensor t = {.type = type, .n_dims = n_dims, .ne = {1, 1, 1, 1}};
	uint64_t bytes;
	if (!dtype_row_bytes(type, ne[0], &bytes))
		return err_set(e, ERR_INPUT,
			"tensor %s: rows of %" PRIu64 " values cannot be stored as %s (blocks of %u)", name,
			ne[0], info->name, info->block_values);
	for (uint32_t d = 0; d < n_dims; d++) {
		t.ne[d] = ne[d];
		if (!ne[d])
			return err_set(e, ERR_INPUT, "tensor %s: dimension %u is 0", name, d);
		if (d && (!num_mul(bytes, ne[d], &bytes) || bytes > INT64_MAX))
			return err_set(e, ERR_INPUT, "tensor %s: is too large", name);
	}
	t.bytes = bytes;
	if (2 * w->n_tensors >= w->n_slots)
		grow_slots(w);
	uint32_t *slot = find_slot(w, name);
	if (*slot)
		return err_set(e, ERR_INPUT, "tensor %s: is declared twice", name);
	if (w->n_tensors == w->cap_tensors) {
		w->cap_tensors = w->cap_tensors ? 2 * w->cap_tensors : 64;
		w->tensors = mem_grow(w->tensors, w->cap_tensors, sizeof *w->tensors);
	}
	t.name = mem_strdup(name);
	if (id)
		*id = w->n_tensors;
	w->tensors[w->n_tensors++] = t;
	*slot = (uint32_t)w->n_tensors;
	return 0;
}

void gguf_writer_share_tensor(struct gguf_writer *w, size_t id, size_t of)
{
	struct out_tensor *t = &w->tensors[id];
	const struct out_tensor *o = &w->tensors[of];
	if (w->planned || of >= id || o->shares || o->bytes != t->bytes || o->type != t->type ||
		w->split_bytes)
		bug("tensor %s cannot share the data of %s", t->name, o->name);
	t->shares = of + 1;
}

void gguf_writer_add_check_values(struct gguf_writer *w)
{
	if (w->planned)
		bug("check values are declared after the plan");
	w->has_check_values = true;
}

/* ---- plan ---- */

/* The bytes of the key with the check values, without the values. */
#define CHECK_KEY_BYTES (8 + sizeof CHECK_VALUES_KEY - 1 + 4 + 4 + 8 + 8)

static void number_ranges(struct gguf_writer *w)
{
	for (size_t i = 0; i < w->n_tensors; i++) {
		struct out_tensor *t = &w->tensors[i];
		t->first_range = w->n_ranges;
		w->n_ranges += check_ranges(t->name, t->n_dims, t->ne);
	}
}

/* The key with values that are still missing: zeros. */
static void append_check_values(struct gguf_writer *w, struct buf *b)
{
	uint64_t table = CHECK_TABLE_START;
	for (size_t i = 0; i < w->n_tensors; i++)
		table = check_table_add(table, w->tensors[i].name, w->tensors[i].type, w->tensors[i].ne);
	append_str(b, CHECK_VALUES_KEY, strlen(CHECK_VALUES_KEY));
	append_u32(b, GGUF_ARRAY);
	append_u32(b, GGUF_U64);
	append_u64(b, 1 + w->n_ranges);
	append_u64(b, table);
	w->check_values_at = b->len;
	for (uint64_t i = 0; i < w->n_ranges; i++)
		append_u64(b, 0);
}

/* Bytes of one row of the tensor table. */
static uint64_t tensor_row_bytes(const struct out_tensor *t)
{
	return 8 + strlen(t->name) + 4 + 8 * t->n_dims + 4 + 8;
}

/* The writer's own keys of a part; those of split.* only if there are several parts. *n grows by
 * their number. */
static void append_own_keys(const struct gguf_writer *w, struct buf *b, size_t part, uint64_t *n)
{
	append_str(b, OUT_MODEL_KEY, strlen(OUT_MODEL_KEY));
	append_u32(b, GGUF_STRING);
	append_str(b, GLM_VERSION, strlen(GLM_VERSION));
	append_scalar(b, "general.alignment", GGUF_U32, &w->alignment, 4);
	*n += 2;
	if (w->n_parts < 2)
		return;
	uint16_t no = (uint16_t)part, count = (uint16_t)w->n_parts;
	int32_t total = (int32_t)w->n_tensors;
	append_scalar(b, "split.no", GGUF_U16, &no, 2);
	append_scalar(b, "split.count", GGUF_U16, &count, 2);
	append_scalar(b, "split.tensors.count", GGUF_I32, &total, 4);
	*n += 3;
}

#define OWN_KEYS_BYTES 256 /* more than append_own_keys writes */

/* Cuts the tensors into parts. A part is closed when its next tensor could bring the file beyond
 * split_bytes; header sizes are taken with OWN_KEYS_BYTES of slack. Only a part of one tensor can
 * be larger. */
static int assign_parts(struct gguf_writer *w, struct err *e)
{
	uint64_t head = 24 + w->kvs.len + OWN_KEYS_BYTES, data = 0;
	if (w->has_check_values)
		head += CHECK_KEY_BYTES + 8 * w->n_ranges;
	size_t cap = 0;
	for (size_t i = 0; i < w->n_tensors || !w->n_parts; i++) {
		uint64_t padded = 0, row = 0, file = 0;
		if (i < w->n_tensors) {
			padded = w->tensors[i].shares ? 0 : num_align_up(w->tensors[i].bytes, w->alignment);
			row = tensor_row_bytes(&w->tensors[i]);
		}
		struct out_part *p = w->n_parts ? &w->parts[w->n_parts - 1] : NULL;
		if (!num_add(data, padded, &file) ||
			!num_add(file, num_align_up(head + row, w->alignment), &file) || file > INT64_MAX)
			return err_set(e, ERR_INPUT, "the file would be larger than 2^63 bytes");
		if (!p || (w->split_bytes && p->info.n_tensors && file > w->split_bytes)) {
			if (w->n_parts == MAX_PARTS)
				return err_set(e, ERR_USAGE,
					"more than %d parts would be needed: the part size is too small", MAX_PARTS);
			if (w->n_parts == cap) {
				cap = cap ? 2 * cap : 8;
				w->parts = mem_grow(w->parts, cap, sizeof *w->parts);
			}
			p = &w->parts[w->n_parts];
			*p = (struct out_part){.fd = -1, .info.first_tensor = i};
			if (w->n_parts)
				head = 24 + OWN_KEYS_BYTES, data = 0;
			w->n_parts++;
		}
		if (i == w->n_tensors)
			break;
		struct out_tensor *t = &w->tensors[i];
		t->part = w->n_parts - 1;
		t->relative = t->shares ? w->tensors[t->shares - 1].relative : data;
		p->info.n_tensors++;
		p->info.tensor_bytes += t->shares ? 0 : t->bytes;
		data += padded;
		head += row;
	}
	return 0;
}

static void encode_header(struct gguf_writer *w, size_t part)
{
	struct out_part *p = &w->parts[part];
	struct buf *b = &p->header, own = {0};
	const bool checked = !part && w->has_check_values;
	uint64_t n_kvs = part ? 0 : w->n_kvs + checked, end = 0;
	append_own_keys(w, &own, part, &n_kvs);
	buf_puts(b, "GGUF");
	append_u32(b, 3);
	append_u64(b, p->info.n_tensors);
	append_u64(b, n_kvs);
	buf_append(b, own.data, own.len); /* first: out_file.h looks at the head of a file only */
	buf_free(&own);
	if (!part)
		buf_append(b, buf_str(&w->kvs), w->kvs.len);
	if (checked)
		append_check_values(w, b);
	for (size_t i = 0; i < p->info.n_tensors; i++) {
		const struct out_tensor *t = &w->tensors[p->info.first_tensor + i];
		append_str(b, t->name, strlen(t->name));
		append_u32(b, t->n_dims);
		for (uint32_t d = 0; d < t->n_dims; d++)
			append_u64(b, t->ne[d]);
		append_u32(b, t->type);
		append_u64(b, t->relative);
		end = MAX(end, t->relative + num_align_up(t->bytes, w->alignment));
	}
	size_t pad = (size_t)(num_align_up(b->len, w->alignment) - b->len);
	buf_reserve(b, pad);
	memset(b->data + b->len, 0, pad);
	b->len += pad;
	b->data[b->len] = 0;
	p->info.header_bytes = b->len;
	p->info.file_bytes = b->len + end;
}

int gguf_writer_plan(struct gguf_writer *w, struct err *e)
{
	if (w->planned)
		bug("gguf_writer_plan is called twice");
	if (w->n_tensors > INT32_MAX)
		return err_set(e, ERR_INPUT, "too many tensors");
	if (w->has_check_values)
		number_ranges(w);
	int code = assign_parts(w, e);
	if (code)
		return code;
	w->planned = true;
	for (size_t i = 0; i < w->n_parts; i++)
		encode_header(w, i);
	return 0;
}

size_t gguf_writer_n_parts(const struct gguf_writer *w)
{
	return w->n_parts;
}

struct gguf_write_part gguf_writer_part(const struct gguf_writer *w, size_t part)
{
	return w->parts[part].info;
}

void gguf_writer_place(
	const struct gguf_writer *w, size_t id, size_t *part, uint64_t *offset, uint64_t *bytes)
{
	const struct out_tensor *t = &w->tensors[id];
	if (part)
		*part = t->part;
	if (offset)
		*offset = w->parts[t->part].info.header_bytes + t->relative;
	if (bytes)
		*bytes = t->bytes;
}

char *gguf_writer_part_path(const struct gguf_writer *w, const char *path, size_t part)
{
	if (w->n_parts < 2)
		return mem_strdup(path);
	size_t n = strlen(path);
	if (n > 5 && !strcmp(path + n - 5, ".gguf"))
		n -= 5;
	return mem_printf("%.*s-%05zu-of-%05zu.gguf", (int)n, path, part + 1, w->n_parts);
}

const char *gguf_writer_partial(const struct gguf_writer *w, size_t part)
{
	return w->parts[part].partial;
}

const void *gguf_writer_header(const struct gguf_writer *w, size_t part, size_t *bytes)
{
	*bytes = w->parts[part].header.len;
	return w->parts[part].header.data;
}

/* ---- write ---- */

static int part_write(
	const struct out_part *p, uint64_t offset, const void *data, size_t bytes, struct err *e)
{
	const char *s = data;
	while (bytes) {
		ssize_t n = pwrite(p->fd, s, MIN(bytes, (size_t)1 << 30), (off_t)offset);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return err_errno(e, errno, "%s: cannot write %zu bytes at offset %" PRIu64, p->partial,
				bytes, offset);
		if (n == 0)
			return err_errno(e, ENOSPC, "%s: cannot write %zu bytes at offset %" PRIu64, p->partial,
				bytes, offset);
		s += n, offset += (uint64_t)n, bytes -= (size_t)n;
	}
	return 0;
}

/* Reserves the space now, so that a full disk shows before hours of work and not after. */
static int reserve_space(const struct out_part *p, struct err *e)
{
	uint64_t bytes = p->info.file_bytes;
	struct statvfs fs;
	if (TEMP_FAILURE_RETRY(fallocate(p->fd, 0, 0, (off_t)bytes)) == 0)
		return 0;
	int why = errno;
	if (why == EOPNOTSUPP || why == ENOSYS || why == EINVAL) {
		if (TEMP_FAILURE_RETRY(ftruncate(p->fd, (off_t)bytes)) == 0)
			return 0;
		why = errno;
	}
	err_errno(e, why, "%s: cannot reserve %" PRIu64 " bytes", p->partial, bytes);
	if (why == ENOSPC && fstatvfs(p->fd, &fs) == 0)
		err_hint(e, "%" PRIu64 " bytes are free there", (uint64_t)fs.f_bavail * fs.f_frsize);
	return e ? e->code : -why;
}

/* An earlier run's file is taken up only when size and header are those of this plan, but for its
 * check values, which are kept. */
static int check_resumed(const struct gguf_writer *w, struct out_part *p, struct err *e)
{
	struct stat st;
	if (fstat(p->fd, &st) < 0)
		return err_errno(e, errno, "%s", p->partial);
	if ((uint64_t)st.st_size != p->info.file_bytes)
		return err_set(e, ERR_INPUT, "%s: has %lld bytes, %" PRIu64 " expected", p->partial,
			(long long)st.st_size, p->info.file_bytes);
	char *old = mem_try_new(p->header.len, 1);
	if (!old)
		return err_set(e, ERR_MEMORY, "%s: no memory to read its header", p->partial);
	ssize_t n = pread(p->fd, old, p->header.len, 0);
	bool same = n == (ssize_t)p->header.len;
	if (same && w->has_check_values && p == w->parts)
		memcpy(p->header.data + w->check_values_at, old + w->check_values_at, 8 * w->n_ranges);
	same = same && !memcmp(old, p->header.data, p->header.len);
	free(old);
	return same ? 0
				: err_set(e, ERR_INPUT, "%s: its header is not the one that would be written",
					  p->partial);
}

static int refuse_special(const char *path, struct err *e)
{
	struct stat st;
	return stat(path, &st) || S_ISREG(st.st_mode)
			   ? 0
			   : err_set(e, ERR_INPUT, "%.400s: exists and is not a regular file", path);
}

int gguf_writer_check_output(struct gguf_writer *w, const char *path, bool force, struct err *e)
{
	int rc = 0;
	w->force = force;
	for (size_t i = 0; i < w->n_parts && !rc; i++) {
		char *part = gguf_writer_part_path(w, path, i), *partial = NULL;
		if (!(rc = out_file_target(part, NULL, &partial, e)) &&
			!(rc = out_file_check(part, &out_data, force, e)) && !(rc = refuse_special(part, e)))
			rc = out_file_may_replace(partial, &out_unfinished_model, force, e);
		free(part);
		free(partial);
	}
	return rc;
}

int gguf_writer_create(struct gguf_writer *w, const char *path, bool resume, struct err *e)
{
	int code;
	if (!w->planned)
		bug("gguf_writer_create before gguf_writer_plan");
	for (size_t i = 0; i < w->n_parts; i++) {
		struct out_part *p = &w->parts[i];
		part_close(p);
		char *name = gguf_writer_part_path(w, path, i);
		code = out_file_target(name, &p->path, &p->partial, e);
		free(name);
		if (code || (code = refuse_special(p->path, e)))
			return code;
		p->fd = out_file_open_partial(p->partial, &out_unfinished_model, w->force, resume, e);
		if (p->fd < 0)
			return p->fd;
		if (resume) {
			if ((code = check_resumed(w, p, e)))
				return code;
		} else if ((code = reserve_space(p, e)) ||
				   (code = part_write(p, 0, p->header.data, p->header.len, e))) {
			return code;
		}
	}
	return 0;
}

int gguf_writer_write(struct gguf_writer *w, size_t id, uint64_t offset, const void *data,
	size_t bytes, struct err *e)
{
	const struct out_tensor *t = &w->tensors[id];
	const struct out_part *p = &w->parts[t->part];
	if (offset > t->bytes || bytes > t->bytes - offset)
		bug("tensor %s: %zu bytes at %" PRIu64 " do not fit into %" PRIu64, t->name, bytes, offset,
			t->bytes);
	return part_write(p, p->info.header_bytes + t->relative + offset, data, bytes, e);
}

/* XXH3 of a run of bytes that has been written. */
static int hash_written(const struct out_part *p, uint64_t offset, uint64_t bytes, char *buffer,
	struct xxh3 *hash, uint64_t *value, struct err *e)
{
	xxh3_begin(hash);
	while (bytes) {
		ssize_t n = pread(p->fd, buffer, MIN(bytes, (uint64_t)READ_BACK_BYTES), (off_t)offset);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return err_errno(e, n ? errno : ENODATA,
				"%s: what was written at offset %" PRIu64 " cannot be read back", p->partial,
				offset);
		xxh3_add(hash, buffer, (size_t)n);
		offset += (uint64_t)n, bytes -= (uint64_t)n;
	}
	*value = xxh3_value(hash);
	return 0;
}

/* The check values of a tensor with data of its own. */
static int hash_tensor(
	const struct gguf_writer *w, const struct out_tensor *t, uint64_t *values, struct err *e)
{
	const struct out_part *p = &w->parts[t->part];
	const uint64_t n = check_ranges(t->name, t->n_dims, t->ne), bytes = t->bytes / n;
	char *buffer = mem_try_new(READ_BACK_BYTES, 1);
	struct xxh3 *hash = xxh3_new();
	int code =
		buffer && hash ? 0 : err_set(e, ERR_MEMORY, "%s: no memory to read it back", p->partial);
	for (uint64_t i = 0; i < n && !code; i++)
		code = hash_written(
			p, p->info.header_bytes + t->relative + i * bytes, bytes, buffer, hash, &values[i], e);
	free(buffer);
	xxh3_free(hash);
	return code;
}

int gguf_writer_seal(struct gguf_writer *w, size_t id, struct err *e)
{
	const struct out_tensor *t = &w->tensors[id];
	if (!w->has_check_values)
		return 0;
	struct out_part *first = &w->parts[0];
	const uint64_t n = check_ranges(t->name, t->n_dims, t->ne),
				   at = w->check_values_at + 8 * t->first_range;
	uint64_t *values = mem_try_new(n, sizeof *values);
	if (!values)
		return err_set(e, ERR_MEMORY, "%s: no memory for its check values", t->name);
	int code = 0;
	if (t->shares)
		memcpy(values,
			first->header.data + w->check_values_at + 8 * w->tensors[t->shares - 1].first_range,
			8 * n);
	else
		code = hash_tensor(w, t, values, e);
	if (!code)
		code = part_write(first, at, values, 8 * n, e);
	if (!code)
		memcpy(first->header.data + at, values, 8 * n);
	free(values);
	return code;
}

uint64_t gguf_writer_ranges(const struct gguf_writer *w, size_t id)
{
	return check_ranges(w->tensors[id].name, w->tensors[id].n_dims, w->tensors[id].ne);
}

int gguf_writer_set_check_value(
	struct gguf_writer *w, size_t id, uint64_t range, uint64_t value, struct err *e)
{
	struct out_part *first = &w->parts[0];
	const uint64_t at = w->check_values_at + 8 * (w->tensors[id].first_range + range);
	if (!w->has_check_values)
		return 0;
	memcpy(first->header.data + at, &value, sizeof value);
	return part_write(first, at, &value, sizeof value, e);
}

int gguf_writer_sync(struct gguf_writer *w, struct err *e)
{
	for (size_t i = 0; i < w->n_parts; i++)
		if (TEMP_FAILURE_RETRY(fdatasync(w->parts[i].fd)) < 0)
			return err_errno(e, errno, "%s: cannot flush to disk", w->parts[i].partial);
	return 0;
}

/* Flushes the folder of `path`, after the rename. A failure is only warned of: the file is
 * complete, but a power cut may take its name back. File systems that cannot flush folders say
 * EINVAL or EROFS. */
static void sync_directory(const char *path)
{
	const char *slash = strrchr(path, '/');
	char *dir =
		slash ? mem_strndup(path, slash == path ? 1 : (size_t)(slash - path)) : mem_strdup(".");
	int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd >= 0 && TEMP_FAILURE_RETRY(fsync(fd)) < 0 && errno != EINVAL && errno != EROFS)
		log_warn("%s: cannot be flushed to disk (%m); %s is complete", dir, path);
	if (fd >= 0)
		close(fd);
	free(dir);
}

int gguf_writer_commit(struct gguf_writer *w, struct err *e)
{
	for (size_t i = 0; i < w->n_parts; i++)
		if (TEMP_FAILURE_RETRY(fsync(w->parts[i].fd)) < 0)
			return err_errno(e, errno, "%s: cannot flush to disk", w->parts[i].partial);
	for (size_t i = 0; i < w->n_parts; i++) { /* again: a file may be there since check_output */
		int rc = out_file_may_replace(w->parts[i].path, &out_data, w->force, e);
		if (rc)
			return rc;
	}
	for (size_t i = w->n_parts; i-- > 0;) { /* the first part last */
		struct out_part *p = &w->parts[i];
		out_file_keep_mode(p->fd, p->path);
		if (rename(p->partial, p->path) < 0)
			return err_errno(e, errno, "%s: cannot be renamed to %s", p->partial, p->path);
		p->renamed = true;
	}
	sync_directory(w->parts[0].path);
	return 0;
}

void gguf_writer_discard(struct gguf_writer *w)
{
	for (size_t i = 0; i < w->n_parts; i++)
		if (w->parts[i].partial && w->parts[i].fd >= 0 && !w->parts[i].renamed)
			unlink(w->parts[i].partial);
}
