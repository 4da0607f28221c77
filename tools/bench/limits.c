/* SPDX-License-Identifier: MIT */
/* Drive, link to the card, memory of the card, processor beside the link. */
#include "tools/bench/limits.h"

#include "src/base/num.h"
#include "kernels/backend.h"
#include "src/checkpoint/checkpoint.h"
#include "tools/options/pocket.h"

/* The faster of two ways to read: whole experts, and slices as the loader of a card reads. */
static int measure_drive(
	struct bench *b, const struct common_opts *c, struct measure_disk *d, struct err *e)
{
	struct gguf *file = NULL;
	const char *model = pocket_or(c->model, e);
	int rc = model ? model_file_open(model, &file, e) : e->code;
	if (!rc)
		rc = measure_disk(c, file, 0, MAX(b->seconds, 0.5), MIN(b->repeats, 3), d, e);
	struct measure_disk slices;
	if (!rc && d->direct &&
		!(rc = measure_disk_slices(
			  c, file, MAX(b->seconds, 0.5), MIN(b->repeats, 3), &slices, e)) &&
		slices.bytes_s.median > d->bytes_s.median)
		*d = slices;
	gguf_close(file);
	return rc;
}

int limits_measure_before(
	struct bench *b, const struct common_opts *c, struct limits *l, struct err *e)
{
	if (c->no_direct)
		return 0;
	int rc = measure_drive(b, c, &l->disk, e);
	l->before = !rc;
	return rc;
}

/* The processor with the experts of this model, while the link is busy. */
static int measure_processor(struct bench *b, const struct common_opts *c, const char *backend,
	struct measure_host *out, struct err *e)
{
	const struct backend_options options = {.name = backend, .card = common_opts_first_card(c)};
	struct backend *card = NULL;
	struct copier *copier = NULL;
	struct gguf *file = NULL;
	const char *model = pocket_or(c->model, e);
	int rc = model ? model_file_open(model, &file, e) : e->code;
	if (!rc && !(rc = backend_open(&options, &card, e)) && card->ops->copier_open &&
		!(rc = card->ops->copier_open(card, &copier, e)))
		rc = measure_host(
			copier, file, c->threads, MAX(b->seconds, 0.2), MIN(b->repeats, 5), out, e);
	if (copier)
		copier->ops->close(copier);
	if (card)
		card->ops->close(card);
	gguf_close(file);
	return rc;
}

static void add_processor(struct bench *b, const char *section, const struct measure_host *m)
{
	const struct {
		const struct bench_spread *rate;
		const char *name;
	} figures[] = {{&m->alone_bytes_s, "processor, the link at rest"},
		{&m->host_bytes_s, "processor beside the link"},
		{&m->link_bytes_s, "link beside the processor"},
		{&m->both_bytes_s, "link and processor together"}};
	for (size_t i = 0; i < ARRAY_LEN(figures); i++)
		bench_add(b, section, "GB/s", bench_scale(*figures[i].rate, 1e-9), 0, NULL, "limit: %s",
			figures[i].name);
}

double limits_link_ms(const struct limits *l, uint64_t moved, uint64_t computed, double tokens)
{
	const double rate = l->host.there ? l->host.both_bytes_s.median : l->card.in_bytes_s.median;
	return rate > 0 ? (double)(moved + computed) / tokens / rate * 1e3 : 0;
}

int limits_measure(struct bench *b, const struct common_opts *c, const char *section,
	const char *backend, struct limits *l, struct err *e)
{
	const struct bench_spread before = l->disk.bytes_s;
	const uint32_t card = common_opts_first_card(c);
	int rc = measure_drive(b, c, &l->disk, e);
	if (l->before && !rc) {
		struct bench_spread *d = &l->disk.bytes_s;
		*d = (struct bench_spread){
			(before.median + d->median) / 2, MIN(before.low, d->low), MAX(before.high, d->high)};
	}
	if (rc || (rc = measure_card(backend, card, MIN(b->repeats, 5), &l->card, e)))
		return rc;
	bench_add(b, section, "GB/s", bench_scale(l->disk.bytes_s, 1e-9), 0, NULL,
		"limit: drive, experts of %.4g MB, %u %sat a time%s%s", l->disk.expert_bytes * 1e-6,
		l->disk.depth, l->disk.slices ? "slices " : "", l->before ? ", before and after" : "",
		l->disk.direct ? "" : ", page cache");
	if (!l->card.there)
		return 0;
	const struct bench_spread *rates[] = {
		&l->card.in_bytes_s, &l->card.out_bytes_s, &l->card.copy_bytes_s};
	const char *const names[] = {"host to card", "card to host", "copy"};
	for (size_t i = 0; i < ARRAY_LEN(rates); i++)
		bench_add(b, section, "GB/s", bench_scale(*rates[i], 1e-9), 0, NULL, "limit: %s, card %u",
			names[i], card);
	if (c->cpu_experts && !(rc = measure_processor(b, c, backend, &l->host, e)) && l->host.there)
		add_processor(b, section, &l->host);
	return rc;
}
