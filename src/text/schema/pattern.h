/* SPDX-License-Identifier: MIT */
/*
 * Regular expressions of JSON Schema (ECMA-262's syntax, as far as it is regular) and the texts of
 * "format" -> automata.
 *
 * A pattern is found anywhere in the text unless ^ and $ say otherwise. Supported: characters and
 * their escapes, . classes, \d \w \s and their opposites, groups, |, * + ? {n,m} (lazy ones are the
 * same set of texts), ^ and $ anywhere. Look-around, back references, \b and \p{...} are refused by
 * name. \d, \w and \s mean ASCII; their opposites leave out what other engines count in (digits and
 * blanks of other scripts), so that every text that comes out matches in all of them.
 */
#ifndef GLM_TEXT_PATTERN_H
#define GLM_TEXT_PATTERN_H

#include "src/base/err.h"
#include "src/text/schema/char_nfa.h"

/* *out is a trimmed automaton, to be freed also after an error. 0, or ERR_INPUT with a sentence
 * that quotes the pattern. pattern: valid UTF-8. */
int pattern_compile(const char *pattern, size_t len, struct char_nfa *out, struct err *e);

/* The texts of a "format" of strings. ERR_INPUT for one that is not known. */
int pattern_format(const char *format, struct char_nfa *out, struct err *e);

#endif
