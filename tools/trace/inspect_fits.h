/* SPDX-License-Identifier: MIT */
/* The part of `glmstream inspect` that says what cards of several sizes hold: the memory plan of a
 * run on each (src/engine/plan.h). */
#ifndef GLM_TOOLS_INSPECT_FITS_H
#define GLM_TOOLS_INSPECT_FITS_H

#include "src/format/gguf.h"
#include "src/model/config.h"

#include <jansson.h>

#define INSPECT_FITS_MAX 9

struct inspect_fit {
	double card_gb; /* GiB, as it is sold */
	bool fits, everything;
	uint64_t bytes;       /* for experts */
	int n_fit, n_experts; /* experts */
	struct err why;       /* unless it fits */
};

struct inspect_fits {
	uint32_t context; /* planned for */
	struct inspect_fit of[INSPECT_FITS_MAX];
	int n;
	struct err cannot; /* the model cannot be planned for at all */
};

/* card_gb 0: the usual sizes, up to the first that holds everything. context 0: 32,768, or the
 * model's own if that is less. */
void inspect_fits_find(struct inspect_fits *f, const struct gguf *file,
	const struct model_config *c, double card_gb, uint32_t context);
void inspect_fits_print(const struct inspect_fits *f);
json_t *inspect_fits_json(const struct inspect_fits *f);

#endif
