/* SPDX-License-Identifier: MIT */
/*
 * A folder that keeps one profile (expert_profile.h) per model from run to run, so that the next
 * start can fill its cache without an option. All of it may be deleted at any time.
 *
 * In order of use: profile_store_folder once, profile_store_read at start, profile_store_add at the
 * end of a run.
 *
 * Files: <folder>/<fingerprint, 16 hex digits>.profile, and <folder>/lock. At most
 * PROFILE_STORE_FILES profiles of PROFILE_STORE_BYTES together: the one that was written longest
 * ago is removed first. A profile holds the PROFILE_STORE_KEYS most used experts. Files that are
 * not profiles, and those of newer programs, neither count nor are removed.
 *
 * Several processes may add to one profile at a time: each adds to what is there by then, under a
 * lock, and a file appears whole or not at all.
 */
#ifndef GLM_CACHE_PROFILE_STORE_H
#define GLM_CACHE_PROFILE_STORE_H

#include "cache/trace/expert_profile.h"

#define PROFILE_STORE_FILES 32
#define PROFILE_STORE_BYTES (16u << 20)
#define PROFILE_STORE_KEYS  32768u
/* Earlier counts halve each time this many tokens have been counted. A text keeps to one subject
 * for hundreds of tokens, and a profile is to hold several subjects. */
#define PROFILE_STORE_HALF_TOKENS 4096

/* $XDG_CACHE_HOME/glmstream/profiles, else ~/.cache/glmstream/profiles; NULL without a home. The
 * caller frees it. */
char *profile_store_folder(void);
/* Makes the folder and those above it, with access for the user alone (0700). Failures show when a
 * file is written. */
void profile_store_make_folder(const char *folder);

/* Adds the stored counts of p's model to p. Returns 0, also when nothing is stored; ERR_INPUT:
 * damaged, or of another shape or version; ERR_MEMORY; -errno. After an error p is unchanged. */
int profile_store_read(const char *folder, struct profile *p, struct err *e);

/* Adds p, the counts of one run, to the stored profile of its model, then removes what is above the
 * limits. token_accesses: expert uses per token (MoE layers * top-k), > 0. Waits at most two
 * seconds for other processes.
 *
 * Replaces a profile that is damaged, of another shape or of an older version. Leaves every other
 * file that it cannot read as it is and returns the error: a file that is not a profile, a newer
 * program's profile (both ERR_INPUT), exhausted memory (ERR_MEMORY), -errno. */
int profile_store_add(
	const char *folder, const struct profile *p, double token_accesses, struct err *e);

#endif
