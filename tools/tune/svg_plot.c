/* SPDX-License-Identifier: MIT */
/* Draws the plot: title, grid with round numbers, curves, names pushed apart where they would
 * overlap. */
#include "tools/tune/svg_plot.h"

#include "src/base/buf.h"
#include "src/base/num.h"
#include "src/base/out_file.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define WIDTH     820
#define HEIGHT    480
#define LEFT      76
#define RIGHT     150 /* room for the names */
#define TOP       72
#define BOTTOM    62
#define NAME_STEP 17.0 /* least distance of two names */

/* Different also to people who do not see red and green alike (Okabe and Ito). */
static const char *const colours[SVG_MAX_SERIES] = {
	"#0072b2", "#d55e00", "#009e73", "#444444", "#cc79a7", "#e69f00", "#56b4e9", "#000000"};

int svg_policy_colour(const char *policy)
{
	static const char *const policies[] = {"lru", "lfu", "sieve", "belady", "belady-bypass"};
	for (size_t i = 0; i < ARRAY_LEN(policies); i++)
		if (!strcmp(policy, policies[i]))
			return (int)i + 1;
	return 0;
}

static const char *series_colour(const struct svg_plot *p, int i)
{
	int c = p->series[i].colour;
	return colours[c > 0 && c <= SVG_MAX_SERIES ? c - 1 : i];
}

struct frame {
	double x0, x1, y0, y1; /* data range */
};

static double px(const struct frame *f, double x)
{
	return LEFT + (x - f->x0) / (f->x1 - f->x0) * (WIDTH - LEFT - RIGHT);
}

static double py(const struct frame *f, double y)
{
	return HEIGHT - BOTTOM - (y - f->y0) / (f->y1 - f->y0) * (HEIGHT - TOP - BOTTOM);
}

static void put_text(struct buf *out, const char *s)
{
	for (; *s; s++)
		switch (*s) {
		case '<':
			buf_puts(out, "&lt;");
			break;
		case '>':
			buf_puts(out, "&gt;");
			break;
		case '&':
			buf_puts(out, "&amp;");
			break;
		case '"':
			buf_puts(out, "&quot;");
			break;
		default:
			if ((unsigned char)*s >= 32)
				buf_putc(out, *s);
		}
}

static void text(struct buf *out, double x, double y, const char *attributes, const char *s)
{
	buf_printf(out, "<text x=\"%.1f\" y=\"%.1f\" %s>", x, y, attributes);
	put_text(out, s);
	buf_puts(out, "</text>\n");
}

/* 1, 2 or 5 times a power of ten, so that about n steps cover the range. */
static double round_step(double range, int n)
{
	double raw = range / n, power = pow(10, floor(log10(raw))), m = raw / power;
	return power * (m <= 1 ? 1 : m <= 2 ? 2 : m <= 5 ? 5 : 10);
}

static void number(char *s, size_t n, double v, double step)
{
	int digits = step >= 1 ? 0 : (int)ceil(-log10(step) - 1e-9);
	snprintf(s, n, "%.*f", digits, v);
}

static struct frame find_frame(const struct svg_plot *p)
{
	struct frame f = {INFINITY, -INFINITY, INFINITY, -INFINITY};
	for (int i = 0; i < p->n_series; i++)
		for (int j = 0; j < p->series[i].n; j++) {
			f.x0 = MIN(f.x0, p->series[i].x[j]);
			f.x1 = MAX(f.x1, p->series[i].x[j]);
			f.y0 = MIN(f.y0, p->series[i].y[j]);
			f.y1 = MAX(f.y1, p->series[i].y[j]);
		}
	if (!(f.x0 <= f.x1)) /* no points */
		f = (struct frame){0, 1, 0, 1};
	if (p->x_from_zero)
		f.x0 = MIN(f.x0, 0.0);
	if (p->y_from_zero)
		f.y0 = MIN(f.y0, 0.0);
	if (p->y_min != p->y_max) {
		f.y0 = p->y_min;
		f.y1 = p->y_max;
	}
	if (f.x0 == f.x1) {
		f.x0 -= fabs(f.x0) * 0.1 + 0.5;
		f.x1 += fabs(f.x1) * 0.1 + 0.5;
	}
	if (f.y0 == f.y1) {
		f.y0 -= fabs(f.y0) * 0.1 + 0.5;
		f.y1 += fabs(f.y1) * 0.1 + 0.5;
	}
	if (p->y_min == p->y_max) { /* whole steps around the data */
		double step = round_step(f.y1 - f.y0, 6);
		f.y0 = floor(f.y0 / step) * step;
		f.y1 = ceil(f.y1 / step) * step;
	}
	return f;
}

static void draw_grid(const struct svg_plot *p, const struct frame *f, struct buf *out)
{
	char label[64];
	double step = round_step(f->y1 - f->y0, 6);
	double first = ceil(f->y0 / step - 1e-9);
	for (int i = 0; (first + i) * step <= f->y1 + step * 1e-6; i++) {
		double v = (first + i) * step;
		buf_printf(
			out, "<path d=\"M%d %.1fH%d\" class=\"grid\"/>\n", LEFT, py(f, v), WIDTH - RIGHT);
		number(label, sizeof label, fabs(v) < step * 1e-6 ? 0 : v, step);
		text(out, LEFT - 9, py(f, v) + 4.5, "class=\"tick\" text-anchor=\"end\"", label);
	}
	step = round_step(f->x1 - f->x0, 8);
	first = ceil(f->x0 / step - 1e-9);
	for (int i = 0; (first + i) * step <= f->x1 + step * 1e-6; i++) {
		double v = (first + i) * step;
		buf_printf(out, "<path d=\"M%.1f %dv5\" class=\"axis\"/>\n", px(f, v), HEIGHT - BOTTOM);
		number(label, sizeof label, fabs(v) < step * 1e-6 ? 0 : v, step);
		text(out, px(f, v), HEIGHT - BOTTOM + 21, "class=\"tick\" text-anchor=\"middle\"", label);
	}
	buf_printf(
		out, "<path d=\"M%d %dH%d\" class=\"axis\"/>\n", LEFT, HEIGHT - BOTTOM, WIDTH - RIGHT);
	text(out, LEFT + (WIDTH - LEFT - RIGHT) / 2.0, HEIGHT - 18,
		"class=\"label\" text-anchor=\"middle\"", p->x_label);
	buf_printf(out, "<g transform=\"translate(22 %.1f) rotate(-90)\">",
		TOP + (HEIGHT - TOP - BOTTOM) / 2.0);
	text(out, 0, 0, "class=\"label\" text-anchor=\"middle\"", p->y_label);
	buf_puts(out, "</g>\n");
}

static void draw_series(
	const struct svg_series *s, const struct frame *f, const char *colour, struct buf *out)
{
	buf_printf(out, "<g stroke=\"%s\" fill=\"%s\"><title>", colour, colour);
	put_text(out, s->name);
	buf_puts(out, "</title>\n<path fill=\"none\" stroke-width=\"2\" stroke-linejoin=\"round\"");
	buf_puts(out, s->dashed ? " stroke-dasharray=\"6 4\" d=\"" : " d=\"");
	for (int i = 0; i < s->n; i++)
		buf_printf(out, "%c%.1f %.1f", i ? 'L' : 'M', px(f, s->x[i]), py(f, s->y[i]));
	buf_puts(out, "\"/>\n");
	for (int i = 0; i < s->n; i++)
		buf_printf(
			out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3.2\"/>\n", px(f, s->x[i]), py(f, s->y[i]));
	buf_puts(out, "</g>\n");
}

/* Names at the right end of their curves; sorted by height, then pushed down from the top and up
 * from the bottom until none overlap. */
static void draw_names(const struct svg_plot *p, const struct frame *f, struct buf *out)
{
	int order[SVG_MAX_SERIES], n = 0;
	double want[SVG_MAX_SERIES], at[SVG_MAX_SERIES];
	for (int i = 0; i < p->n_series; i++) {
		if (!p->series[i].n)
			continue;
		want[i] = py(f, p->series[i].y[p->series[i].n - 1]);
		int j = n++;
		for (; j > 0 && want[order[j - 1]] > want[i]; j--)
			order[j] = order[j - 1];
		order[j] = i;
	}
	for (int j = 0; j < n; j++)
		at[j] =
			j && want[order[j]] < at[j - 1] + NAME_STEP ? at[j - 1] + NAME_STEP : want[order[j]];
	for (int j = n - 1; j >= 0; j--) {
		double most = j == n - 1 ? HEIGHT - BOTTOM : at[j + 1] - NAME_STEP;
		at[j] = MIN(at[j], most);
	}
	for (int j = 0; j < n; j++) {
		int i = order[j];
		double x = px(f, p->series[i].x[p->series[i].n - 1]);
		char attributes[100];
		buf_printf(out,
			"<path d=\"M%.1f %.1fL%d %.1f\" stroke=\"%s\" stroke-width=\"1\" opacity=\"0.45\"/>\n",
			x + 5, want[i], WIDTH - RIGHT + 22, at[j], series_colour(p, i));
		snprintf(attributes, sizeof attributes, "class=\"name\" fill=\"%s\"", series_colour(p, i));
		text(out, WIDTH - RIGHT + 26, at[j] + 4.5, attributes, p->series[i].name);
	}
}

static void draw_plot(const struct svg_plot *p, struct buf *out)
{
	struct frame f = find_frame(p);
	buf_printf(out,
		OUT_PLOT_HEAD
		"<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" "
		"height=\"%d\" font-family=\"system-ui, 'Segoe UI', 'DejaVu Sans', Helvetica, Arial, "
		"sans-serif\">\n<title>",
		WIDTH, HEIGHT, WIDTH, HEIGHT);
	put_text(out, p->title);
	buf_puts(out, "</"
				  "title>\n<style>.grid{stroke:#e3e5e8}.axis{stroke:#70757a}.tick{font-size:13px;"
				  "fill:#50555a}.label{font-size:14px;fill:#26292c}.name{font-size:14px;font-"
				  "weight:600}</style>\n");
	buf_printf(out, "<rect width=\"%d\" height=\"%d\" fill=\"#ffffff\"/>\n", WIDTH, HEIGHT);
	text(out, LEFT, 30, "font-size=\"18\" font-weight=\"600\" fill=\"#26292c\"", p->title);
	if (p->subtitle)
		text(out, LEFT, 51, "font-size=\"13\" fill=\"#50555a\"", p->subtitle);
	draw_grid(p, &f, out);
	for (int i = 0; i < p->n_series && i < SVG_MAX_SERIES; i++)
		draw_series(&p->series[i], &f, series_colour(p, i), out);
	draw_names(p, &f, out);
	buf_puts(out, "</svg>\n");
}

int svg_plot_save(const struct svg_plot *p, const char *path, bool force, struct err *e)
{
	struct buf svg = {0};
	struct out_file out = {0};
	int rc = out_file_open(&out, path, &out_plot, force, e);
	if (!rc) {
		draw_plot(p, &svg);
		fwrite(svg.data, 1, svg.len, out.f);
		rc = out_file_commit(&out, e);
	}
	buf_free(&svg);
	return rc;
}
