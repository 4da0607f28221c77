/* SPDX-License-Identifier: MIT */
/* The JSON of a conversation -> text and tokens. Checked: an error has a sentence; rendered text is
 * valid UTF-8 and is the segments in order; a second parse gives the same text; the tokens decode
 * to it, and added tokens are where the template's control segments are, and nowhere else: what a
 * user writes never becomes one. */
#include "src/base/log.h"
#include "src/text/chat.h"
#include "src/text/chat_json.h"
#include "src/text/utf8.h"
#include "tests/fuzz/fixture.h"

#include <stdint.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_ids(const struct chat_prompt *p)
{
	const struct tokenizer *t = fixture_tokenizer();
	struct token_ids ids = {0};
	struct buf text = {0};
	struct err e = {0};
	size_t n_control = 0, n_added = 0, added_bytes = 0;
	if (chat_prompt_ids(p, t, &ids, &e)) {
		if (!e.text[0])
			bug("no tokens and no sentence");
	} else {
		for (size_t i = 0; i < p->n; i++)
			n_control += p->segments[i].control;
		for (size_t i = 0; i < ids.n; i++) {
			n_added += tokenizer_is_added(t, ids.data[i]);
			added_bytes +=
				tokenizer_is_added(t, ids.data[i]) ? tokenizer_token(t, ids.data[i]).len : 0;
		}
		for (size_t i = 0; i < p->n; i++)
			added_bytes -= p->segments[i].control ? p->segments[i].len : 0;
		if (n_added != n_control || added_bytes)
			bug("%zu added tokens for %zu control segments", n_added, n_control);
		if (tokenizer_decode(t, ids.data, ids.n, &text, &e))
			bug("%s", e.text);
		if (text.len != p->text.len || memcmp(text.data, p->text.data, text.len) != 0)
			bug("the tokens decode to another text");
	}
	token_ids_free(&ids);
	buf_free(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct chat c;
	struct err e = {0};
	if (chat_json_parse(&c, (const char *)data, size, &e)) {
		if (!e.text[0])
			bug("error without a sentence");
		return 0;
	}
	struct chat_prompt p = {0};
	if (chat_render(&c, &p, &e))
		bug("parsed JSON does not render: %s", e.text);
	size_t at = 0;
	for (size_t i = 0; i < p.n; i++) {
		if (p.segments[i].start != at || !p.segments[i].len)
			bug("segments do not follow each other");
		if (i && !p.segments[i].control && !p.segments[i - 1].control)
			bug("two texts side by side");
		at += p.segments[i].len;
	}
	if (at != p.text.len || utf8_valid_prefix(p.text.data, p.text.len) != p.text.len)
		bug("segments are not the text, or it is not valid UTF-8");
	check_ids(&p);
	struct buf again = {0};
	chat_fini(&c);
	if (chat_json_parse(&c, (const char *)data, size, &e) || chat_render_text(&c, &again, &e) ||
		again.len != p.text.len || memcmp(again.data, p.text.data, again.len))
		bug("the second time differs");
	buf_free(&again);
	chat_prompt_fini(&p);
	chat_fini(&c);
	return 0;
}
