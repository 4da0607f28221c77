/* SPDX-License-Identifier: MIT */
/* Conditions that are waited for by the monotonic clock, which nobody sets. */
#ifndef GLM_BASE_COND_H
#define GLM_BASE_COND_H

#include "src/base/host/clock.h"

#include <pthread.h>

static inline void cond_init(pthread_cond_t *c)
{
	pthread_condattr_t monotonic;
	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(c, &monotonic);
	pthread_condattr_destroy(&monotonic);
}

/* ns from now, for pthread_cond_timedwait on one that cond_init made. */
static inline struct timespec cond_deadline(uint64_t ns)
{
	uint64_t at = clock_ns() + ns;
	return (struct timespec){
		.tv_sec = (time_t)(at / 1000000000u), .tv_nsec = (long)(at % 1000000000u)};
}

#endif
