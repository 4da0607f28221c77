/* SPDX-License-Identifier: MIT */
/*
 * Codebooks of the IQ types, in the form a kernel loads: one word per row, the row's first weight
 * in the lowest bits. The values are magnitudes; signs are stored beside the row index in the block
 * (blocks.h). CUDA code copies the tables to the device once; they are 24 KiB in all.
 */
#ifndef GLM_QUANT_IQ_GRIDS_H
#define GLM_QUANT_IQ_GRIDS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* 8 bytes a row, each 8, 25 or 43 */
extern const uint64_t iq2xxs_grid[256];
extern const uint64_t iq2xs_grid[512];
extern const uint64_t iq2s_grid[1024];

/* 4 bytes a row: 4, 12 .. 62 and 1, 3 .. 15 */
extern const uint32_t iq3xxs_grid[256];
extern const uint32_t iq3s_grid[512];

/* 8 values of two bits a row, each the weight plus one: weight j = ((row >> 2 j) & 3) - 1 */
extern const uint16_t iq1s_grid[2048];

/* Sign index -> sign byte: bit j set = weight j negative. Equal to index | (parity of index) << 7:
 * the number of negative weights is always even. The masks hold the same, one byte 0x00 or 0xff per
 * weight: (row ^ mask) - mask, bytewise, is signed. */
extern const uint8_t iq_signs[128];
extern const uint64_t iq_sign_masks[128];

extern const int8_t iq4nl_values[16];

#ifdef __cplusplus
}
#endif

#endif
