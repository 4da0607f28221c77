/* SPDX-License-Identifier: MIT */
/*
 * The handlers only touch lock-free atomics. No SA_RESTART: a read at the prompt returns. A signal
 * that arrives just before a read begins does not interrupt it. So after SIGTERM or SIGHUP an alarm
 * every second interrupts each later read.
 */
#include "tools/output/interrupt.h"

#include <signal.h>
#include <stddef.h>
#include <unistd.h>

static atomic_bool interrupted; /* written by handlers, read by anyone */
static atomic_bool ending;
static bool be_patient; /* set before the handlers are */

static void on_int(int sig)
{
	(void)sig;
	if (atomic_exchange(&interrupted, true) && !be_patient)
		_exit(130);
}

static void on_end(int sig)
{
	if (atomic_exchange(&ending, true))
		_exit(128 + sig);
	atomic_store(&interrupted, true);
	alarm(1);
}

static void on_alarm(int sig)
{
	(void)sig;
	alarm(1);
}

void interrupt_catch(bool patient)
{
	be_patient = patient;
	struct sigaction a = {.sa_handler = on_int};
	sigemptyset(&a.sa_mask);
	sigaction(SIGINT, &a, NULL);
	a.sa_handler = on_end;
	sigaction(SIGTERM, &a, NULL);
	sigaction(SIGHUP, &a, NULL);
	a.sa_handler = on_alarm;
	sigaction(SIGALRM, &a, NULL);
}

atomic_bool *interrupt_flag(void)
{
	return &interrupted;
}

bool interrupt_taken(void)
{
	return atomic_exchange(&interrupted, false);
}

bool interrupt_ending(void)
{
	return atomic_load(&ending);
}
