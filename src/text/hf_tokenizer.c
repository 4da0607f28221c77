/* SPDX-License-Identifier: MIT */
/* tokenizer.json -> arrays. Every check names the member it is about; all texts are copied into one
 * block so that the JSON can go. */
#include "src/text/hf_tokenizer.h"

#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/text/json_text.h"
#include "src/text/pretok.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define HOLES_MAX      65536u
#define FILE_BYTES_MAX (1u << 30)

static bool is_absent(const json_t *v)
{
	return !v || json_is_null(v);
}

static bool is_text(const json_t *v, const char *text)
{
	return json_is_string(v) && !strcmp(json_string_value(v), text);
}

/* Whether member `name` of `o` is absent or the boolean `want`. */
static bool flag_is(const json_t *o, const char *name, bool want)
{
	const json_t *v = json_object_get(o, name);
	return is_absent(v) ? !want : want ? json_is_true(v) : json_is_false(v);
}

static int unsupported(struct err *e, const char *where, const json_t *v)
{
	const json_t *type = json_object_get(v, "type");
	if (json_is_string(type))
		return err_set(
			e, ERR_INPUT, "%s of type %.60s is not supported", where, json_string_value(type));
	return err_set(e, ERR_INPUT, "%s: %s found, not supported", where, json_text_type(v));
}

/* ---- the stages around the model ---- */

/* An absent stage, or a Sequence of none. */
static bool stage_is_empty(const json_t *v, const char *list)
{
	if (is_absent(v))
		return true;
	const json_t *items = json_object_get(v, list);
	return is_text(json_object_get(v, "type"), "Sequence") && json_is_array(items) &&
		   !json_array_size(items);
}

static int check_split(const json_t *v, struct hf_tokenizer *t, struct err *e)
{
	if (!is_text(json_object_get(v, "type"), "Split"))
		return unsupported(e, "pre_tokenizer", v);
	const json_t *regex = json_object_get(json_object_get(v, "pattern"), "Regex");
	if (!json_is_string(regex))
		return err_set(
			e, ERR_INPUT, "pre_tokenizer Split: no pattern.Regex; only expressions are supported");
	if (!is_text(json_object_get(v, "behavior"), "Isolated") || !flag_is(v, "invert", false))
		return err_set(e, ERR_INPUT,
			"pre_tokenizer Split: only behavior Isolated without invert is supported");
	if (strlen(json_string_value(regex)) != json_string_length(regex))
		return err_set(e, ERR_INPUT, "pre_tokenizer Split: the pattern contains a zero byte");
	t->pattern = mem_strdup(json_string_value(regex));
	return 0;
}

static int check_stages(const json_t *root, struct hf_tokenizer *t, struct err *e)
{
	if (!stage_is_empty(json_object_get(root, "normalizer"), "normalizers"))
		return unsupported(e, "normalizer", json_object_get(root, "normalizer"));

	const json_t *pre = json_object_get(root, "pre_tokenizer");
	const json_t *list = json_object_get(pre, "pretokenizers");
	if (!is_text(json_object_get(pre, "type"), "Sequence") || json_array_size(list) != 2)
		return err_set(e, ERR_INPUT, "pre_tokenizer: expected a Sequence of Split and ByteLevel");
	int rc = check_split(json_array_get(list, 0), t, e);
	if (rc)
		return rc;
	const json_t *bytes = json_array_get(list, 1);
	if (!is_text(json_object_get(bytes, "type"), "ByteLevel"))
		return unsupported(e, "pre_tokenizer", bytes);
	/* both default to true in the library: they must be there and false */
	if (!json_is_false(json_object_get(bytes, "add_prefix_space")) ||
		!json_is_false(json_object_get(bytes, "use_regex")))
		return err_set(
			e, ERR_INPUT, "pre_tokenizer ByteLevel: add_prefix_space and use_regex must be false");

	const json_t *post = json_object_get(root, "post_processor");
	if (!stage_is_empty(post, "processors") &&
		!is_text(json_object_get(post, "type"), "ByteLevel")) {
		const json_t *single = json_object_get(post, "single");
		if (!is_text(json_object_get(post, "type"), "TemplateProcessing") ||
			json_array_size(single) != 1 || !json_object_get(json_array_get(single, 0), "Sequence"))
			return unsupported(e, "post_processor", post);
	}
	const json_t *decoder = json_object_get(root, "decoder");
	if (!is_absent(decoder) && !is_text(json_object_get(decoder, "type"), "ByteLevel"))
		return unsupported(e, "decoder", decoder);
	return 0;
}

static int check_model(const json_t *m, struct hf_tokenizer *t, struct err *e)
{
	if (!json_is_object(m))
		return err_set(e, ERR_INPUT, "model: expected an object, found %s", json_text_type(m));
	const json_t *type = json_object_get(m, "type");
	if (type && !is_text(type, "BPE"))
		return unsupported(e, "model", m);
	if (!is_absent(json_object_get(m, "dropout")) &&
		json_number_value(json_object_get(m, "dropout")) != 0)
		return err_set(e, ERR_INPUT, "model.dropout is not supported");
	static const char *const affix[] = {"continuing_subword_prefix", "end_of_word_suffix"};
	for (size_t i = 0; i < ARRAY_LEN(affix); i++) {
		const json_t *v = json_object_get(m, affix[i]);
		if (!is_absent(v) && !is_text(v, ""))
			return err_set(e, ERR_INPUT, "model.%s is not supported", affix[i]);
	}
	if (!flag_is(m, "byte_fallback", false))
		return err_set(e, ERR_INPUT, "model.byte_fallback is not supported");
	t->ignore_merges = json_is_true(json_object_get(m, "ignore_merges"));
	if (!json_is_object(json_object_get(m, "vocab")) ||
		!json_object_size(json_object_get(m, "vocab")))
		return err_set(e, ERR_INPUT, "model.vocab: expected a non-empty object, found %s",
			json_text_type(json_object_get(m, "vocab")));
	if (!json_is_array(json_object_get(m, "merges")))
		return err_set(e, ERR_INPUT, "model.merges: expected an array, found %s",
			json_text_type(json_object_get(m, "merges")));
	return 0;
}

/* ---- tokens ---- */

/* An id from the file, or -1. */
static int64_t read_id(const json_t *v)
{
	json_int_t id = json_is_integer(v) ? json_integer_value(v) : -1;
	return id >= 0 && id < (json_int_t)VOCAB_TOKENS_MAX ? (int64_t)id : -1;
}

/* Copies a text with a 0 behind it to *at. */
static struct text_span text_keep(char **at, const char *s, size_t n)
{
	struct text_span r = {*at, n};
	memcpy(*at, s, n);
	(*at)[n] = 0;
	*at += n + 1;
	return r;
}

/* Sizes first: highest id, count of tokens, bytes of all texts. */
static int text_measure(const json_t *vocab, const json_t *added, const json_t *merges,
	uint32_t *n_tokens, uint64_t *n_bytes, struct err *e)
{
	const char *key;
	size_t key_len, i;
	json_t *v;
	int64_t top = -1;
	uint64_t bytes = 0;
	json_object_keylen_foreach((json_t *)vocab, key, key_len, v)
	{
		int64_t id = read_id(v);
		if (id < 0)
			return err_set(e, ERR_INPUT,
				"model.vocab: the id of \"%.40s\" is not a number below %u", key, VOCAB_TOKENS_MAX);
		top = MAX(top, id);
		bytes += key_len + 1;
	}
	json_array_foreach(added, i, v)
	{
		const json_t *text = json_object_get(v, "content");
		int64_t id = read_id(json_object_get(v, "id"));
		if (id < 0 || !json_is_string(text))
			return err_set(e, ERR_INPUT, "added_tokens[%zu]: expected an id below %u and a content",
				i, VOCAB_TOKENS_MAX);
		top = MAX(top, id);
		bytes += json_string_length(text) + 1;
	}
	uint64_t n = (uint64_t)top + 1, count = json_object_size(vocab) + json_array_size(added);
	if (n > count + HOLES_MAX)
		return err_set(e, ERR_INPUT, "ids go up to %lld, but there are only %llu tokens",
			(long long)top, (unsigned long long)count);
	json_array_foreach(merges, i, v)
	{
		if (json_is_string(v))
			bytes += json_string_length(v) + 1;
		else if (json_array_size(v) == 2 && json_is_string(json_array_get(v, 0)) &&
				 json_is_string(json_array_get(v, 1)))
			bytes += json_string_length(json_array_get(v, 0)) +
					 json_string_length(json_array_get(v, 1)) + 2;
		else
			return err_set(
				e, ERR_INPUT, "model.merges[%zu]: expected \"left right\" or [left, right]", i);
	}
	if (json_array_size(merges) >= UINT32_MAX / 4)
		return err_set(
			e, ERR_INPUT, "model.merges: %zu entries are too many", json_array_size(merges));
	*n_tokens = (uint32_t)n;
	*n_bytes =
		bytes + (n - MIN(n, json_object_size(vocab))) * 16; /* holes: "[PAD16777215]" at most */
	return 0;
}

static int fill_tokens(
	struct hf_tokenizer *t, const json_t *vocab, const json_t *added, char **at, struct err *e)
{
	const char *key;
	size_t key_len, i;
	json_t *v;
	json_object_keylen_foreach((json_t *)vocab, key, key_len, v)
	{
		uint32_t id = (uint32_t)json_integer_value(v);
		if (t->types[id])
			return err_set(e, ERR_INPUT, "model.vocab: id %u is used by \"%.40s\" and \"%.40s\"",
				id, t->tokens[id].data, key);
		t->tokens[id] = text_keep(at, key, key_len);
		t->types[id] = TOKEN_NORMAL;
	}
	json_array_foreach(added, i, v)
	{
		uint32_t id = (uint32_t)json_integer_value(json_object_get(v, "id"));
		const json_t *text = json_object_get(v, "content");
		if (t->types[id])
			return err_set(e, ERR_INPUT, "added_tokens[%zu] \"%.40s\": id %u is taken by \"%.40s\"",
				i, json_string_value(text), id, t->tokens[id].data);
		static const char *const flags[] = {"single_word", "lstrip", "rstrip", "normalized"};
		for (size_t f = 0; f < ARRAY_LEN(flags); f++)
			if (!json_is_false(json_object_get(v, flags[f])))
				return err_set(e, ERR_INPUT, "added_tokens[%zu] \"%.40s\": %s must be false", i,
					json_string_value(text), flags[f]);
		t->tokens[id] = text_keep(at, json_string_value(text), json_string_length(text));
		t->types[id] = json_is_true(json_object_get(v, "special")) ? TOKEN_CONTROL : TOKEN_USER;
	}
	for (uint32_t id = 0; id < t->n_tokens; id++) {
		if (t->types[id])
			continue;
		char name[24];
		int n = snprintf(name, sizeof name, "[PAD%u]", id);
		t->tokens[id] = text_keep(at, name, (size_t)n);
		t->types[id] = TOKEN_UNUSED;
	}
	return 0;
}

static void fill_merges(struct hf_tokenizer *t, const json_t *merges, char **at)
{
	size_t i;
	json_t *v;
	json_array_foreach(merges, i, v)
	{
		if (json_is_string(v)) {
			t->merges[i] = text_keep(at, json_string_value(v), json_string_length(v));
			continue;
		}
		const json_t *left = json_array_get(v, 0), *right = json_array_get(v, 1);
		char *begin = *at;
		text_keep(at, json_string_value(left), json_string_length(left));
		(*at)[-1] = ' ';
		text_keep(at, json_string_value(right), json_string_length(right));
		t->merges[i] = (struct text_span){begin, (size_t)(*at - begin) - 1};
	}
}

static int vocab_fill(struct hf_tokenizer *t, const json_t *root, struct err *e)
{
	const json_t *model = json_object_get(root, "model"),
				 *added = json_object_get(root, "added_tokens");
	if (!is_absent(added) && !json_is_array(added))
		return err_set(
			e, ERR_INPUT, "added_tokens: expected an array, found %s", json_text_type(added));
	int rc = check_stages(root, t, e);
	if (rc || (rc = check_model(model, t, e)))
		return rc;
	const json_t *vocab = json_object_get(model, "vocab"),
				 *merges = json_object_get(model, "merges");
	uint64_t n_bytes = 0;
	if ((rc = text_measure(vocab, added, merges, &t->n_tokens, &n_bytes, e)))
		return rc;
	t->n_merges = (uint32_t)json_array_size(merges);
	t->tokens = mem_try_new(t->n_tokens, sizeof *t->tokens);
	t->types = mem_try_new(t->n_tokens, 1);
	t->merges = mem_try_new(t->n_merges, sizeof *t->merges);
	t->storage = mem_try_new(n_bytes, 1);
	if (!t->tokens || !t->types || !t->merges || !t->storage)
		return err_set(e, ERR_MEMORY, "no memory for %u tokens", t->n_tokens);
	char *at = t->storage;
	if ((rc = fill_tokens(t, vocab, added, &at, e)))
		return rc;
	fill_merges(t, merges, &at);
	t->pre = t->ignore_merges && !strcmp(t->pattern, PRETOK_GLM4) ? "glm4" : NULL;
	return 0;
}

int hf_tokenizer_parse(struct hf_tokenizer *t, const char *json, size_t len, struct err *e)
{
	*t = (struct hf_tokenizer){0};
	json_t *root;
	int rc = json_parse(json, len, JSON_TEXT_FLAGS, &root, e);
	if (rc)
		return rc;
	rc = vocab_fill(t, root, e);
	json_decref(root);
	if (rc)
		hf_tokenizer_fini(t);
	return rc;
}

int hf_tokenizer_open(struct hf_tokenizer *t, const char *path, struct err *e)
{
	*t = (struct hf_tokenizer){0};
	int rc = 0;
	char *text = NULL;
	struct stat st;
	size_t len = 0;
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* not a pipe */
	if (fd < 0)
		return err_errno(e, errno, "%s", path);
	if (fstat(fd, &st)) {
		rc = err_errno(e, errno, "%s", path);
		goto out;
	}
	if (!S_ISREG(st.st_mode) || st.st_size > (off_t)FILE_BYTES_MAX) {
		rc = err_set(
			e, ERR_INPUT, "%s: expected a regular file of at most %u bytes", path, FILE_BYTES_MAX);
		goto out;
	}
	text = mem_try_new((size_t)st.st_size + 1, 1);
	if (!text) {
		rc = err_set(e, ERR_MEMORY, "%s: no memory for %lld bytes", path, (long long)st.st_size);
		goto out;
	}
	while (len < (size_t)st.st_size) {
		ssize_t n = read(fd, text + len, (size_t)st.st_size - len);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0) {
			rc = err_errno(e, errno, "%s: reading", path);
			goto out;
		}
		if (!n)
			break;
		len += (size_t)n;
	}
	rc = hf_tokenizer_parse(t, text, len, e);
	if (rc)
		err_prefix(e, "%s", path);
out:
	close(fd);
	free(text);
	return rc;
}

void hf_tokenizer_fini(struct hf_tokenizer *t)
{
	free(t->tokens);
	free(t->types);
	free(t->merges);
	free(t->pattern);
	free(t->storage);
	*t = (struct hf_tokenizer){0};
}
