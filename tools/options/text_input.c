/* SPDX-License-Identifier: MIT */
/* Reading for the text commands. The input is the user's, so running out of memory is an error and
 * not an abort. */
#include "tools/options/text_input.h"

#include "src/base/num.h"
#include "src/checkpoint/checkpoint.h"
#include "src/format/gguf.h"
#include "src/text/hf_tokenizer.h"
#include "tools/options/pocket.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int text_input_read(const char *path, char **out, size_t *len, struct err *e)
{
	const char *name = path ? path : "standard input";
	int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : STDIN_FILENO, rc = 0;
	char *data = NULL;
	size_t n = 0, cap = 0;
	if (fd < 0)
		return err_errno(e, errno, "%s", name);
	for (;;) {
		if (n > TEXT_INPUT_MOST) {
			rc = err_set(e, ERR_INPUT, "%s: more than %u MiB of text", name, TEXT_INPUT_MOST >> 20);
			break;
		}
		if (cap - n < 2) {
			cap = cap ? cap * 2 : 65536;
			char *grown = realloc(data, cap);
			if (!grown) {
				rc = err_set(e, ERR_MEMORY, "%s: no memory for more than %zu bytes", name, n);
				break;
			}
			data = grown;
		}
		ssize_t got = read(fd, data + n, cap - n - 1);
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			rc = err_errno(e, errno, "%s", name);
		if (got <= 0)
			break;
		n += (size_t)got;
	}
	if (path)
		close(fd);
	if (rc) {
		free(data);
		return rc;
	}
	data[n] = 0;
	*out = data;
	*len = n;
	return 0;
}

/* Reads more into `ahead`. 1: something came, 0: the end, else -errno. */
static int read_ahead(struct text_lines *t)
{
	enum { PIECE = 65536 };
	memmove(t->ahead.data, t->ahead.data + t->from, t->ahead.len - t->from);
	t->ahead.len -= t->from;
	t->from = 0;
	buf_reserve(&t->ahead, PIECE);
	ssize_t n = read(STDIN_FILENO, t->ahead.data + t->ahead.len, PIECE);
	if (n < 0)
		return -errno;
	t->ahead.len += (size_t)n;
	t->ended = !n;
	return n > 0;
}

int text_lines_next(struct text_lines *t, struct buf *line, struct err *e)
{
	buf_clear(line);
	buf_reserve(&t->ahead, 1);
	t->number++;
	for (size_t seen = 0;;) {
		const char *at = t->ahead.data + t->from;
		size_t n = t->ahead.len - t->from;
		const char *end = memchr(at + seen, '\n', n - seen);
		if (end || (t->ended && n)) {
			n = end ? (size_t)(end - at) : n;
			buf_append(line, at, n);
			t->from += n + (end != NULL);
			return 1;
		}
		if (t->ended)
			return 0;
		if (n > TEXT_INPUT_MOST)
			return err_set(e, ERR_INPUT, "standard input, line %llu: more than %u MiB of text",
				(unsigned long long)t->number, TEXT_INPUT_MOST >> 20);
		seen = n;
		int rc = read_ahead(t);
		if (rc < 0)
			return err_errno(e, -rc, "standard input");
	}
}

uint64_t text_lines_rest(struct text_lines *t, bool *all)
{
	enum { MOST = 4 << 20 }; /* bytes looked at: /dev/urandom has no end */
	uint64_t n = 0;
	size_t bytes = 0;
	bool blank = true;
	struct pollfd p = {.fd = STDIN_FILENO, .events = POLLIN};
	do {
		bytes += t->ahead.len - t->from;
		for (; t->from < t->ahead.len; t->from++) {
			char c = t->ahead.data[t->from];
			n += c == '\n' && !blank;
			blank = c == '\n' || (blank && strchr(" \t\r", c) && c);
		}
	} while (!t->ended && bytes < MOST && poll(&p, 1, 0) == 1 && read_ahead(t) >= 0);
	*all = t->ended;
	return n + (!blank && t->ended);
}

void text_lines_fini(struct text_lines *t)
{
	buf_free(&t->ahead);
	*t = (struct text_lines){0};
}

int text_input_tokenizer(const char *model, struct tokenizer **out, struct err *e)
{
	*out = NULL;
	const char *path = pocket_or(model, e);
	if (!path)
		return e->code;
	size_t n = strlen(path);
	int rc;
	if (n > 5 && !strcmp(path + n - 5, ".json")) {
		struct hf_tokenizer hf;
		rc = hf_tokenizer_open(&hf, path, e);
		if (!rc && (rc = tokenizer_from_hf(&hf, out, e)))
			err_prefix(e, "%s", path);
		hf_tokenizer_fini(&hf);
		return rc;
	}
	struct gguf *g;
	rc = model_file_open(path, &g, e);
	if (!rc)
		rc = tokenizer_from_gguf(g, out, e);
	gguf_close(g);
	return rc;
}

int text_input_ids(
	const char *text, size_t len, const char *name, struct token_ids *out, struct err *e)
{
	size_t word = 0;
	for (size_t i = 0; i < len;) {
		if (text[i] && strchr(" \t\r\n\v\f", text[i])) {
			i++;
			continue;
		}
		size_t from = i;
		int64_t id = 0;
		while (i < len && text[i] >= '0' && text[i] <= '9' && id <= INT32_MAX)
			id = id * 10 + (text[i++] - '0');
		if (i == from || id > INT32_MAX ||
			(i < len && (!text[i] || !strchr(" \t\r\n\v\f", text[i]))))
			return err_set(e, ERR_INPUT, "%s: word %zu, \"%.*s\", is no token id", name, word + 1,
				(int)MIN(strcspn(text + from, " \t\r\n\v\f"), 30), text + from);
		if (token_ids_push(out, (int32_t)id))
			return err_set(e, ERR_MEMORY, "%s: no memory for more than %zu ids", name, out->n);
		word++;
	}
	return 0;
}

void text_output_ids(const struct token_ids *ids)
{
	for (size_t i = 0; i < ids->n; i++)
		printf(i ? " %d" : "%d", ids->data[i]);
	putchar('\n');
}
