/* SPDX-License-Identifier: MIT */
/* Drive, link to the card, memory of the card. */
#include "tools/limits.h"

#include "src/base/num.h"
#include "tools/pocket.h"

static struct bench_spread gb_s(struct bench_spread s)
{
	return (struct bench_spread){s.median * 1e-9, s.low * 1e-9, s.high * 1e-9};
}

int limits_measure(struct bench *b, const struct common_opts *c, const char *section, const char *backend,
	struct limits *l, struct err *e)
{
	struct gguf *file = NULL;
	const char *model = pocket_or(c->model, e);
	int rc = model ? gguf_open(model, &file, e) : e->code;
	if (!rc)
		rc = measure_disk(c, file, 0, MAX(b->seconds, 0.5), MIN(b->repeats, 3), &l->disk, e);
	gguf_close(file);
	if (rc || (rc = measure_card(backend, MIN(b->repeats, 5), &l->card, e)))
		return rc;
	bench_add(b, section, "GB/s", gb_s(l->disk.bytes_s), 0, NULL,
		"limit: drive, experts of %.4g MB, %u under way%s", l->disk.expert_bytes * 1e-6, l->disk.in_flight,
		l->disk.direct ? "" : ", page cache");
	if (!l->card.there)
		return 0;
	bench_add(b, section, "GB/s", gb_s(l->card.in_bytes_s), 0, NULL, "limit: host to card");
	bench_add(b, section, "GB/s", gb_s(l->card.out_bytes_s), 0, NULL, "limit: card to host");
	bench_add(b, section, "GB/s", gb_s(l->card.copy_bytes_s), 0, NULL, "limit: copy on the card");
	return 0;
}
