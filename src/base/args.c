/* SPDX-License-Identifier: MIT */
/* Option tables: one pass over argv, values checked as they come, and the help text from the same
 * table. getopt_long is not used: it permutes argv, accepts abbreviations and knows nothing of
 * values. */
#include "src/base/args.h"

#include "src/base/num.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HELP_WIDTH  98 /* columns of help text */
#define HELP_COLUMN 26 /* where the help of an option begins */
#define LABEL_MAX   80

/* ---- values ---- */

/* Decimal digits with an optional minus; nothing else in the string. */
static bool is_integer(const char *s)
{
	s += *s == '-';
	size_t n = strspn(s, "0123456789");
	return n && !s[n];
}

/* digits [. digits] [e [sign] digits], at least one digit before the exponent. */
static bool is_decimal(const char *s)
{
	s += *s == '-';
	size_t whole = strspn(s, "0123456789"), part = 0;
	s += whole;
	if (*s == '.') {
		part = strspn(s + 1, "0123456789");
		s += 1 + part;
	}
	if (!whole && !part)
		return false;
	if (*s == 'e' || *s == 'E') {
		s++;
		s += *s == '-' || *s == '+';
		size_t n = strspn(s, "0123456789");
		return n && !s[n];
	}
	return !*s;
}

/* The largest whole number of the kind. */
static uint64_t most_of(enum arg_kind kind)
{
	return kind == ARG_INT ? INT32_MAX : kind == ARG_UINT ? UINT32_MAX : UINT64_MAX;
}

static int range_error(const struct arg *arg, const char *label, const char *text, struct err *e)
{
	if (arg->min == 0 && arg->max == 0 && (arg->kind == ARG_UINT || arg->kind == ARG_UINT64))
		return err_set(e, ERR_USAGE, "%s: %.40s is out of range, expected 0 to %" PRIu64, label,
			text, most_of(arg->kind));
	if (arg->min == 0 && arg->max == 0)
		return err_set(e, ERR_USAGE, "%s: %.40s is out of range", label, text);
	if (arg->max >= (double)INT32_MAX && strtod(text, NULL) <= arg->max)
		return err_set(e, ERR_USAGE, "%s: %.40s is out of range, expected %s %.10g%s", label, text,
			arg->above_min ? "more than" : "at least", arg->min,
			arg->kind == ARG_SIZE_GB ? " GB" : "");
	return err_set(e, ERR_USAGE, "%s: %.40s is out of range, expected %s%.10g to %.10g", label,
		text, arg->above_min ? "more than " : "", arg->min, arg->max);
}

static bool in_range(const struct arg *arg, double v)
{
	if (arg->min == 0 && arg->max == 0)
		return true;
	return v <= arg->max && (arg->above_min ? v > arg->min : v >= arg->min);
}

static int set_integer(const struct arg *arg, const char *label, const char *text, struct err *e)
{
	if (!is_integer(text))
		return err_set(e, ERR_USAGE, "%s: \"%.40s\" is not a whole number", label, text);
	bool negative = text[0] == '-';
	errno = 0;
	uint64_t magnitude = strtoull(text + negative, NULL, 10);
	if (errno || magnitude > most_of(arg->kind) ||
		(negative && magnitude && arg->kind != ARG_INT) ||
		!in_range(arg, negative ? -(double)magnitude : (double)magnitude))
		return range_error(arg, label, text, e);
	if (arg->kind == ARG_INT)
		*arg->i32 = negative ? -(int)magnitude : (int)magnitude;
	else if (arg->kind == ARG_UINT)
		*arg->u32 = (uint32_t)magnitude;
	else
		*arg->u64 = magnitude;
	return 0;
}

static int set_decimal(const struct arg *arg, const char *label, const char *text, struct err *e)
{
	if (!is_decimal(text))
		return err_set(e, ERR_USAGE, "%s: \"%.40s\" is not a number", label, text);
	double v = strtod(text, NULL);
	if (!isfinite(v) || !in_range(arg, v))
		return range_error(arg, label, text, e);
	if (arg->kind == ARG_FLOAT) {
		if (!isfinite((float)v) || (arg->above_min && (float)v <= (float)arg->min))
			return range_error(arg, label, text, e);
		*arg->f32 = (float)v;
		return 0;
	}
	if (v < 0 || v > 1e9) /* 10^18 bytes: below UINT64_MAX and above any machine */
		return range_error(arg, label, text, e);
	*arg->u64 = (uint64_t)llround(v * 1e9);
	return 0;
}

/* "a, b or c" */
static void list_words(const struct arg_word *w, char *out, size_t n)
{
	out[0] = 0;
	for (size_t used = 0; w->word && used < n; w++)
		used += (size_t)snprintf(out + used, n - used, "%s%s", w->word,
			!w[1].word  ? ""
			: w[2].word ? ", "
						: " or ");
}

int args_set(const struct arg *arg, const char *label, const char *text, struct err *e)
{
	for (const struct arg_word *w = arg->words; w && w->word; w++) {
		if (strcmp(w->word, text))
			continue;
		switch (arg->kind) {
		case ARG_INT:
		case ARG_CHOICE:
			*arg->i32 = (int)w->value;
			return 0;
		case ARG_UINT:
			*arg->u32 = (uint32_t)w->value;
			return 0;
		case ARG_UINT64:
		case ARG_SIZE_GB:
			*arg->u64 = (uint64_t)w->value;
			return 0;
		case ARG_FLOAT:
			*arg->f32 = (float)w->value;
			return 0;
		default:
			break;
		}
	}
	int rc = 0;
	switch (arg->kind) {
	case ARG_STRING:
		if (arg->file != ARG_NO_FILE && !*text) /* a shell's variable that is not set */
			return err_set(
				e, ERR_USAGE, "%s: the name of a file is expected, an empty one found", label);
		*arg->string = text;
		return 0;
	case ARG_INT:
	case ARG_UINT:
	case ARG_UINT64:
		rc = set_integer(arg, label, text, e);
		break;
	case ARG_FLOAT:
	case ARG_SIZE_GB:
		rc = set_decimal(arg, label, text, e);
		break;
	case ARG_CHOICE: {
		char words[256];
		list_words(arg->words, words, sizeof words);
		return err_set(e, ERR_USAGE, "%s: \"%.40s\" is none of %s", label, text, words);
	}
	case ARG_FLAG:
		return err_set(e, ERR_USAGE, "%s takes no value", label);
	}
	if (rc && arg->words) {
		char words[256];
		list_words(arg->words, words, sizeof words);
		err_hint(e, "a number, or %s", words);
	}
	return rc;
}

/* ---- names ---- */

/* Optimal string alignment (insert, delete, replace, swap neighbours) of two short words. */
int args_distance(const char *word, const char *candidate)
{
	size_t n = strlen(word), m = strlen(candidate);
	if (!n || n > 63 || m > 63)
		return -1;
	if (n >= 3 && m > n && !strncmp(candidate, word, n)) /* the beginning of a longer name */
		return 1;
	int row[3][64 + 1];
	for (size_t j = 0; j <= m; j++)
		row[0][j] = (int)j;
	for (size_t i = 1; i <= n; i++) {
		int *now = row[i % 3];
		const int *last = row[(i + 2) % 3], *before = row[(i + 1) % 3];
		now[0] = (int)i;
		for (size_t j = 1; j <= m; j++) {
			int d = last[j - 1] + (word[i - 1] != candidate[j - 1]);
			d = MIN(d, last[j] + 1);
			d = MIN(d, now[j - 1] + 1);
			if (i > 1 && j > 1 && word[i - 1] == candidate[j - 2] &&
				word[i - 2] == candidate[j - 1])
				d = MIN(d, before[j - 2] + 1);
			now[j] = d;
		}
	}
	int d = row[n % 3][m];
	return d <= (n <= 3 ? 1 : n <= 7 ? 2 : 3) && (size_t)d < n ? d : -1;
}

static const struct arg *find_long(const struct args *a, const char *name, size_t n)
{
	for (size_t g = 0; g < a->n_groups; g++)
		for (size_t i = 0; i < a->groups[g].n; i++) {
			const struct arg *arg = &a->groups[g].args[i];
			if (arg->name && strlen(arg->name) == n && !memcmp(arg->name, name, n))
				return arg;
		}
	return NULL;
}

static const struct arg *find_letter(const struct args *a, char letter)
{
	for (size_t g = 0; g < a->n_groups; g++)
		for (size_t i = 0; i < a->groups[g].n; i++)
			if (a->groups[g].args[i].letter == letter)
				return &a->groups[g].args[i];
	return NULL;
}

static void hint_help(const struct args *a, struct err *e)
{
	if (a->see)
		err_hint(e, "%s lists the options", a->see);
	else
		err_hint(e, "%s --help lists the options", a->command);
}

/* Is this argument, "-ngl", "--ctx-size=9", an option of another program and none of these? */
static const struct arg_habit *find_habit(const struct args *a, const char *text)
{
	const char *name = text + 1 + (text[1] == '-');
	size_t n = strcspn(name, "=");
	if (!a->habits || n < 2 || find_long(a, name, n))
		return NULL;
	for (const struct arg_habit *h = a->habits; h->name; h++)
		if (strlen(h->name) == n && !memcmp(h->name, name, n))
			return h;
	return NULL;
}

static int refuse_habit(const struct arg_habit *h, const char *text, struct err *e)
{
	err_set(e, ERR_USAGE, "unknown option %.*s", (int)MIN(strcspn(text, "="), (size_t)60), text);
	return err_hint(e, "%s", h->hint);
}

static int unknown_long(const struct args *a, const char *name, size_t n, struct err *e)
{
	char word[64];
	snprintf(word, sizeof word, "%.*s", (int)MIN(n, sizeof word - 1), name);
	const char *best = NULL;
	int best_distance = INT32_MAX;
	for (size_t g = 0; g < a->n_groups; g++)
		for (size_t i = 0; i < a->groups[g].n; i++) {
			const char *candidate = a->groups[g].args[i].name;
			int d = candidate && a->groups[g].args[i].help ? args_distance(word, candidate) : -1;
			if (d >= 0 && d < best_distance) {
				best_distance = d;
				best = candidate;
			}
		}
	err_set(e, ERR_USAGE, "unknown option --%s", word);
	if (best)
		err_hint(e, "did you mean --%s?", best);
	else
		hint_help(a, e);
	return ERR_USAGE;
}

/* Is this argument, exactly, one of the options? Then it was hardly meant as the value of another.
 */
static bool names_option(const struct args *a, const char *text)
{
	if (text[0] != '-' || !text[1])
		return false;
	if (text[1] == '-')
		return text[2] && find_long(a, text + 2, strlen(text + 2));
	return !text[2] && find_letter(a, text[1]);
}

static int set_option(const struct args *a, const struct arg *arg, const char *label,
	const char *attached, int argc, char **argv, int *at, struct err *e)
{
	if (arg->kind == ARG_FLAG) {
		if (attached)
			return err_set(e, ERR_USAGE, "%s takes no value, found \"%.40s\"", label, attached);
		*arg->flag = !arg->clears;
	} else {
		if (!attached && *at + 1 >= argc) {
			err_set(
				e, ERR_USAGE, "%s needs a value (%s)", label, arg->value ? arg->value : "VALUE");
			hint_help(a, e);
			return ERR_USAGE;
		}
		if (!attached) {
			attached = argv[++*at];
			if (names_option(a, attached)) {
				err_set(e, ERR_USAGE, "%s needs a value, found the option %.60s", label, attached);
				if (arg->name)
					err_hint(e, "if that is the value, write --%s=%.60s", arg->name, attached);
				return ERR_USAGE;
			}
		}
		int rc = args_set(arg, label, attached, e);
		if (rc)
			return rc;
	}
	if (arg->given)
		*arg->given = true;
	return 0;
}

static int set_letters(const struct args *a, int argc, char **argv, int *at, struct err *e)
{
	for (const char *p = argv[*at] + 1; *p; p++) {
		char label[3] = {'-', *p, 0};
		const struct arg *arg = find_letter(a, *p);
		if (!arg && *p == 'h')
			return ARGS_HELP;
		if (!arg) {
			if ((unsigned char)*p < 33 || (unsigned char)*p > 126)
				err_set(e, ERR_USAGE, "unknown option %.40s", argv[*at]);
			else
				err_set(e, ERR_USAGE, "unknown option %s", label);
			/* -temp 0.5: a long name behind one dash */
			size_t n = strcspn(argv[*at] + 1, "=");
			if (n > 1 && find_long(a, argv[*at] + 1, n))
				err_hint(e, "did you mean -%.60s?", argv[*at]);
			else
				hint_help(a, e);
			return ERR_USAGE;
		}
		bool whole = arg->kind != ARG_FLAG;
		const char *word = argv[*at] + 1; /* -temp 0.5: -t with the value "emp", or --temp? */
		int rc = set_option(a, arg, label, whole && p[1] ? p + 1 : NULL, argc, argv, at, e);
		if (rc && p == word && find_long(a, word, strcspn(word, "=")))
			err_hint(e, "did you mean -%.60s?", argv[*at]);
		if (rc || whole)
			return rc;
	}
	return 0;
}

/* A required option is there when its `given` says so, or its string is neither NULL nor empty. */
static int check_required(const struct args *a, size_t n_positional, struct err *e)
{
	for (size_t g = 0; g < a->n_groups; g++)
		for (size_t i = 0; i < a->groups[g].n; i++) {
			const struct arg *arg = &a->groups[g].args[i];
			if (!arg->required)
				continue;
			bool there =
				arg->given ? *arg->given : arg->kind == ARG_STRING && *arg->string && **arg->string;
			if (there)
				continue;
			char letter[3] = {'-', arg->letter, 0};
			err_set(e, ERR_USAGE, "option %s%s %s is missing", arg->letter ? letter : "--",
				arg->letter ? "" : arg->name, arg->value ? arg->value : "");
			if (a->usage)
				err_hint(e, "usage: %s %s", a->command, a->usage);
			return ERR_USAGE;
		}
	for (size_t i = n_positional; i < a->n_positional; i++)
		if (a->positional[i].required) {
			err_set(e, ERR_USAGE, "argument %s is missing", a->positional[i].value);
			if (a->usage)
				err_hint(e, "usage: %s %s", a->command, a->usage);
			return ERR_USAGE;
		}
	return 0;
}

int args_parse(const struct args *a, int argc, char **argv, struct err *e)
{
	bool only_positional = false;
	size_t n_positional = 0;
	for (int at = 1; at < argc; at++) {
		char *text = argv[at];
		const struct arg_habit *habit;
		int rc = 0;
		if (only_positional || text[0] != '-' || !text[1]) {
			if (n_positional >= a->n_positional) {
				err_set(e, ERR_USAGE, "unexpected argument \"%.60s\"", text);
				hint_help(a, e);
				return ERR_USAGE;
			}
			const struct arg *arg = &a->positional[n_positional++];
			rc = args_set(arg, arg->value, text, e);
			if (!rc && arg->given)
				*arg->given = true;
		} else if (!strcmp(text, "--")) {
			only_positional = true;
		} else if ((habit = find_habit(a, text))) {
			rc = refuse_habit(habit, text, e);
		} else if (text[1] == '-') {
			const char *name = text + 2;
			size_t n = strcspn(name, "=");
			const struct arg *arg = find_long(a, name, n);
			if (!arg && n == 4 && !memcmp(name, "help", 4))
				return ARGS_HELP;
			if (!arg)
				return unknown_long(a, name, n, e);
			char label[LABEL_MAX];
			snprintf(label, sizeof label, "--%s", arg->name);
			rc = set_option(a, arg, label, name[n] ? name + n + 1 : NULL, argc, argv, &at, e);
		} else {
			rc = set_letters(a, argc, argv, &at, e);
		}
		if (rc)
			return rc;
	}
	return check_required(a, n_positional, e);
}

/* ---- help ---- */

/* Fills words into lines of HELP_WIDTH columns; the cursor stands at `column`, further lines begin
 * at `indent`. */
static void append_filled(struct buf *out, const char *text, size_t column, size_t indent)
{
	bool first = true;
	while (*text) {
		if (*text == ' ') {
			text++;
			continue;
		}
		size_t n = strcspn(text, " \n");
		if (n && !first && column + 1 + n > HELP_WIDTH) {
			buf_printf(out, "\n%*s", (int)indent, "");
			column = indent;
		} else if (n && !first && column > indent) {
			buf_putc(out, ' ');
			column++;
		}
		buf_append(out, text, n);
		column += n;
		text += n;
		first = false;
		if (*text == '\n') {
			buf_printf(out, "\n%*s", text[1] ? (int)indent : 0, "");
			column = indent;
			text++;
			first = true;
		}
	}
	buf_putc(out, '\n');
}

static void help_option(struct buf *out, const struct arg *arg)
{
	char left[128], words[96] = "";
	const char *value = arg->value ? arg->value : arg->kind == ARG_FLAG ? "" : "N";
	if (arg->kind == ARG_CHOICE && !arg->value) {
		size_t used = 0;
		for (const struct arg_word *w = arg->words; w->word && used < sizeof words; w++)
			used += (size_t)snprintf(
				words + used, sizeof words - used, "%s%s", w == arg->words ? "" : "|", w->word);
		value = words;
	}
	char letter[3] = {'-', arg->letter, 0};
	snprintf(left, sizeof left, "  %s%s%s%s%s%s", arg->letter ? letter : "  ",
		arg->name ? arg->letter ? ", " : "  " : "", arg->name ? "--" : "",
		arg->name ? arg->name : "", *value ? " " : "", value);
	size_t n = strlen(left);
	buf_puts(out, left);
	if (n + 2 > HELP_COLUMN) {
		buf_printf(out, "\n%*s", HELP_COLUMN, "");
	} else {
		buf_printf(out, "%*s", (int)(HELP_COLUMN - n), "");
	}
	struct buf text = {0};
	buf_puts(&text, arg->help);
	if (arg->fallback)
		buf_printf(&text, " (default: %s)", arg->fallback);
	append_filled(out, buf_str(&text), HELP_COLUMN, HELP_COLUMN);
	buf_free(&text);
}

void args_help(const struct args *a, struct buf *out)
{
	buf_printf(out, "Usage: %s%s%s\n\n", a->command, a->usage ? " " : "", a->usage ? a->usage : "");
	if (a->about)
		append_filled(out, a->about, 0, 0);
	for (size_t g = 0; g < a->n_groups; g++) {
		bool titled = false;
		for (size_t i = 0; i < a->groups[g].n; i++) {
			if (!a->groups[g].args[i].help)
				continue;
			if (!titled)
				buf_printf(out, "\n%s:\n", a->groups[g].title ? a->groups[g].title : "Options");
			titled = true;
			help_option(out, &a->groups[g].args[i]);
		}
	}
	if (a->example) {
		buf_puts(out, "\nExample:\n");
		for (const char *p = a->example; *p;) {
			size_t n = strcspn(p, "\n");
			buf_printf(out, "  %.*s\n", (int)n, p);
			p += n + (p[n] == '\n');
		}
	}
}
