/* SPDX-License-Identifier: MIT */
/*
 * Inside the schema compiler: the rules that every grammar of JSON has, and texts as bytes.
 *
 * Every build_* function adds edges to the grammar between two states that the caller made, or
 * returns the state where it ends. Limits: see grammar.h.
 */
#ifndef GLM_TEXT_SCHEMA_BUILD_H
#define GLM_TEXT_SCHEMA_BUILD_H

#include "src/text/schema/char_nfa.h"
#include "src/text/schema/grammar.h"
#include "src/text/schema/schema.h"

/* Rules that are made when they are first used. */
enum common_rule {
	RULE_SPACE,    /* nothing, a blank, or a line feed and blanks */
	RULE_CHAR,     /* any character of a JSON string */
	RULE_RAW_CHAR, /* any character as it is */
	RULE_STRING,
	RULE_NUMBER,
	RULE_INTEGER,
	RULE_BOOLEAN,
	RULE_NULL,
	RULE_VALUE,
	RULE_ARRAY,
	RULE_OBJECT,
	N_COMMON_RULES,
};

/* The rule of the characters lo..hi; raw: as they are, else as in a JSON string. */
struct class_rule {
	uint32_t lo, hi, rule;
	bool raw;
};

/* Zero-initialise with the grammar. */
struct schema_build {
	struct grammar *g;
	uint32_t common[N_COMMON_RULES]; /* 1 + rule; 0: not made yet */
	struct class_rule *classes;      /* [n_classes] */
	size_t n_classes;
};

/* The number of the rule. */
uint32_t build_common(struct schema_build *b, enum common_rule which);
/* White space that may stand there. */
void build_space(struct schema_build *b, uint32_t from, uint32_t to);
/* The texts of n between two states. raw: as they are; else as they stand between the quotes of a
 * JSON string. */
void build_chars(
	struct schema_build *b, const struct char_nfa *n, bool raw, uint32_t from, uint32_t to);
/* One JSON value, spelled one way but for white space. raw: a string without quotes. */
void build_value(struct schema_build *b, const json_t *v, bool raw, uint32_t from, uint32_t to);
/* "key" of an object, from `from`; returns the state behind the closing quote. */
uint32_t build_key(struct schema_build *b, const char *key, uint32_t from);
void schema_build_fini(struct schema_build *b); /* the grammar stays */

#endif
