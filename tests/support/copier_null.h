/* SPDX-License-Identifier: MIT */
/*
 * A card made of a thread and a piece of host memory, to prove what streams to a card where there
 * is none. Its memory has an address of its own that the host may not write (and not read, unless
 * it is asked for); copies run late, in pieces, in any order that the lanes allow, and can be made
 * to fail. A copy from or to memory that is neither pinned nor the card's ends the program.
 */
#ifndef GLM_TESTS_COPIER_NULL_H
#define GLM_TESTS_COPIER_NULL_H

#include "kernels/copier.h"

#include <stdbool.h>

struct copier_faults { /* all zero: copies run as fast as the thread can */
	uint64_t seed;
	unsigned latency_max_us; /* before each piece of a copy, uniform from 0; one in 64 takes eight
								times that */
	uint64_t fail_copy;  /* the n-th copy fails, counted from 1 (its bytes stay what they were); 0:
							none */
	bool fail_all;       /* and every one after it: a card that is gone */
	uint64_t hang_copy;  /* the n-th copy never ends; 0: none */
	uint64_t refuse_pin; /* the n-th pin is refused; 0: none */
	uint64_t device_bytes; /* the size of the card; 0: no limit */
	bool readable; /* the host may read the card's memory: the CPU backend computes from it */
};

/* Closed with ops->close. `f` is copied; NULL: no faults. */
int copier_null_open(const struct copier_faults *f, struct copier **out, struct err *e);

/* Where the host finds the bytes of the card's memory at p, NULL: p is no memory of this card. */
const void *copier_null_peek(struct copier *c, const void *p);
/* How many times memory was to be pinned, refusals included. Any thread. */
uint64_t copier_null_pins(struct copier *c);

#endif
