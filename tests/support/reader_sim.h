/* SPDX-License-Identifier: MIT */
/*
 * A reader engine for tests that is a model of drives, in virtual time: a poll that waits moves the
 * clock to the next completion. No bytes are moved.
 *
 * A drive takes up to `channels` reads at a time, the others wait in order. A read costs the
 * latency of its channel, then its bytes pass the one bus of the drive, which also takes
 * command_ns for each. So the most that it gives with slices of s bytes is
 * s / (command_ns + s / bytes_s), if enough are in flight to hide the latency.
 *
 * Use: `struct reader_options o = {.custom = &reader_sim_engine, .custom_options = &sim};`. The
 * array of drives is read while it runs, so a test may change a drive.
 */
#ifndef GLM_TESTS_READER_SIM_H
#define GLM_TESTS_READER_SIM_H

#include "stream/reader/reader_engine.h"

struct sim_drive {
	double bytes_s;
	uint64_t latency_ns;
	double jitter; /* part of the latency: uniform up to so much more or less, and of the bus */
	unsigned channels;
	uint64_t command_ns;
};

struct reader_sim {
	const struct sim_drive *drives; /* [n_drives] of the reader */
	uint64_t seed;
	bool refuses_direct; /* reads with O_DIRECT fail with EINVAL */
};

extern const struct reader_engine_ops reader_sim_engine;

/* What the drive gives at most, bytes a second, with slices of this size. */
double sim_drive_most(const struct sim_drive *d, double slice);

#endif
