/* SPDX-License-Identifier: MIT */
/* The line is cut to the terminal's width, so that it never wraps and "\r" always finds its
 * beginning. */
#include "tools/output/progress.h"

#include "src/base/buf.h"
#include "src/base/clock.h"
#include "src/base/num.h"
#include "tools/chat/chat_view.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define REDRAW_NS 100000000u
#define BAR_MOST  32 /* columns */
#define BAR_LEAST 8

/* "2 h 05 min", "3 min 20 s", "12 s" */
static void put_time(struct buf *b, double s)
{
	unsigned t = s < 1e6 ? (unsigned)(s + 0.5) : 1000000;
	if (t >= 3600)
		buf_printf(b, "%u h %02u min", t / 3600, t / 60 % 60);
	else if (t >= 60)
		buf_printf(b, "%u min %02u s", t / 60, t % 60);
	else
		buf_printf(b, "%u s", MAX(t, 1u));
}

static void draw(struct progress *p, uint64_t done, uint64_t total)
{
	struct buf text = {0}, line = {0};
	double elapsed = (double)(p->shown_ns - p->start_ns) * 1e-9,
		   rate = elapsed > 0 ? (double)done / elapsed : 0;
	if (p->unit)
		buf_printf(&text, " %llu of %llu %s", (unsigned long long)done, (unsigned long long)total,
			p->unit);
	else
		buf_printf(&text, " %.2f of %.2f GB", (double)done * 1e-9, (double)total * 1e-9);
	if (done && p->unit)
		buf_printf(&text, ", %.*f %s/s", rate < 100, rate, p->unit);
	else if (done)
		buf_printf(&text, ", %.2f GB/s", rate * 1e-9);
	if (rate > 0) {
		buf_puts(&text, ", ");
		put_time(&text, (double)(total - done) / rate);
		buf_puts(&text, " left");
	}
	int room = chat_view_columns(STDERR_FILENO) - 2 - (int)strlen(p->what) - (int)text.len;
	buf_printf(&line, "\r%s ", p->what);
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

void progress_begin(struct progress *p, const char *what, const char *unit, uint64_t total)
{
	*p = (struct progress){
		.what = what, .unit = unit, .wanted = isatty(STDERR_FILENO), .start_ns = clock_ns()};
	p->shown_ns = p->start_ns;
	if (p->wanted)
		draw(p, 0, total);
}

void progress_update(struct progress *p, uint64_t done, uint64_t total)
{
	uint64_t now = clock_ns();
	if (!p->wanted || done > total || now - p->shown_ns < REDRAW_NS)
		return;
	p->shown_ns = now;
	draw(p, done, total);
}

void progress_end(struct progress *p)
{
	if (p->shown)
		fputs("\r\033[K", stderr);
	p->shown = false;
	p->wanted = false;
}
