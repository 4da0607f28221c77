/* SPDX-License-Identifier: MIT */
/*
 * src/base/half.h against values computed from the definition of each format in double arithmetic:
 * every bit pattern to float, and for each pair of neighbouring values the encoding of both, of the
 * midpoint (ties to even) and of the floats next to it.
 */
#include "src/base/half.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

/* (-1)^sign * 2^(e - bias) * 1.m by the book; `special` = the largest exponent means infinity or
 * NaN */
static double decode(unsigned bits, int exponent_bits, int mantissa_bits, bool special)
{
	unsigned mantissa = bits & ((1u << mantissa_bits) - 1);
	int exponent = (int)(bits >> mantissa_bits & ((1u << exponent_bits) - 1)),
		bias = (1 << (exponent_bits - 1)) - 1;
	double sign = bits >> (exponent_bits + mantissa_bits) & 1 ? -1 : 1;
	if (special && exponent == (1 << exponent_bits) - 1)
		return mantissa ? NAN : sign * INFINITY;
	double fraction = ldexp(mantissa, -mantissa_bits);
	return sign * (exponent ? ldexp(1 + fraction, exponent - bias) : ldexp(fraction, 1 - bias));
}

static void same(float got, double want, unsigned bits)
{
	if (isnan(want) ? !isnan(got) : (double)got != want || !signbit(got) != !signbit(want))
		fail_msg("0x%x gives %.9g, expected %.17g", bits, (double)got, want);
}

static void test_to_float(void **state)
{
	(void)state;
	for (unsigned i = 0; i < 65536; i++) {
		same(f16_to_f32((uint16_t)i), decode(i, 5, 10, true), i);
		same(bf16_to_f32((uint16_t)i), decode(i, 8, 7, true), i);
	}
	for (unsigned i = 0; i < 256; i++)
		same(
			f8_e4m3_to_f32((uint8_t)i), (i & 127) == 127 ? (double)NAN : decode(i, 4, 3, false), i);
	assert_true(f8_e4m3_to_f32(0x7e) == 448.0f && f8_e4m3_to_f32(1) == 0x1p-9f);
}

typedef uint16_t encode_fn(float f);

static void encodes(encode_fn *encode, float f, unsigned want)
{
	if (encode(f) != want)
		fail_msg("%.9g (0x%08x) encodes to 0x%04x, expected 0x%04x", (double)f, f32_bits(f),
			encode(f), want);
	if (encode(-f) != (want | 0x8000))
		fail_msg("%.9g encodes to 0x%04x, expected 0x%04x", (double)-f, encode(-f), want | 0x8000);
}

/* Walks all non-negative finite values; the one after the largest counts as a finite value for
 * rounding (so says IEEE). */
static void check_encoder(encode_fn *encode, int exponent_bits, int mantissa_bits)
{
	unsigned infinity = ((1u << exponent_bits) - 1) << mantissa_bits;
	for (unsigned i = 0; i < infinity; i++) {
		double low = decode(i, exponent_bits, mantissa_bits, false);
		double high = decode(i + 1, exponent_bits, mantissa_bits, false), middle = (low + high) / 2;
		encodes(encode, (float)low, i);
		if (middle > (double)FLT_MAX || (double)(float)middle != middle)
			continue; /* past the floats, or between the smallest subnormals of bfloat16: no float
						 lies there */
		float m = (float)middle;
		encodes(encode, m, i + (i & 1));
		encodes(encode, nextafterf(m, 0), i);
		encodes(encode, nextafterf(m, INFINITY), i + 1);
	}
	encodes(encode, INFINITY, infinity);
}

static void test_from_float(void **state)
{
	(void)state;
	check_encoder(f32_to_f16, 5, 10);
	check_encoder(f32_to_bf16, 8, 7);
	encodes(f32_to_f16, 65519.996f, 0x7bff);
	encodes(f32_to_f16, 65520.0f, 0x7c00);
	encodes(f32_to_f16, FLT_MAX, 0x7c00);
	encodes(f32_to_f16, FLT_TRUE_MIN, 0);
	encodes(f32_to_bf16, FLT_MAX, 0x7f80);
}

static void test_nan(void **state)
{
	(void)state;
	static const uint32_t nans[] = {
		0x7f800001, 0x7fc00000, 0x7fffffff, 0x7f801fff, 0xff800001, 0xffffffff};
	for (size_t i = 0; i < sizeof nans / sizeof *nans; i++) {
		float f = f32_from_bits(nans[i]);
		assert_true(isnan(f16_to_f32(f32_to_f16(f))));
		assert_true(isnan(bf16_to_f32(f32_to_bf16(f))));
	}
	for (unsigned i = 0; i < 65536; i++) { /* what can be decoded encodes to itself, except NaN */
		if (!isnan(f16_to_f32((uint16_t)i)))
			assert_int_equal(f32_to_f16(f16_to_f32((uint16_t)i)), i);
		if (!isnan(bf16_to_f32((uint16_t)i)))
			assert_int_equal(f32_to_bf16(bf16_to_f32((uint16_t)i)), i);
	}
}

/* Every code decodes and encodes to itself; between two neighbours the nearer one, of two the even
 * one; beyond the largest, the largest. */
static void test_to_e4m3(void **state)
{
	(void)state;
	for (unsigned code = 0; code < 0x7e; code++) {
		const float low = f8_e4m3_to_f32((uint8_t)code), high = f8_e4m3_to_f32((uint8_t)(code + 1)),
					middle = (low + high) / 2;
		for (unsigned sign = 0; sign < 2; sign++) {
			const float f = sign ? -1.0f : 1.0f;
			assert_int_equal(f32_to_f8_e4m3(f * low), code | sign << 7);
			assert_int_equal(f32_to_f8_e4m3(f * middle), (code + (code & 1)) | sign << 7);
			assert_int_equal(f32_to_f8_e4m3(f * nextafterf(middle, 0)), code | sign << 7);
			assert_int_equal(f32_to_f8_e4m3(f * nextafterf(middle, high)), (code + 1) | sign << 7);
		}
	}
	assert_int_equal(f32_to_f8_e4m3(448), 0x7e);
	assert_int_equal(f32_to_f8_e4m3(INFINITY), 0x7e);
	assert_int_equal(f32_to_f8_e4m3(-FLT_MAX), 0xfe);
	assert_int_equal(f32_to_f8_e4m3(FLT_TRUE_MIN), 0);
	assert_int_equal(f32_to_f8_e4m3(NAN) & 0x7f, 0x7f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_to_float),
		cmocka_unit_test(test_from_float),
		cmocka_unit_test(test_nan),
		cmocka_unit_test(test_to_e4m3),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
