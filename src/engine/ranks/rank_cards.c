/* SPDX-License-Identifier: MIT */
#include "src/engine/ranks/rank_cards.h"

#include "src/base/mem.h"
#include "src/base/num.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct rank_cards rank_cards_describe(const struct stage *stages, uint32_t n, bool named)
{
	struct rank_cards c = {.n = MIN(n, (uint32_t)STAGES_MAX), .named = named};
	for (uint32_t i = 0; i < c.n; i++) {
		c.card[i].number = stages[i].card;
		memcpy(c.card[i].uuid, stages[i].backend->uuid, sizeof c.card[i].uuid);
	}
	return c;
}

bool rank_cards_collide(
	const struct rank_cards *a, const struct rank_cards *b, uint32_t *i, uint32_t *k)
{
	static const uint8_t none[BACKEND_UUID_BYTES];
	if (a->named && b->named)
		return false;
	/* b came in a message: its length is not to be trusted */
	const uint32_t n_a = MIN(a->n, (uint32_t)STAGES_MAX), n_b = MIN(b->n, (uint32_t)STAGES_MAX);
	for (*i = 0; *i < n_a; ++*i)
		for (*k = 0; *k < n_b; ++*k)
			if (!memcmp(a->card[*i].uuid, b->card[*k].uuid, sizeof none) &&
				memcmp(a->card[*i].uuid, none, sizeof none) != 0)
				return true;
	return false;
}

/* As `nvidia-smi -L` writes it. */
static void write_uuid(const uint8_t *uuid, char out[48])
{
	size_t n = (size_t)snprintf(out, 48, "GPU-");
	for (int i = 0; i < BACKEND_UUID_BYTES; i++)
		n += (size_t)snprintf(
			out + n, 48 - n, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", uuid[i]);
}

/* The card of this rank that a lower one has too. all: [count] */
static int find_collision(const struct ranks *r, const struct rank_cards *all, struct err *e)
{
	const struct rank_cards *mine = &all[ranks_me(r)];
	uint32_t i, k;
	char uuid[48];
	for (uint32_t other = 0; other < ranks_me(r); other++) {
		if (!rank_cards_collide(mine, &all[other], &i, &k))
			continue;
		write_uuid(mine->card[i].uuid, uuid);
		err_set(e, ERR_USAGE,
			"card %u (%s) is also card %u of %s: give each rank cards of its own with --cards",
			mine->card[i].number, uuid, all[other].card[k].number, ranks_name(r, other));
		return err_hint(e, "two ranks share a card if both name it with --cards; each then needs a "
						   "--cache-gb that leaves memory to the other");
	}
	return 0;
}

int rank_cards_check(struct ranks *r, const struct rank_cards *mine, struct err *e)
{
	struct rank_cards *all = NEW_ARRAY(struct rank_cards, ranks_count(r));
	int rc = ranks_gather(r, mine, sizeof *mine, all, e);
	if (!rc)
		rc = ranks_broadcast(r, all, ranks_count(r) * sizeof *all, e);
	if (!rc)
		rc = ranks_agree(r, find_collision(r, all, e), e);
	free(all);
	return rc;
}
