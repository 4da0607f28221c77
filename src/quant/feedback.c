/* SPDX-License-Identifier: MIT */
#include "src/quant/feedback.h"

#include <math.h>
#include <string.h>

#define N    FEEDBACK_COLUMNS
#define DAMP 0.01 /* added to the diagonal, as a part of it */
/* A column without any importance still gets this part of the mean, as in quant_block_load. */
#define LEAST 1e-5

/* Four rows at once: fewer passes over the moments. */
static void add_four(float *restrict m, const float *const *row, size_t column)
{
	const float *x0 = row[0] + column, *x1 = row[1] + column, *x2 = row[2] + column,
				*x3 = row[3] + column;
	for (int i = 0; i < N; m += N - i++) {
		const float a = x0[i], b = x1[i], c = x2[i], d = x3[i];
		for (int j = i; j < N; j++)
			m[j - i] = (((m[j - i] + a * x0[j]) + b * x1[j]) + c * x2[j]) + d * x3[j];
	}
}

void quant_feedback_add_rows(float *moments, const float *const *row, size_t n, size_t column)
{
	for (; n >= 4; n -= 4, row += 4)
		add_four(moments, row, column);
	for (; n; n--, row++) {
		const float *x = *row + column;
		float *restrict m = moments;
		for (int i = 0; i < N; m += N - i++)
			for (int j = i; j < N; j++)
				m[j - i] += x[i] * x[j];
	}
}

/* H = U D U' in place: afterwards h[i][j] is U for j > i and h[i][i] is D. From the last column
 * on, each column takes what the columns behind it have left. False: not positive definite. */
static bool factor(double *h)
{
	for (int j = N - 1; j >= 0; j--) {
		double d = h[j * N + j];
		if (!(d > 0 && isfinite(d)))
			return false;
		for (int i = 0; i < j; i++) {
			double u = h[i * N + j] / d;
			/* rows i of what is left, columns i .. j - 1: the upper triangle is enough */
			for (int k = i; k < j; k++)
				h[i * N + k] -= u * h[k * N + j];
		}
		for (int i = 0; i < j; i++)
			h[i * N + j] /= d;
	}
	return true;
}

static void set_diagonal(struct quant_feedback *out, const double *d)
{
	memset(out, 0, sizeof *out);
	for (int i = 0; i < N; i++)
		out->weight[i] = out->joint[i] = (float)d[i];
}

/* The block-unit form U B^-1, B being the 8 x 8 blocks on the diagonal of U, and B itself. */
static void store_factors(struct quant_feedback *out, const double *u)
{
	memset(out, 0, sizeof *out);
	out->correlated = true;
	for (int i = 0; i < N; i++) {
		int g = i / 8;
		out->weight[i] = (float)u[i * N + i];
		double joint = u[i * N + i];
		for (int j = i + 1; j < 8 * (g + 1); j++) {
			out->within[i][j % 8] = (float)u[i * N + j];
			joint += u[i * N + j] * u[i * N + j] * u[j * N + j];
		}
		out->joint[i] = (float)joint;
		for (int later = g + 1; later < N / 8; later++) {
			double x[8]; /* x B = this row of U */
			for (int c = 0; c < 8; c++) {
				x[c] = u[i * N + 8 * later + c];
				for (int k = 0; k < c; k++)
					x[c] -= x[k] * u[(8 * later + k) * N + 8 * later + c];
				out->between[g][later][i % 8][c] = (float)x[c];
			}
		}
	}
}

bool quant_feedback_make(struct quant_feedback *out, const float *moments, const float *importance,
	float trust, double *work)
{
	double d[N], size[N], sum = 0;
	bool correlated = false;
	for (int i = 0; i < N; i++)
		sum += (double)importance[i];
	for (int i = 0; i < N; i++)
		d[i] = sum > 0 ? (double)importance[i] * N / sum + LEAST : 1;
	const float *m = moments;
	for (int i = 0; i < N; m += N - i++)
		size[i] = sqrt((double)m[0]);
	m = moments;
	for (int i = 0; i < N; m += N - i++) {
		work[i * N + i] = d[i] * (1 + DAMP);
		for (int j = i + 1; j < N; j++) {
			double c = size[i] > 0 && size[j] > 0
						   ? (double)m[j - i] / size[i] / size[j] * (double)trust
						   : 0;
			correlated = correlated || c != 0;
			work[i * N + j] = c * sqrt(d[i] * d[j]);
		}
	}
	bool definite = true;
	if (correlated && (definite = factor(work)))
		store_factors(out, work);
	else
		set_diagonal(out, d);
	return definite;
}
