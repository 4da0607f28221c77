/* SPDX-License-Identifier: MIT */
/*
 * A test program that starts itself under mpirun. Its cases call mpirun_self and look at the status
 * and at what was written; started with an argument, main opens the ranks, plays that part and ends
 * with rank_end.
 */
#ifndef GLM_TESTS_RANK_TEST_H
#define GLM_TESTS_RANK_TEST_H

#include "src/base/err.h"
#include "src/ranks/ranks.h"

#include <stdio.h>

/* In a rank: says what is wrong; 1. */
#define FAIL(...) (fprintf(stderr, "WRONG: " __VA_ARGS__), fputc('\n', stderr), 1)

/* Skips the case where there is no mpirun, or the program has no MPI. In a case, <cmocka.h>. */
#define NEED_MPIRUN()                                                                              \
	if (!mpirun_found())                                                                           \
	skip()
bool mpirun_found(void);

/* Starts n ranks of this program with one argument. The exit status of mpirun; what they wrote is
 * in mpirun_said. The case fails where mpirun did not exit. Precondition: the group has the
 * fixtures of temp_dir.h. mpirun uses that folder: in /tmp all mpirun of a user share one, which
 * the one that ends deletes. */
int mpirun_self(const char *argument, int n);
extern char mpirun_said[65536];

/* Closes the ranks (r may be NULL), says the error, and ends the process: status 0, rc if it is
 * above 0, or that of an error code. */
_Noreturn void rank_end(struct ranks *r, int rc, struct err *e);

#endif
