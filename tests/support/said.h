/* SPDX-License-Identifier: MIT */
/* What a part of a test logs. One thread at a time listens; stderr goes to a file meanwhile. */
#ifndef GLM_TESTS_SAID_H
#define GLM_TESTS_SAID_H

#include "src/base/log.h"

/* From now on stderr is kept, and messages up to this level are written. */
void said_begin(enum log_level level);
/* Ends that. The text, at most 8191 bytes, valid until the next said_begin. */
const char *said_end(void);
/* How many times `part` stands in the text. */
int said_count(const char *text, const char *part);

#endif
