/* SPDX-License-Identifier: MIT */
/*
 * The signal mask of threads that leave signals to the main thread. A new thread inherits the mask
 * of the one that starts it:
 *
 *     sigset_t before;
 *     signals_block(&before);
 *     ... pthread_create ...
 *     signals_restore(&before);
 */
#ifndef GLM_BASE_SIGNALS_H
#define GLM_BASE_SIGNALS_H

#include <pthread.h>
#include <signal.h>
#include <stddef.h>

/* Blocks all signals but those that an instruction raises in its own thread. Such a signal has to
 * reach its handler (file_map.h): the kernel ends a process when it is blocked. */
static inline void signals_block(sigset_t *before)
{
	sigset_t mask;
	sigfillset(&mask);
	sigdelset(&mask, SIGBUS);
	sigdelset(&mask, SIGSEGV);
	sigdelset(&mask, SIGFPE);
	sigdelset(&mask, SIGILL);
	sigdelset(&mask, SIGTRAP);
	sigdelset(&mask, SIGSYS);
	pthread_sigmask(SIG_SETMASK, &mask, before);
}

static inline void signals_restore(const sigset_t *before)
{
	pthread_sigmask(SIG_SETMASK, before, NULL);
}

#endif
