/* SPDX-License-Identifier: MIT */
/* Timing and reporting of the benchmarks. */
#include "tools/bench/bench.h"

#include "kernels/usage.h"
#include "src/base/host/clock.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/base/rng.h"
#include "src/engine/generate.h"
#include "src/ranks/ranks.h"
#include "tools/output/interrupt.h"
#include "tools/output/json_out.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

struct bench_spread bench_spread_of(double *v, int n)
{
	qsort(v, (size_t)n, sizeof *v, by_value);
	return (struct bench_spread){n & 1 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2, v[0], v[n - 1]};
}

struct bench_spread bench_rate(struct bench_spread seconds, double amount)
{
	return (struct bench_spread){
		amount / seconds.median, amount / seconds.high, amount / seconds.low};
}

int bench_time(const struct bench *b, int (*work)(void *user, struct err *e), void *user,
	struct bench_spread *seconds, struct err *e)
{
	double samples[BENCH_MAX_REPEATS];
	int rc = work(user, e); /* warms caches and touches memory */
	for (int i = 0; i < b->repeats && !rc; i++) {
		uint64_t start = clock_ns(), now;
		uint64_t calls = 0;
		do {
			if ((rc = work(user, e)))
				return rc;
			calls++;
			now = clock_ns();
			if (atomic_load(interrupt_flag()))
				return err_set(e, ERR_INTERRUPTED, "interrupted");
		} while ((double)(now - start) < b->seconds * 1e9);
		samples[i] = (double)(now - start) * 1e-9 / (double)calls;
	}
	if (!rc)
		*seconds = bench_spread_of(samples, b->repeats);
	return rc;
}

int32_t *bench_random_ids(uint32_t n, uint32_t n_vocab)
{
	int32_t *ids = NEW_ARRAY(int32_t, n);
	struct rng r = {42};
	for (uint32_t i = 0; i < n; i++)
		ids[i] = (int32_t)rng_below(&r, n_vocab);
	return ids;
}

int bench_check_context(const struct engine *g, uint64_t n_prompt, uint64_t n_new, struct err *e)
{
	if (n_prompt + n_new <= engine_context(g))
		return 0;
	return err_set(e, ERR_USAGE, "%llu prompt and %llu new tokens do not fit the context of %u",
		(unsigned long long)n_prompt, (unsigned long long)n_new, engine_context(g));
}

int bench_generate(struct session *s, const int32_t *ids, uint32_t n,
	const struct generate_options *o, struct generate_result *r, struct err *e)
{
	int rc = generate(s, ids, n, o, r, e);
	if (!rc && r->stop == GENERATE_CANCELLED)
		rc = err_set(e, ERR_INTERRUPTED, "interrupted");
	return rc;
}

static void print_number(FILE *f, double v)
{
	fprintf(f, v >= 1000 ? "%.0f" : v >= 100 ? "%.1f" : v >= 1 ? "%.2f" : "%.4g", v);
}

static void print_text(const struct bench_figure *f)
{
	char number[32], range[64] = "";
	FILE *s = fmemopen(number, sizeof number, "w");
	print_number(s, f->rate.median);
	fclose(s);
	printf("%-8s %-56s %9s %-8s", f->section, f->name, number, f->unit);
	if (f->rate.low < f->rate.high) {
		s = fmemopen(range, sizeof range, "w");
		fputc('(', s);
		print_number(s, f->rate.low);
		fputs(" .. ", s);
		print_number(s, f->rate.high);
		fputc(')', s);
		fclose(s);
	}
	if (f->limit > 0) {
		printf(" %-20s %5.1f %% of ", range, 100 * f->rate.median / f->limit);
		print_number(stdout, f->limit);
		printf(" %s%s%s", f->unit, f->limit_name ? ", " : "", f->limit_name ? f->limit_name : "");
	} else if (range[0]) {
		printf(" %s", range);
	}
	putchar('\n');
	fflush(stdout);
}

static void add_figure(struct bench *b, const struct bench_figure *figure)
{
	b->figures = mem_grow(b->figures, b->n_figures + 1, sizeof *b->figures);
	struct bench_figure *f = &b->figures[b->n_figures++];
	*f = *figure;
	if (b->format == BENCH_TEXT) {
		print_text(f);
	} else if (b->format == BENCH_CSV) {
		printf("%s,\"%s\",%s,%.6g,%.6g,%.6g,", f->section, f->name, f->unit, f->rate.median,
			f->rate.low, f->rate.high);
		if (f->limit > 0)
			printf("%.6g,\"%s\",%.4f\n", f->limit, f->limit_name ? f->limit_name : "",
				f->rate.median / f->limit);
		else
			printf(",,\n");
		fflush(stdout);
	}
}

void bench_add(struct bench *b, const char *section, const char *unit, struct bench_spread rate,
	double limit, const char *limit_name, const char *name, ...)
{
	struct bench_figure f = {
		.section = section, .unit = unit, .rate = rate, .limit = limit, .limit_name = limit_name};
	va_list ap;
	va_start(ap, name);
	vsnprintf(f.name, sizeof f.name, name, ap);
	va_end(ap);
	add_figure(b, &f);
}

void bench_add_value(
	struct bench *b, const char *section, const char *unit, double value, const char *name, ...)
{
	struct bench_figure f = {.section = section, .unit = unit, .rate = {value, value, value}};
	va_list ap;
	va_start(ap, name);
	vsnprintf(f.name, sizeof f.name, name, ap);
	va_end(ap);
	add_figure(b, &f);
}

/* ---- stages ---- */

void bench_stages_read(struct bench_stages *s, struct engine *g)
{
	*s = (struct bench_stages){.n = engine_n_stages(g)};
	for (uint32_t i = 0; i < s->n; i++)
		s->stage[i] = engine_stage(g, i);
	engine_stages_usage(g, s->usage);
}

static void name_stage(const struct bench_stages *s, uint32_t i, char *out, size_t size)
{
	const struct engine_stage *k = &s->stage[i];
	char rank[24] = "";
	if (s->stage[0].rank) /* rank 0 has the last layers */
		snprintf(rank, sizeof rank, "rank %u, ", k->rank);
	snprintf(out, size, "stage %u (layers %u to %u, %scard %u)", i, k->first_layer,
		k->end_layer - 1, rank, k->card);
}

void bench_stages_time(struct bench *b, const char *section, const char *what,
	const struct bench_stages *from, const struct bench_stages *to, double n)
{
	for (uint32_t i = 0; i < to->n && to->n > 1; i++) {
		char name[64];
		name_stage(to, i, name, sizeof name);
		bench_add_value(b, section, "ms",
			(double)(to->usage[i].computing_ns - from->usage[i].computing_ns) * 1e-6 / n, "%s: %s",
			what, name);
	}
}

void bench_overlap(struct bench *b, const char *section, const char *what,
	const struct engine_overlap *from, const struct engine_overlap *to, bool several_ranks)
{
	const double all = (double)(to->flight_ns - from->flight_ns);
	if (all <= 0)
		return;
	bench_add_value(b, section, "", (double)(to->computing_ns - from->computing_ns) / all,
		"stages computing at a time, mean (%u): %s", to->n_stages, what);
	/* of the others a rank knows the sum */
	for (uint32_t k = 0; k <= to->n_stages && !several_ranks; k++)
		bench_add_value(b, section, "%",
			100 * (double)(to->at_once_ns[k] - from->at_once_ns[k]) / all,
			"of the time %u stage%s computed: %s", k, k == 1 ? "" : "s", what);
}

/* ---- usage of the cards ---- */

/* Of all stages. */
struct cards_usage {
	double busy_ms[USAGE_KINDS], idle_ms[USAGE_KINDS], times[USAGE_KINDS], overhead_ms[USAGE_KINDS];
	double launches, graph_launches;
	uint64_t graphs_captured, capture_ns;
};

static void add_card(struct cards_usage *sum, const struct backend_usage *from,
	const struct backend_usage *to, double n)
{
	for (int i = 0; i < USAGE_KINDS; i++) {
		sum->busy_ms[i] += (double)(to->busy_ns[i] - from->busy_ns[i]) * 1e-6 / n;
		sum->idle_ms[i] += (double)(to->idle_ns[i] - from->idle_ns[i]) * 1e-6 / n;
		sum->times[i] += (double)(to->n_intervals[i] - from->n_intervals[i]) / n;
		sum->overhead_ms[i] += usage_event_overhead_ns(from, to, (enum usage_kind)i) * 1e-6 / n;
	}
	sum->launches += (double)(to->launches - from->launches) / n;
	sum->graph_launches += (double)(to->graph_launches - from->graph_launches) / n;
	sum->graphs_captured += to->graphs_captured - from->graphs_captured;
	sum->capture_ns += to->capture_ns - from->capture_ns;
}

static double busy_ms(const struct cards_usage *u)
{
	double sum = 0;
	for (int i = 0; i < USAGE_KINDS; i++)
		sum += u->busy_ms[i];
	return sum;
}

void bench_usage(struct bench *b, const char *section, const struct bench_stages *from,
	const struct bench_stages *to, double n)
{
	static const char *const name[USAGE_KINDS] = {[USAGE_EXPERTS] = "experts",
		[USAGE_GRAPH] = "captured graph segments",
		[USAGE_OTHER] = "the rest and the end of a token"};
	const bool several = to->n > 1;
	struct cards_usage u = {0};
	double idle = 0;
	for (uint32_t i = 0; i < to->n; i++)
		add_card(&u, &from->usage[i].device, &to->usage[i].device, n);
	for (int i = 0; i < USAGE_KINDS; i++)
		idle += u.idle_ms[i];
	bench_add_value(b, section, "ms/tok", busy_ms(&u),
		several ? "the cards of all stages are busy" : "the card is busy");
	for (uint32_t i = 0; i < to->n && several; i++) {
		struct cards_usage one = {0};
		char stage[64];
		add_card(&one, &from->usage[i].device, &to->usage[i].device, n);
		name_stage(to, i, stage, sizeof stage);
		bench_add_value(b, section, "ms/tok", busy_ms(&one), "... of %s", stage);
	}
	bench_add_value(b, section, "ms/tok", idle,
		several ? "they wait for the host or each other (%.1f %% of the time)"
				: "it waits for the host (%.1f %% of the time)",
		100 * idle / (busy_ms(&u) + idle));
	for (int i = 0; i < USAGE_KINDS; i++) {
		if (u.times[i] <= 0)
			continue;
		bench_add_value(
			b, section, "ms/tok", u.busy_ms[i], "busy with %s, %.1f times", name[i], u.times[i]);
		bench_add_value(b, section, "ms/tok", u.idle_ms[i],
			"waits before them, at most %.4f of which are the profile events", u.overhead_ms[i]);
	}
	bench_add_value(b, section, "/tok", u.launches, "kernels and copies on the card");
	bench_add_value(b, section, "/tok", u.graph_launches, "graphs launched");
	if (u.graphs_captured)
		bench_add_value(b, section, "ms", (double)u.capture_ns * 1e-6, "to capture %llu graphs",
			(unsigned long long)u.graphs_captured);
}

void bench_begin(const struct bench *b, const char *backend)
{
	if (b->format == BENCH_TEXT)
		printf("%s; %d thread%s; median (least .. most) of %d samples\n", backend, b->threads,
			b->threads == 1 ? "" : "s", b->repeats);
	else if (b->format == BENCH_CSV)
		printf("section,name,unit,median,low,high,limit,limit_name,share\n");
}

void bench_finish(struct bench *b, const char *backend)
{
	if (b->format != BENCH_JSON)
		return;
	json_t *o = json_object(), *list = json_array();
	json_out_str(o, "backend", backend);
	json_out_uint(o, "threads", (uint64_t)b->threads);
	json_out_uint(o, "ranks", ranks_here() ? ranks_count(ranks_here()) : 1);
	json_out_uint(o, "repeats", (uint64_t)b->repeats);
	for (size_t i = 0; i < b->n_figures; i++) {
		const struct bench_figure *f = &b->figures[i];
		json_t *item = json_object();
		json_out_str(item, "section", f->section);
		json_out_str(item, "name", f->name);
		json_out_str(item, "unit", f->unit);
		json_out_real(item, "median", f->rate.median);
		json_out_real(item, "low", f->rate.low);
		json_out_real(item, "high", f->rate.high);
		if (f->limit > 0) {
			json_out_real(item, "limit", f->limit);
			json_out_str(item, "limit_name", f->limit_name ? f->limit_name : "");
			json_out_real(item, "share", f->rate.median / f->limit);
		}
		json_array_append_new(list, item);
	}
	json_object_set_new(o, "figures", list);
	json_out_line(stdout, o);
}

void bench_fini(struct bench *b)
{
	free(b->figures);
	b->figures = NULL;
	b->n_figures = 0;
}
