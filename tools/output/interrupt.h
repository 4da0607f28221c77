/* SPDX-License-Identifier: MIT */
/* Ctrl+C as a flag that long computations look at, instead of the sudden end of the program. */
#ifndef GLM_TOOLS_INTERRUPT_H
#define GLM_TOOLS_INTERRUPT_H

#include <stdatomic.h>
#include <stdbool.h>

/* Catches SIGINT (and SIGTERM) from now on. With `patient`, as in a chat, any number of them only
 * sets the flag; without it the second one ends the program at once with status 130. */
void interrupt_catch(bool patient);

/* Set by a signal; what session_watch.cancel points to. */
atomic_bool *interrupt_flag(void);

/* Was there one since the last call? Clears the flag. */
bool interrupt_taken(void);

/* Has SIGTERM or SIGHUP asked the program to end? Never cleared. */
bool interrupt_ending(void);

#endif
