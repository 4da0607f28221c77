/* SPDX-License-Identifier: MIT */
#include "tests/support/engine_help.h"

#include "src/base/mem.h"
#include "src/engine/generate.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

struct engine *engine_of(const struct engine_options *o)
{
	struct err e = {0};
	struct engine *g;
	if (engine_open(o, &g, &e))
		fail_msg("%s", e.text);
	return g;
}

struct session *session_of(struct engine *g, bool mtp)
{
	struct err e = {0};
	struct session *s;
	if (session_new(g, &s, &e) || (mtp && session_enable_mtp(s, &e)))
		fail_msg("%s", e.text);
	return s;
}

const uint32_t *stage_cards(uint32_t n)
{
	static uint32_t cards[STAGES_MAX];
	const char *list = getenv("GLM_CARDS"), *at = list;
	for (uint32_t i = 0; i < n && list; i++) {
		char *end;
		cards[i] = (uint32_t)strtoul(at, &end, 10);
		if (end == at || (*end && *end != ','))
			fail_msg("GLM_CARDS: \"%s\" is no list of numbers like 0,1", list);
		at = *end ? end + 1 : list;
	}
	return cards;
}

void skip_unless_stages_overlap(uint32_t n)
{
	const char *backend = getenv("GLM_BACKEND");
	const uint32_t *cards = stage_cards(n);
	if (!backend || !strcmp(backend, "cpu"))
		return;
	for (uint32_t i = 0; i < n; i++)
		for (uint32_t k = 0; k < i; k++)
			if (cards[i] == cards[k])
				skip();
}

uint64_t logits_hash(const struct session *s)
{
	assert_non_null(session_logits(s));
	return generate_hash(
		GENERATE_HASH_START, session_logits(s), engine_config(session_engine(s))->n_vocab);
}

void draft_of(struct session *s, int32_t next, float *logits)
{
	struct err e = {0};
	int32_t id;
	if (session_mtp_draft(s, next, 1, &id, logits, &e))
		fail_msg("%s", e.text);
}

uint64_t drafts_hash(struct session *s, const int32_t *ids, int n, uint64_t hash)
{
	struct err e = {0};
	uint32_t n_vocab = engine_config(session_engine(s))->n_vocab;
	float *draft = NEW_ARRAY(float, n_vocab);
	for (int i = 0; i < n; i++) {
		draft_of(s, ids[i], draft);
		if (session_extend(s, &ids[i], 1, NULL, NULL, &e))
			fail_msg("%s", e.text);
		hash = generate_hash(generate_hash(hash, draft, n_vocab), session_logits(s), n_vocab);
	}
	free(draft);
	return hash;
}
