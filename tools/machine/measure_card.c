/* SPDX-License-Identifier: MIT */
/* Large copies through the copier that streaming uses, one stream at a time. */
#include "tools/machine/measure_card.h"

#include "kernels/backend.h"
#include "kernels/copier.h"
#include "src/base/host/clock.h"
#include "src/base/host/pages.h"

#include <stdint.h>
#include <string.h>

#define HOST_BYTES ((size_t)256 << 20)
#define CARD_BYTES ((size_t)384 << 20) /* of each of two arrays */
#define COPIES     4                   /* in a sample */

struct card_job {
	struct copier *copier;
	uint8_t *host, *card[2];
	bool pinned;
};

/* Seconds that a sample of copies takes. */
static int time_copies(struct card_job *j, enum copy_stream stream, void *dst, const void *src,
	size_t bytes, double *seconds, struct err *e)
{
	const struct copier_ops *ops = j->copier->ops;
	uint64_t start = clock_ns();
	for (int i = 0; i < COPIES; i++)
		ops->copy(j->copier, stream, dst, src, bytes);
	uint64_t fence = ops->fence(j->copier, stream);
	int rc;
	while (!(rc = ops->fence_status(j->copier, fence, e)))
		;
	*seconds = (double)(clock_ns() - start) * 1e-9;
	return rc < 0 ? rc : 0;
}

static int measure_stream(struct card_job *j, enum copy_stream stream, void *dst, const void *src,
	size_t bytes, int repeats, struct bench_spread *bytes_s, struct err *e)
{
	double samples[BENCH_MAX_REPEATS], seconds;
	for (int i = -1; i < repeats; i++) { /* the first wakes the card */
		int rc = time_copies(j, stream, dst, src, bytes, &seconds, e);
		if (rc)
			return rc;
		if (i >= 0)
			samples[i] = (double)bytes * COPIES / seconds;
	}
	*bytes_s = bench_spread_of(samples, repeats);
	return 0;
}

static int measure_streams(struct card_job *j, int repeats, struct measure_card *out, struct err *e)
{
	const struct copier_ops *ops = j->copier->ops;
	int rc;
	for (int i = 0; i < 2; i++)
		if ((rc = ops->alloc(j->copier, CARD_BYTES, (void **)&j->card[i], e)))
			return rc;
	j->host = pages_try_map(HOST_BYTES);
	if (!j->host)
		return err_set(e, ERR_MEMORY, "no memory for an array of %zu bytes", HOST_BYTES);
	memset(j->host, 1, HOST_BYTES);
	if ((rc = ops->pin(j->copier, j->host, HOST_BYTES, e)))
		return rc;
	j->pinned = true;
	ops->attach(j->copier);
	if ((rc = measure_stream(
			 j, COPY_IN, j->card[0], j->host, HOST_BYTES, repeats, &out->in_bytes_s, e)) ||
		(rc = measure_stream(
			 j, COPY_OUT, j->host, j->card[0], HOST_BYTES, repeats, &out->out_bytes_s, e)) ||
		(rc = measure_stream(
			 j, COPY_WITHIN, j->card[1], j->card[0], CARD_BYTES, repeats, &out->copy_bytes_s, e)))
		return rc;
	out->copy_bytes_s.median *= 2, out->copy_bytes_s.low *= 2, out->copy_bytes_s.high *= 2;
	return 0;
}

int measure_card(
	const char *backend, uint32_t card, int repeats, struct measure_card *out, struct err *e)
{
	struct card_job j = {0};
	struct backend *b = NULL;
	*out = (struct measure_card){0};
	if (strcmp(backend, "cuda"))
		return 0;
	const struct backend_options options = {.name = backend, .card = card};
	int rc = backend_open(&options, &b, e);
	if (!rc && b->ops->copier_open) {
		rc = b->ops->copier_open(b, &j.copier, e);
		out->there = !rc;
	}
	if (out->there) {
		rc = measure_streams(&j, repeats, out, e);
		j.copier->ops->drain(j.copier);
		if (j.pinned)
			j.copier->ops->unpin(j.copier, j.host, HOST_BYTES);
		for (int i = 0; i < 2; i++)
			j.copier->ops->free(j.copier, j.card[i], CARD_BYTES);
		if (j.host)
			pages_unmap(j.host, HOST_BYTES);
		j.copier->ops->close(j.copier);
	}
	if (b)
		b->ops->close(b);
	return rc;
}
