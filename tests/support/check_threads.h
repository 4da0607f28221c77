/* SPDX-License-Identifier: MIT */
/* The threads of check pools (stream/check/check_pool.h), as the kernel knows them. */
#ifndef GLM_TESTS_CHECK_THREADS_H
#define GLM_TESTS_CHECK_THREADS_H

#include <stdbool.h>

#define CHECK_THREADS_MAX 8

/* How many there are in this process. sleeps[CHECK_THREADS_MAX]: how often each has gone to sleep;
 * may be NULL. */
int check_threads_of_process(long *sleeps);

/* Waits until there are n, for five seconds at most: a thread has its name only once it runs, and
 * is listed for a moment after it was joined. How many there are then. */
int check_threads_wait_for(int n);
/* Waits until there are n that all sleep, for ten seconds at most; sleeps: as above. False: they do
 * not. */
bool check_threads_all_sleep(int n, long *sleeps);

#endif
