/* SPDX-License-Identifier: MIT */
/* Lookup of keys and tensors by name, and typed access to values. The parser has checked all bytes
 * before. */
#include "src/format/gguf_read.h"

#include "src/base/num.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const char *const type_names[GGUF_TYPE_LIMIT] = {
	"u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "string", "array", "u64", "i64", "f64"};

const char *gguf_type_name(uint32_t type)
{
	static _Thread_local char text[24];
	if (type < GGUF_TYPE_LIMIT)
		return type_names[type];
	snprintf(text, sizeof text, "type %u", type);
	return text;
}

const struct gguf_kv *gguf_find(const struct gguf *g, const char *key)
{
	size_t lo = 0, hi = g->n_kvs;
	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;
		const struct gguf_kv *kv = &g->kvs[g->index->kv_order[mid]];
		int order = strcmp(key, kv->key);
		if (!order)
			return kv;
		if (order < 0)
			hi = mid;
		else
			lo = mid + 1;
	}
	return NULL;
}

const struct gguf_tensor *gguf_find_tensor(const struct gguf *g, const char *name)
{
	size_t lo = 0, hi = g->n_tensors;
	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;
		const struct gguf_tensor *t = &g->tensors[g->index->tensor_order[mid]];
		int order = strcmp(name, t->name);
		if (!order)
			return t;
		if (order < 0)
			hi = mid;
		else
			lo = mid + 1;
	}
	return NULL;
}

const struct gguf_tensor *gguf_need_tensor(const struct gguf *g, const char *name, struct err *e)
{
	const struct gguf_tensor *t = gguf_find_tensor(g, name);
	if (!t)
		err_set(e, ERR_INPUT, "%s: tensor %s is missing", gguf_path(g), name);
	return t;
}

const char *const gguf_expert_part_names[GGUF_EXPERT_PARTS] = {"gate", "up", "down"};

bool gguf_expert_name(const char *name, uint32_t *layer, enum gguf_expert_part *part)
{
	char rest[8];
	int used = 0;
	unsigned n;
	if (strncmp(name, "blk.", 4) || name[4] < '0' || name[4] > '9' ||
		sscanf(name, "blk.%9u.ffn_%7[a-z]_exps.weight%n", &n, rest, &used) != 2 || !used ||
		name[used])
		return false;
	for (unsigned p = 0; p < GGUF_EXPERT_PARTS; p++) {
		if (!strcmp(rest, gguf_expert_part_names[p])) {
			*layer = n;
			*part = (enum gguf_expert_part)p;
			return true;
		}
	}
	return false;
}

char *gguf_shape_text(const struct gguf_tensor *t, char *out)
{
	int n = 0;
	for (uint32_t d = 0; d < t->n_dims; d++)
		n += snprintf(out + n, GGUF_SHAPE_MAX - (size_t)n, "%s%" PRIu64, d ? ", " : "{", t->ne[d]);
	snprintf(out + n, GGUF_SHAPE_MAX - (size_t)n, "}");
	return out;
}

static bool is_int(enum gguf_type t)
{
	return t <= GGUF_I32 || t == GGUF_U64 || t == GGUF_I64;
}

static bool is_float(enum gguf_type t)
{
	return t == GGUF_F32 || t == GGUF_F64;
}

int64_t gguf_array_i64(const struct gguf_array *a, uint64_t i)
{
	const uint8_t *p = a->data;
	switch (a->type) {
	case GGUF_U8:
	case GGUF_BOOL:
		return p[i];
	case GGUF_I8:
		return (int8_t)p[i];
	case GGUF_U16:
		return load_u16(p + 2 * i);
	case GGUF_I16:
		return (int16_t)load_u16(p + 2 * i);
	case GGUF_U32:
		return load_u32(p + 4 * i);
	case GGUF_I32:
		return (int32_t)load_u32(p + 4 * i);
	case GGUF_U64: {
		uint64_t v = load_u64(p + 8 * i);
		return v > INT64_MAX ? INT64_MAX : (int64_t)v;
	}
	case GGUF_I64:
		return (int64_t)load_u64(p + 8 * i);
	case GGUF_F32:
	case GGUF_F64: {
		double v = gguf_array_f64(a, i);
		if (!(v > -9.2e18)) /* also NaN */
			return INT64_MIN;
		return v < 9.2e18 ? (int64_t)v : INT64_MAX;
	}
	default:
		return 0;
	}
}

double gguf_array_f64(const struct gguf_array *a, uint64_t i)
{
	if (a->type == GGUF_F32)
		return load_f32(a->data + 4 * i);
	if (a->type == GGUF_F64) {
		double v;
		memcpy(&v, a->data + 8 * i, sizeof v);
		return v;
	}
	if (a->type == GGUF_U64)
		return (double)load_u64(a->data + 8 * i);
	return (double)gguf_array_i64(a, i);
}

static const struct gguf_kv *need_key(const struct gguf *g, const char *key, struct err *e)
{
	const struct gguf_kv *kv = gguf_find(g, key);
	if (!kv)
		err_set(e, ERR_INPUT, "%s: key %s is missing", gguf_path(g), key);
	return kv;
}

static int key_type_error(
	const struct gguf *g, const struct gguf_kv *kv, const char *expected, struct err *e)
{
	if (kv->type == GGUF_ARRAY)
		return err_set(e, ERR_INPUT, "%s: key %s is an array of %s, %s expected", gguf_path(g),
			kv->key, gguf_type_name(kv->value.type), expected);
	return err_set(e, ERR_INPUT, "%s: key %s has type %s, %s expected", gguf_path(g), kv->key,
		gguf_type_name(kv->type), expected);
}

static int get_key_uint(
	const struct gguf *g, const char *key, uint64_t max, uint64_t *out, struct err *e)
{
	const struct gguf_kv *kv = need_key(g, key, e);
	if (!kv)
		return ERR_INPUT;
	if (!is_int(kv->type))
		return key_type_error(g, kv, "a whole number", e);
	if (kv->type == GGUF_U64) {
		uint64_t v = load_u64(kv->value.data);
		if (v > max)
			return err_set(e, ERR_INPUT, "%s: key %s is %" PRIu64 ", at most %" PRIu64 " expected",
				gguf_path(g), key, v, max);
		*out = v;
		return 0;
	}
	int64_t v = gguf_array_i64(&kv->value, 0);
	if (v < 0 || (uint64_t)v > max)
		return err_set(e, ERR_INPUT, "%s: key %s is %" PRId64 ", 0 to %" PRIu64 " expected",
			gguf_path(g), key, v, max);
	*out = (uint64_t)v;
	return 0;
}

int gguf_get_u32(const struct gguf *g, const char *key, uint32_t *out, struct err *e)
{
	uint64_t v;
	int code = get_key_uint(g, key, UINT32_MAX, &v, e);
	if (!code)
		*out = (uint32_t)v;
	return code;
}

int gguf_get_u64(const struct gguf *g, const char *key, uint64_t *out, struct err *e)
{
	return get_key_uint(g, key, UINT64_MAX, out, e);
}

int gguf_get_f32(const struct gguf *g, const char *key, float *out, struct err *e)
{
	const struct gguf_kv *kv = need_key(g, key, e);
	if (!kv)
		return ERR_INPUT;
	if (!is_float(kv->type))
		return key_type_error(g, kv, "a float", e);
	double v = gguf_array_f64(&kv->value, 0);
	if (v > 3.4028234663852886e38 || v < -3.4028234663852886e38 || v != v)
		return err_set(
			e, ERR_INPUT, "%s: key %s is %g, a finite float expected", gguf_path(g), key, v);
	*out = (float)v;
	return 0;
}

int gguf_get_bool(const struct gguf *g, const char *key, bool *out, struct err *e)
{
	const struct gguf_kv *kv = need_key(g, key, e);
	if (!kv)
		return ERR_INPUT;
	if (kv->type != GGUF_BOOL)
		return key_type_error(g, kv, "a bool", e);
	*out = kv->value.data[0];
	return 0;
}

int gguf_get_str(const struct gguf *g, const char *key, struct gguf_str *out, struct err *e)
{
	const struct gguf_kv *kv = need_key(g, key, e);
	if (!kv)
		return ERR_INPUT;
	if (kv->type != GGUF_STRING)
		return key_type_error(g, kv, "a string", e);
	*out = kv->value.strings[0];
	return 0;
}

#define GETTER_OR(suffix, ctype)                                                                   \
	int gguf_get_##suffix##_or(                                                                    \
		const struct gguf *g, const char *key, ctype fallback, ctype *out, struct err *e)          \
	{                                                                                              \
		if (gguf_find(g, key))                                                                     \
			return gguf_get_##suffix(g, key, out, e);                                              \
		*out = fallback;                                                                           \
		return 0;                                                                                  \
	}
GETTER_OR(u32, uint32_t)
GETTER_OR(f32, float)
GETTER_OR(bool, bool)

static int get_key_array(const struct gguf *g, const char *key, const char *expected,
	bool (*fits)(enum gguf_type), struct gguf_array *out, struct err *e)
{
	const struct gguf_kv *kv = need_key(g, key, e);
	if (!kv)
		return ERR_INPUT;
	if (kv->type != GGUF_ARRAY || !fits(kv->value.type))
		return key_type_error(g, kv, expected, e);
	*out = kv->value;
	return 0;
}

static bool is_int_or_bool(enum gguf_type t)
{
	return is_int(t) || t == GGUF_BOOL;
}

static bool is_string(enum gguf_type t)
{
	return t == GGUF_STRING;
}

int gguf_get_ints(const struct gguf *g, const char *key, struct gguf_array *out, struct err *e)
{
	return get_key_array(g, key, "an array of whole numbers or bools", is_int_or_bool, out, e);
}

int gguf_get_strs(const struct gguf *g, const char *key, struct gguf_array *out, struct err *e)
{
	return get_key_array(g, key, "an array of strings", is_string, out, e);
}
