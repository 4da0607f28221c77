/* SPDX-License-Identifier: MIT */
/* The list of policies. */
#include "cache/policy/policy.h"

#include "src/base/num.h"

#include <string.h>

static const struct policy_ops *const all[] = {
	&policy_lru, &policy_lfu, &policy_sieve, &policy_belady, &policy_belady_bypass};

const struct policy_ops *policy_find(const char *name)
{
	for (size_t i = 0; i < ARRAY_LEN(all); i++)
		if (!strcmp(all[i]->name, name))
			return all[i];
	return NULL;
}

const struct policy_ops *policy_list(int i)
{
	return i >= 0 && i < (int)ARRAY_LEN(all) && !all[i]->needs_future ? all[i] : NULL;
}
