/* SPDX-License-Identifier: MIT */
/* Seeded random numbers: splitmix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number
 * generators", 2014). Same seed, same sequence, on every machine. Not for secrets. */
#ifndef GLM_BASE_RNG_H
#define GLM_BASE_RNG_H

#include <stdint.h>

struct rng {
	uint64_t state;
};

static inline uint64_t rng_u64(struct rng *r)
{
	uint64_t z = (r->state += 0x9e3779b97f4a7c15u);
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return z ^ (z >> 31);
}

/* Uniform in [0, 1), 53 bits. */
static inline double rng_unit(struct rng *r)
{
	return (double)(rng_u64(r) >> 11) * 0x1p-53;
}

/* Uniform in [0, n), n > 0 (multiply-shift; bias below 2^-32 for n < 2^32). */
static inline uint32_t rng_below(struct rng *r, uint32_t n)
{
	return (uint32_t)(((rng_u64(r) >> 32) * n) >> 32);
}

#endif
