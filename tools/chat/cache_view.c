/* SPDX-License-Identifier: MIT */
/* The map: at most ROWS_MOST rows, as many cells as the terminal has room for. */
#include "tools/chat/cache_view.h"

#include "src/base/mem.h"
#include "src/base/num.h"
#include "tools/output/stats.h"

#include <stdlib.h>
#include <string.h>

#define ROWS_MOST 26 /* with head and foot a screen of 32 lines */
#define LEFT      9  /* columns of "  12-14  " */
#define RIGHT     7  /* of " 100 %" */

enum ink { PLAIN, DIM, GREEN, BLUE, YELLOW };
static const char *const inks[] = {"\033[0m", "\033[2m", "\033[32m", "\033[34m", "\033[33m"};

/* Experts of a cell by place. */
struct cell {
	int n[ENGINE_IN_VRAM + 1];
};

/* What stands for a cell, and its colour. The first tier decides the shade; a cell without any of
 * it shows what comes next. */
static const char *draw_cell(const struct cell *c, enum ink *ink)
{
	static const char *const shades[] = {
		"\xe2\x96\x91", "\xe2\x96\x92", "\xe2\x96\x93", "\xe2\x96\x88"};
	int all =
		c->n[ENGINE_ON_DISK] + c->n[ENGINE_IN_RAM] + c->n[ENGINE_LOADING] + c->n[ENGINE_IN_VRAM];
	int in = c->n[ENGINE_IN_VRAM];
	*ink = PLAIN;
	if (!all)
		return " ";
	if (in) {
		*ink = GREEN;
		return in == all ? shades[3] : shades[MIN(in * 3 / all, 2)];
	}
	if (c->n[ENGINE_LOADING]) {
		*ink = YELLOW;
		return "+";
	}
	if (c->n[ENGINE_IN_RAM]) {
		*ink = BLUE;
		return c->n[ENGINE_IN_RAM] * 2 >= all ? "=" : "-";
	}
	*ink = DIM;
	return "\xc2\xb7";
}

static void draw_cells(FILE *f, const struct cell *cells, int n, bool colours)
{
	enum ink now = PLAIN;
	for (int i = 0; i < n; i++) {
		enum ink ink;
		const char *text = draw_cell(&cells[i], &ink);
		if (colours && ink != now)
			fprintf(f, "%s%s", now == PLAIN || ink == PLAIN ? "" : inks[PLAIN], inks[ink]);
		now = ink;
		fputs(text, f);
	}
	if (colours && now != PLAIN)
		fputs(inks[PLAIN], f);
}

static void print_tier(FILE *f, const char *name, uint64_t bytes, int n, int all)
{
	if (bytes)
		fprintf(f, "  %-8s %d of %d experts (%.0f %%) in %.4f GB\n", name, n, all,
			100.0 * n / MAX(all, 1), (double)bytes * 1e-9);
}

/* The number of the stage that has a layer; the MTP layer lies on the last one. */
static uint32_t stage_of(const struct engine *g, int layer)
{
	uint32_t i = 0;
	while (i + 1 < engine_n_stages(g) && layer >= (int)engine_stage(g, i).end_layer)
		i++;
	return i;
}

/* In front of the first row of a stage, if there are several. */
static void print_stage(FILE *f, const struct engine *g, uint32_t i)
{
	const struct engine_stage s = engine_stage(g, i);
	char rank[24] = "";
	if (engine_n_ranks(g) > 1)
		snprintf(rank, sizeof rank, ", rank %u", s.rank);
	fprintf(f, "  stage %u: layers %u to %u%s%s, card %u\n", i, s.first_layer, s.end_layer - 1,
		s.has_mtp ? " and MTP" : "", rank, s.card);
}

/* map[c->n_layers][c->n_experts] of enum engine_residency. A row has layers of one stage. */
static void draw_map(FILE *f, const struct engine *g, const struct engine_cache *c,
	const uint8_t *map, int columns, bool colours)
{
	int *layers = NEW_ARRAY(int, c->n_layers), n_moe = 0, total[ENGINE_IN_VRAM + 1] = {0};
	for (uint32_t i = 0; i < c->n_layers; i++)
		if (map[(size_t)i * c->n_experts] != ENGINE_NO_EXPERT)
			layers[n_moe++] = (int)i;
	int room = MAX(columns, 40) - LEFT - RIGHT;
	int per_cell = ((int)c->n_experts + room - 1) / room,
		per_row = (n_moe + ROWS_MOST - 1) / ROWS_MOST;
	int n_cells = per_cell ? ((int)c->n_experts + per_cell - 1) / per_cell : 0;
	struct cell *cells = NEW_ARRAY(struct cell, (size_t)n_cells);

	fprintf(f, "  layer  %d experts a layer%s\n", (int)c->n_experts,
		per_cell * per_row > 1 ? ", a cell is several of them" : "");
	for (int at = 0, end; at < n_moe; at = end) {
		const uint32_t stage = stage_of(g, layers[at]);
		int in = 0;
		for (end = at + 1; end < MIN(at + per_row, n_moe) && stage_of(g, layers[end]) == stage;)
			end++;
		if (engine_n_stages(g) > 1 && (!at || stage_of(g, layers[at - 1]) != stage))
			print_stage(f, g, stage);
		memset(cells, 0, sizeof *cells * (size_t)n_cells);
		for (int l = at; l < end; l++)
			for (int x = 0; x < (int)c->n_experts; x++) {
				int place = MIN(map[(size_t)layers[l] * c->n_experts + (size_t)x], ENGINE_IN_VRAM);
				cells[x / per_cell].n[place]++;
				total[place]++;
				in += place == ENGINE_IN_VRAM;
			}
		char name[24];
		if (end - at == 1 && layers[at] >= (int)(c->n_layers - c->n_mtp))
			snprintf(name, sizeof name, "MTP");
		else if (end - at == 1)
			snprintf(name, sizeof name, "%d", layers[at]);
		else
			snprintf(name, sizeof name, "%d-%d", layers[at], layers[end - 1]);
		fprintf(f, "%7s  ", name);
		draw_cells(f, cells, n_cells, colours);
		fprintf(f, " %3.0f %%\n", 100.0 * in / ((end - at) * (double)c->n_experts));
	}
	fprintf(f, "  \xe2\x96\x88 in the cache%s   + being read   = in RAM   \xc2\xb7 on disk\n",
		per_cell * per_row > 1 ? "   \xe2\x96\x93\xe2\x96\x92\xe2\x96\x91 in part" : "");
	int all = n_moe * (int)c->n_experts;
	print_tier(f, "cache", c->tier_bytes[0], total[ENGINE_IN_VRAM], all);
	print_tier(f, "RAM", c->tier_bytes[1], total[ENGINE_IN_RAM], all);

	const struct expert_stats *s = &c->stats;
	uint64_t accesses = s->hit_vram + s->hit_ram + s->miss;
	double part = accesses ? 100.0 / (double)accesses : 0;
	if (accesses)
		fprintf(f, "  accesses %llu: %.1f %% cache, %.1f %% RAM, %.1f %% read (%.3f GB)\n",
			(unsigned long long)accesses, part * (double)s->hit_vram, part * (double)s->hit_ram,
			part * (double)s->miss, (double)s->bytes_read * 1e-9);
	fprintf(f, "  policy   %s; lookahead %d", c->policy, c->lookahead);
	if (s->prefetch_useful || s->prefetch_wasted)
		fprintf(f, ": %llu prefetches useful, %llu useless", (unsigned long long)s->prefetch_useful,
			(unsigned long long)s->prefetch_wasted);
	fputc('\n', f);
	free(cells);
	free(layers);
}

void cache_view_print(FILE *f, const struct engine *g, int columns, bool colours)
{
	struct engine_cache c;
	engine_cache_snapshot(g, &c, NULL);
	bool cpu = !strcmp(engine_backend_name(g), "cpu");
	uint8_t *map = stats_residency(g);
	if (!map) {
		fprintf(f, "no expert cache: %s; --cache-gb G streams them through one\n",
			cpu ? "the experts are used where the file is mapped" : "all experts are on the card");
		return;
	}
	draw_map(f, g, &c, map, columns, colours);
	free(map);
}
