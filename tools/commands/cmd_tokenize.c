/* SPDX-License-Identifier: MIT */
/* glmstream tokenize: text on stdin -> ids on one line, or back. */
#include "src/base/args.h"
#include "src/base/num.h"
#include "tools/commands/commands.h"
#include "tools/options/pocket.h"
#include "tools/output/report.h"
#include "tools/options/text_input.h"

#include <stdio.h>
#include <stdlib.h>

int cmd_tokenize(int argc, char **argv, struct err *e)
{
	const char *model = NULL;
	bool special = false, decode = false;
	const struct arg options[] = {
		{"model", 'm', ARG_STRING, .string = &model, .file = ARG_READS, .value = "MODEL",
			.help = POCKET_MODEL_HELP ", or a tokenizer.json", .fallback = POCKET_FALLBACK},
		{"special", 0, ARG_FLAG, .flag = &special,
			.help = "texts of added tokens, as <|user|>, become those tokens"},
		{"decode", 0, ARG_FLAG, .flag = &decode,
			.help = "read ids, write exactly the bytes they stand for"},
	};
	const struct arg_group groups[] = {{NULL, options, ARRAY_LEN(options)}};
	const struct args args = {
		.command = "glmstream tokenize",
		.usage = "[-m MODEL] [--special] [--decode]",
		.about = "Reads text from standard input and writes its token ids on one line; with "
				 "--decode the other way round. Without --special every character is text, as in "
				 "what users write.",
		.example = "echo -n 'Hello, world!' | glmstream tokenize -m glm52-q2.gguf",
		.groups = groups,
		.n_groups = ARRAY_LEN(groups),
	};
	int rc = report_parse(&args, argc, argv, e);
	if (rc)
		return rc == ARGS_HELP ? 0 : rc;
	if (special && decode)
		return err_set(e, ERR_USAGE, "--special and --decode do not go together");
	struct tokenizer *t = NULL;
	struct token_ids ids = {0};
	struct buf text = {0};
	char *input = NULL;
	size_t len = 0;
	if ((rc = text_input_tokenizer(model, &t, e)) || (rc = text_input_read(NULL, &input, &len, e)))
		goto out;
	if (decode) {
		if ((rc = text_input_ids(input, len, "standard input", &ids, e)) ||
			(rc = tokenizer_decode(t, ids.data, ids.n, &text, e)))
			goto out;
		fwrite(buf_str(&text), 1, text.len, stdout);
	} else {
		if ((rc = tokenizer_encode(t, input, len, special ? TOKENIZER_PARSE_ADDED : 0, &ids, e))) {
			err_prefix(e, "standard input");
			goto out;
		}
		text_output_ids(&ids);
	}
out:
	tokenizer_free(t);
	token_ids_free(&ids);
	buf_free(&text);
	free(input);
	return rc;
}
