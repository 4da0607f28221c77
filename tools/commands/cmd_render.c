/* SPDX-License-Identifier: MIT */
/* glmstream render: a conversation in JSON -> the prompt that the model sees. */
#include "src/base/args.h"
#include "src/base/num.h"
#include "src/text/chat_json.h"
#include "tools/commands/commands.h"
#include "tools/options/pocket.h"
#include "tools/output/report.h"
#include "tools/options/text_input.h"

#include <stdio.h>
#include <stdlib.h>

int cmd_render(int argc, char **argv, struct err *e)
{
	const char *model = NULL;
	bool as_ids = false;
	const struct arg options[] = {
		{"model", 'm', ARG_STRING, .string = &model, .file = ARG_READS, .value = "MODEL",
			.help = POCKET_MODEL_HELP ", or a tokenizer.json", .fallback = POCKET_FALLBACK},
		{"ids", 0, ARG_FLAG, .flag = &as_ids,
			.help = "write token ids; what messages contain stays text, only the template's own "
					"control tokens become ids of such"},
	};
	const struct arg_group groups[] = {{NULL, options, ARRAY_LEN(options)}};
	const struct args args = {
		.command = "glmstream render",
		.usage = "[-m MODEL] [--ids] < chat.json",
		.about = "Reads {\"messages\": [...], \"tools\": [...], \"options\": {...}} from standard "
				 "input and writes the prompt by GLM-5.2's chat template. Options: "
				 "add_generation_prompt (true), enable_thinking (true), reasoning_effort (\"high\" "
				 "or any other word for max), clear_thinking.",
		.example =
			"echo '{\"messages\":[{\"role\":\"user\",\"content\":\"Hello!\"}]}' | glmstream render",
		.groups = groups,
		.n_groups = ARRAY_LEN(groups),
	};
	int rc = report_parse(&args, argc, argv, e);
	if (rc)
		return rc == ARGS_HELP ? 0 : rc;
	struct tokenizer *t = NULL;
	struct chat chat = {0};
	struct token_ids ids = {0};
	struct buf text = {0};
	char *input = NULL;
	size_t len = 0;
	if (((as_ids || model) && (rc = text_input_tokenizer(model, &t, e))) ||
		(rc = text_input_read(NULL, &input, &len, e)))
		goto out;
	if ((rc = chat_json_parse(&chat, input, len, e))) {
		err_prefix(e, "standard input");
		goto out;
	}
	if (as_ids) {
		if ((rc = chat_render_ids(&chat, t, &ids, e)))
			goto out;
		text_output_ids(&ids);
	} else {
		if ((rc = chat_render_text(&chat, &text, e)))
			goto out;
		fwrite(buf_str(&text), 1, text.len, stdout);
	}
out:
	tokenizer_free(t);
	chat_fini(&chat);
	token_ids_free(&ids);
	buf_free(&text);
	free(input);
	return rc;
}
