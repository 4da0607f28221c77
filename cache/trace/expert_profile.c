/* SPDX-License-Identifier: MIT */
/* Reading and writing of profiles; see expert_profile.h for the format. */
#include "cache/trace/expert_profile.h"

#include "src/base/mem.h"
#include "src/base/out_file.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define PROFILE_BYTES_MAX (64u << 20) /* more than any model's profile */
#define PROFILE_MAGIC     "# glmstream profile "
#define PROFILE_VERSION   2 /* 1: fingerprints of another function */

int profile_init(struct profile *p, uint64_t fingerprint, uint32_t n_layers, uint32_t n_experts)
{
	*p = (struct profile){.fingerprint = fingerprint, .n_layers = n_layers, .n_experts = n_experts};
	p->count = mem_try_new((size_t)n_layers * n_experts, sizeof *p->count);
	return p->count ? 0 : ERR_MEMORY;
}

void profile_fini(struct profile *p)
{
	free(p->count);
	*p = (struct profile){0};
}

static int profile_check_model(const struct profile *p, const char *name, uint64_t fingerprint,
	uint32_t layers, uint32_t experts, struct err *e)
{
	if (layers != p->n_layers || experts != p->n_experts)
		return err_set(e, ERR_INPUT,
			"%s: made with a model of %u layers and %u experts, this one has %u and %u", name,
			layers, experts, p->n_layers, p->n_experts);
	if (fingerprint && p->fingerprint && fingerprint != p->fingerprint)
		return err_set(e, ERR_INPUT,
			"%s: made with another model (fingerprint %016llx, this one is %016llx)", name,
			(unsigned long long)fingerprint, (unsigned long long)p->fingerprint);
	return 0;
}

/* One line of text[*at ..n) into `line` (cut to its size), *at behind it. False at the end. */
static bool next_line(const char *text, size_t n, size_t *at, char *line, size_t size)
{
	if (*at >= n)
		return false;
	const char *end = memchr(text + *at, '\n', n - *at);
	size_t len = end ? (size_t)(end - (text + *at)) : n - *at;
	size_t take = len < size - 1 ? len : size - 1;
	memcpy(line, text + *at, take);
	line[take] = 0;
	*at += len + 1;
	return true;
}

/* Adds the counts of a profile's text; p is unchanged when it is refused. */
static int profile_parse(
	struct profile *p, const char *text, size_t n, const char *name, struct err *e)
{
	char line[160], extra;
	size_t at = 0;
	unsigned long long version, fingerprint;
	unsigned layers, experts, number = 2;
	if (!next_line(text, n, &at, line, sizeof line) ||
		sscanf(line, PROFILE_MAGIC "%llu", &version) != 1)
		return err_set(e, ERR_INPUT, "%s: neither a profile nor a trace", name);
	if (version != PROFILE_VERSION)
		return err_set(
			e, ERR_INPUT, "%s: profile version %llu, expected %d", name, version, PROFILE_VERSION);
	if (sscanf(line, PROFILE_MAGIC "%llu %llx %u %u %c", &version, &fingerprint, &layers, &experts,
			&extra) != 4)
		return err_set(
			e, ERR_INPUT, "%s: line 1 does not name a model's fingerprint and shape", name);
	int rc = profile_check_model(p, name, fingerprint, layers, experts, e);
	if (rc)
		return rc;
	if (!next_line(text, n, &at, line, sizeof line) || strcmp(line, "layer,expert,count"))
		return err_set(e, ERR_INPUT, "%s: line 2 is not \"layer,expert,count\"", name);
	struct profile add;
	if (profile_init(&add, fingerprint, layers, experts))
		return err_set(e, ERR_MEMORY, "%s: no memory for %u x %u counts", name, layers, experts);
	while (!rc && next_line(text, n, &at, line, sizeof line)) {
		unsigned layer, expert;
		double count;
		number++;
		if (sscanf(line, "%u,%u,%lf%c", &layer, &expert, &count, &extra) != 3 || layer >= layers ||
			expert >= experts || !isfinite(count) || count < 0)
			rc = err_set(e, ERR_INPUT,
				"%s: line %u is not a layer below %u, an expert below %u and a count", name, number,
				layers, experts);
		else
			add.count[(size_t)layer * experts + expert] += count;
	}
	for (size_t i = 0; !rc && i < (size_t)layers * experts; i++)
		p->count[i] += add.count[i];
	profile_fini(&add);
	return rc;
}

static int profile_add_trace(struct profile *p, const char *path, struct err *e)
{
	struct trace t = {0};
	int rc = trace_open(path, &t, e);
	if (rc)
		return rc;
	/* synthetic traces number the layers as the full model does, so only the larger shape can be
	 * checked */
	if (t.synthetic ? t.model.n_layers > p->n_layers || t.model.n_experts != p->n_experts
					: profile_check_model(p, path, t.model.fingerprint, t.model.n_layers,
						  t.model.n_experts, e) != 0) {
		rc = t.synthetic ? err_set(e, ERR_INPUT,
							   "%s: a trace of %u layers and %u experts, this model has %u and %u",
							   path, t.model.n_layers, t.model.n_experts, p->n_layers, p->n_experts)
						 : ERR_INPUT;
	}
	for (size_t i = 0; !rc && i < t.n_events; i++) {
		const struct trace_event *v = &t.events[i];
		for (uint32_t k = 0; v->kind == TRACE_ACCESS && k < v->n; k++)
			profile_count(p, v->layer, t.ids[v->value + k]);
	}
	trace_fini(&t);
	return rc;
}

int profile_read(struct profile *p, const char *path, bool *is_trace, struct err *e)
{
	struct stat st; /* before it is opened: a pipe would be waited for, and cannot be read twice */
	if (!stat(path, &st) && !S_ISREG(st.st_mode))
		return err_set(e, ERR_INPUT, "%s: is %s, expected a profile or a trace", path,
			S_ISDIR(st.st_mode) ? "a directory" : "not a regular file");
	FILE *f = fopen(path, "re");
	if (!f)
		return err_errno(e, errno, "%s", path);
	char magic[8] = {0};
	size_t got = fread(magic, 1, sizeof magic, f);
	*is_trace =
		got == sizeof magic && (!memcmp(magic, "GLMTRACE", 8) || !memcmp(magic, "GLTR1", 5));
	if (*is_trace) {
		fclose(f);
		return profile_add_trace(p, path, e);
	}
	int rc = 0;
	char *text = NULL;
	long size;
	if (fseek(f, 0, SEEK_END) || (size = ftell(f)) < 0 || fseek(f, 0, SEEK_SET))
		rc = err_errno(e, errno, "%s", path);
	else if (size > (long)PROFILE_BYTES_MAX)
		rc = err_set(e, ERR_INPUT, "%s: %ld bytes are too many for a profile", path, size);
	else if (!(text = mem_try_new((size_t)size + 1, 1)))
		rc = err_set(e, ERR_MEMORY, "%s: no memory for %ld bytes", path, size);
	else if (fread(text, 1, (size_t)size, f) != (size_t)size)
		rc = ferror(f) ? err_errno(e, errno, "%s", path)
					   : err_set(e, ERR_INPUT, "%s: changed while it was read", path);
	else
		rc = profile_parse(p, text, (size_t)size, path, e);
	free(text);
	fclose(f);
	return rc;
}

bool profile_may_replace(const char *path)
{
	char line[160] = "";
	unsigned long long version;
	FILE *f = fopen(path, "re");
	if (!f)
		return false;
	const bool any = fgets(line, sizeof line, f) != NULL, unreadable = ferror(f) != 0;
	fclose(f);
	if (!any)
		return !unreadable;
	return !strncmp(line, PROFILE_MAGIC, strlen(PROFILE_MAGIC)) &&
		   (sscanf(line, PROFILE_MAGIC "%llu", &version) != 1 || version <= PROFILE_VERSION);
}

struct counted {
	double count;
	struct profile_key key;
};

static int most_used_first(const void *a, const void *b)
{
	const struct counted *x = a, *y = b;
	if (x->count != y->count)
		return x->count > y->count ? -1 : 1;
	if (x->key.layer != y->key.layer)
		return x->key.layer - y->key.layer;
	return x->key.expert - y->key.expert;
}

/* Sorted; the caller frees. */
static struct counted *sorted_counts(const struct profile *p, size_t *n)
{
	size_t all = (size_t)p->n_layers * p->n_experts, used = 0;
	struct counted *c = NEW_ARRAY(struct counted, all);
	for (size_t i = 0; i < all; i++)
		if (p->count[i] > 0)
			c[used++] = (struct counted){
				p->count[i], {(int32_t)(i / p->n_experts), (int32_t)(i % p->n_experts)}};
	qsort(c, used, sizeof *c, most_used_first);
	*n = used;
	return c;
}

void profile_order(const struct profile *p, struct profile_key **keys, size_t *n)
{
	struct counted *c = sorted_counts(p, n);
	*keys = NEW_ARRAY(struct profile_key, *n);
	for (size_t i = 0; i < *n; i++)
		(*keys)[i] = c[i].key;
	free(c);
}

int profile_write(
	const struct profile *p, const struct profile *earlier, const char *path, struct err *e)
{
	struct profile sum;
	if (profile_init(&sum, p->fingerprint, p->n_layers, p->n_experts))
		return err_set(e, ERR_MEMORY, "%s: no memory for the profile", path);
	const size_t cells = (size_t)p->n_layers * p->n_experts;
	bool counted = false;
	for (size_t i = 0; i < cells; i++)
		counted |= p->count[i] > 0;
	for (size_t i = 0; i < cells; i++)
		sum.count[i] = p->count[i] + (earlier ? earlier->count[i] * (counted ? 0.5 : 1) : 0);
	size_t n;
	struct counted *c = sorted_counts(&sum, &n);
	struct out_file out;
	int rc = out_file_open(&out, path, &out_profile, false, e);
	if (!rc) {
		fprintf(out.f, PROFILE_MAGIC "%d %016llx %u %u\nlayer,expert,count\n", PROFILE_VERSION,
			(unsigned long long)p->fingerprint, p->n_layers, p->n_experts);
		for (size_t i = 0; i < n; i++)
			fprintf(out.f, "%d,%d,%.9g\n", c[i].key.layer, c[i].key.expert, c[i].count);
		rc = out_file_commit(&out, e);
	}
	free(c);
	profile_fini(&sum);
	return rc;
}
