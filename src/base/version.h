/* SPDX-License-Identifier: MIT */
/* The program's version. */
#ifndef GLM_BASE_VERSION_H
#define GLM_BASE_VERSION_H

#define GLM_VERSION "0.1.0"

#endif
