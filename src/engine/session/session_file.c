/* SPDX-License-Identifier: MIT */
/*
 * Writing and reading are the same walk over the caches (session_next_rows). The head is checked
 * completely before anything of the body is looked at; every size of the body follows from the head
 * and is known before a block is read. A session that has something to lose reads the file twice:
 * the first time only checks.
 */
#include "src/engine/session/session_file.h"

#include "src/base/hash.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/base/out_file.h"
#include "src/engine/session/session_blocks.h"
#include "src/engine/session/session_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char magic[8] = "GLMSESS";

/* The head, field by field; the unused bytes before SESSION_FILE_HEAD_ENDS are zero. */
enum head_offset {
	AT_MAGIC = 0,
	AT_VERSION = 8,
	AT_HEAD_BYTES = 12,
	AT_FINGERPRINT = 16,
	AT_VALUE_BYTES = 24,
	AT_LAYERS = 28,
	AT_MTP = 32,
	AT_LATENT = 36,
	AT_INDEX = 40,
	AT_FIRST = 44,
	AT_N = 48,
	AT_ARITHMETIC = 52, /* 0: of a version that did not note it */
	AT_NOTE = 56,
	AT_BACKEND = 64, /* [16] */
	AT_MODEL = 80,   /* [128] */
};

struct session_head {
	uint64_t fingerprint, note_bytes, check;
	uint32_t value_bytes, n_layers, mtp, latent, index, first, n, arithmetic;
	char backend[SESSION_MAKER_BYTES], model[128]; /* printable, 0-terminated */
};

uint64_t session_fingerprint(struct engine *g)
{
	if (g->rows_fingerprint)
		return g->rows_fingerprint;
	const struct model_config *c = &g->config;
	const struct gguf *f = g->gguf;
	const uint64_t numbers[] = {c->n_layers, c->n_mtp, c->n_embd, c->n_vocab, c->n_heads, c->q_rank,
		c->kv_rank, c->head_nope, c->head_rope, c->head_value, c->n_dense, c->n_experts, c->n_used,
		c->n_group, c->n_group_used, c->norm_weights, c->index_heads, c->index_dim, c->index_top_k};
	const float floats[] = {
		c->weights_scale, c->rope_base, c->rms_eps, c->latent_eps, c->index_eps};
	uint64_t h = hash_u64(HASH_START, g->fingerprint);
	h = hash_bytes(h, numbers, sizeof numbers);
	h = hash_bytes(h, floats, sizeof floats);
	h = hash_bytes(h, c->index_full, sizeof c->index_full);
	for (size_t i = 0; i < f->n_tensors; i++) {
		const struct gguf_tensor *t = &f->tensors[i];
		const struct gguf_run whole = {t->file, t->offset, t->bytes, t->data};
		const struct gguf_run *r = t->runs ? &t->runs[t->n_runs / 2] : &whole;
		size_t n = (size_t)MIN(r->bytes, 64);
		h = hash_bytes(h, r->data + (r->bytes - n) / 2, n);
	}
	g->rows_fingerprint = h ? h : 1;
	return g->rows_fingerprint;
}

/* ---- the walk over the caches ---- */

bool session_next_rows(const struct session *s, uint32_t first, uint32_t n, bool mtp, uint32_t *at,
	struct cache_rows *r)
{
	uint32_t trunk = s->g->config.n_layers;
	for (; *at < 2 * (trunk + mtp); ++*at) {
		uint32_t layer = *at / 2, shift = layer == trunk; /* the MTP row of a position needs the
														   * token after it */
		uint32_t from = first > shift ? first - shift : 0;
		size_t row_bytes = engine_row_bytes(s->g, layer, *at % 2);
		if (!row_bytes || n <= from + shift)
			continue;
		*r = (struct cache_rows){layer, *at % 2, from, n - shift - from, row_bytes};
		++*at;
		return true;
	}
	return false;
}

static size_t rows_per_block(size_t row_bytes)
{
	return MAX(BLOCK_MAX_BYTES / row_bytes, 1);
}

int session_read_rows(const struct session *s, const struct cache_rows *r, uint32_t done,
	uint32_t n, void *out, struct err *e)
{
	return engine_read_rows(
		s->g, r->layer, r->index_key, (uint32_t)s->base + r->from + done, n, out, e);
}

int session_write_rows(struct session *s, const struct cache_rows *r, uint32_t done, uint32_t n,
	const void *data, struct err *e)
{
	return engine_write_rows(
		s->g, r->layer, r->index_key, (uint32_t)s->base + r->from + done, n, data, e);
}

static uint64_t count_blocks(uint64_t bytes, size_t piece)
{
	return (bytes + piece - 1) / piece;
}

uint64_t session_file_bytes(const struct session *s, uint32_t n, size_t note_bytes)
{
	uint64_t tokens = (uint64_t)n * sizeof(int32_t);
	uint64_t sum = SESSION_FILE_HEAD + tokens + note_bytes +
				   BLOCK_HEAD * (count_blocks(tokens, BLOCK_MAX_BYTES) +
									count_blocks(note_bytes, BLOCK_MAX_BYTES));
	struct cache_rows r;
	for (uint32_t at = 0; n && session_next_rows(s, 0, n, s->mtp, &at, &r);)
		sum += r.n * r.row_bytes + BLOCK_HEAD * count_blocks(r.n, rows_per_block(r.row_bytes));
	return sum;
}

/* ---- writing ---- */

/* Text of a file's own field, as it may be printed. */
static void copy_text(char *to, size_t size, const char *from, size_t n)
{
	size_t length = strnlen(from, MIN(n, size - 1));
	memset(to, 0, size);
	memcpy(to, from, length);
	err_plain(to);
}

void session_rows_maker(const struct engine *g, char out[SESSION_MAKER_BYTES])
{
	const char *name = engine_backend_name(g);
	if (g->library_version)
		snprintf(out, SESSION_MAKER_BYTES, "%.4s blas%u", name, g->library_version % 1000000);
	else
		snprintf(out, SESSION_MAKER_BYTES, "%.9s%s", name,
			g->exact_prompts  ? " exact"
			: g->fast_prompts ? " fast"
							  : "");
}

static struct session_head own_head(const struct session *s)
{
	const struct model_config *c = &s->g->config;
	const struct kv_cache_shape *shape = &s->g->stages->plan.kv_shape;
	struct session_head h = {
		.fingerprint = session_fingerprint(s->g),
		.value_bytes = shape->latents_f8          ? 1
					   : shape->type == DTYPE_F32 ? 4
												  : 2,
		.n_layers = c->n_layers,
		.mtp = s->mtp,
		.latent = config_cache_width(c),
		.index = c->index_dim,
		.arithmetic = SESSION_ARITHMETIC,
	};
	session_rows_maker(s->g, h.backend);
	copy_text(h.model, sizeof h.model, c->name, sizeof c->name);
	return h;
}

static uint64_t encode_head(const struct session_head *h, uint8_t out[SESSION_FILE_HEAD])
{
	memset(out, 0, SESSION_FILE_HEAD);
	memcpy(out + AT_MAGIC, magic, sizeof magic);
	store_u32(out + AT_VERSION, SESSION_FILE_VERSION);
	store_u32(out + AT_HEAD_BYTES, SESSION_FILE_HEAD);
	store_u64(out + AT_FINGERPRINT, h->fingerprint);
	store_u32(out + AT_VALUE_BYTES, h->value_bytes);
	store_u32(out + AT_LAYERS, h->n_layers);
	store_u32(out + AT_MTP, h->mtp);
	store_u32(out + AT_LATENT, h->latent);
	store_u32(out + AT_INDEX, h->index);
	store_u32(out + AT_FIRST, h->first);
	store_u32(out + AT_N, h->n);
	store_u32(out + AT_ARITHMETIC, h->arithmetic);
	store_u64(out + AT_NOTE, h->note_bytes);
	memcpy(out + AT_BACKEND, h->backend, sizeof h->backend);
	memcpy(out + AT_MODEL, h->model, sizeof h->model);
	uint64_t check = hash_bytes(HASH_START, out, SESSION_FILE_HEAD_ENDS);
	store_u64(out + SESSION_FILE_HEAD_ENDS, check);
	return check;
}

static int write_blocks(struct block_stream *b, const void *data, uint64_t n, struct err *e)
{
	const uint8_t *p = data;
	int rc = 0;
	for (uint64_t done = 0; done < n && !rc; done += BLOCK_MAX_BYTES)
		rc = block_write(b, p + done, MIN(n - done, BLOCK_MAX_BYTES), e);
	return rc;
}

static int write_cache_rows(struct session *s, struct block_stream *b, const struct session_head *h,
	uint8_t *scratch, struct err *e)
{
	struct cache_rows r;
	int rc = 0;
	for (uint32_t at = 0; !rc && session_next_rows(s, h->first, h->n, h->mtp, &at, &r);) {
		size_t piece = rows_per_block(r.row_bytes);
		for (uint32_t done = 0; done < r.n && !rc; done += (uint32_t)piece) {
			size_t bytes = MIN(r.n - done, piece) * r.row_bytes;
			rc = session_read_rows(s, &r, done, (uint32_t)(bytes / r.row_bytes), scratch, e);
			if (!rc)
				rc = block_write(b, scratch, bytes, e);
		}
	}
	return rc;
}

/* part: of a prefix store. */
static int write_session(struct session *s, uint32_t first, uint32_t n, bool part, const char *path,
	bool force, const void *note, size_t note_bytes, struct session_file_info *info, struct err *e)
{
	struct out_file out = {0};
	struct block_stream b = {0};
	uint8_t head[SESSION_FILE_HEAD], *scratch = mem_try_new(engine_most_row_bytes(s->g), 1);
	int rc = scratch ? out_file_open_private(&out, path, &out_session, force, e)
					 : err_set(e, ERR_MEMORY, "%.400s: no memory to write it", path);
	if (rc || (rc = block_stream_init(&b, out.f, path, engine_most_row_bytes(s->g), e)))
		goto out;
	b.fd = out.fd;
	out.no_sync = part; /* which can be computed again, and whose damage is noticed */
	struct session_head h = own_head(s);
	h.first = first;
	h.n = n;
	h.mtp = session_has_mtp_rows(s, first, n);
	h.note_bytes = note_bytes;
	b.seed = encode_head(&h, head);
	if (fwrite(head, 1, sizeof head, out.f) != sizeof head)
		rc = err_set(e, ERR_RUN, "%.400s: cannot be written: %m", path);
	if (rc || (rc = write_blocks(&b, s->tokens, (uint64_t)n * sizeof *s->tokens, e)) ||
		(rc = write_blocks(&b, note, note_bytes, e)) ||
		(rc = write_cache_rows(s, &b, &h, scratch, e)) || (rc = out_file_commit(&out, e)))
		goto out;
	if (info) {
		*info = (struct session_file_info){.first = first,
			.n = n,
			.bytes = SESSION_FILE_HEAD + b.n_blocks * (uint64_t)BLOCK_HEAD + b.stored_bytes,
			.raw_bytes = b.raw_bytes};
		memcpy(info->model, h.model, sizeof info->model);
		memcpy(info->backend, h.backend, sizeof info->backend);
	}
out:
	out_file_abort(&out);
	block_stream_fini(&b);
	free(scratch);
	return rc;
}

int session_file_save(struct session *s, uint32_t n, const char *path, bool force, const void *note,
	size_t note_bytes, struct session_file_info *info, struct err *e)
{
	if (n > s->length)
		bug("%u tokens to save of %u", n, s->length);
	if (note_bytes > SESSION_FILE_NOTE_MAX)
		return err_set(e, ERR_INPUT, "%.400s: a note of %zu bytes, a session file takes up to %u",
			path, note_bytes, SESSION_FILE_NOTE_MAX);
	return write_session(s, 0, n, false, path, force, note, note_bytes, info, e);
}

int session_rows_save(struct session *s, uint32_t first, uint32_t n, const char *path,
	struct session_file_info *info, struct err *e)
{
	if (first >= n || n > s->length)
		bug("rows %u to %u of %u", first, n, s->length);
	return write_session(s, first, n, true, path, false, NULL, 0, info, e);
}

/* ---- reading ---- */

static int read_head(FILE *f, const char *name, struct session_head *h, struct err *e)
{
	uint8_t in[SESSION_FILE_HEAD];
	size_t got = fread(in, 1, sizeof in, f);
	if (got != sizeof in) {
		if (ferror(f))
			return err_errno(e, errno, "%.400s: cannot be read", name);
		return err_set(e, ERR_INPUT,
			"%.400s: has %zu bytes, expected a session file with a head of %u", name, got,
			SESSION_FILE_HEAD);
	}
	if (memcmp(in + AT_MAGIC, magic, sizeof magic))
		return err_set(
			e, ERR_INPUT, "%.400s: is not a session file: it does not begin with %s", name, magic);
	if (load_u32(in + AT_VERSION) != SESSION_FILE_VERSION)
		return err_set(e, ERR_INPUT, "%.400s: is a session file of version %u, expected version %u",
			name, load_u32(in + AT_VERSION), SESSION_FILE_VERSION);
	*h = (struct session_head){
		.fingerprint = load_u64(in + AT_FINGERPRINT),
		.note_bytes = load_u64(in + AT_NOTE),
		.check = load_u64(in + SESSION_FILE_HEAD_ENDS),
		.value_bytes = load_u32(in + AT_VALUE_BYTES),
		.n_layers = load_u32(in + AT_LAYERS),
		.mtp = load_u32(in + AT_MTP),
		.latent = load_u32(in + AT_LATENT),
		.index = load_u32(in + AT_INDEX),
		.first = load_u32(in + AT_FIRST),
		.n = load_u32(in + AT_N),
		.arithmetic = load_u32(in + AT_ARITHMETIC),
	};
	copy_text(h->backend, sizeof h->backend, (const char *)in + AT_BACKEND, sizeof h->backend);
	copy_text(h->model, sizeof h->model, (const char *)in + AT_MODEL, sizeof h->model);
	uint64_t check = hash_bytes(HASH_START, in, SESSION_FILE_HEAD_ENDS);
	if (check != h->check)
		return err_set(e, ERR_INPUT,
			"%.400s: the head is damaged: check value %016llx, expected %016llx", name,
			(unsigned long long)check, (unsigned long long)h->check);
	return 0;
}

static const char *kv_name(uint32_t value_bytes)
{
	return value_bytes == 1   ? "8-bit"
		   : value_bytes == 2 ? "16-bit"
		   : value_bytes == 4 ? "float32"
							  : "unknown";
}

/* Can this session take the rows that the head describes? */
static int check_head(
	const struct session *s, const struct session_head *h, const char *name, struct err *e)
{
	struct session_head own = own_head(s);
	uint32_t context = s->g->context;
	if (h->fingerprint != own.fingerprint || h->n_layers != own.n_layers ||
		h->latent != own.latent || h->index != own.index) {
		err_set(e, ERR_INPUT,
			"%.300s: was saved with the model \"%.100s\" (fingerprint %016llx, %u layers), "
			"expected \"%.100s\" (fingerprint %016llx, %u layers)",
			name, h->model, (unsigned long long)h->fingerprint, h->n_layers, own.model,
			(unsigned long long)own.fingerprint, own.n_layers);
		return err_hint(e, "a session fits only the very file of weights it was made with");
	}
	if (h->value_bytes != own.value_bytes)
		return err_set(e, ERR_INPUT, "%.400s: holds %s caches, expected %s ones", name,
			kv_name(h->value_bytes), kv_name(own.value_bytes));
	if (h->mtp > 1)
		return err_set(e, ERR_INPUT, "%.400s: has %u MTP layers, expected 0 or 1", name, h->mtp);
	if (h->first > h->n)
		return err_set(e, ERR_INPUT, "%.400s: begins with row %u of %u, which makes no sense", name,
			h->first, h->n);
	if (h->n > context) {
		err_set(e, ERR_INPUT, "%.400s: holds %u tokens, the context has room for %u", name, h->n,
			context);
		return err_hint(e, "-c %u or more takes them", h->n);
	}
	if (h->note_bytes > SESSION_FILE_NOTE_MAX)
		return err_set(e, ERR_INPUT, "%.400s: has a note of %llu bytes, expected at most %u", name,
			(unsigned long long)h->note_bytes, SESSION_FILE_NOTE_MAX);
	return 0;
}

static int read_blocks(struct block_stream *b, void *out, uint64_t n, struct err *e)
{
	int rc = 0;
	for (uint64_t done = 0; done < n && !rc; done += BLOCK_MAX_BYTES)
		rc = block_read(b, (uint8_t *)out + done, MIN(n - done, BLOCK_MAX_BYTES), e);
	return rc;
}

/* apply: put them into the caches, else only check. */
static int read_cache_rows(struct session *s, struct block_stream *b, const struct session_head *h,
	uint8_t *scratch, bool apply, struct err *e)
{
	uint32_t trunk = s->g->config.n_layers;
	struct cache_rows r;
	int rc = 0;
	for (uint32_t at = 0; !rc && session_next_rows(s, h->first, h->n, h->mtp, &at, &r);) {
		bool wanted = apply && ((at - 1) / 2 < trunk || s->mtp);
		size_t piece = rows_per_block(r.row_bytes);
		for (uint32_t done = 0; done < r.n && !rc; done += (uint32_t)piece) {
			size_t bytes = MIN(r.n - done, piece) * r.row_bytes;
			rc = block_read(b, scratch, bytes, e);
			if (!rc && wanted)
				rc = session_write_rows(s, &r, done, (uint32_t)(bytes / r.row_bytes), scratch, e);
		}
	}
	return rc;
}

/* What one reading gives. */
struct session_content {
	struct session_head head;
	int32_t *tokens; /* [head.n] */
	struct buf note;
	uint64_t bytes, raw_bytes;
};

static void content_fini(struct session_content *c)
{
	free(c->tokens);
	buf_free(&c->note);
	*c = (struct session_content){0};
}

static int read_token_ids(
	const struct session *s, struct block_stream *b, struct session_content *c, struct err *e)
{
	int32_t n_vocab = (int32_t)s->g->config.n_vocab;
	c->tokens = mem_try_new(MAX(c->head.n, 1), sizeof *c->tokens);
	if (!c->tokens)
		return err_set(e, ERR_MEMORY, "%.400s: no memory for %u tokens", b->name, c->head.n);
	int rc = read_blocks(b, c->tokens, (uint64_t)c->head.n * sizeof *c->tokens, e);
	for (uint32_t i = 0; i < c->head.n && !rc; i++)
		if (c->tokens[i] < 0 || c->tokens[i] >= n_vocab)
			rc = err_set(e, ERR_INPUT, "%.400s: token %u has id %d, expected 0 to %d", b->name, i,
				c->tokens[i], n_vocab - 1);
	return rc;
}

static int read_note(struct block_stream *b, struct session_content *c, struct err *e)
{
	size_t n = (size_t)c->head.note_bytes;
	char *text = mem_try_new(n + 1, 1);
	if (!text)
		return err_set(e, ERR_MEMORY, "%.400s: no memory for a note of %zu bytes", b->name, n);
	c->note = (struct buf){.data = text, .len = n, .cap = n + 1};
	return read_blocks(b, text, n, e);
}

/* The file from its beginning. first, tokens, n: what a part must hold; tokens NULL: a whole
 * session. */
static int read_content(struct session *s, FILE *f, const char *name, uint32_t first,
	const int32_t *tokens, uint32_t n, bool apply, struct session_content *c, struct err *e)
{
	struct block_stream b = {0};
	uint8_t *scratch = NULL;
	int rc;
	*c = (struct session_content){0};
	if ((rc = read_head(f, name, &c->head, e)) || (rc = check_head(s, &c->head, name, e)))
		return rc;
	if (!tokens && c->head.first)
		return err_set(e, ERR_INPUT,
			"%.400s: is a part of a prefix store (rows %u to %u), expected a whole session", name,
			c->head.first, c->head.n);
	if (tokens && (c->head.first != first || c->head.n != n || c->head.note_bytes))
		return err_set(e, ERR_INPUT, "%.400s: holds rows %u to %u, expected %u to %u", name,
			c->head.first, c->head.n, first, n);
	if (!(scratch = mem_try_new(engine_most_row_bytes(s->g), 1)))
		return err_set(e, ERR_MEMORY, "%.400s: no memory to read it", name);
	if ((rc = block_stream_init(&b, f, name, engine_most_row_bytes(s->g), e)))
		goto out;
	b.seed = c->head.check;
	if ((rc = read_token_ids(s, &b, c, e)) || (rc = read_note(&b, c, e)))
		goto out;
	if (tokens && memcmp(tokens, c->tokens, n * sizeof *tokens)) {
		rc = err_set(e, ERR_INPUT, "%.400s: holds rows of other tokens than its name says", name);
		goto out;
	}
	if (apply) {
		session_rewind(s, MIN(c->head.first, s->length));
		session_drop_logits(s);
		/* the MTP row before the first one is read too */
		s->mtp_rows = MIN(s->mtp_rows, MAX(c->head.first, 1) - 1);
		s->has_state = false;
	}
	if ((rc = read_cache_rows(s, &b, &c->head, scratch, apply, e)))
		goto out;
	/* an engine that did not load the MTP layer does not know the size of its rows and leaves them
	 */
	bool leaves_mtp = c->head.mtp && !engine_row_bytes(s->g, s->g->config.n_layers, false);
	if (!leaves_mtp && fgetc(f) != EOF)
		rc = err_set(e, ERR_INPUT, "%.400s: goes on behind the last block, expected its end", name);
	c->bytes = SESSION_FILE_HEAD + b.n_blocks * (uint64_t)BLOCK_HEAD + b.stored_bytes;
	c->raw_bytes = b.raw_bytes;
out:
	block_stream_fini(&b);
	free(scratch);
	return rc;
}

/* The rows stand in the caches: now the timeline has them. */
static int commit_timeline(struct session *s, const struct session_content *c, struct err *e)
{
	int rc = engine_wait(s->g, e);
	if (rc)
		return rc;
	memcpy(s->tokens, c->tokens, c->head.n * sizeof *s->tokens);
	if (c->head.n && c->head.mtp && s->mtp && s->mtp_rows + 1 >= c->head.first)
		s->mtp_rows = c->head.n - 1;
	s->length = c->head.n;
	return 0;
}

int session_file_read(struct session *s, FILE *f, const char *name, struct buf *note,
	struct session_file_info *info, struct err *e)
{
	struct session_content c;
	int rc = 0;
	if (s->length) {
		rc = read_content(s, f, name, 0, NULL, 0, false, &c, e);
		content_fini(&c);
		if (!rc && fseek(f, 0, SEEK_SET))
			rc = err_errno(e, errno, "%.400s: cannot be read twice", name);
		if (rc)
			return rc;
	}
	if ((rc = read_content(s, f, name, 0, NULL, 0, true, &c, e)) ||
		(rc = commit_timeline(s, &c, e)))
		goto out;
	char maker[SESSION_MAKER_BYTES];
	session_rows_maker(s->g, maker);
	if (strcmp(c.head.backend, maker))
		log_warn("%s: was computed by the %s backend; what follows differs from an unbroken run in "
				 "the last bits",
			name, c.head.backend);
	else if (c.head.arithmetic != SESSION_ARITHMETIC)
		log_warn("%s: was computed by another version; what follows differs from an unbroken run "
				 "in the last bits",
			name);
	if (info) {
		*info = (struct session_file_info){
			.first = 0, .n = c.head.n, .bytes = c.bytes, .raw_bytes = c.raw_bytes};
		memcpy(info->model, c.head.model, sizeof info->model);
		memcpy(info->backend, c.head.backend, sizeof info->backend);
	}
	if (note) {
		buf_free(note);
		*note = c.note;
		c.note = (struct buf){0};
	}
out:
	content_fini(&c);
	return rc;
}

static int open_session_file(const char *path, FILE **f, struct err *e)
{
	struct stat st;
	int fd =
		open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* opening a pipe by mistake must not hang */
	if (fd < 0)
		return err_errno(e, errno, "%.400s", path);
	if (fstat(fd, &st) || !S_ISREG(st.st_mode)) {
		close(fd);
		return err_set(
			e, ERR_INPUT, "%.400s: is not a regular file, expected a session file", path);
	}
	*f = fdopen(fd, "r");
	if (*f)
		return 0;
	close(fd);
	return err_set(e, ERR_MEMORY, "%.400s: no memory to read it", path);
}

int session_file_load(struct session *s, const char *path, struct buf *note,
	struct session_file_info *info, struct err *e)
{
	FILE *f;
	int rc = open_session_file(path, &f, e);
	if (rc)
		return rc;
	rc = session_file_read(s, f, path, note, info, e);
	fclose(f);
	return rc;
}

int session_rows_load(struct session *s, uint32_t first, const int32_t *tokens, uint32_t n,
	const char *path, struct err *e)
{
	if (first > s->length || n <= first)
		bug("rows %u to %u behind %u tokens", first, n, s->length);
	if (euidaccess(path, R_OK) && (errno == ENOENT || errno == EACCES))
		return -ENOENT; /* common, and no fault */
	struct session_content c;
	FILE *f;
	int rc = open_session_file(path, &f, e);
	if (rc)
		return rc;
	rc = read_content(s, f, path, first, tokens, n, true, &c, e);
	if (!rc)
		rc = commit_timeline(s, &c, e);
	content_fini(&c);
	fclose(f);
	return rc;
}
