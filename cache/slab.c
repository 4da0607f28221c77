/* SPDX-License-Identifier: MIT */
/* Each class has a doubly linked list of its free slots, so that all slots of a slab can leave the
 * list when the slab is given to another class. */
#include "cache/slab.h"

#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/num.h"

#include <stdlib.h>
#include <string.h>

/* An arena has at least this many slabs: a class holds on average half a slab of free slots that no
 * other class can use. */
#define SLAB_LEAST_PER_ARENA 16

/* The search takes no step below the largest slot size divided by this. A finer step could save
 * less than that part of a slab. It bounds the search for any sizes that a damaged trace names. */
#define SLAB_FINEST_STEP 256

/* The part of an arena that is lost, on average, to free slots of one class while another class
 * needs memory: half a slab for each class. */
static double free_slots_loss(uint64_t bytes, const struct slab_classes *k, uint64_t slab)
{
	return 0.5 * k->n * (double)slab / (double)bytes;
}

static double expected_loss(uint64_t bytes, const struct slab_classes *k, uint64_t slab)
{
	double wanted = 0, lost = 0;
	for (int i = 0; i < k->n; i++) {
		double w = (double)k->bytes[i] * (double)k->n_objects[i];
		wanted += w;
		lost += w * (double)(slab % k->bytes[i]) / (double)slab;
	}
	double part = wanted > 0 ? lost / wanted : 0;
	return part + (double)(bytes % slab) / (double)bytes + free_slots_loss(bytes, k, slab);
}

uint64_t slab_choose_bytes(uint64_t bytes, const struct slab_classes *k)
{
	uint64_t largest = 0;
	for (int i = 0; i < k->n; i++)
		largest = MAX(largest, k->bytes[i]);
	if (k->n == 1 || bytes < largest)
		return largest;
	const uint64_t limit = MAX(largest, bytes / SLAB_LEAST_PER_ARENA);
	const double per_byte = free_slots_loss(bytes, k, 1);
	uint64_t best = largest;
	double best_loss = expected_loss(bytes, k, largest);
	/* The loss only falls at multiples of some slot size: between them a larger slab only has
	 * larger remainders. The loss is at least free_slots_loss, which grows with the slab: the
	 * search of a class ends where that alone exceeds the best loss. */
	for (int i = 0; i < k->n; i++) {
		const uint64_t step =
			MAX(k->bytes[i], largest / SLAB_FINEST_STEP / k->bytes[i] * k->bytes[i]);
		for (uint64_t s = (largest + step - 1) / step * step;
			 s <= limit && per_byte * (double)s < best_loss; s += step) {
			double loss = expected_loss(bytes, k, s);
			if (loss < best_loss) {
				best_loss = loss;
				best = s;
			}
		}
	}
	return best;
}

int slab_init(
	struct slab_arena *a, uint64_t bytes, const struct slab_classes *classes, struct err *e)
{
	*a = (struct slab_arena){.bytes = bytes, .classes = *classes};
	uint64_t largest = 0, smallest = UINT64_MAX;
	for (int i = 0; i < classes->n; i++) {
		largest = MAX(largest, classes->bytes[i]);
		smallest = MIN(smallest, classes->bytes[i]);
	}
	a->slab_bytes = slab_choose_bytes(bytes, classes);
	a->per_slab = (int)MIN(a->slab_bytes / smallest, (uint64_t)SLAB_MOST_SLOTS);
	if (!bytes)
		return 0;
	if (bytes < largest)
		return err_set(e, ERR_MEMORY, "a cache of %llu bytes cannot hold one expert of %llu bytes",
			(unsigned long long)bytes, (unsigned long long)largest);
	uint64_t n_slabs = bytes / a->slab_bytes, n_slots;
	if (!num_mul(n_slabs, (uint64_t)a->per_slab, &n_slots) || n_slots > (uint64_t)1 << 28)
		return err_set(e, ERR_MEMORY,
			"a cache of %llu bytes has more slots of %llu bytes than can be numbered",
			(unsigned long long)bytes, (unsigned long long)smallest);
	a->n_slabs = (int)n_slabs;
	a->n_slots = (int)n_slots;
	a->slab_class = mem_try_new(n_slabs, sizeof *a->slab_class);
	a->slab_used = mem_try_new(n_slabs, sizeof *a->slab_used);
	a->free_slabs = mem_try_new(n_slabs, sizeof *a->free_slabs);
	if (!a->slab_class || !a->slab_used || !a->free_slabs ||
		!key_lists_init(&a->free_slots, a->n_slots, classes->n)) {
		slab_fini(a);
		return err_set(e, ERR_MEMORY, "no memory for the bookkeeping of %llu cache slots",
			(unsigned long long)n_slots);
	}
	for (int i = 0; i < a->n_slabs; i++) {
		a->slab_class[i] = -1;
		a->free_slabs[i] = a->n_slabs - 1 - i; /* slab 0 is taken first */
	}
	a->n_free_slabs = a->n_slabs;
	return 0;
}

void slab_fini(struct slab_arena *a)
{
	free(a->slab_class);
	free(a->slab_used);
	free(a->free_slabs);
	key_lists_fini(&a->free_slots);
	*a = (struct slab_arena){0};
}

static void slab_assign(struct slab_arena *a, int slab, int class_id)
{
	a->slab_class[slab] = (int16_t)class_id;
	a->n_idle_slabs++;
	for (int i = slab_capacity(a, class_id) - 1; i >= 0; i--)
		key_list_push(&a->free_slots, class_id, slab * a->per_slab + i);
}

int32_t slab_slot_alloc(struct slab_arena *a, int class_id, uint64_t limit)
{
	const uint64_t bytes = a->classes.bytes[class_id];
	int32_t slot = a->free_slots.head[class_id];
	while (slot >= 0 && slab_offset(a, slot) + bytes > limit)
		slot = a->free_slots.next[slot];
	if (slot < 0) {
		const int slab = a->n_free_slabs ? a->free_slabs[a->n_free_slabs - 1] : -1;
		if (slab < 0 || (uint64_t)slab * a->slab_bytes + bytes > limit)
			return -1;
		a->n_free_slabs--;
		slab_assign(a, slab, class_id);
		slot = a->free_slots.head[class_id];
	}
	key_list_drop(&a->free_slots, slot);
	if (!a->slab_used[slab_of(a, slot)]++)
		a->n_idle_slabs--;
	return slot;
}

int slab_n_free(const struct slab_arena *a, int class_id, int most)
{
	int n = a->n_free_slabs * slab_capacity(a, class_id);
	for (int32_t slot = a->free_slots.head[class_id]; slot >= 0 && n < most;
		 slot = a->free_slots.next[slot])
		n++;
	return n < most ? n : most;
}

void slab_slot_free(struct slab_arena *a, int32_t slot)
{
	int slab = slab_of(a, slot);
	if (slot < 0 || slab >= a->n_slabs || a->slab_class[slab] < 0 || a->slab_used[slab] < 1)
		bug("slot %d given back to the arena but not in use", slot);
	key_list_push(&a->free_slots, a->slab_class[slab], slot);
	if (!--a->slab_used[slab])
		a->n_idle_slabs++;
}

void slab_reassign(struct slab_arena *a, int slab, int class_id)
{
	int old = a->slab_class[slab];
	if (old < 0 || a->slab_used[slab])
		bug("slab %d of class %d has %d slots in use", slab, old, a->slab_used[slab]);
	for (int i = 0; i < slab_capacity(a, old); i++)
		key_list_drop(&a->free_slots, slab * a->per_slab + i);
	a->n_idle_slabs--;
	slab_assign(a, slab, class_id);
}

bool slab_reclaim_idle(struct slab_arena *a, int class_id)
{
	for (int s = 0; a->n_idle_slabs && s < a->n_slabs; s++)
		if (a->slab_class[s] >= 0 && a->slab_class[s] != class_id && !a->slab_used[s]) {
			slab_reassign(a, s, class_id);
			return true;
		}
	return false;
}
