/* SPDX-License-Identifier: MIT */
#include "tests/text/text_data.h"

#include "src/base/mem.h"
#include "src/text/pretok.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void give_up(const char *path, const char *what)
{
	fprintf(stderr, "%s: %s\n", path, what);
	exit(1);
}

char *text_data_read(const char *path, size_t *len)
{
	FILE *f = fopen(path, "rb");
	if (!f)
		give_up(path, "cannot be opened; run from the root of the repository");
	struct buf b = {0};
	char chunk[65536];
	size_t n;
	while ((n = fread(chunk, 1, sizeof chunk, f)) > 0)
		buf_append(&b, chunk, n);
	fclose(f);
	*len = b.len;
	return buf_take(&b);
}

json_t *text_data_lines(const char *path)
{
	size_t len;
	char *text = text_data_read(path, &len);
	json_t *list = json_array();
	for (char *line = text; *line;) {
		char *end = strchr(line, '\n');
		size_t n = end ? (size_t)(end - line) : strlen(line);
		json_t *v = json_loadb(line, n, JSON_ALLOW_NUL, NULL);
		if (!v)
			give_up(path, "a line is not JSON");
		json_array_append_new(list, v);
		line += n + !!end;
	}
	free(text);
	return list;
}

/* Appends the bytes that the first n characters of p stand for. */
static void base64_decode(const char *p, size_t n, struct buf *out)
{
	static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
	uint32_t acc = 0;
	unsigned bits = 0;
	for (size_t i = 0; i < n && p[i] != '='; i++) {
		acc = acc << 6 | (uint32_t)(strchr(digits, p[i]) - digits);
		if ((bits += 6) >= 8)
			buf_putc(out, (char)(acc >> (bits -= 8)));
	}
}

struct text_span *text_data_ranks(uint32_t *n, char **texts)
{
	size_t len;
	char *file = text_data_read("tests/data/tokenizer/glm-5.2-vocab.bpe", &len), *end;
	struct text_span *spans =
		NEW_ARRAY(struct text_span, len); /* far fewer lines, and room for more */
	struct buf all = {0}, token = {0};
	*n = 0;
	for (char *line = file; *line; line = end + 1, ++*n) {
		end = strchr(line, '\n');
		size_t from = all.len;
		buf_clear(&token);
		base64_decode(line, strcspn(line, " "), &token);
		vocab_spell(buf_str(&token), token.len, &all);
		spans[*n].len = all.len - from;
	}
	*texts = buf_take(&all);
	for (size_t i = 0, at = 0; i < *n; at += spans[i++].len)
		spans[i].data = *texts + at;
	buf_free(&token);
	free(file);
	return spans;
}

struct tokenizer *text_data_glm(void)
{
	size_t csv_len;
	char *csv = text_data_read("tests/data/tokenizer/special_tokens.csv", &csv_len), *texts,
		 *save = NULL;
	uint32_t n;
	struct text_span *spans = text_data_ranks(&n, &texts);
	uint8_t *types = NEW_ARRAY(uint8_t, n + 64);
	memset(types, TOKEN_NORMAL, n);
	strtok_r(csv, "\n", &save); /* header: id,text,special,end_of_generation */
	for (char *line; (line = strtok_r(NULL, "\n", &save)); n++) {
		char *text = strchr(line, ',') + 1, *end = strchr(text, ',');
		spans[n] = (struct text_span){text, (size_t)(end - text)};
		types[n] = end[1] == '1' ? TOKEN_CONTROL : TOKEN_USER;
	}
	struct hf_tokenizer hf = {.n_tokens = n,
		.tokens = spans,
		.types = types,
		.pattern = (char *)PRETOK_GLM4,
		.ignore_merges = true};
	struct tokenizer *t;
	struct err e = {0};
	if (tokenizer_from_hf(&hf, &t, &e))
		give_up("glm-5.2-vocab.bpe", e.text);
	free(spans);
	free(types);
	free(texts);
	free(csv);
	return t;
}

struct tokenizer *text_data_pocket(void)
{
	static const char path[] = "tests/data/tokenizer/pocket-tokenizer.json";
	struct hf_tokenizer hf;
	struct tokenizer *t;
	struct err e = {0};
	if (hf_tokenizer_open(&hf, path, &e) || tokenizer_from_hf(&hf, &t, &e))
		give_up(path, e.text);
	hf_tokenizer_fini(&hf);
	return t;
}

void text_data_check_ids(const char *what, const int32_t *ids, size_t n, const json_t *want)
{
	bool same = n == json_array_size(want);
	for (size_t i = 0; same && i < n; i++)
		same = ids[i] == json_integer_value(json_array_get(want, i));
	if (same)
		return;
	fprintf(stderr, "%s:\n  got  ", what);
	for (size_t i = 0; i < n; i++)
		fprintf(stderr, " %d", ids[i]);
	fprintf(stderr, "\n  want ");
	for (size_t i = 0; i < json_array_size(want); i++)
		fprintf(stderr, " %lld", (long long)json_integer_value(json_array_get(want, i)));
	fprintf(stderr, "\n");
	exit(1);
}
