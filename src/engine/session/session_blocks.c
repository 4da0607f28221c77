/* SPDX-License-Identifier: MIT */
/*
 * The only file of the engine that knows lz4. Compression is tried on every block and kept where it
 * saves a sixteenth: of latents and index keys only layer 0 shrinks (equal tokens have equal rows
 * there), everywhere else lz4 finds nothing, with and without sorting bytes or bits into planes
 * first (`glmstream bench session` shows it); texts and tokens shrink well.
 */
#include "src/engine/session/session_blocks.h"

#include "src/base/hash.h"
#include "src/base/mem.h"
#include "src/base/num.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#if HAVE_LZ4
#include <lz4frame.h>
#endif

#define FLUSH_BYTES (8u << 20)

enum coding { CODING_RAW, CODING_LZ4 };

static uint64_t block_check_value(
	const struct block_stream *b, const uint8_t *head, const void *stored)
{
	uint64_t h = hash_u64(hash_u64(b->seed, b->n_blocks), load_u64(head));
	return hash_bytes(h, stored, load_u32(head));
}

#if HAVE_LZ4
static LZ4F_preferences_t block_frame_prefs(size_t content)
{
	LZ4F_preferences_t p = LZ4F_INIT_PREFERENCES;
	p.frameInfo.contentChecksumFlag = LZ4F_contentChecksumEnabled;
	p.frameInfo.contentSize = content;
	p.frameInfo.blockSizeID = LZ4F_max1MB;
	return p;
}

static size_t compressed_bound(size_t n)
{
	LZ4F_preferences_t p = block_frame_prefs(n);
	return LZ4F_compressFrameBound(n, &p);
}

/* Bytes of the frame in b->packed; 0: it is not worth it. */
static size_t compress_block(struct block_stream *b, const void *data, size_t n)
{
	LZ4F_preferences_t p = block_frame_prefs(n);
	size_t got = LZ4F_compressFrame(b->packed, b->packed_bytes, data, n, &p);
	return LZ4F_isError(got) || got > n - n / 16 ? 0 : got;
}

/* Expands the frame of `stored` bytes in b->packed, which must hold exactly n. ERR_INPUT: *error
 * says what is wrong with it. ERR_MEMORY. */
static int decompress_block(
	struct block_stream *b, size_t stored, void *out, size_t n, const char **error)
{
	LZ4F_dctx *d;
	if (LZ4F_isError(LZ4F_createDecompressionContext(&d, LZ4F_VERSION)))
		return ERR_MEMORY; /* it fails in no other way */
	size_t in = 0, done = 0, want = 1;
	const char *why = NULL;
	while (!why && want && in < stored) {
		size_t out_n = n - done, in_n = stored - in;
		want = LZ4F_decompress(d, (uint8_t *)out + done, &out_n, b->packed + in, &in_n, NULL);
		if (LZ4F_isError(want))
			why = LZ4F_getErrorName(want);
		else if (!out_n && !in_n)
			why = "it holds more than it should";
		done += out_n;
		in += in_n;
	}
	LZ4F_freeDecompressionContext(d);
	if (!why && (want || in != stored || done != n))
		why = "it holds another number of bytes than it should";
	if (why && !strcmp(why, "ERROR_allocation_failed"))
		return ERR_MEMORY;
	*error = why;
	return why ? ERR_INPUT : 0;
}
#else
static size_t compressed_bound(size_t n)
{
	return n;
}

static size_t compress_block(struct block_stream *b, const void *data, size_t n)
{
	(void)b;
	(void)data;
	(void)n;
	return 0;
}

static int decompress_block(
	struct block_stream *b, size_t stored, void *out, size_t n, const char **error)
{
	(void)b;
	(void)stored;
	(void)out;
	(void)n;
	*error = "this program was built without lz4";
	return ERR_INPUT;
}
#endif

int block_stream_init(
	struct block_stream *b, FILE *f, const char *name, size_t max_bytes, struct err *e)
{
	*b = (struct block_stream){.f = f, .fd = -1, .name = name};
	b->packed_bytes = compressed_bound(MAX(max_bytes, BLOCK_MAX_BYTES));
	b->packed = mem_try_new(b->packed_bytes, 1);
	return b->packed ? 0 : err_set(e, ERR_MEMORY, "%.400s: no memory for a block", name);
}

void block_stream_fini(struct block_stream *b)
{
	free(b->packed);
	*b = (struct block_stream){0};
}

int block_write(struct block_stream *b, const void *data, size_t n, struct err *e)
{
	uint8_t head[BLOCK_HEAD];
	size_t packed = compress_block(b, data, n);
	const void *stored = packed ? b->packed : data;
	store_u32(head, (uint32_t)(packed ? packed : n));
	store_u32(head + 4, packed ? CODING_LZ4 : CODING_RAW);
	store_u64(head + 8, block_check_value(b, head, stored));
	size_t bytes = load_u32(head);
	if (fwrite(head, 1, sizeof head, b->f) != sizeof head ||
		fwrite(stored, 1, bytes, b->f) != bytes)
		return err_set(e, ERR_RUN, "%.400s: cannot be written: %m", b->name);
	b->n_blocks++;
	b->raw_bytes += n;
	b->stored_bytes += bytes;
	if (b->stored_bytes - b->flushed_bytes >=
		FLUSH_BYTES) { /* the drive works while the next blocks are made */
		sync_file_range(b->fd, 0, 0, SYNC_FILE_RANGE_WRITE);
		b->flushed_bytes = b->stored_bytes;
	}
	return 0;
}

static int truncated_error(const struct block_stream *b, struct err *e)
{
	if (ferror(b->f))
		return err_set(e, ERR_RUN, "%.400s: cannot be read: %m", b->name);
	return err_set(e, ERR_INPUT, "%.400s: ends early, inside block %u", b->name, b->n_blocks);
}

int block_read(struct block_stream *b, void *out, size_t n, struct err *e)
{
	uint8_t head[BLOCK_HEAD];
	if (fread(head, 1, sizeof head, b->f) != sizeof head)
		return truncated_error(b, e);
	uint32_t stored = load_u32(head), coding = load_u32(head + 4);
	if (coding > CODING_LZ4 || stored > n || !stored || (coding == CODING_RAW && stored != n) ||
		stored > b->packed_bytes)
		return err_set(e, ERR_INPUT,
			"%.400s: block %u is damaged: %u bytes of kind %u, expected up to %zu", b->name,
			b->n_blocks, stored, coding, n);
	uint8_t *to = coding == CODING_RAW ? out : b->packed;
	if (fread(to, 1, stored, b->f) != stored)
		return truncated_error(b, e);
	uint64_t check = block_check_value(b, head, to);
	if (check != load_u64(head + 8))
		return err_set(e, ERR_INPUT,
			"%.400s: block %u is damaged: check value %016llx, expected %016llx", b->name,
			b->n_blocks, (unsigned long long)check, (unsigned long long)load_u64(head + 8));
	const char *why = NULL;
	int rc = coding == CODING_LZ4 ? decompress_block(b, stored, out, n, &why) : 0;
	if (rc == ERR_MEMORY)
		return err_set(e, rc, "%.400s: no memory to expand block %u", b->name, b->n_blocks);
	if (rc)
		return err_set(e, rc, "%.400s: block %u is an lz4 frame that cannot be read: %s", b->name,
			b->n_blocks, why);
	b->n_blocks++;
	b->raw_bytes += n;
	b->stored_bytes += stored;
	return 0;
}
