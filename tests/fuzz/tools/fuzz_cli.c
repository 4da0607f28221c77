/* SPDX-License-Identifier: MIT */
/*
 * What people type. Input: a byte that chooses, then text.
 *   0   a command line, words apart by zero bytes, against options of every kind
 *   1   the value of one option; a number that is taken is taken again when it is written out
 *   2   a list of numbers (trace simulate), 3 PATTERN=TYPE lists (convert --types), 4 token ids
 * Checked: a refusal has a sentence and is a usage or input error; what is accepted is in range.
 */
#include "src/base/args.h"
#include "src/base/log.h"
#include "src/base/num.h"
#include "src/checkpoint/convert_map.h"
#include "tools/options/habits.h"
#include "tools/options/text_input.h"
#include "tools/trace/trace_simulate.h"

#include <inttypes.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define N_WORDS 16

struct option_values {
	bool flag, off;
	const char *string, *positional;
	int i32, choice;
	uint32_t u32;
	uint64_t u64, bytes;
	float f32;
};

enum { ONE_I32, ONE_U32, ONE_U64, ONE_F32, ONE_SIZE, ONE_CHOICE, N_ONE };

static const struct arg_word choices[] = {{"max", 3}, {"high", 2}, {"off", 0}, {0}};
static const struct arg_word any_size[] = {{"auto", -1}, {0}};

static void option_table(struct option_values *v, struct arg out[N_ONE + 3])
{
	const struct arg list[] = {
		[ONE_I32] = {"seed", 's', ARG_INT, .i32 = &v->i32, .min = -50, .max = 1000},
		[ONE_U32] = {"context", 'c', ARG_UINT, .u32 = &v->u32},
		[ONE_U64] = {"number", 'n', ARG_UINT64, .u64 = &v->u64},
		[ONE_F32] = {"temp", 't', ARG_FLOAT, .f32 = &v->f32, .min = 0, .max = 10},
		[ONE_SIZE] = {"cache-gb", 0, ARG_SIZE_GB, .u64 = &v->bytes, .words = any_size, .max = 4096},
		[ONE_CHOICE] = {"think", 0, ARG_CHOICE, .i32 = &v->choice, .words = choices},
		{"quiet", 'q', ARG_FLAG, .flag = &v->flag},
		{"no-color", 0, ARG_FLAG, .flag = &v->off, .clears = true},
		{"model", 'm', ARG_STRING, .string = &v->string},
	};
	_Static_assert(ARRAY_LEN(list) == N_ONE + 3, "table");
	memcpy(out, list, sizeof list);
}

static void check_values(const struct option_values *v)
{
	if (v->i32 < -50 || v->i32 > 1000 || !(v->f32 >= 0 && v->f32 <= 10) ||
		(v->bytes > 4096000000000u && v->bytes != UINT64_MAX) ||
		(v->choice != 0 && v->choice != 2 && v->choice != 3))
		bug("a value out of range was taken");
}

static void check_refusal(int rc, const struct err *e)
{
	if ((rc != ERR_USAGE && rc != ERR_INPUT) || !e->text[0])
		bug("refused with code %d: %s", rc, e->text);
}

static void try_line(char *text, size_t n)
{
	struct option_values v = {0};
	struct arg list[N_ONE + 3];
	struct err e = {0};
	char *argv[N_WORDS + 1] = {(char *)"fuzz"};
	int argc = 1;
	option_table(&v, list);
	const struct arg_group group = {NULL, list, ARRAY_LEN(list)};
	const struct arg positional = {.kind = ARG_STRING, .string = &v.positional, .value = "FILE"};
	const struct args a = {.command = "fuzz",
		.usage = "[options]",
		.about = "",
		.groups = &group,
		.n_groups = 1,
		.positional = &positional,
		.n_positional = 1,
		.habits = habit_options};
	for (size_t at = 0; at < n && argc < N_WORDS; at += strlen(text + at) + 1)
		argv[argc++] = text + at;
	int rc = args_parse(&a, argc, argv, &e);
	if (rc && rc != ARGS_HELP)
		check_refusal(rc, &e);
	check_values(&v);
}

static bool write_value(const struct option_values *v, int which, char *out, size_t size)
{
	switch (which) {
	case ONE_I32:
		return snprintf(out, size, "%d", v->i32);
	case ONE_U32:
		return snprintf(out, size, "%u", v->u32);
	case ONE_U64:
		return snprintf(out, size, "%" PRIu64, v->u64);
	case ONE_F32:
		return snprintf(out, size, "%.9g", (double)v->f32);
	case ONE_SIZE:
		return v->bytes != UINT64_MAX && snprintf(out, size, "%.9f", (double)v->bytes / 1e9);
	default:
		return false;
	}
}

static void try_value(const char *text, int which)
{
	struct option_values v = {0}, again = {0};
	struct arg list[N_ONE + 3], second[N_ONE + 3];
	struct err e = {0};
	char written[64];
	option_table(&v, list);
	option_table(&again, second);
	int rc = args_set(&list[which], "--option", text, &e);
	if (rc) {
		check_refusal(rc, &e);
		return;
	}
	check_values(&v);
	if (!write_value(&v, which, written, sizeof written))
		return;
	if (args_set(&second[which], "--option", written, &e))
		bug("%s is taken, and %s is not: %s", text, written, e.text);
	if (memcmp(&v, &again, sizeof v) != 0)
		bug("%s and %s give other values", text, written);
}

static bool can_any(enum dtype type)
{
	(void)type;
	return true;
}

static void try_lists(const char *text, size_t n, int which)
{
	struct err e = {0};
	int rc = 0;
	if (which == 2) {
		uint64_t v, out[TRACE_LIST_MAX];
		int count = 0;
		const struct arg one = {.kind = ARG_UINT64, .u64 = &v, .max = 100};
		rc = trace_list_parse(text, &one, "--list", out, &count, &e);
		if (!rc && (count < 1 || count > TRACE_LIST_MAX))
			bug("a list of %d numbers", count);
		for (int i = 0; !rc && i < count; i++)
			if (out[i] > 100)
				bug("a number out of range");
	} else if (which == 3) {
		struct convert_types types = {0};
		rc = convert_types_parse(&types, text, can_any, &e);
	} else {
		struct token_ids ids = {0};
		rc = text_input_ids(text, n, "fuzz", &ids, &e);
		for (size_t i = 0; !rc && i < ids.n; i++)
			if (ids.data[i] < 0)
				bug("token %d", ids.data[i]);
		token_ids_free(&ids);
	}
	if (rc)
		check_refusal(rc, &e);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size < 2)
		return 0;
	char *text = malloc(size);
	memcpy(text, data + 1, size - 1);
	text[size - 1] = 0;
	if (data[0] % 5 == 0)
		try_line(text, size - 1);
	else if (data[0] % 5 == 1)
		try_value(text, data[0] / 5 % N_ONE);
	else
		try_lists(text, data[0] % 5 == 4 ? size - 1 : strlen(text), data[0] % 5);
	free(text);
	return 0;
}
