/* SPDX-License-Identifier: MIT */
/*
 * What this machine does with one model, measured: how fast its drive delivers experts, how fast
 * memory is copied, and how fast tokens are decoded with given options. bench, tune and inspect
 * build their statements on these.
 */
#ifndef GLM_TOOLS_MEASURE_H
#define GLM_TOOLS_MEASURE_H

#include "src/base/err.h"
#include "src/engine/generate.h"
#include "src/format/gguf.h"
#include "tools/bench/bench.h"
#include "tools/options/common_opts.h"

struct measure_disk {
	struct bench_spread bytes_s; /* bytes read in a second, what alignment adds included */
	double expert_bytes;         /* mean of what is read for an expert */
	double slot_bytes;           /* mean of what an expert takes in a cache */
	double requests;             /* mean number of reads for an expert */
	unsigned depth;              /* experts, or ... */
	bool slices;                 /* ... parts of them: measure_disk_slices */
	bool direct;                 /* past the page cache; else the figure may be that of memory */
};

/* Reads experts of the model in random order through the reader that a run with these options uses,
 * keeping `depth` of them under way (0: enough to fill the reader's depth twice, within 256
 * MB). ERR_INPUT when the model has no experts, ERR_INTERRUPTED after Ctrl+C. */
int measure_disk(const struct common_opts *c, const struct gguf *file, unsigned depth,
	double seconds, int repeats, struct measure_disk *out, struct err *e);

/* The same bytes as a card's loader reads them: reader_useful_depth() requests of
 * reader_staging_bytes() at a time, into the buffer that was filled last, by a thread that polls.
 * out->depth counts these. */
int measure_disk_slices(const struct common_opts *c, const struct gguf *file, double seconds,
	int repeats, struct measure_disk *out, struct err *e);

/* Measures the drive again in the way of `like`, a sample at a time: the rate of a shared drive
 * changes during a run. *d becomes NULL where reads go through the page cache. One thread; `file`
 * outlives *d. */
struct measure_drive;
int measure_drive_open(struct measure_drive **d, const struct common_opts *c,
	const struct gguf *file, const struct measure_disk *like, struct err *e);
int measure_drive_sample(struct measure_drive *d, double seconds, double *bytes_s, struct err *e);
void measure_drive_close(struct measure_drive *d); /* NULL: nothing */

/* Bytes a second that memcpy moves between two arrays of 256 MB. */
int measure_copy(int repeats, struct bench_spread *bytes_s, struct err *e);

/* A decode of one prompt, repeated. */
struct measure_decode {
	struct bench_spread ms; /* of a token, waits included */
	double wait_ms;         /* ... of which for experts, mean */
	double bytes;           /* read for a token, mean */
	double hits[2], misses; /* experts of a token found in each tier; read */
	double useful, wasted;  /* prefetched experts a token */
	double checked;         /* experts compared with check values, a token, */
	double check_ms;        /* ... and the time for it, beside the computation */
	uint64_t tokens;        /* measured */
	uint64_t logits_hash;   /* of the last repeat: the same for all options */
};

/* Decodes n_new greedy tokens after ids[0..n) with an engine opened as `c` says, `repeats` times
 * after one unmeasured run, and closes it. c->trace and c->warm are not used; only warnings are
 * logged. */
int measure_decode(const struct common_opts *c, const int32_t *ids, uint32_t n, uint32_t n_new,
	int repeats, struct measure_decode *out, struct err *e);

/* A budget above what any model needs: everything is cached. */
#define MEASURE_EVERYTHING 1000000000000000u

#endif
