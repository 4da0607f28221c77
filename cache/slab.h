/* SPDX-License-Identifier: MIT */
/*
 * Numbered slots of a few sizes inside one run of bytes. Nothing here touches that memory: a slot
 * is a number and an offset, the caller owns the bytes.
 *
 *   arena  | slab 0      | slab 1      | slab 2      | slab 3 (free) | tail |
 *            a a a a a .   b b b .       a a a a a .
 *
 * The arena is cut into equal slabs; a slab belongs to one size class at a time (or to none) and is
 * cut into as many slots of that class as fit. So any class can grow into any free slab, and a slab
 * that a class no longer needs can be given to another one: mixed sizes share one budget. The cost
 * is the remainder at the end of a slab. With one class a slab is exactly a slot and nothing is
 * lost. With several the slab size is that of the least expected loss (slab_choose_bytes).
 *
 * Slot numbers are stable: slot = slab * per_slab + index, where per_slab is that of the smallest
 * class, at most SLAB_MOST_SLOTS. Numbers whose index does not exist in the slab's present class
 * are simply never handed out.
 */
#ifndef GLM_CACHE_SLAB_H
#define GLM_CACHE_SLAB_H

#include "cache/policy/key_list.h"
#include "src/base/err.h"

#include <stdbool.h>
#include <stdint.h>

#define SLAB_MAX_CLASSES 16
/* Most slots of a slab; bytes behind the last one are lost. Reached only when a slab is more than
 * 2^20 times the smallest size, as with the sizes of a damaged trace. */
#define SLAB_MOST_SLOTS (1 << 20)

struct slab_classes {
	int n;                            /* 1..SLAB_MAX_CLASSES */
	uint64_t bytes[SLAB_MAX_CLASSES]; /* size of a slot, > 0 */
	uint64_t
		n_objects[SLAB_MAX_CLASSES]; /* that exist of the class: its weight in slab_choose_bytes */
};

/* Fields are constant after slab_init unless marked. */
struct slab_arena {
	uint64_t bytes, slab_bytes;
	int n_slabs, per_slab; /* per_slab: of the smallest class */
	int n_slots;           /* n_slabs * per_slab: the range of slot numbers */
	struct slab_classes classes;
	int16_t *slab_class;         /* changes; [n_slabs], -1: free */
	int32_t *slab_used;          /* changes; [n_slabs] slots handed out */
	int32_t *free_slabs;         /* changes; stack */
	int n_free_slabs;            /* changes */
	int n_idle_slabs;            /* changes; slabs that belong to a class but have no slot in use */
	struct key_lists free_slots; /* changes; one list per class */
};

/* The slab size that wastes least for an arena of `bytes`: remainders of each class, weighted by
 * the bytes of all objects of the class, plus the tail of the arena, plus half a slab per class
 * that stands partly empty. At least the largest slot. */
uint64_t slab_choose_bytes(uint64_t bytes, const struct slab_classes *classes);

/* 0, or ERR_MEMORY with a sentence: not one slot of the largest class fits, there would be more
 * than 2^28 slots, or there is no memory for the tables. 0 bytes are allowed: an arena without
 * slots. slab_fini accepts a zeroed struct. */
int slab_init(
	struct slab_arena *a, uint64_t bytes, const struct slab_classes *classes, struct err *e);
void slab_fini(struct slab_arena *a);

/* Takes a free slot of the class that ends within the first `limit` bytes of the arena; first
 * assigns a free slab to the class when it has none, if the slab's first slot does. -1: there is
 * neither. */
int32_t slab_slot_alloc(struct slab_arena *a, int class_id, uint64_t limit);
/* Gives a slot back. Its slab stays with its class. */
void slab_slot_free(struct slab_arena *a, int32_t slot);

/* How many slots slab_slot_alloc could give to the class now without a limit, at most `most`. */
int slab_n_free(const struct slab_arena *a, int class_id, int most);

/* Gives a slab without slots in use to another class. */
void slab_reassign(struct slab_arena *a, int slab, int class_id);
/* Reassigns some idle slab of another class; false when there is none. */
bool slab_reclaim_idle(struct slab_arena *a, int class_id);

static inline int slab_of(const struct slab_arena *a, int32_t slot)
{
	return slot / a->per_slab;
}

/* Slots of a class in one slab: as many as fit, at most per_slab. */
static inline int slab_capacity(const struct slab_arena *a, int class_id)
{
	const uint64_t fit = a->slab_bytes / a->classes.bytes[class_id];
	return fit < (uint64_t)a->per_slab ? (int)fit : a->per_slab;
}

/* Offset of a slot that is in use, in bytes from the start of the arena. */
static inline uint64_t slab_offset(const struct slab_arena *a, int32_t slot)
{
	int slab = slot / a->per_slab;
	return (uint64_t)slab * a->slab_bytes +
		   (uint64_t)(slot % a->per_slab) * a->classes.bytes[a->slab_class[slab]];
}

#endif
