/* SPDX-License-Identifier: MIT */
#ifndef GLM_BASE_CORES_H
#define GLM_BASE_CORES_H

/* How many cores the process may use (its affinity), at least 1; 1 if the system does not say. */
int cores_allowed(void);

#endif
