/* SPDX-License-Identifier: MIT */
/* Any bytes as the note of a saved chat: refused with a sentence, the chat unchanged; or a chat
 * whose turns can be taken back, whose prompt can be made, and which is written and read again as
 * it is. */
#include "src/base/log.h"
#include "tests/fuzz/fixture.h"
#include "tools/chat/chat_file.h"

#include <stdint.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void write_text(const struct answer *a, struct buf *out)
{
	struct err e = {0};
	if (chat_note_write(a, out, &e))
		bug("a chat that was read cannot be written: %s", e.text);
}

static void check_chat(struct answer *a)
{
	const struct tokenizer *t = fixture_tokenizer();
	struct buf first = {0}, second = {0};
	struct err e = {0};
	write_text(a, &first);
	if (chat_note_read(a, tokenizer_n_tokens(t), first.data, first.len, "fuzz", &e))
		bug("a chat that was written cannot be read: %s: %s", e.text, buf_str(&first));
	write_text(a, &second);
	if (first.len != second.len || memcmp(first.data, second.data, first.len) != 0)
		bug("the second time it is\n%s\nand not\n%s", buf_str(&second), buf_str(&first));
	if (conversation_prompt(&a->talk, t, &a->prompt, &e) && !e.text[0])
		bug("no prompt and no sentence");
	while (a->talk.n_turns)
		if (!conversation_undo(&a->talk))
			bug("a turn cannot be taken back");
	buf_free(&first);
	buf_free(&second);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct run_opts opts = {.think = THINK_HIGH};
	struct answer a = {.opts = &opts, .turns = 77};
	struct err e = {0};
	if (conversation_add_user(&a.talk, fixture_tokenizer(), "before", 6, "fuzz", &e))
		bug("%s", e.text);
	int rc = chat_note_read(
		&a, tokenizer_n_tokens(fixture_tokenizer()), (const char *)data, size, "fuzz", &e);
	if (!rc)
		check_chat(&a);
	else if (!e.text[0] || a.turns != 77 || a.talk.n_turns != 1 || a.talk.chat.n_messages != 1)
		bug("refused without a sentence, or the chat has changed");
	conversation_fini(&a.talk);
	token_ids_free(&a.prompt);
	return 0;
}
