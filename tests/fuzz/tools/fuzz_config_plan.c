/* SPDX-License-Identifier: MIT */
/*
 * Keys and tensors of a model -> the plan of a run. The pocket model's header is written again with
 * changes, as a file in memory with a hole for the data, and planned for a machine that is only
 * described. Input: 16 bytes of machine and options, then changes of 6 bytes: what is changed,
 * which key or tensor, a number. Checked: a refusal has a sentence; of what is accepted the
 * configuration keeps what config.h promises, and the plan fits the machine it was made for.
 */
#include "src/base/log.h"
#include "src/base/num.h"
#include "src/engine/plan.h"
#include "src/format/gguf_write.h"
#include "src/model/config.h"
#include "tests/fuzz/fixture.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define OPTIONS_BYTES 16
#define CHANGE_BYTES  6
#define CHANGES_MAX   12
#define FILE_MAX      ((uint64_t)1 << 42) /* a hole of this size can be mapped */

enum change_kind { KEY_U32, KEY_F32, KEY_BOOL, KEY_DROP, TENSOR_TYPE, TENSOR_SHAPE, TENSOR_DROP };

struct change {
	enum change_kind kind;
	size_t index;
	uint32_t number;
};

struct changes {
	struct change list[CHANGES_MAX];
	size_t n;
};

static const struct change *find_change(
	const struct changes *c, bool of_key, size_t index, size_t n)
{
	for (size_t i = 0; i < c->n; i++)
		if ((c->list[i].kind <= KEY_DROP) == of_key && c->list[i].index % n == index)
			return &c->list[i];
	return NULL;
}

/* Keys of vocabulary and merges play no part in a plan. */
static bool is_model_key(const struct gguf_kv *kv)
{
	return !strncmp(kv->key, "glm-dsa.", 8) || !strcmp(kv->key, "general.architecture");
}

static void copy_key(struct gguf_writer *w, const struct gguf_kv *kv)
{
	bool bools[CONFIG_MAX_LAYERS];
	switch (kv->type) {
	case GGUF_STRING:
		gguf_writer_set_bytes(w, kv->key, kv->value.strings[0].ptr, kv->value.strings[0].len);
		break;
	case GGUF_F32:
		gguf_writer_set_f32(w, kv->key, (float)gguf_array_f64(&kv->value, 0));
		break;
	case GGUF_BOOL:
		gguf_writer_set_bool(w, kv->key, gguf_array_i64(&kv->value, 0));
		break;
	case GGUF_ARRAY:
		for (size_t i = 0; i < MIN(kv->value.n, ARRAY_LEN(bools)); i++)
			bools[i] = gguf_array_i64(&kv->value, i);
		gguf_writer_set_bools(w, kv->key, bools, MIN(kv->value.n, ARRAY_LEN(bools)));
		break;
	default:
		gguf_writer_set_u32(w, kv->key, (uint32_t)gguf_array_i64(&kv->value, 0));
	}
}

static void write_keys(struct gguf_writer *w, const struct gguf *pocket, const struct changes *c)
{
	size_t n = 0, index = 0;
	for (size_t i = 0; i < pocket->n_kvs; i++)
		n += is_model_key(&pocket->kvs[i]);
	for (size_t i = 0; i < pocket->n_kvs; i++) {
		const struct gguf_kv *kv = &pocket->kvs[i];
		if (!is_model_key(kv))
			continue;
		const struct change *x = find_change(c, true, index++, n);
		float f;
		if (!x) {
			copy_key(w, kv);
		} else if (x->kind == KEY_U32) {
			gguf_writer_set_u32(w, kv->key, x->number);
		} else if (x->kind == KEY_F32) {
			memcpy(&f, &x->number, 4);
			gguf_writer_set_f32(w, kv->key, f);
		} else if (x->kind == KEY_BOOL) {
			gguf_writer_set_bool(w, kv->key, x->number & 1);
		}
	}
}

static int write_tensors(
	struct gguf_writer *w, const struct gguf *pocket, const struct changes *c, struct err *e)
{
	for (size_t i = 0; i < pocket->n_tensors; i++) {
		const struct gguf_tensor *t = &pocket->tensors[i];
		const struct change *x = find_change(c, false, i, pocket->n_tensors);
		enum dtype type = t->type;
		uint64_t ne[4];
		memcpy(ne, t->ne, sizeof ne);
		if (x && x->kind == TENSOR_DROP)
			continue;
		if (x && x->kind == TENSOR_TYPE)
			type = (enum dtype)(x->number % DTYPE_LIMIT);
		if (x && x->kind == TENSOR_SHAPE)
			ne[(x->number >> 24) % t->n_dims] = x->number & 0xffffff;
		int rc = gguf_writer_add_tensor(w, t->name, type, t->n_dims, ne, NULL, e);
		if (rc)
			return rc;
	}
	return gguf_writer_plan(w, e);
}

/* The header in memory; -1: too large to be mapped, or refused with a sentence. */
static int make_file(const struct changes *c, struct err *e)
{
	const struct gguf *pocket = fixture_pocket();
	struct gguf_writer *w = gguf_writer_new(NULL);
	int fd = -1;
	write_keys(w, pocket, c);
	if (write_tensors(w, pocket, c, e)) {
		if (!e->text[0])
			bug("the writer refuses without a sentence");
	} else if (gguf_writer_part(w, 0).file_bytes < FILE_MAX) {
		size_t n;
		const void *header = gguf_writer_header(w, 0, &n);
		fd = memfd_create("fuzz", MFD_CLOEXEC);
		if (fd < 0 || ftruncate(fd, (off_t)gguf_writer_part(w, 0).file_bytes) ||
			pwrite(fd, header, n, 0) != (ssize_t)n)
			bug("no file in memory");
	}
	gguf_writer_free(w);
	return fd;
}

static void check_config(const struct model_config *c)
{
	if (!c->n_layers || c->n_layers + c->n_mtp > CONFIG_MAX_LAYERS || c->n_mtp > 1 || !c->n_embd ||
		!c->n_vocab || !c->n_context || c->n_used > c->n_experts || !c->n_used ||
		c->n_dense > c->n_layers || c->head_rope % 2 || !c->head_nope || !c->index_full[0] ||
		c->index_dim < c->head_rope || !(c->rms_eps > 0) || !(c->rope_base > 0) ||
		!(c->latent_eps > 0) || !(c->weights_scale > 0) || !c->n_group ||
		c->n_experts % c->n_group || c->n_experts / c->n_group * c->n_group_used < c->n_used)
		bug("a configuration that breaks config.h was accepted");
}

static void check_plan(const struct plan *p, const struct model_config *c,
	const struct engine_options *o, const struct plan_machine *m)
{
	const struct loader_plan *t = &p->tiers;
	uint64_t taken = p->resident + p->kv + p->workspace + p->experts + t->tier_bytes[0] +
					 t->device_staging_bytes;
	if (!p->context || p->context > c->n_context || (o->context && p->context != o->context))
		bug("a context of %u was planned, %u asked for, %u possible", p->context, o->context,
			c->n_context);
	if (!p->chunk || p->chunk > p->context || p->sessions != MAX(o->sessions, 1u))
		bug("chunk %u, context %u, sessions %u", p->chunk, p->context, p->sessions);
	if (m->card_bytes && taken > m->card_bytes)
		bug("%llu bytes are planned on a card of %zu", (unsigned long long)taken, m->card_bytes);
	if (m->host_bytes && t->tier_bytes[1] + t->host_staging_bytes + p->kv_host > m->host_bytes)
		bug("%llu and %zu bytes are pinned on a host of %zu", (unsigned long long)t->tier_bytes[1],
			p->kv_host, m->host_bytes);
	if (p->kv_host && (!p->kv_shape.latents_on_host || o->kv_ram == ENGINE_KV_RAM_OFF))
		bug("latents in host memory that nobody asked for");
	if (p->streaming && (t->tier_bytes[0] < t->floor_bytes || p->experts))
		bug("a first tier below the smallest that works");
	if (p->streaming &&
		(t->n_fit[0] < 0 || t->n_fit[0] > t->n_experts || t->n_fit[1] < 0 || t->n_experts < 0))
		bug("%d and %d of %d experts fit", t->n_fit[0], t->n_fit[1], t->n_experts);
}

static void plan_file(const char *path, const uint8_t *d)
{
	struct gguf *file = NULL;
	struct model_config c;
	struct model_weights w = {0};
	struct plan p;
	struct err e = {0};
	size_t resident = 0;
	const struct plan_machine m = {.card_bytes = (size_t)load_u32(d) << (d[14] % 12),
		.host_bytes = (size_t)load_u32(d + 4) << (d[14] / 16),
		.part = d[12] >> 7};
	const struct engine_options o = {.context = d[12] & 1 ? load_u16(d + 8) : 0,
		.sessions = d[12] >> 1 & 7,
		.chunk = d[12] & 16 ? load_u16(d + 10) : 0,
		.kv_f32 = d[12] & 32,
		.no_mtp = d[12] & 64,
		.kv_ram = d[13] >> 6 == 3 ? ENGINE_KV_RAM_AUTO : (enum engine_kv_ram)(d[13] >> 6),
		.cache_bytes = d[13] & 1   ? ENGINE_CACHE_AUTO
					   : d[13] & 2 ? (uint64_t)d[15] << 17
								   : 0,
		.ram_bytes = d[13] & 4   ? ENGINE_CACHE_AUTO
					 : d[13] & 8 ? (uint64_t)d[15] << 15
								 : 0,
		.lookahead = d[13] >> 4 & 3};
	int rc = gguf_open(path, &file, &e);
	if (!rc && !(rc = config_read(file, &c, &e))) {
		check_config(&c);
		rc = weights_bind(file, &c, c.n_mtp && !o.no_mtp, &w, &resident, &e);
		const struct plan_inputs in = {&c, &o, file, &w, resident, NULL};
		if (!rc && !(rc = plan_for_machine(&in, &m, &p, &e)))
			check_plan(&p, &c, &o, &m);
	}
	if (rc && !e.text[0])
		bug("refused without a sentence");
	weights_free(&w, NULL);
	gguf_close(file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct changes c = {0};
	struct err e = {0};
	log_set_level(LOG_QUIET);
	if (size < OPTIONS_BYTES)
		return 0;
	for (size_t at = OPTIONS_BYTES; at + CHANGE_BYTES <= size && c.n < CHANGES_MAX;
		 at += CHANGE_BYTES)
		c.list[c.n++] = (struct change){
			(enum change_kind)(data[at] % 7), data[at + 1], load_u32(data + at + 2)};
	int fd = make_file(&c, &e);
	if (fd < 0)
		return 0;
	char path[40];
	snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
	plan_file(path, data);
	close(fd);
	return 0;
}
