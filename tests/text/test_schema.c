/* SPDX-License-Identifier: MIT */
/* Schemas as grammars: texts that must pass and texts that must not, refusals by name, masks
 * against single tokens, and walks at random, which must always come to an end. */
#include "src/base/host/clock.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/base/rng.h"
#include "src/engine/sampler.h"
#include "src/text/json_text.h"
#include "src/text/schema/grammar_run.h"
#include "src/text/schema/schema.h"
#include "src/text/schema/schema_keywords.h"
#include "tests/text/schema_check.h"
#include "tests/text/text_data.h"

#include <math.h>
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

struct text_case {
	const char *schema, *good[6], *bad[8];
	bool argument;
};

static const struct text_case cases[] = {
	{NULL, {"{}", "{\"a\": [1, {\"b\": null}]}", "{ }"}, {"[]", "1", "{\"a\"}", "{\"a\":1,}"},
		false},
	/* "b" of the inner object is not "a" of the outer one */
	{"{\"type\":\"object\"}",
		{"{\"q\":{\"b\":1},\"a\":2}", "{\"q\":[{\"c\":{\"c\":1}},{\"d\":1}],\"b\":2,\"a\":2}"},
		{"{\"q\":{\"b\":1},\"q\":2}", "{\"a\":{\"b\":{}},\"b\":{\"c\":1,\"c\":1}}"}, false},
	{"{}", {"1", "\"x\"", "[true, {}]", "-0.5e3"}, {"01", "tru", "[1 2]", "\"\n\""}, false},
	{"true", {"null"}, {"nul"}, false},
	{"{\"type\":\"string\"}",
		{"\"\"", "\"\\u00e9\\ud83d\\ude00\\n\"", "\"\xc3\xa9\xf0\x9f\x98\x80\""},
		{"\"\\ud83d\"", "\"\\x\"", "\"\xc3\"", "x", "\"\t\"", "\"\xed\xa0\x80\""}, false},
	{"{\"type\":\"integer\"}", {"0", "-12"}, {"1.5", "01", "-", "1e3"}, false},
	{"{\"type\":\"number\"}", {"0", "-12.5", "1e-3"}, {".5", "1.", "NaN"}, false},
	{"{\"type\":[\"string\",\"null\"]}", {"null", "\"a\""}, {"1", "nul"}, false},
	{"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":"
	 "\"boolean\"}},"
	 "\"required\":[\"b\"],\"additionalProperties\":false}",
		{"{\"b\":true}", "{\"a\": 1, \"b\": false}", "{\n  \"a\": 1,\n  \"b\": true\n}"},
		{"{}", "{\"a\":1}", "{\"b\":true,\"c\":1}", "{\"b\":1}", "{\"b\":true,\"a\":1}",
			"{,\"b\":true}"},
		false},
	{"{\"properties\":{\"ab\":{}},\"additionalProperties\":{\"type\":\"null\"}}",
		{"{}", "{\"ab\":1,\"a\":null}", "{\"abc\":null}", "{\"\":null,\"x\":null}"},
		{"{\"a\":1}", "{\"c\":null,\"ab\":1}", "{\"abc\":1}"}, false},
	{"{\"type\":\"array\",\"items\":{\"enum\":[1,\"x\"]},\"minItems\":1,\"maxItems\":3}",
		{"[1]", "[\"x\",1, 1]"}, {"[]", "[1,1,1,1]", "[2]", "[1,]"}, false},
	{"{\"type\":\"array\",\"prefixItems\":[{\"type\":\"integer\"},{\"type\":\"null\"}],\"items\":"
	 "false}",
		{"[]", "[1]", "[1,null]"}, {"[null]", "[1,null,1]"}, false},
	{"{\"const\":{\"a\":[1,\"b\"]}}", {"{\"a\": [1, \"b\"]}", "{\"a\":[1,\"b\"]}"}, {"{\"a\":[1]}"},
		false},
	{"{\"type\":\"string\",\"minLength\":2,\"maxLength\":3}", {"\"ab\"", "\"\xc3\xa9\\n\\u0041\""},
		{"\"a\"", "\"abcd\"", "\"\xc3\xa9\""}, false},
	{"{\"type\":\"string\",\"pattern\":\"^[a-c]{2,3}(x|yz)?$\"}", {"\"ab\"", "\"abcyz\""},
		{"\"a\"", "\"abx y\"", "\"dab\""}, false},
	{"{\"type\":\"string\",\"pattern\":\"b+$\"}", {"\"b\"", "\"xxabb\""}, {"\"ba\"", "\"\""},
		false},
	{"{\"type\":\"string\",\"pattern\":\"^\\\\d{3}\",\"maxLength\":4}", {"\"123\"", "\"123x\""},
		{"\"12\"", "\"123xx\""}, false},
	{"{\"type\":\"string\",\"pattern\":\"^[^\\\"]*$\"}", {"\"a\\\\b\""}, {"\"\\\"\""}, false},
	{"{\"type\":\"string\",\"format\":\"date\"}", {"\"2024-02-28\""},
		{"\"2024-02-30\"", "\"2024-13-01\""}, false},
	{"{\"type\":\"string\",\"format\":\"ipv6\"}", {"\"::\"", "\"fe80::1\"", "\"1:2:3:4:5:6:7:8\""},
		{"\"1:2:3\"", "\":::\""}, false},
	{"{\"type\":\"integer\",\"minimum\":-5,\"exclusiveMaximum\":120}", {"-5", "0", "119", "7"},
		{"-6", "120", "1000", "-10"}, false},
	{"{\"type\":\"integer\",\"minimum\":10,\"multipleOf\":7}", {"14", "700"}, {"7", "15", "0"},
		false},
	{"{\"type\":\"number\",\"minimum\":0.5,\"exclusiveMaximum\":2}", {"0.5", "0.50", "1", "1.999"},
		{"0.4", "2", "2.0", "0", "-1", "0.49"}, false},
	{"{\"type\":\"number\",\"exclusiveMinimum\":0}", {"0.001", "12345"}, {"0", "0.0", "-1"}, false},
	{"{\"type\":\"number\",\"minimum\":-0.0,\"maximum\":0.00001}", {"0", "0.0", "0.00001"},
		{"0.00002", "-0.00001", "-1", "1"}, false},
	{"{\"type\":\"number\",\"exclusiveMaximum\":-0.0}", {"-0.5", "-3"}, {"0", "0.0", "1", "-0.0"},
		false},
	{"{\"type\":\"number\",\"minimum\":5e-324}", {"0.000001", "1"}, {"0", "0.0", "-1"}, false},
	{"{\"type\":\"number\",\"maximum\":1e-300}", {"0", "-0.1"}, {"0.1", "0.00000000000001"}, false},
	{"{\"type\":\"number\",\"maximum\":1e17}", {"1.76", "-3.5", "100000000000000000", "0.000075"},
		{"100000000000000001", "100000000000000000.5"}, false},
	{"{\"type\":\"number\",\"exclusiveMinimum\":-1e18}", {"-999999999999999000", "1.5"},
		{"-999999999999999999"}, false},
	{"{\"type\":\"number\",\"exclusiveMinimum\":0.1,\"exclusiveMaximum\":0.3}",
		{"0.2", "0.11", "0.299"}, {"0.1", "0.10", "0.3", "0", "1"}, false},
	{"{\"type\":\"number\",\"minimum\":0.3333333333333333}", {"0.33333333333334", "1"},
		{"0.33333333333333", "0.3"}, false},
	{"{\"type\":\"number\",\"multipleOf\":0.01}", {"1.25", "3", "0.5", "-7.10"},
		{"1.255", "1.250", "1e2"}, false},
	{"{\"type\":\"number\",\"multipleOf\":0.25,\"minimum\":1}", {"1", "1.25", "1.5", "12.75"},
		{"0.75", "1.2", "1.24", "1.05"}, false},
	{"{\"type\":\"integer\",\"multipleOf\":1.5}", {"3", "0", "-6"}, {"1.5", "1", "4.5"}, false},
	{"{\"type\":\"string\",\"format\":\"password\",\"maxLength\":3}", {"\"a b\"", "\"\""},
		{"\"abcd\""}, false},
	{"{\"type\":\"string\",\"format\":\"byte\"}", {"\"\"", "\"QUI=\"", "\"a+/9\""},
		{"\"a\"", "\"QUI\"", "\"Q===\""}, false},
	{"{\"type\":\"string\",\"format\":\"int64\"}", {"\"-12\""}, {"\"1.5\"", "\"x\"", "12"}, false},
	{"{\"type\":\"integer\",\"format\":\"int32\"}", {"2147483647", "-2147483648", "0"},
		{"2147483648", "-2147483649", "1.0"}, false},
	{"{\"format\":\"int32\",\"minimum\":-3}", {"-3", "2147483647"}, {"-4", "2147483648", "\"a\""},
		false},
	{"{\"type\":\"integer\",\"format\":\"uint8\"}", {"0", "255"}, {"256", "300", "-1", "1.5"},
		false},
	{"{\"format\":\"uint32\"}", {"4294967295", "0"}, {"4294967296", "-1", "0.5", "\"a\""}, false},
	{"{\"type\":\"number\",\"format\":\"int16\",\"exclusiveMaximum\":10}", {"-32768", "9"},
		{"-32769", "10", "1.5"}, false},
	{"{\"type\":\"integer\",\"format\":\"uint64\"}", {"123456789012345678", "0"}, {"-1"}, false},
	{"{\"type\":\"integer\",\"format\":\"uint\",\"minimum\":-3}", {"0", "7"}, {"-1"}, false},
	{"{\"type\":\"integer\",\"format\":\"int64\"}", {"123456789012345678", "-1"}, {"1.5"}, false},
	{"{\"type\":\"number\",\"format\":\"double\"}", {"1.5", "-1e3"}, {"\"1\""}, false},
	{"{\"type\":\"string\",\"contentMediaType\":\"application/json\",\"contentSchema\":{\"type\":"
	 "\"object\"},\"$anchor\":\"a\"}",
		{"\"{}\""}, {"{}"}, false},
	{"{\"type\":\"string\",\"nullable\":true}", {"\"a\"", "null"}, {"1"}, false},
	{"{\"enum\":[\"a\",null],\"nullable\":true}", {"\"a\"", "null"}, {"1"}, false},
	{"{\"nullable\":true,\"title\":\"any\"}", {"null", "1"}, {"nul"}, false},
	{"{\"type\":\"string\",\"nullable\":false}", {"\"a\""}, {"null"}, false},
	{"{\"nullable\":true,\"minLength\":1,\"type\":\"string\"}", {"null"}, {"\"\""}, false},
	{"{\"allOf\":[{\"type\":\"string\",\"nullable\":true},{\"type\":\"string\"}]}", {"\"a\""},
		{"null"}, false},
	{"{\"allOf\":[{\"type\":\"string\",\"nullable\":true},{\"type\":\"string\",\"nullable\":true,"
	 "\"maxLength\":1}]}",
		{"\"a\"", "null"}, {"\"ab\""}, false},
	{"{\"type\":\"string\",\"nullable\":true,\"enum\":[\"a\",null]}", {"\"a\"", "null"}, {"\"b\""},
		false},
	{"{\"type\":\"string\",\"enum\":[\"a\",\"ab\",\"abc\",\"xy\"],\"minLength\":2,\"pattern\":\"^"
	 "a\"}",
		{"\"ab\"", "\"abc\""}, {"\"a\"", "\"xy\""}, false},
	{"{\"enum\":[1,2.5,3,10,-0.0,\"a\"],\"minimum\":0,\"exclusiveMaximum\":10}",
		{"1", "2.5", "3", "-0.0", "\"a\""}, {"10", "4"}, false},
	{"{\"enum\":[\"low\",\"\",null,7],\"minLength\":1,\"format\":\"date\"}",
		{"\"low\"", "null", "7"}, {"\"\""}, false},
	{"{\"anyOf\":[{\"const\":null,\"maxLength\":1},{\"type\":\"boolean\"}]}", {"null", "true"},
		{"\"\""}, false},
	{"{\"anyOf\":[{\"enum\":[\"ab\",5],\"minimum\":6},{\"enum\":[8]}]}", {"ab"}, {"5", "8"}, true},
	{"{\"enum\":[9007199254740991,9007199254740992,9007199254740993],\"maximum\":9007199254740992,"
	 "\"exclusiveMinimum\":9007199254740991}",
		{"9007199254740992"}, {"9007199254740991", "9007199254740993"}, false},
	{"{\"enum\":[9007199254740993,9007199254740994,9007199254740995],\"minimum\":9007199254740993,"
	 "\"exclusiveMaximum\":true,\"maximum\":9007199254740995}",
		{"9007199254740993", "9007199254740994"}, {"9007199254740995"}, false},
	{"{\"enum\":[9007199254740993,9007199254740994],\"multipleOf\":2}", {"9007199254740994"},
		{"9007199254740993"}, false},
	{"{\"allOf\":[{\"maximum\":9007199254740996,\"type\":\"integer\"},{\"maximum\":"
	 "9007199254740995}]}",
		{"9007199254740994"}, {"9007199254740996"}, false},
	{"{\"type\":\"integer\",\"enum\":[1,2,3,4],\"multipleOf\":2}", {"2", "4"}, {"1", "3"}, false},
	{"{\"const\":\"abc\",\"minLength\":2}", {"\"abc\""}, {"\"ab\""}, false},
	{"{\"type\":\"object\",\"minProperties\":1}", {"{\"a\":1}", "{\"a\":1,\"b\":{}}"}, {"{}"},
		false},
	{"{\"properties\":{\"a\":{},\"b\":{}},\"minProperties\":1,\"additionalProperties\":false}",
		{"{\"a\":1}", "{\"b\":1}", "{\"a\":1,\"b\":2}"}, {"{}", "{\"c\":1}"}, false},
	{"{\"properties\":{\"a\":{},\"b\":{}},\"minProperties\":2,\"required\":[\"a\",\"b\"]}",
		{"{\"a\":1,\"b\":2}"}, {"{}", "{\"a\":1}"}, false},
	{"{\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"string\",\"maxLength\":1}]}", {"1", "\"a\""},
		{"\"ab\"", "true"}, false},
	{"{\"oneOf\":[{\"$ref\":\"#/$defs/a\"},{\"$ref\":\"#/$defs/b\"}],\"$defs\":{"
	 "\"a\":{\"type\":\"object\",\"properties\":{\"k\":{\"const\":\"a\"}},\"required\":[\"k\"]},"
	 "\"b\":{\"type\":\"object\",\"properties\":{\"k\":{\"const\":\"b\"},\"v\":{\"type\":\"null\"}}"
	 ",\"required\":[\"k\"]}}}",
		{"{\"k\":\"a\"}", "{\"k\":\"b\",\"v\":null}"}, {"{\"k\":\"b\",\"v\":1}", "{\"k\":\"c\"}"},
		false},
	{"{\"$defs\":{\"n\":{\"type\":\"object\",\"properties\":{\"next\":{\"anyOf\":[{\"$ref\":\"#/"
	 "$defs/n\"},"
	 "{\"type\":\"null\"}]}},\"required\":[\"next\"],\"additionalProperties\":false}},\"$ref\":\"#/"
	 "$defs/n\"}",
		{"{\"next\":null}", "{\"next\":{\"next\":{\"next\":null}}}"}, {"{}", "{\"next\":{}}"},
		false},
	{"{\"allOf\":[{\"type\":\"integer\",\"minimum\":3},{\"maximum\":5}]}", {"3", "5"}, {"2", "6"},
		false},
	{"{\"type\":\"object\",\"patternProperties\":{\"^x-\":{\"type\":\"integer\"}},"
	 "\"additionalProperties\":false}",
		{"{}", "{\"x-a\":1}"}, {"{\"y\":1}", "{\"x-a\":null}"}, false},
	{"{\"type\":\"object\",\"propertyNames\":{\"enum\":[\"a\",\"b\"]},\"additionalProperties\":"
	 "true}",
		{"{\"a\":1,\"b\":2}", "{\"b\":1}", "{}"},
		{"{\"c\":1}", "{\"a\":1,\"a\":2}", "{\"a\":1,\"b\":1,\"a\":2}"}, false},
	{"{\"properties\":{\"a\":{\"type\":\"null\"}},\"propertyNames\":{\"enum\":[\"bb\",\"a\",\"c\","
	 "3],"
	 "\"pattern\":\"^[ab]\"},\"additionalProperties\":{\"type\":\"integer\"},\"minProperties\":1}",
		{"{\"a\":null,\"bb\":1}", "{\"bb\":1}"},
		{"{}", "{\"a\":1}", "{\"c\":1}", "{\"bb\":null}", "{\"bb\":1,\"bb\":1}"}, false},
	{"{\"propertyNames\":{\"const\":\"k\"},\"type\":\"object\"}", {"{\"k\":1}", "{}"},
		{"{\"k\":1,\"k\":1}", "{\"l\":1}"}, false},
	{"{\"propertyNames\":{\"enum\":[\"k\"]},\"additionalProperties\":false}", {"{}"}, {"{\"k\":1}"},
		false},
	{"{\"type\":\"string\",\"enum\":[\"C\",\"F\"]}", {"C", "F"}, {"\"C\"", "K"}, true},
	{"{\"type\":\"string\"}", {"any \"text\"\n", "12", ""}, {"\xff"}, true},
	{"{\"anyOf\":[{\"type\":\"string\",\"maxLength\":2},{\"type\":\"null\"},{\"type\":\"integer\"}]"
	 "}",
		{"ab", "null", "12"}, {"123", "abc"}, true},
	{"{\"type\":\"array\",\"items\":{\"type\":\"string\"}}", {"[\"a\"]"}, {"[a]"}, true},
	{"{\"anyOf\":[{\"const\":\"ab\"},{\"type\":[\"integer\",\"null\"]}]}", {"ab", "null"}, {"1"},
		true},
	{"{\"anyOf\":[{\"const\":\"ab\"},{\"type\":\"integer\",\"nullable\":true}]}", {"null"}, {"1"},
		true},
	{"{\"anyOf\":[{\"const\":\"ab\"},{\"oneOf\":[{\"type\":\"integer\"},{\"type\":\"null\"}]}]}",
		{"ab", "null"}, {"1"}, true},
	{"true", {"a b", "12", ""}, {"\xff"}, true},
	{"{\"anyOf\":[{\"type\":\"integer\"},true]}", {"a b"}, {"\xff"}, true},
	{"{\"type\":\"integer\",\"enum\":[1,1.5,2.0]}", {"1", "2.0"}, {"1.5"}, false},
	{"{\"type\":\"array\",\"items\":[{\"type\":\"null\"}],\"additionalItems\":false}",
		{"[]", "[null]"}, {"[null,null]"}, false},
	{"{\"properties\":{\"\xf4\x8f\xbf\xbf\":{\"type\":\"null\"}}}",
		{"{\"\xf4\x8f\xbf\xbf\":null}", "{\"\xf4\x8f\xbf\xbfx\":1}"}, {"{\"\xf4\x8f\xbf\xbf\":1}"},
		false},
	{"{\"type\":\"integer\",\"minimum\":900719925474099260,\"maximum\":900719925474099530}",
		{"900719925474099392"}, {"900719925474099259", "900719925474099531"}, false},
	{"{\"type\":\"object\",\"properties\":{\"ab\":{}},\"propertyNames\":{\"maxLength\":2}}",
		{"{\"ab\":1,\"x\":2}"}, {"{\"abc\":1}"}, false},
	{"{\"type\":\"object\",\"propertyNames\":false}", {"{}"}, {"{\"a\":1}"}, false},
	{"{\"type\":\"object\",\"propertyNames\":{\"type\":\"integer\"}}", {"{}"},
		{"{\"a\":1}", "{\"1\":1}"}, false},
	{"{\"type\":\"object\",\"propertyNames\":{\"type\":[\"null\",\"string\"],\"minimum\":3}}",
		{"{\"a\":1}"}, {"{a:1}"}, false},
	{"{\"type\":\"string\",\"pattern\":\"^[\\\\w.-]+@\\\\S+\\\\s\\\\D$\"}", {"\"a_Z9.-@x x\""},
		{"\"a@x xx\"", "\"a@ x\"", "\"@x x\"", "\"a@x 1\""}, false},
	{"{\"type\":\"string\",\"pattern\":\"^\\\\W[^\\\\d\\\\s]\\\\x41\\\\u00e9\\\\.\\\\/$\"}",
		{"\"-bA\xc3\xa9./\""}, {"\"abA\xc3\xa9./\"", "\"-1A\xc3\xa9./\"", "\"-bA\xc3\xa9x/\""},
		false},
	{"{\"type\":\"string\",\"pattern\":\"^[\\\\x30-\\\\x39\\\\-\\\\]]*\\\\t?\\\\n?\\\\r?\\\\f?"
	 "\\\\v?$\"}",
		{"\"0-]9\\t\\n\\r\\f\"", "\"\\u000b\"", "\"\""}, {"\"a\"", "\"\\n\\t\""}, false},
	{"{\"type\":\"string\",\"pattern\":\"^(?:a|(?<n>b)|(?P<m>c)){2}[^a-c]{,2}x{1,}?$\"}",
		{"\"abd{,2}x\"", "\"cc0{,2}xx\""}, {"\"ad{,2}x\"", "\"aba{,2}x\"", "\"abdx\""}, false},
	{"{\"type\":\"string\",\"pattern\":\"^[^\\\\S][^\\\\s]$\"}", {"\" a\"", "\"\\t-\""},
		{"\"\\u001ca\"", "\" \\u001c\"", "\"aa\""}, false},
	{"{\"type\":\"string\",\"pattern\":\"^[\\\\b\\\\0]$\"}", {"\"\\b\"", "\"\\u0000\""}, {"\"b\""},
		false},
	{"{\"allOf\":[{\"minimum\":3,\"maximum\":9},{\"minimum\":5,\"maximum\":7,\"type\":\"integer\"}]"
	 "}",
		{"5", "7"}, {"4", "8", "3"}, false},
	{"{\"allOf\":[{\"type\":\"string\",\"minLength\":1,\"maxLength\":4},{\"minLength\":2,"
	 "\"maxLength\":3}]}",
		{"\"ab\"", "\"abc\""}, {"\"a\"", "\"abcd\""}, false},
	{"{\"allOf\":[{\"enum\":[1,2,3]},{\"enum\":[2,3,4]}],\"title\":\"t\"}", {"2", "3"}, {"1", "4"},
		false},
	{"{\"allOf\":[{\"type\":[\"string\",\"null\",\"integer\"]},{\"type\":[\"null\",\"number\","
	 "\"array\"]}]}",
		{"null", "3"}, {"\"a\"", "3.5", "[]"}, false},
	{"{\"allOf\":[{\"properties\":{\"a\":{\"minimum\":1},\"b\":{}},\"required\":[\"a\"]},"
	 "{\"properties\":{\"a\":{\"maximum\":2},\"c\":{}},\"required\":[\"c\",\"a\"]}]}",
		{"{\"a\":1,\"c\":0}", "{\"a\":2,\"b\":0,\"c\":0}"},
		{"{\"a\":3,\"c\":0}", "{\"a\":0,\"c\":0}", "{\"a\":1}"}, false},
	{"{\"allOf\":[{\"items\":{\"minimum\":1}},{\"items\":{\"maximum\":2},\"minItems\":1},"
	 "{\"maxItems\":2,\"minItems\":0}]}",
		{"[1]", "[2,1]"}, {"[]", "[3]", "[0]", "[1,1,1]"}, false},
	{"{\"$ref\":\"#/$defs/a%20b~1c\",\"minLength\":2,\"$defs\":{\"a b/c\":{\"type\":\"string\","
	 "\"maxLength\":2}}}",
		{"\"ab\""}, {"\"a\"", "\"abc\""}, false},
	{"{\"allOf\":[true,{\"type\":\"null\"}]}", {"null"}, {"1"}, false},
	{"{\"minimum\":2,\"exclusiveMinimum\":true,\"maximum\":5,\"exclusiveMaximum\":true,\"type\":"
	 "\"integer\"}",
		{"3", "4"}, {"2", "5"}, false},
	{"{\"oneOf\":[{\"properties\":{\"k\":{\"const\":\"a\"}}},{\"properties\":{\"k\":{\"const\":"
	 "\"b\"},\"v\":{\"type\":\"null\"}}}],\"discriminator\":{\"propertyName\":\"k\"},\"type\":"
	 "\"object\"}",
		{"{\"k\":\"a\"}", "{\"k\":\"b\",\"v\":null}"}, {"{\"k\":\"c\"}", "{}"}, false},
	{"{\"oneOf\":[{\"$ref\":\"#/$defs/a\"},{\"allOf\":[{\"$ref\":\"#/$defs/"
	 "base\"},{\"properties\":{\"k\":"
	 "{\"const\":\"b\"}}}]}],\"$defs\":{\"base\":{\"type\":\"object\",\"required\":[\"k\"]},\"a\":{"
	 "\"allOf\":"
	 "[{\"$ref\":\"#/$defs/base\"},{\"properties\":{\"k\":{\"const\":\"a\"}}}]}}}",
		{"{\"k\":\"a\"}", "{\"k\":\"b\"}"}, {"{\"k\":\"c\"}", "{}"}, false},
};

/* Made by the first test that needs it, freed by main. */
static struct tokenizer *glm;

static struct tokenizer *glm_tokenizer(void)
{
	if (!glm)
		glm = text_data_glm();
	return glm;
}

static struct schema *compiled(const char *text, bool argument)
{
	struct err e = {0};
	json_t *v = text ? json_text_parse(text, strlen(text), true, &e) : NULL;
	struct schema *s = NULL;
	if (text && !v)
		fail_msg("%s: %s", text, e.text);
	if (schema_compile(v, v, argument ? SCHEMA_ARGUMENT : SCHEMA_JSON, &s, &e))
		fail_msg("%s: %s", text ? text : "any object", e.text);
	json_decref(v);
	return s;
}

static bool passes(const struct schema *s, const char *text)
{
	struct grammar_run *r = grammar_run_new(schema_grammar(s), NULL);
	bool good = grammar_run_push(r, text, strlen(text)) && grammar_run_may_end(r);
	grammar_run_free(r);
	return good;
}

static void test_texts(void **state)
{
	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		const struct text_case *c = &cases[i];
		struct schema *s = compiled(c->schema, c->argument);
		for (size_t k = 0; k < ARRAY_LEN(c->good) && c->good[k]; k++)
			if (!passes(s, c->good[k]))
				fail_msg("%s should take %s", c->schema, c->good[k]);
		for (size_t k = 0; k < ARRAY_LEN(c->bad) && c->bad[k]; k++)
			if (passes(s, c->bad[k]))
				fail_msg("%s should not take %s", c->schema, c->bad[k]);
		schema_free(s);
	}
}

/* The validator that fuzzing holds masks against says the same of these texts, as far as they are
 * JSON; of the others some are only spelled as the grammar does not. */
static void test_validator(void **state)
{
	(void)state;
	size_t n_valid = 0, n_invalid = 0;
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		const struct text_case *c = &cases[i];
		if (!c->schema || c->argument)
			continue;
		json_t *schema = json_loads(c->schema, JSON_DECODE_ANY, NULL);
		for (size_t k = 0; k < ARRAY_LEN(c->good) && c->good[k]; k++) {
			json_t *v = json_loads(c->good[k], JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
			enum schema_verdict verdict = schema_check(schema, schema, v);
			if (verdict == SCHEMA_INVALID)
				fail_msg("%s refuses %s", c->schema, c->good[k]);
			n_valid += verdict == SCHEMA_VALID;
			json_decref(v);
		}
		for (size_t k = 0; k < ARRAY_LEN(c->bad) && c->bad[k]; k++) {
			json_t *v = json_loads(c->bad[k], JSON_DECODE_ANY, NULL);
			n_invalid += v && schema_check(schema, schema, v) == SCHEMA_INVALID;
			json_decref(v);
		}
		json_decref(schema);
	}
	print_message("%zu texts are valid, %zu are not\n", n_valid, n_invalid);
	assert_true(n_valid >= 60 && n_invalid >= 50);
}

static void test_refusals(void **state)
{
	(void)state;
	static const char *const list[][2] = {
		{"{\"not\":{}}", "the keyword \"not\" is not supported"},
		{"{\"properties\":{\"a\":{\"if\":{}}}}", "properties.a: the keyword \"if\""},
		{"{\"type\":\"strin\"}", "type: expected one or several"},
		{"{\"type\":\"array\",\"uniqueItems\":true}", "\"uniqueItems\" is not supported"},
		{"{\"type\":\"string\",\"pattern\":\"(?=a)\"}", "look-ahead"},
		{"{\"type\":\"string\",\"pattern\":\"(a)\\\\1\"}", "back references"},
		{"{\"type\":\"string\",\"pattern\":\"(\"}", "a group has no end"},
		{"{\"type\":\"string\",\"pattern\":\"((a{1000}){1000}){1000}\"}", "too many states"},
		{"{\"type\":\"string\",\"format\":\"regex\"}", "the format \"regex\" is not supported"},
		{"{\"type\":\"number\",\"multipleOf\":0}", "multipleOf: only 1 to 1000, also divided"},
		{"{\"type\":\"number\",\"multipleOf\":12.345}", "multipleOf: only"},
		{"{\"type\":\"number\",\"multipleOf\":1001}", "multipleOf: only"},
		{"{\"type\":\"number\",\"minimum\":1e19}", "minimum: only numbers of at most 18 digits"},
		{"{\"type\":\"number\",\"maximum\":-1e18}", "maximum: only numbers of at most 18 digits"},
		{"{\"$ref\":\"https://example.com/x\"}", "only references of the form #/"},
		{"{\"$ref\":\"#/$defs/x\"}", "there is nothing at this place"},
		{"{\"$ref\":\"#\"}", "references in a row"},
		{"{\"anyOf\":[{\"$ref\":\"#\"},{\"type\":\"null\"}]}",
			"refers to itself with nothing between"},
		{"{\"properties\":{\"a\":{\"$ref\":\"#\"}},\"required\":[\"a\"]}", "no value satisfies"},
		{"{\"type\":\"integer\",\"minimum\":3,\"maximum\":2}", "no value satisfies"},
		{"{\"type\":\"string\",\"minLength\":3,\"maxLength\":2}", "no value satisfies"},
		{"{\"type\":\"string\",\"pattern\":\"^a$\",\"minLength\":2}", "no value satisfies"},
		{"false", "no value satisfies"},
		{"{\"oneOf\":[{\"type\":\"integer\"},{\"type\":\"number\"}]}",
			"alternatives 1 and 2 may both"},
		{"{\"oneOf\":[{\"const\":1},{\"const\":1.0}]}", "alternatives 1 and 2 may both"},
		{"{\"oneOf\":[{\"enum\":[\"a\"]},{\"enum\":[[{\"k\":2.0}]]},{\"enum\":[[{\"k\":2}],3]}]}",
			"alternatives 2 and 3 may both"},
		{"{\"oneOf\":[{\"minimum\":1,\"anyOf\":[{\"type\":\"string\"}]},{\"maximum\":1,\"anyOf\":[{"
		 "\"type\":\"string\"}]}]}",
			"alternatives 1 and 2 may both"},
		{"{\"oneOf\":[{\"type\":\"integer\"},{\"required\":[\"k\"]}],\"properties\":{\"k\":{}}}",
			"alternatives 1 and 2 may both"},
		{"{\"type\":\"string\",\"maxLength\":1000000}", "maxLength: at most"},
		{"{\"enum\":3}", "enum: expected an array"},
		{"{\"properties\":{\"abc\":{}},\"propertyNames\":{\"maxLength\":2}}",
			"propertyNames: the property \"abc\" is not among them"},
		{"{\"properties\":{\"abc\":{}},\"propertyNames\":{\"type\":\"object\"}}",
			"propertyNames: the property \"abc\" is not among them"},
		{"{\"propertyNames\":{\"minLength\":1,\"pattern\":\"(\"}}", "a group has no end"},
		{"{\"propertyNames\":{\"not\":{\"const\":\"a\"}}}", "propertyNames: only enum"},
		{"{\"propertyNames\":{\"type\":\"text\"}}", "propertyNames: only enum"},
		{"{\"properties\":{\"a\":{}},\"required\":true}", "required: expected an array"},
		{"{\"allOf\":{\"type\":\"null\"}}", "allOf: expected an array"},
		{"{\"allOf\":[{\"additionalProperties\":false,\"type\":\"object\"},"
		 "{\"patternProperties\":{\"^x\":{}}}]}",
			"cannot be merged"},
		{"{\"allOf\":[{\"prefixItems\":[{}]},{\"items\":{\"type\":\"null\"}}]}",
			"cannot be merged"},
		{"{\"oneOf\":[{\"type\":\"string\"},{\"required\":[\"a\"]}]}", "may both match"},
		{"3", "expected a schema"},
		{"{\"type\":\"string\",\"pattern\":\"(?<=a)b\"}", "look-behind"},
		{"{\"type\":\"string\",\"pattern\":\"(?i)b\"}", "a group of the form (?...)"},
		{"{\"type\":\"string\",\"pattern\":\"\\\\bx\"}", "word boundaries"},
		{"{\"type\":\"string\",\"pattern\":\"\\\\p{L}\"}", "Unicode properties"},
		{"{\"type\":\"string\",\"pattern\":\"\\\\k<n>\"}", "back references"},
		{"{\"type\":\"string\",\"pattern\":\"\\\\Ax\"}", "this escape is not supported"},
		{"{\"type\":\"string\",\"pattern\":\"\\\\y\"}", "an escape is not known"},
		{"{\"type\":\"string\",\"pattern\":\"\\\\x4\"}", "hexadecimal digits"},
		{"{\"type\":\"string\",\"pattern\":\"\\\\ud800\"}", "half of a surrogate pair"},
		{"{\"type\":\"string\",\"pattern\":\"x\\\\\"}", "ends with a backslash"},
		{"{\"type\":\"string\",\"pattern\":\"[]\"}", "an empty class"},
		{"{\"type\":\"string\",\"pattern\":\"[[:alpha:]]\"}", "[:names:]"},
		{"{\"type\":\"string\",\"pattern\":\"[b-a]\"}", "goes backwards"},
		{"{\"type\":\"string\",\"pattern\":\"[ab\"}", "a class has no end"},
		{"{\"type\":\"string\",\"pattern\":\"+a\"}", "repeats nothing"},
		{"{\"type\":\"string\",\"pattern\":\"a{3,2}\"}", "backwards or beyond 10000"},
		{"{\"type\":\"string\",\"pattern\":\"a++\"}", "possessive"},
		{"{\"allOf\":[{\"const\":1},{\"const\":2}]}", "two values of \"const\" cannot be merged"},
		{"{\"allOf\":[]}", "found an empty one"},
		{"{\"allOf\":[3]}", "expected a schema"},
		{"{\"anyOf\":[{}],\"oneOf\":[{}]}", "anyOf beside oneOf"},
		{"{\"anyOf\":[]}", "anyOf: expected an array"},
		{"{\"enum\":[[1]],\"minItems\":0}", "\"minItems\" beside enum or const"},
		{"{\"enum\":[\"a\"],\"pattern\":\"^b\"}", "no value satisfies"},
		{"{\"enum\":[\"a\"],\"pattern\":\"(\"}", "a group has no end"},
		{"{\"enum\":[1],\"multipleOf\":0}", "multipleOf"},
		{"{\"type\":\"object\",\"minProperties\":2}", "minProperties: at most 1, or as many as"},
		{"{\"type\":\"object\",\"minProperties\":2,\"required\":[\"a\",\"a\"]}",
			"minProperties: at most"},
		{"{\"minProperties\":-1}", "minProperties: expected a whole number"},
		{"{\"type\":\"string\",\"nullable\":1}", "nullable: expected true or false"},
		{"{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"integer\"}],\"nullable\":true}",
			"nullable: only beside \"type\""},
		{"{\"properties\":{\"a\":{\"$ref\":\"#/$defs/"
		 "n\",\"nullable\":true}},\"$defs\":{\"n\":{\"type\":\"string\"}}}",
			"properties.a: nullable: only beside \"type\""},
		{"{\"allOf\":[{\"minLength\":1,\"nullable\":true},{\"maxLength\":3}]}",
			"nullable: only beside \"type\""},
		{"{\"enum\":[\"a\"],\"nullable\":true}", "nullable: only beside \"type\""},
		{"{\"$ref\":3}", "$ref: expected a string"},
		{"{\"prefixItems\":3}", "prefixItems: expected an array"},
		{"{\"type\":\"array\",\"maxItems\":99999999}", "maxItems: at most"},
	};
	for (size_t i = 0; i < ARRAY_LEN(list); i++) {
		struct err e = {0};
		struct schema *s = NULL;
		json_t *v = json_text_parse(list[i][0], strlen(list[i][0]), true, &e);
		assert_non_null(v);
		int rc = schema_compile(v, v, SCHEMA_JSON, &s, &e);
		if (rc != ERR_INPUT || !strstr(e.text, list[i][1]))
			fail_msg("%s: %d \"%s\", expected \"%s\"", list[i][0], rc, e.text, list[i][1]);
		assert_null(s);
		json_decref(v);
	}
}

static void expect_refusal(const char *schema, const char *words)
{
	struct err e = {0};
	struct schema *s = NULL;
	json_t *v = json_text_parse(schema, strlen(schema), true, &e);
	assert_non_null(v);
	int rc = schema_compile(v, v, SCHEMA_JSON, &s, &e);
	if (rc != ERR_INPUT || !strstr(e.text, words))
		fail_msg("%.80s...: %d \"%s\", expected \"%s\"", schema, rc, e.text, words);
	json_decref(v);
}

/* Schemas of moderate size that cost much: each is refused, not paid for. */
static void test_hostile(void **state)
{
	(void)state;
	struct buf b = {0};
	/* a long name: the automaton of all others is as deep as it is long */
	buf_puts(&b, "{\"properties\":{\"");
	for (int i = 0; i < 119000; i++)
		buf_putc(&b, 'a');
	buf_puts(&b, "\":{}}}");
	expect_refusal(buf_str(&b), "a name is longer than");
	/* alternatives in alternatives: more beginnings than a walk keeps */
	buf_clear(&b);
	buf_puts(&b, "{\"anyOf\":[{\"anyOf\":[{\"const\":0}]}");
	for (int i = 1; i < 9000; i++)
		buf_printf(&b, ",{\"anyOf\":[{\"const\":%d}]}", i);
	buf_puts(&b, "]}");
	expect_refusal(buf_str(&b), "alternatives");
	/* the same inside a pattern: a walk that kept some of them could not go on */
	expect_refusal("{\"pattern\":\"^x(()?()?()?()?){4000}y$\"}", "parts that may be empty");
	/* a large part merged with each of many alternatives */
	buf_clear(&b);
	buf_puts(&b, "{\"type\":\"object\",\"properties\":{\"p\":{}");
	for (int i = 0; i < 1999; i++)
		buf_printf(&b, ",\"p%d\":{}", i);
	buf_puts(&b, "},\"anyOf\":[{}");
	for (int i = 0; i < 1000; i++)
		buf_puts(&b, ",{}");
	buf_puts(&b, "]}");
	expect_refusal(buf_str(&b), "parts that have to be merged");
	/* an argument whose types take longer to find than the search may last */
	buf_clear(&b);
	buf_puts(&b, "{\"anyOf\":[{\"enum\":[0");
	for (int i = 1; i <= 20000; i++)
		buf_puts(&b, i % 5000 ? ",0" : "]},{\"enum\":[0");
	buf_puts(&b, "]},{\"type\":\"integer\"}]}");
	schema_free(compiled(buf_str(&b), true));
	/* alternatives whose types take long to find, of which nobody asks */
	buf_clear(&b);
	buf_puts(&b, "{\"$defs\":{\"x\":{\"anyOf\":[true");
	for (int i = 0; i < 2500; i++)
		buf_puts(&b, ",true");
	buf_puts(&b, "]},\"y\":{\"anyOf\":[{\"$ref\":\"#/$defs/x\"}");
	for (int i = 0; i < 8; i++)
		buf_puts(&b, ",{\"$ref\":\"#/$defs/x\"}");
	buf_puts(&b, "]}},\"anyOf\":[{\"$ref\":\"#/$defs/y\"}");
	for (int i = 0; i < 1300; i++)
		buf_puts(&b, ",{\"$ref\":\"#/$defs/y\"}");
	buf_puts(&b, "]}");
	expect_refusal(buf_str(&b), "alternatives");
	/* required keys are looked for one by one */
	buf_clear(&b);
	buf_puts(&b, "{\"required\":[\"p\"");
	for (int i = 0; i < 100000; i++)
		buf_printf(&b, ",\"p%d\"", i);
	buf_puts(&b, "]}");
	expect_refusal(buf_str(&b), "required: expected an array of at most");
	buf_free(&b);
}

/* Comparing alternatives and merging end when the time is over. */
static void test_time_limit(void **state)
{
	(void)state;
	static const char text[] =
		"[{\"type\":\"object\",\"required\":[\"k\"],\"properties\":{\"k\":{\"const\":1}}},"
		"{\"type\":\"object\",\"required\":[\"k\"],\"properties\":{\"k\":{\"const\":2}}}]";
	struct err e = {0};
	json_t *v = json_text_parse(text, strlen(text), true, &e), *a = json_array_get(v, 0),
		   *b = json_array_get(v, 1), *both;
	const struct schema_alternative one = {a, a}, other = {b, b};
	struct schema_budget left = {SCHEMA_MERGES_MAX, UINT64_MAX}, over = {SCHEMA_MERGES_MAX, 0};
	assert_true(schema_exclude_each_other(v, &one, &other, &left));
	assert_false(schema_exclude_each_other(v, &one, &other, &over));
	assert_non_null(both = schema_merge(v, a, b, &left, &e));
	json_decref(both);
	assert_null(schema_merge(v, a, b, &over, &e));
	assert_non_null(strstr(e.text, "takes too long"));
	json_decref(v);
}

/* Bytes at random among those that may come, with a bias to the end after a while. Whatever was
 * written, the walk must come to an end, and what it wrote must be JSON that is valid. */
#define N_WALKS 15 /* of each schema */
static void test_random_walks(void **state)
{
	(void)state;
	struct rng rng = {7};
	struct schema *s = NULL;
	for (size_t i = 0; i < N_WALKS * ARRAY_LEN(cases); i++) {
		const struct text_case *c = &cases[i / N_WALKS];
		if (i % N_WALKS == 0) {
			schema_free(s);
			s = compiled(c->schema, c->argument);
		}
		struct grammar_run *r = grammar_run_new(schema_grammar(s), NULL);
		struct buf text = {0};
		while (!grammar_run_must_end(r) && !(grammar_run_may_end(r) && rng_unit(&rng) < 0.3)) {
			char list[256];
			size_t n = 0;
			for (int b = 0; b < 256; b++) {
				char byte = (char)b;
				if (grammar_run_allows(r, &byte, 1))
					list[n++] = byte;
			}
			if (!n)
				fail_msg("dead end of %s behind %s", c->schema, buf_str(&text));
			char pick = list[(size_t)(rng_unit(&rng) * (double)n)];
			bool in_string = memchr(list, '~', n); /* what closes comes first after a while */
			for (const char *end = in_string ? "\"" : "]}"; text.len > 300 && *end; end++)
				pick = memchr(list, *end, n) ? *end : pick;
			assert_true(grammar_run_push(r, &pick, 1));
			buf_append(&text, &pick, 1);
			if (text.len > 100000)
				fail_msg("%s goes on for ever: %.600s", c->schema, text.data + 99000);
		}
		json_t *v = c->argument
						? json_null()
						: json_loadb(text.data, text.len, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
		if (!v && !strstr(text.data, "\\u0000"))
			fail_msg("%s: no JSON: %s", c->schema, text.data);
		json_t *schema = c->schema ? json_loads(c->schema, JSON_DECODE_ANY, NULL) : json_true();
		if (v && !c->argument && schema_check(schema, schema, v) == SCHEMA_INVALID)
			fail_msg("%s does not allow %s", c->schema, text.data);
		json_decref(schema);
		json_decref(v);
		buf_free(&text);
		grammar_run_free(r);
	}
	schema_free(s);
}

/* A key comes once in each object, however it is spelled, unless its pattern leaves no other way
 * on; so it is for single tokens and for masks. */
static void test_unique_keys(void **state)
{
	(void)state;
	static const struct {
		const char *schema, *begun, *next;
		bool allowed, argument;
	} list[] = {
		{NULL, "{\"a\":1,\"a", "\"", false, false},
		{NULL, "{\"a\":1,\"a", "b\"", true, false},
		{NULL, "{\"a\":1,\"\\u0061", "\"", false, false},
		{NULL, "{\"\\u00e9\\n\":1,\"\xc3\xa9\\u000a", "\":", false, false},
		{NULL, "{\"\\ud83d\\ude00\":1,\"\xf0\x9f\x98\x80", "\"", false, false},
		{NULL, "{\"a\":{\"a", "\"", true, false},
		{NULL, "{\"a\":{\"b\":[{\"c\":1}],\"c\":\"}\"},\"c\":2,\"b\":3,\"a", "\"", false, false},
		{NULL, "{\"a\":[\"a", "\"", true, false},
		{NULL, "{\"a\":[{\"a\":1},{\"a", "\"", true, false},
		{NULL, "{\"a\":1,\"b\":\"a", "\"", true, false},
		{NULL, "{\"\":1", ",\"\":", false, false},
		{"{\"properties\":{\"a\":{}},\"additionalProperties\":{\"type\":\"null\"}}",
			"{\"a\":1,\"b\":null,\"b", "\"", false, false},
		{"{\"type\":\"object\",\"propertyNames\":{\"pattern\":\"^[ab]$\"}}", "{\"a\":1,\"a", "\"",
			true, false},
		{"{\"type\":\"object\"}", "{\"a\":1,\"a", "\"", false, true},
		{"{\"type\":[\"object\",\"string\"]}", "{\"a\":1,\"a", "\"", true, true},
	};
	struct tokenizer *t = glm_tokenizer();
	struct token_trie *tokens = token_trie_new(t);
	for (size_t i = 0; i < ARRAY_LEN(list); i++) {
		struct schema *s = compiled(list[i].schema, list[i].argument);
		struct grammar_run *r = grammar_run_new(schema_grammar(s), tokens);
		const char *next = list[i].next;
		assert_true(grammar_run_push(r, list[i].begun, strlen(list[i].begun)));
		if (grammar_run_allows(r, next, strlen(next)) != list[i].allowed)
			fail_msg("%s behind %s", next, list[i].begun);
		const uint64_t *mask = grammar_run_mask(r);
		for (int32_t id = 0; id < (int32_t)tokenizer_n_tokens(t); id++) {
			struct text_span span = tokenizer_token(t, id);
			if (span.len == strlen(next) && !memcmp(span.data, next, span.len))
				assert_int_equal(mask[id / 64] >> id % 64 & 1, list[i].allowed);
		}
		assert_int_equal(grammar_run_push(r, next, strlen(next)), list[i].allowed);
		grammar_run_free(r);
		schema_free(s);
	}
	token_trie_free(tokens);
}

/* A mask has exactly the tokens that the walk takes one by one. */
static void test_masks(void **state)
{
	(void)state;
	struct tokenizer *t = glm_tokenizer();
	struct token_trie *tokens = token_trie_new(t);
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		const struct text_case *c = &cases[i];
		struct schema *s = compiled(c->schema, c->argument);
		struct grammar_run *r = grammar_run_new(schema_grammar(s), tokens);
		const char *text = c->good[0];
		for (size_t at = 0; at <= strlen(text); at += 1 + at / 3) {
			grammar_run_restart(r);
			assert_true(grammar_run_push(r, text, at));
			const uint64_t *mask = grammar_run_mask(r);
			for (int32_t id = 0; id < (int32_t)tokenizer_n_tokens(t); id += i % 5 ? 37 : 1) {
				struct text_span span = tokenizer_token(t, id);
				bool want = span.len && !tokenizer_is_added(t, id) &&
							!tokenizer_is_padding(t, id) &&
							grammar_run_allows(r, span.data, span.len);
				if (want != (mask[id / 64] >> id % 64 & 1))
					fail_msg("%s behind %zu bytes of %s: token %d (%.*s)", c->schema, at, text, id,
						(int)span.len, span.data);
			}
		}
		grammar_run_free(r);
		schema_free(s);
	}
	token_trie_free(tokens);
}

/* Longest token of the vocabulary that `text` begins with. */
static int32_t token_of(const struct tokenizer *t, const char *text)
{
	int32_t best = -1;
	size_t longest = 0;
	for (int32_t id = 0; id < (int32_t)tokenizer_n_tokens(t); id++) {
		struct text_span s = tokenizer_token(t, id);
		if (s.len > longest && !tokenizer_is_added(t, id) && !strncmp(s.data, text, s.len)) {
			longest = s.len;
			best = id;
		}
	}
	return best;
}

static bool run_allows(void *user, int32_t id)
{
	struct text_span s = tokenizer_token(glm_tokenizer(), id);
	return s.len && grammar_run_allows(user, s.data, s.len);
}

static void run_mask(void *user, float *logits, int32_t n_valid)
{
	const uint64_t *mask = grammar_run_mask(user);
	for (int32_t from = 0; from < n_valid; from += 64) /* as constraint.c */
		for (int32_t id = from; mask[from / 64] != UINT64_MAX && id < from + 64 && id < n_valid;
			 id++)
			if (!(mask[id / 64] >> id % 64 & 1))
				logits[id] = -INFINITY;
}

/* What a schema costs on the full vocabulary, per token of an answer of a few objects: drawing
 * alone; when the model keeps to the schema; when the token it likes best is always forbidden, so
 * that every step needs a mask. Prints the figures; the limit of the test is far above them. */
static void test_cost(void **state)
{
	(void)state;
	static const char *const schema =
		"{\"type\":\"array\",\"items\":{\"type\":\"object\",\"properties\":{\"name\":{\"type\":"
		"\"string\",\"maxLength\":40},\"text\":{\"type\":\"string\"},\"age\":{\"type\":\"integer\","
		"\"minimum\":0,\"maximum\":150},\"kind\":{\"enum\":[\"person\",\"robot\"]}},\"required\":["
		"\"name\",\"text\",\"age\",\"kind\"]}}";
	struct tokenizer *t = glm_tokenizer();
	int32_t n = (int32_t)tokenizer_n_tokens(t), ids[2000], wrong = token_of(t, "\x01");
	struct buf text = {0};
	size_t n_ids = 0;
	for (int i = 0; i < 6; i++)
		buf_printf(&text,
			"%s{\"name\": \"Ada Lovelace %d\", \"text\": \"She wrote the first program, for an "
			"engine that was never built.\", \"age\": %d, \"kind\": \"person\"}",
			i ? ", " : "[", i, 30 + i);
	buf_putc(&text, ']');
	for (size_t at = 0; at < text.len; at += tokenizer_token(t, ids[n_ids++]).len)
		ids[n_ids] = token_of(t, text.data + at);
	struct token_trie *tokens = token_trie_new(t);
	struct schema *s = compiled(schema, false);
	float *logits = NEW_ARRAY(float, (size_t)n);
	struct rng rng = {3};
	for (int32_t i = 0; i < n; i++)
		logits[i] = (float)(rng_unit(&rng) * 6 - 3);
	double us[3];
	for (int mode = 0; mode < 3; mode++) {
		struct sampler sampler;
		sampler_init(
			&sampler, &(struct sampler_options){.temperature = 1, .top_p = 0.95f, .seed = 1});
		struct grammar_run *r = grammar_run_new(schema_grammar(s), tokens);
		struct sampler_filter filter = {.user = r, .allows = run_allows, .mask = run_mask};
		uint64_t start = clock_thread_ns();
		for (size_t i = 0; i < n_ids; i++) {
			float old = logits[ids[i]], other = logits[wrong];
			logits[ids[i]] = 30;
			logits[wrong] = mode == 2 ? 60 : other;
			int32_t id = sampler_draw(&sampler, logits, n, mode ? &filter : NULL, (uint32_t)i);
			logits[wrong] = other;
			logits[ids[i]] = old;
			assert_int_equal(id, ids[i]);
			struct text_span span = tokenizer_token(t, id);
			if (mode)
				assert_true(grammar_run_push(r, span.data, span.len));
		}
		us[mode] = (double)(clock_thread_ns() - start) / 1e3 / (double)n_ids;
		if (mode)
			assert_true(grammar_run_must_end(r));
		grammar_run_free(r);
		sampler_fini(&sampler);
	}
	print_message(
		"%zu tokens: %.0f us a token without a schema, %.0f with it, %.0f with a mask for "
		"every token\n",
		n_ids, us[0], us[1], us[2]);
	assert_true(us[1] < us[0] + 5000);
	free(logits);
	buf_free(&text);
	schema_free(s);
	token_trie_free(tokens);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_texts),
		cmocka_unit_test(test_validator),
		cmocka_unit_test(test_refusals),
		cmocka_unit_test(test_hostile),
		cmocka_unit_test(test_time_limit),
		cmocka_unit_test(test_random_walks),
		cmocka_unit_test(test_unique_keys),
		cmocka_unit_test(test_masks),
		cmocka_unit_test(test_cost),
	};
	int failed = cmocka_run_group_tests(tests, NULL, NULL);
	tokenizer_free(glm);
	return failed;
}
