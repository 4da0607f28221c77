/* SPDX-License-Identifier: MIT */
#include "tools/machine/measure_peers.h"

#include "kernels/peer.h"
#include "src/base/log.h"
#include "src/base/num.h"
#include "tools/machine/measure_card.h"

#include <stdio.h>

struct peer_work {
	struct peer_pair *pair;
	enum peer_kind kind;
};

static int run_once(void *user, struct err *e)
{
	const struct peer_work *w = user;
	return peer_pair_run(w->pair, w->kind, e);
}

static int add_card(struct bench *b, uint32_t card, struct err *e)
{
	struct measure_card m;
	int rc = measure_card("cuda", card, MIN(b->repeats, 5), &m, e);
	if (rc || !m.there)
		return rc;
	bench_add(b, "copy", "GB/s", bench_scale(m.in_bytes_s, 1e-9), 0, NULL, "host to card %u", card);
	bench_add(
		b, "copy", "GB/s", bench_scale(m.out_bytes_s, 1e-9), 0, NULL, "card %u to host", card);
	bench_add(b, "copy", "GB/s", bench_scale(m.copy_bytes_s, 1e-9), 0, NULL,
		"copy on card %u, read and written", card);
	return 0;
}

int bench_peers(struct bench *b, uint32_t first, uint32_t second, struct err *e)
{
	static const struct {
		enum peer_kind kind;
		double bytes; /* 0: hand-overs of a row */
		const char *what;
	} kinds[] = {
		{PEER_COPY, PEER_COPY_BYTES, "256 MiB from card %u to card %u"},
		{PEER_COPY_BACK, PEER_COPY_BYTES, "256 MiB to card %u from card %u"},
		{PEER_COPY_BOTH, 2.0 * PEER_COPY_BYTES, "both ways at once, cards %u and %u"},
		{PEER_HAND_COPY, 0, "24 KB handed over: copy and event, cards %u and %u"},
		{PEER_HAND_KERNEL, 0, "24 KB handed over: kernel and event, cards %u and %u"},
		{PEER_HAND_FLAGS, 0, "24 KB handed over: stores and flags, cards %u and %u"},
		{PEER_HAND_HOST, 0, "24 KB handed over: by pinned memory, cards %u and %u"},
		{PEER_ALL_REDUCE, 0, "NCCL, all-reduce of 6,144 floats, cards %u and %u"},
	};
	_Static_assert(ARRAY_LEN(kinds) == PEER_KINDS, "each kind has a line");
	struct peer_work w = {0};
	int rc = peer_pair_open(first, second, &w.pair, e);
	if (rc)
		return rc;
	for (int i = 0; i < 2 && first != second; i++)
		bench_add_value(b, "copy", "yes/no", peer_pair_access(w.pair, i),
			"card %u (%s) reaches the memory of card %u", i ? second : first,
			peer_pair_card(w.pair, i), i ? first : second);
	for (size_t i = 0; i < ARRAY_LEN(kinds) && !rc; i++) {
		char name[80];
		struct bench_spread s;
		const char *lacks = peer_pair_lacks(w.pair, w.kind = kinds[i].kind);
		snprintf(name, sizeof name, kinds[i].what, first, second);
		if (lacks) {
			log_info("%s: not measured, %s", name, lacks);
			continue;
		}
		if ((rc = bench_time(b, run_once, &w, &s, e)))
			break;
		if (kinds[i].bytes > 0)
			bench_add(b, "copy", "GB/s", bench_rate(s, kinds[i].bytes * 1e-9), 0, NULL, "%s", name);
		else
			bench_add(b, "copy", "us", bench_scale(s, 1e6 / PEER_HANDS), 0, NULL, "%s", name);
	}
	peer_pair_close(w.pair);
	if (!rc)
		rc = add_card(b, first, e);
	return rc || first == second ? rc : add_card(b, second, e);
}
