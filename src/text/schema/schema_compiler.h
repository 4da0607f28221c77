/* SPDX-License-Identifier: MIT */
/*
 * Inside the schema compiler: what its files share. schema.c has the list of schemas, strings,
 * numbers, arrays and alternatives; schema_object.c has objects.
 */
#ifndef GLM_TEXT_SCHEMA_COMPILER_H
#define GLM_TEXT_SCHEMA_COMPILER_H

#include "src/text/schema/schema_build.h"
#include "src/text/schema/schema_keywords.h"

#define LISTED_WORK 100000000 /* states and edges that matching the values of an enum looks at */

/* A schema that was met, and its rule. */
struct schema_part {
	const json_t *schema; /* borrowed, of the document or of compiler.made */
	char *path;           /* "properties.a.items", for errors */
	uint32_t rule;
	bool raw; /* strings without quotes: SCHEMA_ARGUMENT, outside arrays and objects */
};

struct schema_compiler {
	struct schema_build build;
	struct grammar *g;
	const json_t *root;
	struct schema_part *list; /* [n_list] all schemas met; the first `next` are compiled */
	size_t n_list, next;
	uint32_t *table; /* [slots] 1 + number in list */
	size_t slots;
	json_t *made; /* an array: schemas that were merged, kept until the end */
	bool string; /* an argument that may be a string: only strings and null are compiled, because it
				  * is read as one of them, whatever it looks like */
	struct schema_budget left;
	struct err *e;
	bool failed;
};

/* Refuses the document: sets c->e to the place of w and the sentence, and c->failed. Without effect
 * after the first refusal. */
void schema_refuse(struct schema_compiler *c, const struct schema_part *w, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
/* Refuses the schema for an error that c->e already holds. */
void schema_refuse_part(struct schema_compiler *c, const struct schema_part *w);

/* The keyword's value, a whole number of 0 to `most`; *out stays as it is without the keyword.
 * False: refused. */
bool schema_count(struct schema_compiler *c, const struct schema_part *w, const char *key,
	size_t most, size_t *out);
/* The rule of a schema `s`, which is compiled later if it is new. part: its place below w, for
 * errors. 0 when it was refused. */
uint32_t schema_rule(struct schema_compiler *c, const struct schema_part *w, const char *part,
	const json_t *s, bool raw);
/* White space that may stand at `from`; returns the state behind it. */
uint32_t schema_space(struct schema_compiler *c, uint32_t from);
/* *n: the strings that the keywords of w's schema allow. False: any string, or c->failed. The
 * caller frees *n in any case. */
bool schema_string_texts(
	struct schema_compiler *c, const struct schema_part *w, struct char_nfa *n);

/* The objects that w's schema allows, between two states. */
void schema_compile_object(
	struct schema_compiler *c, const struct schema_part *w, uint32_t from, uint32_t to);

#endif
