/* SPDX-License-Identifier: MIT */
/*
 * Any bytes as a file of a stored response: not known, or a response and items of the file's own
 * bytes; and as the conversation that a request goes on with: refused with a sentence, or a prompt.
 */
#include "src/base/log.h"
#include "src/serve/api/api.h"
#include "tests/fuzz/fixture.h"

#include <stdint.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define ID   "resp_0123456789abcdefABCDEFgh"
#define BODY "{\"input\":\"x\",\"previous_response_id\":\"" ID "\"}"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct request_model model;
	struct err err = {0};
	if (!model.tokenizer) {
		log_set_level(LOG_QUIET);
		model = (struct request_model){.tokenizer = fixture_tokenizer(),
			.name = "pocket",
			.longest = 128,
			.context = 2048,
			.sampling = {.temperature = 1, .top_p = 0.95f}};
	}
	fixture_write(ID ".response", data, size);
	struct buf response = {0}, items = {0};
	if (response_store_open(fixture_folder(), RESPONSE_FOLDER_BYTES, &model.responses, &err))
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
