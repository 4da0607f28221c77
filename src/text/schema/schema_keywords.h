/* SPDX-License-Identifier: MIT */
/* Schemas as JSON values: their keywords, references, types, and two schemas made one. root: the
 * document that "$ref" refers to. All are borrowed; nothing is changed but by json_t's counters, so
 * one thread at a time may use a document. */
#ifndef GLM_TEXT_SCHEMA_KEYWORDS_H
#define GLM_TEXT_SCHEMA_KEYWORDS_H

#include "src/base/err.h"

#include <jansson.h>
#include <stdbool.h>

enum schema_type {
	SCHEMA_STRING = 1,
	SCHEMA_INTEGER = 2,
	SCHEMA_NUMBER = 4, /* of types: always together with SCHEMA_INTEGER */
	SCHEMA_BOOLEAN = 8,
	SCHEMA_NULL = 16,
	SCHEMA_ARRAY = 32,
	SCHEMA_OBJECT = 64,
	SCHEMA_ANY = 127,
};

/* Whether a keyword only describes. */
bool schema_is_annotation(const char *keyword);
/* Whether s is an object with a keyword that is more than an annotation, other than `but` (may be
 * NULL). */
bool schema_constrains(const json_t *s, const char *but);
/* NULL, or the first keyword that is not supported. */
const char *schema_unknown_keyword(const json_t *s);

/* The types that "type" names; what is implied by other keywords without it; 0: a name is unknown.
 */
unsigned schema_types(const json_t *s);
/* Of a value: NUMBER alone is one that is not whole. */
unsigned schema_type_of_value(const json_t *value);

/* The schema that "#/..." points to; NULL after err_set. */
const json_t *schema_find(const json_t *root, const char *reference, struct err *e);
/* Follows references as long as nothing else stands beside them. NULL after err_set. */
const json_t *schema_resolve(const json_t *root, const json_t *s, struct err *e);

/* The types that values of s may have, seen through references and alternatives; an upper bound. */
unsigned schema_possible_types(const json_t *root, const json_t *s);

/* A schema of the values that satisfy both a and b; the caller owns it. NULL after err_set. *left:
 * members that may still be copied, SCHEMA_MERGES_MAX for all merges of one document: a part that
 * is merged with many others would grow without bounds. */
#define SCHEMA_MERGES_MAX 300000
json_t *schema_merge(
	const json_t *root, const json_t *a, const json_t *b, int *left, struct err *e);

/* Whether no value of one's grammar satisfies the other: by type, by constants, or by a required
 * property of both. False: it may, or that was not found out. */
bool schema_exclude_each_other(const json_t *root, const json_t *a, const json_t *b);

#endif
