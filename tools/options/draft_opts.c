/* SPDX-License-Identifier: MIT */
#include "tools/options/draft_opts.h"

#include <string.h>

static const struct arg_word modes[] = {{"auto", DRAFT_AUTO}, {"off", DRAFT_OFF}, {0}};

struct arg_group draft_opts_group(struct draft_opts *d)
{
	d->mode = DRAFT_AUTO;
	const struct arg list[] = {
		{"draft", 0, ARG_INT, .i32 = &d->mode, .max = DRAFT_MAX, .words = modes,
			.value = "N|auto|off",
			.help = "compute up to N drafts of the next tokens in each step (by the model's MTP "
					"layer, or from what the text said before), and keep those that are right; the "
					"text stays the same. auto: as many as pay",
			.fallback = "auto"},
	};
	_Static_assert(sizeof list == sizeof d->args, "args");
	memcpy(d->args, list, sizeof list);
	return (struct arg_group){"Drafts", d->args, 1};
}
