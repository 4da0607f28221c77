/* SPDX-License-Identifier: MIT */
/* The JSON of a conversation -> text. Checked: an error has a sentence; rendered text is valid
 * UTF-8 and is the segments in order; a second parse gives the same text. */
#include "src/base/log.h"
#include "src/text/chat.h"
#include "src/text/chat_json.h"
#include "src/text/utf8.h"

#include <stdint.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

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
