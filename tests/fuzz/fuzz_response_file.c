/* SPDX-License-Identifier: MIT */
/*
 * Any bytes as a file of a stored response: not known, or a response and items of the file's own
 * bytes; and as the conversation that a request goes on with: refused with a sentence, or a prompt.
 */
#include "src/base/log.h"
#include "src/format/gguf.h"
#include "src/serve/api/api.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define ID   "resp_0123456789abcdefABCDEFgh"
#define BODY "{\"input\":\"x\",\"previous_response_id\":\"" ID "\"}"

static char folder[64], path[128];

static void remove_folder(void)
{
	unlink(path);
	rmdir(folder);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct request_model model;
	struct err err = {0};
	if (!model.tokenizer) {
		static struct gguf *file;
		struct tokenizer *t;
		log_set_level(LOG_QUIET);
		if (gguf_open("tools/pocket/pocket.gguf", &file, &err) ||
			tokenizer_from_gguf(file, &t, &err))
			bug("%s", err.text);
		model = (struct request_model){.tokenizer = t,
			.name = "pocket",
			.longest = 128,
			.context = 2048,
			.sampling = {.temperature = 1, .top_p = 0.95f}};
		snprintf(folder, sizeof folder, "/tmp/glmstream-fuzz-XXXXXX");
		if (!mkdtemp(folder))
			bug("no folder");
		snprintf(path, sizeof path, "%s/" ID ".response", folder);
		atexit(remove_folder);
	}
	FILE *f = fopen(path, "wb");
	if (!f || (size && fwrite(data, 1, size, f) != size) || fclose(f))
		bug("the file cannot be written");
	struct buf response = {0}, items = {0};
	if (response_store_open(folder, &model.responses, &err))
		bug("%s", err.text);
	if (response_store_get(model.responses, ID, &response, &items) &&
		(response.len + items.len >= size ||
			(response.len && !memmem(data, size, response.data, response.len))))
		bug("bytes that the file does not have");
	struct request r;
	struct request_error e = {0};
	if (api_parse(&api_responses, &model, BODY, strlen(BODY), &r, &e)) {
		if (e.status < 400 || e.status > 499 || !e.message[0])
			bug("a refusal of status %d: %s", e.status, e.message);
	} else if (!r.prompts[0].n) {
		bug("a prompt without tokens");
	}
	request_fini(&r);
	response_store_close(model.responses);
	buf_free(&response);
	buf_free(&items);
	return 0;
}
