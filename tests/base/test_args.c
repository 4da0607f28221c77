/* SPDX-License-Identifier: MIT */
/* Option tables: every accepted spelling, every refusal with its sentence, and the help text. */
#include "src/base/args.h"
#include "src/base/num.h"

#include <float.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* One option of every kind; reset by the parse helper. */
static struct {
	bool json, verbose, direct, temp_given;
	const char *model, *prompt, *file, *second;
	int draft, mode;
	uint32_t n;
	uint64_t seed, cache;
	float temp, top_p;
} v;

static const struct arg_word modes[] = {{"max", 0}, {"high", 1}, {"off", 2}, {0}};
static const struct arg_word drafts[] = {{"auto", -2}, {"off", 0}, {0}};
static const struct arg_word sizes[] = {{"auto", -1}, {0}};

static const struct arg main_options[] = {
	{.name = "model",
		.letter = 'm',
		.kind = ARG_STRING,
		.string = &v.model,
		.file = ARG_READS,
		.value = "FILE",
		.help = "model to run"},
	{.name = "prompt",
		.letter = 'p',
		.kind = ARG_STRING,
		.string = &v.prompt,
		.value = "TEXT",
		.help = "prompt"},
	{.letter = 'n',
		.kind = ARG_UINT,
		.u32 = &v.n,
		.max = 1000,
		.value = "N",
		.help = "most new tokens",
		.fallback = "until the model stops"},
	{.name = "json", .kind = ARG_FLAG, .flag = &v.json, .help = "statistics as JSON"},
	{.name = "verbose", .letter = 'v', .kind = ARG_FLAG, .flag = &v.verbose, .help = "say more"},
	{.letter = 'q', .kind = ARG_FLAG, .flag = &v.json, .help = "say less"},
	{.name = "no-direct",
		.kind = ARG_FLAG,
		.flag = &v.direct,
		.clears = true,
		.help = "buffered reads"},
	{.name = "hidden", .kind = ARG_FLAG, .flag = &v.json},
};
static const struct arg more_options[] = {
	{.name = "temp",
		.kind = ARG_FLOAT,
		.f32 = &v.temp,
		.max = 100,
		.given = &v.temp_given,
		.help = "temperature"},
	{.name = "top-p",
		.kind = ARG_FLOAT,
		.f32 = &v.top_p,
		.max = 1,
		.above_min = true,
		.help = "nucleus"},
	{.name = "seed", .kind = ARG_UINT64, .u64 = &v.seed, .help = "seed"},
	{.name = "draft",
		.kind = ARG_INT,
		.i32 = &v.draft,
		.min = -3,
		.max = 8,
		.words = drafts,
		.help = "drafts"},
	{.name = "think", .kind = ARG_CHOICE, .i32 = &v.mode, .words = modes, .help = "reasoning"},
	{.name = "cache-gb",
		.kind = ARG_SIZE_GB,
		.u64 = &v.cache,
		.words = sizes,
		.value = "G",
		.help = "budget"},
};
static const struct arg_group groups[] = {
	{NULL, main_options, ARRAY_LEN(main_options)},
	{"Sampling", more_options, ARRAY_LEN(more_options)},
};
static const struct arg files[] = {
	{.kind = ARG_STRING, .string = &v.file, .value = "A", .required = true},
	{.kind = ARG_STRING, .string = &v.second, .value = "B"},
};
static const struct args plain = {.command = "prog",
	.usage = "[options]",
	.about = "Does things.",
	.example = "prog -n 3\nprog --json",
	.groups = groups,
	.n_groups = ARRAY_LEN(groups)};
static const struct args with_files = {.command = "prog",
	.usage = "A [B]",
	.groups = groups,
	.n_groups = 2,
	.positional = files,
	.n_positional = 2};

static struct err e;

#define PARSE(args, ...)                                                                           \
	({                                                                                             \
		char *list[] = {"prog", ##__VA_ARGS__, NULL};                                              \
		memset(&v, 0, sizeof v);                                                                   \
		v.direct = true;                                                                           \
		e = (struct err){0};                                                                       \
		args_parse(args, (int)ARRAY_LEN(list) - 1, list, &e);                                      \
	})

static void spellings(void **state)
{
	(void)state;
	assert_int_equal(PARSE(&plain), 0);
	assert_int_equal(PARSE(&plain, "--model", "a.gguf", "--prompt=x=y", "-n", "7"), 0);
	assert_string_equal(v.model, "a.gguf");
	assert_string_equal(v.prompt, "x=y");
	assert_int_equal(v.n, 7);
	assert_int_equal(PARSE(&plain, "-mb.gguf", "-n12", "-p", ""), 0);
	assert_string_equal(v.model, "b.gguf");
	assert_int_equal(v.n, 12);
	assert_string_equal(v.prompt, "");
	assert_int_equal(PARSE(&plain, "-vq"), 0);
	assert_true(v.verbose && v.json);
	assert_int_equal(PARSE(&plain, "-vn5"), 0);
	assert_true(v.verbose && v.n == 5);
	assert_int_equal(PARSE(&plain, "-vn", "6"), 0);
	assert_int_equal(v.n, 6);
	assert_int_equal(PARSE(&plain, "--no-direct"), 0);
	assert_false(v.direct);
	assert_int_equal(PARSE(&plain, "--hidden"), 0);
	assert_int_equal(PARSE(&plain, "--prompt=", "--prompt", "last"), 0);
	assert_string_equal(v.prompt, "last");
	/* a prompt may begin with a dash, unless it is exactly an option */
	assert_int_equal(PARSE(&plain, "-p", "- a list"), 0);
	assert_string_equal(v.prompt, "- a list");
	assert_int_equal(PARSE(&plain, "-p", "--json=x"), 0);
	assert_int_equal(PARSE(&plain, "--prompt=--json"), 0);
	assert_string_equal(v.prompt, "--json");
}

static void numbers(void **state)
{
	(void)state;
	assert_int_equal(PARSE(&plain, "--temp", "0.25"), 0);
	assert_true(v.temp == 0.25f && v.temp_given);
	assert_int_equal(PARSE(&plain, "--temp", "1e1"), 0);
	assert_true(v.temp == 10);
	assert_int_equal(PARSE(&plain, "--temp", "5."), 0);
	assert_int_equal(PARSE(&plain, "--temp", ".5"), 0);
	assert_int_equal(PARSE(&plain, "--seed", "18446744073709551615"), 0);
	assert_true(v.seed == UINT64_MAX);
	assert_int_equal(PARSE(&plain, "--draft", "-3"), 0);
	assert_int_equal(v.draft, -3);
	assert_int_equal(PARSE(&plain, "--draft", "auto"), 0);
	assert_int_equal(v.draft, -2);
	assert_int_equal(PARSE(&plain, "--think", "off"), 0);
	assert_int_equal(v.mode, 2);
	assert_int_equal(PARSE(&plain, "--cache-gb", "0.004"), 0);
	assert_true(v.cache == 4000000);
	assert_int_equal(PARSE(&plain, "--cache-gb", "120"), 0);
	assert_true(v.cache == 120000000000u);
	assert_int_equal(PARSE(&plain, "--cache-gb", "auto"), 0);
	assert_true(v.cache == UINT64_MAX);
	assert_int_equal(PARSE(&plain, "-n", "-0"), 0);
	assert_int_equal(v.n, 0);
}

static void refused_numbers(void **state)
{
	(void)state;
	static char *const bad[][2] = {
		{"-n", ""},
		{"-n", "x"},
		{"-n", "1x"},
		{"-n", " 1"},
		{"-n", "1 "},
		{"-n", "+1"},
		{"-n", "0x10"},
		{"-n", "1.0"},
		{"-n", "-1"},
		{"-n", "1001"},
		{"-n", "99999999999999999999999"},
		{"-n", "--5"},
		{"-n", "1e2"},
		{"--seed", "18446744073709551616"},
		{"--seed", "-1"},
		{"--draft", "9"},
		{"--draft", "-4"},
		{"--draft", "-99999999999"},
		{"--draft", "on"},
		{"--temp", "nan"},
		{"--temp", "inf"},
		{"--temp", "-inf"},
		{"--temp", "1e400"},
		{"--temp", "-0.1"},
		{"--temp", "100.5"},
		{"--temp", "0x1p3"},
		{"--temp", "1,5"},
		{"--temp", "."},
		{"--temp", "e5"},
		{"--temp", "1e"},
		{"--temp", "1e+"},
		{"--temp", ""},
		{"--temp", "1f"},
		{"--top-p", "0"},
		{"--top-p", "1.01"},
		{"--top-p", "-0"},
		{"--top-p", "1e-60"},
		{"--think", "maximum"},
		{"--think", ""},
		{"--cache-gb", "-1"},
		{"--cache-gb", "24G"},
		{"--cache-gb", "1e10"},
		{"--cache-gb", "nan"},
	};
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		int rc = PARSE(&plain, bad[i][0], bad[i][1]);
		if (rc != ERR_USAGE)
			fail_msg("%s \"%s\" gave %d", bad[i][0], bad[i][1], rc);
		assert_int_equal(e.code, ERR_USAGE);
		assert_non_null(strstr(e.text, bad[i][0])); /* names the option */
	}
	PARSE(&plain, "-n", "12,5");
	assert_string_equal(e.text, "-n: \"12,5\" is not a whole number");
	PARSE(&plain, "--temp=200");
	assert_string_equal(e.text, "--temp: 200 is out of range, expected 0 to 100");
	const struct arg context = {.kind = ARG_UINT, .u32 = &v.n, .min = 1, .max = INT32_MAX};
	assert_int_equal(args_set(&context, "-c", "99999999999", &e), ERR_USAGE);
	assert_string_equal(e.text, "-c: 99999999999 is out of range, expected 1 to 2147483647");
	assert_int_equal(args_set(&context, "-c", "0", &e), ERR_USAGE);
	assert_string_equal(e.text, "-c: 0 is out of range, expected at least 1");
	PARSE(&plain, "--seed", "-1");
	assert_string_equal(e.text, "--seed: -1 is out of range, expected 0 to 18446744073709551615");
	PARSE(&plain, "--seed", "18446744073709551616");
	assert_non_null(strstr(e.text, "expected 0 to 18446744073709551615"));
	PARSE(&plain, "--model", "");
	assert_string_equal(e.text, "--model: the name of a file is expected, an empty one found");
	PARSE(&plain, "-p", "");
	assert_string_equal(v.prompt, "");
	PARSE(&plain, "--top-p", "0");
	assert_string_equal(e.text, "--top-p: 0 is out of range, expected more than 0 to 1");
	PARSE(&plain, "--think", "loud");
	assert_string_equal(e.text, "--think: \"loud\" is none of max, high or off");
	PARSE(&plain, "--draft", "two");
	assert_string_equal(e.hint, "a number, or auto or off");
}

static void refused_usage(void **state)
{
	(void)state;
	assert_int_equal(PARSE(&plain, "--tmep", "1"), ERR_USAGE);
	assert_string_equal(e.text, "unknown option --tmep");
	assert_string_equal(e.hint, "did you mean --temp?");
	assert_int_equal(PARSE(&plain, "--mode=x"), ERR_USAGE);
	assert_string_equal(e.hint, "did you mean --model?");
	assert_int_equal(PARSE(&plain, "--quantum"), ERR_USAGE);
	assert_string_equal(e.hint, "prog --help lists the options");
	assert_int_equal(PARSE(&plain, "-x"), ERR_USAGE);
	assert_string_equal(e.text, "unknown option -x");
	assert_int_equal(PARSE(&plain, "-temp", "1"), ERR_USAGE);
	assert_string_equal(e.hint, "did you mean --temp?");
	assert_int_equal(PARSE(&plain, "-n"), ERR_USAGE);
	assert_string_equal(e.text, "-n needs a value (N)");
	assert_int_equal(PARSE(&plain, "--model", "--json"), ERR_USAGE);
	assert_string_equal(e.text, "--model needs a value, found the option --json");
	assert_int_equal(PARSE(&plain, "--json=1"), ERR_USAGE);
	assert_int_equal(PARSE(&plain, "stray"), ERR_USAGE);
	assert_string_equal(e.text, "unexpected argument \"stray\"");
	assert_int_equal(PARSE(&plain, "-\xff\xfe"), ERR_USAGE);
	assert_int_equal(PARSE(&plain, "--=3"), ERR_USAGE);
	/* longer than every buffer on the way */
	char name[3000] = "--";
	memset(name + 2, 'a', sizeof name - 3);
	assert_int_equal(PARSE(&plain, name), ERR_USAGE);
	assert_int_equal(PARSE(&plain, "-n", name + 2), ERR_USAGE);
	/* an error may go unread */
	char *list[] = {"prog", "--nope", NULL};
	assert_int_equal(args_parse(&plain, 2, list, NULL), ERR_USAGE);
}

static void positional(void **state)
{
	(void)state;
	assert_int_equal(PARSE(&with_files, "one"), 0);
	assert_string_equal(v.file, "one");
	assert_null(v.second);
	assert_int_equal(PARSE(&with_files, "one", "--json", "two"), 0);
	assert_string_equal(v.second, "two");
	assert_true(v.json);
	assert_int_equal(PARSE(&with_files, "--", "--json", "-v"), 0);
	assert_string_equal(v.file, "--json");
	assert_string_equal(v.second, "-v");
	assert_false(v.json);
	assert_int_equal(PARSE(&with_files, "-"), 0);
	assert_string_equal(v.file, "-");
	assert_int_equal(PARSE(&with_files), ERR_USAGE);
	assert_string_equal(e.text, "argument A is missing");
	assert_string_equal(e.hint, "usage: prog A [B]");
	assert_int_equal(PARSE(&with_files, "a", "b", "c"), ERR_USAGE);

	const struct arg needed[] = {
		{.letter = 'o', .kind = ARG_STRING, .string = &v.file, .value = "OUT", .required = true}};
	const struct arg_group group = {NULL, needed, 1};
	const struct args a = {.command = "prog", .groups = &group, .n_groups = 1};
	assert_int_equal(PARSE(&a), ERR_USAGE);
	assert_string_equal(e.text, "option -o OUT is missing");
	assert_int_equal(PARSE(&a, "-o", "x"), 0);
}

static void help(void **state)
{
	(void)state;
	assert_int_equal(PARSE(&plain, "--help"), ARGS_HELP);
	assert_int_equal(PARSE(&plain, "-h"), ARGS_HELP);
	assert_int_equal(PARSE(&plain, "-vh", "--nonsense"), ARGS_HELP);
	struct buf b = {0};
	args_help(&plain, &b);
	const char *s = buf_str(&b);
	assert_ptr_equal(strstr(s, "Usage: prog [options]\n\nDoes things.\n\nOptions:\n"), s);
	assert_non_null(strstr(s, "\n  -m, --model FILE        model to run\n"));
	assert_non_null(strstr(
		s, "\n  -n N                    most new tokens (default: until the model stops)\n"));
	assert_non_null(strstr(s, "\n      --json              statistics as JSON\n"));
	assert_non_null(strstr(s, "\nSampling:\n"));
	assert_non_null(
		strstr(s, "\n      --think max|high|off\n                          reasoning\n"));
	assert_non_null(strstr(s, "\nExample:\n  prog -n 3\n  prog --json\n"));
	assert_null(strstr(s, "hidden"));
	buf_free(&b);
}

static void help_is_filled(void **state)
{
	(void)state;
	bool flag;
	const struct arg one[] = {{.name = "x",
		.kind = ARG_FLAG,
		.flag = &flag,
		.help = "many words in one sentence that goes on and on so that it cannot stand in one "
				"line of a "
				"terminal, can it"}};
	const struct arg_group group = {"Long", one, 1};
	const struct args a = {
		.command = "prog", .about = "First line.\nSecond line.", .groups = &group, .n_groups = 1};
	struct buf b = {0};
	args_help(&a, &b);
	assert_non_null(strstr(buf_str(&b), "First line.\nSecond line.\n\nLong:\n"));
	for (const char *p = buf_str(&b); *p;) {
		size_t n = strcspn(p, "\n");
		assert_true(n <= 98);
		assert_true(n == 0 || p[n - 1] != ' ');
		p += n + 1;
	}
	buf_free(&b);
}

static void distance(void **state)
{
	(void)state;
	assert_int_equal(args_distance("temp", "temp"), 0);
	assert_int_equal(args_distance("tmep", "temp"), 1);
	assert_int_equal(args_distance("insp", "inspect"), 1);
	assert_true(args_distance("zzzz", "temp") < 0);
	assert_true(args_distance("", "temp") < 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(spellings),
		cmocka_unit_test(numbers),
		cmocka_unit_test(refused_numbers),
		cmocka_unit_test(refused_usage),
		cmocka_unit_test(positional),
		cmocka_unit_test(help),
		cmocka_unit_test(help_is_filled),
		cmocka_unit_test(distance),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
