/* SPDX-License-Identifier: MIT */
/* Schemas as JSON values: their keywords, references and types, and merging two of them. root: the
 * document that "$ref" refers to. All arguments are borrowed and unchanged but for json_t's
 * reference counts, so one thread at a time may use a document. */
#ifndef GLM_TEXT_SCHEMA_KEYWORDS_H
#define GLM_TEXT_SCHEMA_KEYWORDS_H

#include "src/base/err.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

/* What compiling one document may still cost. */
struct schema_budget {
	int merges;     /* members that merges may copy: a part that is merged with many others would
					 * grow without bounds */
	uint64_t until; /* clock_thread_ns */
};
#define SCHEMA_MERGES_MAX 300000
#define SCHEMA_TOO_LONG   "the schema takes too long to compile"
bool schema_too_long(const struct schema_budget *left);

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

/* A format of numbers, as OpenAPI's registry has them. */
struct schema_number_format {
	const char *name;
	bool whole;
	double min, max; /* infinite: no limit */
};
/* NULL: not one of numbers. Some are formats of strings too, where "type" says so. */
const struct schema_number_format *schema_number_format(const json_t *format);

/* A mask of the types that "type" names, with null by "nullable"; without it, of those that other
 * keywords imply, or SCHEMA_ANY, as beside enum and const. 0: a name is unknown. */
unsigned schema_types(const json_t *s);
/* Whether "nullable" is true and would be lost: it stands without "type", beside keywords that do
 * not list null. */
bool schema_loses_null(const json_t *s);
#define SCHEMA_LOSES_NULL "nullable: only beside \"type\" is supported"
/* The type of a value. SCHEMA_NUMBER alone: a number that is not whole. */
unsigned schema_type_of_value(const json_t *value);

/* The value of a number without rounding; 0 for other values. */
long double schema_exact_number(const json_t *v);
/* Whether two values are the same for JSON Schema: numbers by value, so that 1 is 1.0. Recurses as
 * deep as they nest. */
bool schema_same_value(const json_t *a, const json_t *b);

/* The schema that "#/..." points to; NULL after err_set. */
const json_t *schema_find(const json_t *root, const char *reference, struct err *e);
/* Follows references as long as nothing else stands beside them. NULL after err_set. */
const json_t *schema_resolve(const json_t *root, const json_t *s, struct err *e);

/* The types that values of s may have, seen through references and alternatives; an upper bound. */
unsigned schema_possible_types(const json_t *root, const json_t *s);
/* Whether the bound has strings; false where the search ends early and finds no bound. */
bool schema_may_be_string(const json_t *root, const json_t *s);
/* The types that the value of a key may have in objects that satisfy s; an upper bound. SCHEMA_ANY:
 * s does not say. A key that "properties" does not name counts as one that any of
 * patternProperties may match. */
unsigned schema_property_types(const json_t *root, const json_t *s, const char *key);

/* A schema of the values that satisfy both a and b; the caller owns it. NULL after err_set. */
json_t *schema_merge(const json_t *root, const json_t *a, const json_t *b,
	struct schema_budget *left, struct err *e);

/* An alternative of oneOf. */
struct schema_alternative {
	const json_t *schema;   /* as it was written: what it accepts */
	const json_t *compiled; /* merged with what stands beside oneOf: what its grammar has */
};

/* Whether certainly no value in the grammar of one satisfies the other: because of types, of
 * constants, or of a property that both require. False: one may, or it could not be decided,
 * or not in time. */
bool schema_exclude_each_other(const json_t *root, const struct schema_alternative *a,
	const struct schema_alternative *b, const struct schema_budget *left);

#endif
