/* SPDX-License-Identifier: MIT */
/*
 * The server's counters, for /metrics (Prometheus text format 0.0.4) and the live state of the
 * page. Any thread; counters only grow. Rates are over the last two seconds: metrics_tick stores a
 * sample of the counters, and must be called about four times a second.
 */
#ifndef GLM_SERVE_METRICS_H
#define GLM_SERVE_METRICS_H

#include "src/base/buf.h"
#include "src/engine/draft/draft.h"
#include "src/serve/client_share.h"

#include <stdatomic.h>
#include <stdint.h>

enum metrics_counter {
	METRICS_PROMPT_TOKENS,   /* of all answers begun */
	METRICS_CACHED_TOKENS,   /* of these, not computed: a session or the folder had them */
	METRICS_PREFILL_TOKENS,  /* prompt tokens computed */
	METRICS_NEW_TOKENS,      /* generated */
	METRICS_ANSWERS,         /* finished */
	METRICS_CANCELLED,       /* ended because the client left */
	METRICS_FAILED,          /* ended by an error */
	METRICS_REFUSED,         /* the queue, or the client's share of it, was full */
	METRICS_STEPS,           /* steps of the model */
	METRICS_ROWS,            /* their rows */
	METRICS_PREFILL_NS,      /* time in steps that read prompts */
	METRICS_DECODE_NS,       /* time in steps that write answers */
	METRICS_STEP_CPU_NS,     /* processor time of the compute thread in steps of the model */
	METRICS_HOST_CPU_NS,     /* and between them: masks, choosing tokens, their texts */
	METRICS_REPLAYED,        /* assistant turns whose own tokens were used again */
	METRICS_CUT_CONNECTIONS, /* too slow, or silent for too long */
	METRICS_PREEMPTED,       /* times an answer was preempted for another client */
	METRICS_NOT_FINITE,      /* answers ended by logits that are no numbers */
	METRICS_N_COUNTERS
};

enum metrics_histogram {
	METRICS_FIRST_TOKEN, /* time from submission to the first token */
	METRICS_DURATION,    /* time from submission to the end of an answer */
	METRICS_QUEUED,      /* time from submission until a session was free */
	METRICS_N_HISTOGRAMS
};

struct metrics;

struct metrics *metrics_new(void);
void metrics_free(struct metrics *m); /* NULL is fine */

void metrics_add(struct metrics *m, enum metrics_counter c, uint64_t n);
uint64_t metrics_get(const struct metrics *m, enum metrics_counter c);
void metrics_observe(struct metrics *m, enum metrics_histogram h, uint64_t ns);
/* A response was sent. route: a string that lives as long as the program. */
void metrics_response(struct metrics *m, const char *route, unsigned status);

/* bytes_read: of the expert source, so far. */
void metrics_tick(struct metrics *m, uint64_t now_ns, uint64_t bytes_read);
struct metrics_rates {
	double prefill_tok_s, decode_tok_s, read_bytes_s;
};
struct metrics_rates metrics_rates(struct metrics *m);

/* Values that others keep, for metrics_text. */
struct metrics_gauges {
	uint32_t sessions, active, waiting, connections, preempted;
	uint64_t preempted_bytes, preempted_bytes_limit; /* scheduler_preempt.c */
	uint64_t hit_vram, hit_ram, miss, bytes_read, prefetch_useful, prefetch_wasted;
	uint64_t wait_ns, wait_draft_ns;    /* for experts; of it: for those that only drafts need */
	uint64_t checked, reread, wrong;    /* experts, see struct expert_stats */
	uint64_t store_bytes, store_tokens; /* of the session folder */
	uint64_t kept_responses, kept_bytes, kept_forgotten; /* response_store.h */
	uint64_t turn_bytes;                                 /* turn_store.h */
	uint64_t turn_bytes_limit, kept_bytes_limit;
	uint64_t request_bytes, request_bytes_peak, request_bytes_limit; /* budget.h */
	uint64_t requests_over_budget;
	struct client_stats clients;
	struct draft_stats drafts;
	uint64_t cache_bytes[2], ram_refused_bytes, resident_bytes, kv_bytes;
	double uptime_s;
	const char *version, *model, *backend; /* escaped by metrics_text */
};
void metrics_text(struct metrics *m, const struct metrics_gauges *g, struct buf *out);

#endif
