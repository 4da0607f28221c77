/* SPDX-License-Identifier: MIT */
/*
 * Reads traces into memory: our own files and GLTR1. Whatever is wrong with the bytes becomes one
 * sentence; only an end that comes too early is a note. A record enters the trace after all of it
 * was checked, and the END record must agree with what was read.
 */
#include "cache/trace/trace_file.h"
#include "cache/trace/trace_frame.h"

#include "src/base/mem.h"
#include "src/base/num.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_EVENTS  ((size_t)1 << 26) /* about 400,000 tokens of GLM-5.2; loaded, that is 3 GB */
#define MAX_IDS     ((size_t)1 << 29)
#define GLTR1_MAGIC "GLTR1\0\0" /* with the final zero 8 bytes */

struct trace_reader {
	struct trace *t;
	const char *name;
	uint32_t *seen; /* [n_experts] number of the record that last named the expert */
	uint32_t stamp;
	bool in_step, ended;
	uint64_t n_records;
	struct err *e;
};

/* Doubles *cap until n fits; false when that is too much or memory is exhausted. */
static bool array_grow(void **p, size_t *cap, size_t n, size_t limit, size_t size)
{
	if (n <= *cap)
		return true;
	size_t larger = *cap ? *cap : 1024;
	while (larger < n)
		larger *= 2;
	if (n > limit)
		return false;
	void *q = realloc(*p, larger * size);
	if (!q)
		return false;
	*p = q;
	*cap = larger;
	return true;
}

static int err_too_long(const struct trace_reader *r)
{
	return err_set(r->e, ERR_MEMORY,
		"%.400s: the trace is too long to be loaded (%zu records so far)", r->name, r->t->n_events);
}

static int add_event(struct trace_reader *r, const struct trace_event *ev)
{
	struct trace *t = r->t;
	if (!array_grow(
			(void **)&t->events, &t->cap_events, t->n_events + 1, MAX_EVENTS, sizeof *t->events))
		return err_too_long(r);
	t->events[t->n_events++] = *ev;
	return 0;
}

/* Ids of an ACCESS or PREDICTION; tiers NULL: unknown. */
static int add_ids(
	struct trace_reader *r, struct trace_event *ev, const uint16_t *ids, const uint8_t *tiers)
{
	struct trace *t = r->t;
	size_t cap = t->cap_ids, need = t->n_ids + ev->n;
	if (!array_grow((void **)&t->ids, &cap, need, MAX_IDS, sizeof *t->ids))
		return err_too_long(r);
	if (!array_grow((void **)&t->tiers, &t->cap_ids, need, MAX_IDS, sizeof *t->tiers))
		return err_too_long(r);
	if (!++r->stamp) {
		memset(r->seen, 0, t->model.n_experts * sizeof *r->seen);
		r->stamp = 1;
	}
	for (uint32_t i = 0; i < ev->n; i++) {
		if (ids[i] >= t->model.n_experts)
			return err_set(r->e, ERR_INPUT, "%.400s: record %llu names expert %u, the model has %u",
				r->name, (unsigned long long)r->n_records, ids[i], t->model.n_experts);
		if (r->seen[ids[i]] == r->stamp)
			return err_set(r->e, ERR_INPUT, "%.400s: record %llu names expert %u twice", r->name,
				(unsigned long long)r->n_records, ids[i]);
		if (tiers && tiers[i] >= TRACE_N_TIERS)
			return err_set(r->e, ERR_INPUT, "%.400s: record %llu has tier %u (expected 0 to %d)",
				r->name, (unsigned long long)r->n_records, tiers[i], TRACE_N_TIERS - 1);
		r->seen[ids[i]] = r->stamp;
		t->ids[t->n_ids + i] = ids[i];
		t->tiers[t->n_ids + i] = tiers ? tiers[i] : TRACE_UNKNOWN;
	}
	ev->value = t->n_ids;
	t->n_ids += ev->n;
	return add_event(r, ev);
}

static int reader_start(struct trace_reader *r)
{
	r->seen = mem_try_new(r->t->model.n_experts, sizeof *r->seen);
	return r->seen ? 0 : err_set(r->e, ERR_MEMORY, "%.400s: no memory to read the trace", r->name);
}

/* ---- our own files ---- */

static int parse_header(struct trace_reader *r, const uint8_t *p, size_t n)
{
	struct trace *t = r->t;
	if (n < 24)
		return err_set(r->e, ERR_INPUT,
			"%.400s: the trace header has %zu bytes (expected at least 24)", r->name, n);
	struct trace_model *m = &t->model;
	m->fingerprint = load_u64(p);
	m->n_layers = load_u32(p + 8);
	m->n_experts = load_u32(p + 12);
	m->top_k = load_u32(p + 16);
	uint32_t name = load_u32(p + 20);
	if (!m->n_layers || m->n_layers > TRACE_MAX_LAYERS || !m->n_experts ||
		m->n_experts > TRACE_MAX_EXPERTS || !m->top_k || m->top_k > m->n_experts || name > 255)
		return err_set(r->e, ERR_INPUT,
			"%.400s: the trace header speaks of %u layers, %u experts, top %u", r->name,
			m->n_layers, m->n_experts, m->top_k);
	if (n != 24 + name + 8 * (size_t)m->n_layers)
		return err_set(r->e, ERR_INPUT,
			"%.400s: the trace header has %zu bytes (expected %zu for %u layers)", r->name, n,
			24 + name + 8 * (size_t)m->n_layers, m->n_layers);
	memcpy(t->name, p + 24, name);
	t->name[name] = 0;
	err_plain(t->name); /* it will be printed */
	m->name = t->name;
	t->expert_bytes = mem_new(m->n_layers, sizeof *t->expert_bytes);
	m->expert_bytes = t->expert_bytes;
	t->bytes_known = true;
	uint64_t any = 0;
	for (uint32_t l = 0; l < m->n_layers; l++) {
		t->expert_bytes[l] = load_u64(p + 24 + name + 8 * l);
		if (t->expert_bytes[l] > (uint64_t)1 << 44)
			return err_set(r->e, ERR_INPUT, "%.400s: an expert of layer %u has %llu bytes", r->name,
				l, (unsigned long long)t->expert_bytes[l]);
		any |= t->expert_bytes[l];
	}
	if (!any)
		return err_set(r->e, ERR_INPUT, "%.400s: no layer of the trace has experts", r->name);
	return reader_start(r);
}

/* Bytes of the record at p, 0: none that this version knows. */
static uint64_t record_bytes(const uint8_t *p)
{
	uint64_t n = load_u32(p + 4);
	switch (p[0]) {
	case TRACE_STEP:
		return 8;
	case TRACE_ACCESS:
		return 8 + 3 * n;
	case TRACE_PREDICTION:
		return 8 + 2 * n;
	case TRACE_WAIT:
	case TRACE_END:
		return 16;
	}
	return 0;
}

static int bad_record(const struct trace_reader *r, const char *what)
{
	return err_set(r->e, ERR_INPUT, "%.400s: record %llu of the trace: %s", r->name,
		(unsigned long long)r->n_records, what);
}

static int parse_ids(struct trace_reader *r, const uint8_t *p, struct trace_event *ev)
{
	struct trace *t = r->t;
	if (!ev->n || ev->n > t->model.n_experts)
		return bad_record(r, "impossible number of experts");
	if (ev->layer >= t->model.n_layers || !t->expert_bytes[ev->layer])
		return bad_record(r, "its layer has no experts");
	/* Records start at even offsets only by chance: copy the ids out before they are looked at. */
	uint16_t small[512], *ids = ev->n <= ARRAY_LEN(small) ? small : NEW_ARRAY(uint16_t, ev->n);
	memcpy(ids, p + 8, ev->n * sizeof *ids);
	int code = add_ids(r, ev, ids, ev->kind == TRACE_ACCESS ? p + 8 + 2 * (size_t)ev->n : NULL);
	if (ids != small)
		free(ids);
	return code;
}

static int parse_record(struct trace_reader *r, const uint8_t *p)
{
	struct trace *t = r->t;
	struct trace_event ev = {.kind = p[0], .layer = load_u16(p + 2), .n = load_u32(p + 4)};
	if (r->ended)
		return bad_record(r, "something follows the end record");
	switch (p[0]) {
	case TRACE_STEP:
		if (p[1] != CACHE_DECODE && p[1] != CACHE_PREFILL)
			return bad_record(r, "neither a decode nor a prefill step");
		if (!ev.layer)
			return bad_record(r, "a step without rows");
		ev = (struct trace_event){
			.kind = p[0], .use = p[1], .n = ev.layer, .value = load_u32(p + 4)};
		t->n_steps++;
		if (ev.use == CACHE_DECODE)
			t->n_tokens += ev.n;
		r->in_step = true;
		return add_event(r, &ev);
	case TRACE_ACCESS:
		if (!r->in_step)
			return bad_record(r, "an access before the first step");
		if (p[1] != CACHE_DECODE && p[1] != CACHE_PREFILL)
			return bad_record(r, "an access for neither decode nor prefill");
		ev.use = p[1];
		if (ev.use == CACHE_DECODE)
			t->n_accesses += ev.n;
		return parse_ids(r, p, &ev);
	case TRACE_PREDICTION:
		if (!p[1])
			return bad_record(r, "a prediction for the layer that is running");
		ev.distance = p[1];
		t->max_distance = MAX(t->max_distance, ev.distance);
		return parse_ids(r, p, &ev);
	case TRACE_WAIT:
		if (ev.layer >= t->model.n_layers)
			return bad_record(r, "a wait of a layer that does not exist");
		ev.n = 0;
		ev.value = load_u64(p + 8);
		return add_event(r, &ev);
	default: /* TRACE_END */
		if (load_u64(p + 8) != r->n_records)
			return bad_record(r, "the end record counts another number of records");
		r->ended = true;
		return 0;
	}
}

static int parse_records(struct trace_reader *r, const uint8_t *p, size_t n)
{
	while (n) {
		uint64_t bytes = n < 8 ? 0 : record_bytes(p);
		if (!bytes)
			return bad_record(r, "unknown kind");
		if (bytes > n)
			return bad_record(r, "longer than the frame that holds it");
		int code = parse_record(r, p);
		if (code)
			return code;
		r->n_records++;
		p += bytes;
		n -= (size_t)bytes;
	}
	return 0;
}

static int parse_own(struct trace_reader *r, const uint8_t *data, size_t bytes)
{
	struct trace *t = r->t;
	if (bytes < 16)
		return err_set(
			r->e, ERR_INPUT, "%.400s: the trace ends inside its first 16 bytes", r->name);
	uint32_t version = load_u32(data + 8);
	if (version != TRACE_VERSION || load_u32(data + 12))
		return err_set(r->e, ERR_INPUT,
			"%.400s: trace version %u.%u (this program reads version %d.0)", r->name, version,
			load_u32(data + 12), TRACE_VERSION);
	struct trace_unpacker *u = trace_unpacker_new();
	size_t at = 16, n_frames = 0;
	int code = 0;
	for (; !code && at < bytes; n_frames++) {
		const uint8_t *raw;
		const char *why;
		size_t used, n;
		enum trace_frame f = trace_unpack(u, data + at, bytes - at, &used, &raw, &n, &why);
		if (f == TRACE_FRAME_CUT)
			break;
		if (f == TRACE_FRAME_BAD)
			code = err_set(
				r->e, ERR_INPUT, "%.400s: the trace is damaged at byte %zu: %s", r->name, at, why);
		else
			code = n_frames ? parse_records(r, raw, n) : parse_header(r, raw, n);
		at += used;
	}
	trace_unpacker_free(u);
	if (code)
		return code;
	if (!n_frames)
		return err_set(r->e, ERR_INPUT, "%.400s: the trace ends inside its header", r->name);
	if (r->ended && at < bytes)
		return err_set(
			r->e, ERR_INPUT, "%.400s: %zu bytes follow the end of the trace", r->name, bytes - at);
	if (!r->ended) {
		t->ends_early = true;
		snprintf(t->note, sizeof t->note,
			"the trace ends early: %llu steps in whole frames, %zu bytes after them are lost",
			(unsigned long long)t->n_steps, bytes - at);
	}
	return 0;
}

/* ---- GLTR1 ---- */

static int gltr1_token(
	struct trace_reader *r, const uint8_t *p, uint32_t token, uint32_t layers, uint32_t first)
{
	struct trace *t = r->t;
	uint32_t k = t->model.top_k;
	uint16_t ids[256];
	struct trace_event step = {.kind = TRACE_STEP, .use = CACHE_DECODE, .n = 1, .value = token};
	t->n_steps++;
	t->n_tokens++;
	int code = add_event(r, &step);
	/* The prediction for a layer is made one layer earlier: it stands before the access of its own
	 * layer and after that of the layer before. */
	for (uint32_t l = 0; l < layers && !code; l++, p += 2 * (size_t)k) {
		struct trace_event prediction = {
			.kind = TRACE_PREDICTION, .distance = 1, .layer = (uint16_t)(first + l), .n = k};
		struct trace_event access = {
			.kind = TRACE_ACCESS, .use = CACHE_DECODE, .layer = (uint16_t)(first + l), .n = k};
		for (uint32_t i = 0; i < k; i++)
			ids[i] = p[k + i];
		code = add_ids(r, &prediction, ids, NULL);
		for (uint32_t i = 0; i < k; i++)
			ids[i] = p[i];
		if (!code)
			code = add_ids(r, &access, ids, NULL);
		t->n_accesses += k;
		r->n_records++;
	}
	return code;
}

static int parse_gltr1(struct trace_reader *r, const uint8_t *data, size_t bytes)
{
	struct trace *t = r->t;
	if (bytes < 24)
		return err_set(
			r->e, ERR_INPUT, "%.400s: the trace ends inside its first 24 bytes", r->name);
	uint32_t tokens = load_u32(data + 8), layers = load_u32(data + 12), k = load_u32(data + 16);
	uint32_t experts = load_u32(data + 20);
	uint32_t first = layers == 75 ? 3 : 0; /* GLM-5.2: the MoE layers are 3..77 */
	if (!tokens || !layers || layers > TRACE_MAX_LAYERS - 3 || !k || k > experts || experts > 256)
		return err_set(r->e, ERR_INPUT,
			"%.400s: the trace speaks of %u tokens, %u layers, top %u of %u experts", r->name,
			tokens, layers, k, experts);
	t->synthetic = true;
	t->max_distance = 1;
	t->model = (struct trace_model){.n_layers = first + layers, .n_experts = experts, .top_k = k};
	snprintf(t->name, sizeof t->name, "synthetic (GLTR1)");
	t->expert_bytes = mem_new(first + layers, sizeof *t->expert_bytes);
	for (uint32_t l = first; l < first + layers; l++)
		t->expert_bytes[l] = 1;
	t->model.name = t->name;
	t->model.expert_bytes = t->expert_bytes;
	int code = reader_start(r);
	uint64_t per_token = 2ull * layers * k, have = (bytes - 24) / per_token;
	uint64_t expected = 24 + per_token * tokens;
	if ((bytes - 24) % per_token || have != tokens) {
		if (have >= tokens)
			return err_set(r->e, ERR_INPUT, "%.400s: %zu bytes (expected %llu for %u tokens)",
				r->name, bytes, (unsigned long long)expected, tokens);
		t->ends_early = true;
		snprintf(t->note, sizeof t->note, "the trace ends early: %llu of %u tokens are there",
			(unsigned long long)have, tokens);
	}
	for (uint32_t i = 0; i < MIN(have, (uint64_t)tokens) && !code; i++)
		code = gltr1_token(r, data + 24 + i * per_token, i, layers, first);
	return code;
}

/* ---- entry points ---- */

static bool looks_like_trace(const void *data, size_t bytes)
{
	return bytes >= 8 && (!memcmp(data, TRACE_MAGIC, 8) || !memcmp(data, GLTR1_MAGIC, 8));
}

int trace_parse(const void *data, size_t bytes, const char *name, struct trace *t, struct err *e)
{
	struct trace_reader r = {.t = t, .name = name, .e = e};
	const uint8_t *p = data;
	int code;
	if (!looks_like_trace(p, bytes))
		code = err_set(e, ERR_INPUT,
			"%.400s: not a trace (expected a file that begins with " TRACE_MAGIC " or GLTR1)",
			name);
	else if (!memcmp(p, TRACE_MAGIC, 8))
		code = parse_own(&r, p, bytes);
	else
		code = parse_gltr1(&r, p, bytes);
	free(r.seen);
	if (code)
		trace_fini(t);
	return code;
}

int trace_parse_unpacked(
	const uint8_t *data, size_t bytes, const char *name, struct trace *t, struct err *e)
{
	struct trace_reader r = {.t = t, .name = name, .e = e};
	size_t header = bytes < 4 ? 0 : MIN((size_t)load_u32(data), bytes - 4);
	int code = bytes < 4 ? err_set(e, ERR_INPUT, "%.400s: too short", name)
						 : parse_header(&r, data + 4, header);
	if (!code)
		code = parse_records(&r, data + 4 + header, bytes - 4 - header);
	if (!code && !r.ended) {
		t->ends_early = true;
		snprintf(t->note, sizeof t->note, "the trace ends early");
	}
	free(r.seen);
	if (code)
		trace_fini(t);
	return code;
}

int trace_open(const char *path, struct trace *t, struct err *e)
{
	FILE *f = fopen(path, "rbe");
	if (!f)
		return err_errno(e, errno, "%.400s: cannot open the trace", path);
	void *data = NULL;
	size_t len = 0, cap = 0;
	int code = 0;
	for (;;) {
		if (!array_grow(&data, &cap, len + 65536, (size_t)1 << 34, 1)) {
			code = err_set(e, ERR_MEMORY, "%.400s: the trace is too large to be loaded", path);
			break;
		}
		size_t got = fread((char *)data + len, 1, cap - len, f);
		bool first = len == 0;
		len += got;
		if (!got || (first && !looks_like_trace(data, len)))
			break; /* an endless device is refused by its first bytes */
	}
	if (!code && ferror(f))
		code = err_errno(e, errno, "%.400s: cannot read the trace", path);
	fclose(f);
	if (!code)
		code = trace_parse(data, len, path, t, e);
	free(data);
	return code;
}

void trace_fini(struct trace *t)
{
	free(t->expert_bytes);
	free(t->events);
	free(t->ids);
	free(t->tiers);
	*t = (struct trace){0};
}

int trace_check_model(
	const struct trace *t, const char *path, const struct trace_model *m, struct err *e)
{
	const struct trace_model *a = &t->model;
	if (a->n_layers != m->n_layers || a->n_experts != m->n_experts || a->top_k != m->top_k)
		return err_set(e, ERR_INPUT,
			"%.400s: recorded with another model: %u layers, top %u of %u experts (this one: %u, "
			"top %u of %u)",
			path, a->n_layers, a->top_k, a->n_experts, m->n_layers, m->top_k, m->n_experts);
	if (a->fingerprint && m->fingerprint && a->fingerprint != m->fingerprint)
		return err_set(e, ERR_INPUT,
			"%.400s: recorded with another model (fingerprint %016llx, this one has %016llx)", path,
			(unsigned long long)a->fingerprint, (unsigned long long)m->fingerprint);
	for (uint32_t l = 0; t->bytes_known && m->expert_bytes && l < m->n_layers; l++)
		if (a->expert_bytes[l] != m->expert_bytes[l])
			return err_set(e, ERR_INPUT,
				"%.400s: recorded with another model: an expert of layer %u had %llu bytes (this "
				"one: %llu)",
				path, l, (unsigned long long)a->expert_bytes[l],
				(unsigned long long)m->expert_bytes[l]);
	return 0;
}
