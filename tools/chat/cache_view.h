/* SPDX-License-Identifier: MIT */
/* The expert cache drawn with characters: layers downwards, experts from left to right, and what
 * that comes to. */
#ifndef GLM_TOOLS_CACHE_VIEW_H
#define GLM_TOOLS_CACHE_VIEW_H

#include "src/engine/engine.h"

#include <stdio.h>

/* The cache of an engine on a terminal `columns` wide (at least 40). A cell is one expert while
 * that fits, else some neighbours of some layers, drawn by how many of them stand in the first
 * tier. Without a cache one line says so. */
void cache_view_print(FILE *f, const struct engine *g, int columns, bool colours);

#endif
