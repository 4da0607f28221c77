/* SPDX-License-Identifier: MIT */
/* --draft, of every command that writes answers. */
#ifndef GLM_TOOLS_DRAFT_OPTS_H
#define GLM_TOOLS_DRAFT_OPTS_H

#include "src/base/args.h"
#include "src/engine/draft/draft_mtp.h"

struct draft_opts {
	int mode; /* DRAFT_AUTO, DRAFT_OFF, or most drafts in a step */
	struct arg args[1];
};

/* Sets the default; *d must stay where it is. Without drafts the command sets common_opts.no_mtp.
 */
struct arg_group draft_opts_group(struct draft_opts *d);

#endif
