/* SPDX-License-Identifier: MIT */
/* Turns Ctrl+C into a flag that long computations poll, in place of an immediate exit. */
#ifndef GLM_TOOLS_INTERRUPT_H
#define GLM_TOOLS_INTERRUPT_H

#include <stdatomic.h>
#include <stdbool.h>

/* From now on SIGINT, SIGTERM and SIGHUP set the flag.
 * - SIGINT: with `patient`, as in a chat, any number only sets it. Without it the second one ends
 *   the program at once with status 130.
 * - SIGTERM, SIGHUP: the second one of the two ends the program with 128 and its number. */
void interrupt_catch(bool patient);

/* Set by a signal; what session_watch.cancel points to. */
atomic_bool *interrupt_flag(void);

/* Was the flag set since the last call? Clears it. */
bool interrupt_taken(void);

/* Has SIGTERM or SIGHUP asked the program to end? Never cleared. */
bool interrupt_ending(void);

#endif
