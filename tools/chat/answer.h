/* SPDX-License-Identifier: MIT */
/* One turn after another over one session: text in, answer shown, statistics printed. Used by -p,
 * pipes and the chat. */
#ifndef GLM_TOOLS_ANSWER_H
#define GLM_TOOLS_ANSWER_H

#include "src/engine/prefix_store.h"
#include "src/serve/compute/constraint.h"
#include "tools/chat/chat_view.h"
#include "tools/chat/conversation.h"
#include "tools/options/run_opts.h"
#include "tools/output/stats.h"

#include <sys/stat.h>

/* Zero-initialise; answer_open, answer_turn ..., answer_close. */
struct answer {
	struct run_opts *opts;
	struct engine *engine;
	struct session *session;
	struct drafter *drafter; /* NULL with --draft off, as the next */
	struct draft_timeline *drafts;
	struct conversation talk;
	struct chat_view view;
	struct token_ids prompt;
	struct schema *schema;        /* --json-schema; NULL: none */
	struct token_trie *tokens;    /* with it */
	struct constraint constraint; /* of the answer in hand */
	uint64_t turns;               /* answers begun; decides the random numbers of the next */
	bool in_chat;                 /* on a terminal: hints may name its commands */
	bool has_stats;
	struct stats stats; /* of the last answer */
	uint64_t total_prompt, total_new,
		total_ns;               /* over all answers; prompt tokens really computed */
	struct prefix_store *store; /* --session-dir; NULL: none */
	char *session_path;         /* file of this chat (chat_file.h); NULL: none */
	struct stat session_seen;   /* what that file was when it was last read or written; 0: absent */
	bool autosave;              /* it is written after answers and at the end */
	bool unsaved;               /* there were turns since it was written */
	/* The timeline holds more than the conversation: something was taken back since the last
	 * answer, or a file was read whose chat was then refused. The next answer drops it; until then
	 * it must not get into a file. */
	bool timeline_longer;
	uint64_t save_ns, saved_at_ns; /* how long that took, and total_ns then */
};

int answer_open(struct answer *a, struct run_opts *opts, struct err *e);
/* Saves an unsaved chat of --session first. Safe on a zeroed or half-opened one. Returns rc, or
 * what failed in saving or closing (see common_opts_close). */
int answer_close(struct answer *a, int rc, struct err *e);

/* Says `text` (from `what`, for errors) and shows the answer. Ctrl+C stops it with ERR_INTERRUPTED;
 * what was written until then stays in the conversation, unless it was nothing: then, as after any
 * other error, the turn is forgotten. */
int answer_turn(struct answer *a, const char *text, size_t len, const char *what, struct err *e);

#endif
