/* SPDX-License-Identifier: MIT */
/*
 * JSON Schema (drafts 7 to 2020-12) -> a grammar of the JSON texts that are valid, for answers that
 * are forced into it token by token (grammar_run.h).
 *
 * Every text of the grammar is valid; not every valid text is in it. What is fixed: properties come
 * in the order of the schema, behind them the keys that an enum of propertyNames lists, then those
 * that it does not name; keys and the strings of enum and const have one spelling; numbers have at
 * most 18 digits before the point and 16 behind it; white space is at most one blank, or one line
 * feed and 40 blanks or tabs, where JSON writers put it. A key comes once in an object.
 * Exception (grammar_run.h): a key may repeat if patternProperties or propertyNames allow no key
 * that continues it; otherwise the text could not go on. A schema without "type", enum and const
 * that has keywords of one type means that type.
 *
 * Keywords: type, enum, const, properties, required, additionalProperties, patternProperties (one
 * pattern), propertyNames, minProperties (at most 1, or as many as are required), items,
 * prefixItems, additionalItems, minItems, maxItems, uniqueItems (false, or at most one item),
 * minLength, maxLength, pattern, format, minimum, maximum, exclusiveMinimum, exclusiveMaximum,
 * multipleOf (1 to 1000, also divided by a power of ten up to 1e9), anyOf, oneOf (alternatives that
 * exclude each other by type or by a constant property), allOf (that can be merged), $ref to a
 * place in the same document, also recursive, nullable (of OpenAPI; only beside "type").
 * Annotations (title, description, default, examples, contentSchema, ...) count for nothing. Every
 * other keyword is refused by name: an answer that might break it is not valid.
 *
 * Beside enum and const, keywords of strings and numbers filter the listed values; format does not.
 * multipleOf holds for the decimal that is written: 0.07 is a multiple of 0.01, though validators
 * that divide doubles refuse it. The formats int8 to int64 and uint8 to uint64 bound numbers, other
 * formats of numbers do not; password, binary and the like allow any string.
 *
 * Schemas are untrusted: depth, size, states and merges are limited, each with an error of its own.
 * Compiling one recurses to a bounded depth and takes seconds and some 100 MB at the very most.
 */
#ifndef GLM_TEXT_SCHEMA_H
#define GLM_TEXT_SCHEMA_H

#include "src/base/err.h"
#include "src/text/schema/grammar.h"

#include <jansson.h>

struct schema;

/* Processor time after which compiling ends with a refusal; one part of a schema takes at most some
 * tenths of a second more. */
#define SCHEMA_COMPILE_NS 2000000000ull

enum schema_form {
	SCHEMA_JSON, /* the text is JSON */
	/* The text is the value of a tool's argument as GLM writes it: strings stand there without
	 * quotes and escapes, everything else as JSON (chat_args.h reads it back). */
	SCHEMA_ARGUMENT,
};

/* Compiles a schema.
 *   root  the document that "$ref" refers to
 *   part  what is compiled: root or a schema inside it; NULL: any JSON object
 *   *out  the caller's; NULL after an error
 * ERR_INPUT with a sentence that says where. An allocation that fails in a scope (mem.h) gives
 * ERR_MEMORY or ERR_INPUT. e may be NULL. root and part are borrowed for the call. */
int schema_compile(const json_t *root, const json_t *part, enum schema_form form,
	struct schema **out, struct err *e);
void schema_free(struct schema *s);          /* NULL is fine */
size_t schema_bytes(const struct schema *s); /* of memory that it holds */
/* Finished and constant; lives as long as s. */
const struct grammar *schema_grammar(const struct schema *s);

#endif
