/* SPDX-License-Identifier: MIT */
/*
 * Any bytes as a profile of expert use (or as a trace that seeds a cache). Checked: a refusal has a
 * sentence and changes no count; counts that were taken are finite, their order names each used
 * expert once; what is written again reads back as the same counts.
 */
#include "cache/trace/expert_profile.h"
#include "src/base/log.h"
#include "tests/fuzz/fixture.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define LAYERS      4
#define EXPERTS     8
#define FINGERPRINT 0x1234abcdu

static bool same_count(double a, double b)
{
	return fabs(a - b) <= 1e-8 * fabs(a);
}

/* %.9g rounds up what stands at the end of the range of a double. */
static bool is_writable(const struct profile *p)
{
	for (size_t i = 0; i < LAYERS * EXPERTS; i++)
		if (p->count[i] > 1e300)
			return false;
	return true;
}

static void check_order(const struct profile *p)
{
	struct profile_key *keys;
	size_t n, used = 0;
	double before = INFINITY;
	for (size_t i = 0; i < LAYERS * EXPERTS; i++)
		used += p->count[i] > 0;
	profile_order(p, &keys, &n);
	for (size_t i = 0; i < n; i++) {
		double count = p->count[keys[i].layer * EXPERTS + keys[i].expert];
		if (count > before || !(count > 0))
			bug("key %zu is out of order", i);
		before = count;
	}
	if (n != used)
		bug("%zu keys of %zu used experts", n, used);
	free(keys);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct profile p, again;
	struct err e = {0};
	bool is_trace = false;
	log_set_level(LOG_QUIET);
	if (profile_init(&p, FINGERPRINT, LAYERS, EXPERTS) ||
		profile_init(&again, FINGERPRINT, LAYERS, EXPERTS))
		bug("no memory");
	profile_count(&p, 1, 2);
	const char *path = fixture_write("profile", data, size);
	if (profile_may_replace(path) && size && data[0] != '#')
		bug("another kind of file may be replaced");
	if (profile_read(&p, path, &is_trace, &e)) {
		if (!e.text[0])
			bug("refused without a sentence");
		for (size_t i = 0; i < LAYERS * EXPERTS; i++)
			if (p.count[i] != (i == EXPERTS + 2))
				bug("a refused file has changed count %zu", i);
	} else if (is_writable(&p)) {
		check_order(&p);
		if (profile_write(&p, NULL, fixture_path("written"), &e) ||
			profile_read(&again, fixture_path("written"), &is_trace, &e) || is_trace)
			bug("what was written is refused: %s", e.text);
		if (!profile_may_replace(fixture_path("written")))
			bug("what was written may not be replaced");
		for (size_t i = 0; i < LAYERS * EXPERTS; i++)
			if (!same_count(p.count[i], again.count[i]))
				bug("count %zu is %g and reads back as %g", i, p.count[i], again.count[i]);
	}
	profile_fini(&p);
	profile_fini(&again);
	return 0;
}
