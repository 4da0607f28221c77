/* SPDX-License-Identifier: MIT */
/* The threads of check pools (stream/check/check_pool.h), as the kernel knows them. */
#ifndef GLM_TESTS_CHECK_THREADS_H
#define GLM_TESTS_CHECK_THREADS_H

#define CHECK_THREADS_MAX 8

/* How many there are in this process. sleeps[CHECK_THREADS_MAX]: how often each has gone to sleep;
 * may be NULL. */
int check_threads_of_process(long *sleeps);

#endif
