/* SPDX-License-Identifier: MIT */
/* The line is cut to the terminal's width, so that it never wraps and "\r" always finds its
 * beginning. */
#include "tools/output/progress.h"

#include "src/base/buf.h"
#include "src/base/host/clock.h"
#include "src/base/num.h"
#include "tools/output/terminal.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define REDRAW_NS 100000000u
#define RATE_NS   300000000u
#define LONG_NS   2000000000u
#define BAR_MOST  32 /* columns */
#define BAR_LEAST 8

char *progress_time_text(double seconds, char out[32])
{
	unsigned t = seconds < 1e6 ? (unsigned)(seconds + 0.5) : 1000000;
	if (t >= 3600)
		snprintf(out, 32, "%u h %02u min", t / 3600, t / 60 % 60);
	else if (t >= 60)
		snprintf(out, 32, "%u min %02u s", t / 60, t % 60);
	else
		snprintf(out, 32, "%u s", MAX(t, 1u));
	return out;
}

/* " 1.20 of 5.00 GB, 0.52 GB/s, 7 s left" */
static void put_figures(const struct progress *p, uint64_t done, uint64_t total, struct buf *text)
{
	char left[32];
	double elapsed = (double)(clock_ns() - p->start_ns) * 1e-9,
		   rate = elapsed > 0 ? (double)(done - p->start_done) / elapsed : 0;
	if (p->unit)
		buf_printf(
			text, " %llu of %llu %s", (unsigned long long)done, (unsigned long long)total, p->unit);
	else
		buf_printf(text, " %.2f of %.2f GB", (double)done * 1e-9, (double)total * 1e-9);
	if (rate > 0 && p->unit)
		buf_printf(text, ", %.*f %s/s", rate < 100, rate, p->unit);
	else if (rate > 0)
		buf_printf(text, ", %.2f GB/s", rate * 1e-9);
	if (rate > 0 && done < total)
		buf_printf(text, ", %s left", progress_time_text((double)(total - done) / rate, left));
	if (p->detail[0])
		buf_printf(text, "; %s", p->detail);
}

static void draw_line(struct progress *p, uint64_t done, uint64_t total)
{
	struct buf text = {0}, line = {0};
	put_figures(p, done, total, &text);
	const int columns = terminal_columns(STDERR_FILENO) - 2;
	const int room = columns - (int)strlen(p->what) - (int)text.len;
	buf_printf(&line, "\r%.*s ", MAX(columns, 0), p->what);
	if (room >= BAR_LEAST) {
		int bar = MIN(room, BAR_MOST),
			full = total ? (int)((double)done / (double)total * bar) : bar;
		for (int i = 0; i < bar; i++)
			buf_puts(&line, i < full ? "\xe2\x94\x81" : "\xc2\xb7"); /* heavy line, middle dot */
	}
	buf_append(&line, text.data, (size_t)MAX((int)text.len + MIN(room, 0), 0));
	buf_puts(&line, "\033[K");
	fwrite(line.data, 1, line.len, stderr);
	fflush(stderr);
	buf_free(&text);
	buf_free(&line);
	p->shown = true;
}

static void progress_init(struct progress *p, const char *what, const char *unit)
{
	*p = (struct progress){.what = what,
		.unit = unit,
		.terminal = terminal_has_escapes(STDERR_FILENO),
		.start_ns = clock_ns()};
	p->shown_ns = p->start_ns;
}

void progress_begin(struct progress *p, const char *what, const char *unit, uint64_t total)
{
	progress_init(p, what, unit);
	if (p->terminal)
		draw_line(p, 0, total);
}

void progress_begin_patient(struct progress *p, const char *what, const char *unit)
{
	progress_init(p, what, unit);
	p->patient = true;
}

/* Whether the work, of which so much is done by now, takes LONG_NS: it has, or at its rate it will.
 * A rate of less than RATE_NS is not believed. */
static bool progress_is_long(const struct progress *p, uint64_t now, uint64_t done, uint64_t total)
{
	uint64_t ns = now - p->start_ns;
	return ns >= LONG_NS ||
		   (ns >= RATE_NS && done && (double)ns / (double)done * (double)total >= (double)LONG_NS);
}

void progress_begin_lines(
	struct progress *p, const char *what, const char *unit, uint64_t done, uint64_t total)
{
	progress_begin(p, what, unit, total);
	p->lines = !p->terminal;
	p->start_done = done;
	p->step = total ? (int)(20.0 * (double)done / (double)total) : 0;
}

void progress_detail(struct progress *p, const char *text)
{
	snprintf(p->detail, sizeof p->detail, "%s", text);
}

void progress_update(struct progress *p, uint64_t done, uint64_t total)
{
	uint64_t now = clock_ns();
	if (done > total || now - p->shown_ns < REDRAW_NS)
		return;
	if (p->patient && !p->shown && !progress_is_long(p, now, done, total))
		return;
	if (p->terminal) {
		p->shown_ns = now;
		draw_line(p, done, total);
		return;
	}
	int step = total ? (int)(20.0 * (double)done / (double)total) : 0;
	if (!p->lines || step == p->step)
		return;
	struct buf text = {0};
	put_figures(p, done, total, &text);
	fprintf(stderr, "%s %d %%:%s\n", p->what, 5 * step, buf_str(&text));
	buf_free(&text);
	p->shown_ns = now;
	p->step = step;
}

void progress_end(struct progress *p)
{
	if (p->shown)
		fputs("\r\033[K", stderr);
	p->shown = p->terminal = p->lines = false;
}
