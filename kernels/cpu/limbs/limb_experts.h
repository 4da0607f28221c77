/* SPDX-License-Identifier: MIT */
/*
 * expert_ffn on the processor with the bits of the card's decode kernels
 * (kernels/expert_arithmetic.h). The CPU backend's own expert_ffn (cpu_moe.c) multiplies floats in
 * another order, so its results differ in the last bits. Without a card, runs use cpu_moe.c's op.
 */
#ifndef GLM_KERNELS_LIMB_EXPERTS_H
#define GLM_KERNELS_LIMB_EXPERTS_H

#include "kernels/cpu/cpu_internal.h"

/* As expert_ffn of struct backend_ops, on a CPU backend, with its pool and its scratch memory.
 * - x: [rows][n_embd], out: [rows * n_used][n_embd]; weights: host memory, any alignment.
 * - Preconditions, not checked: gate, up and down of every job have types of
 *   expert_arithmetic_covers, which may differ; all jobs have the same n_embd and n_ff.
 * - Failures are kept in the backend. ERR_MEMORY: out stays as it was. ERR_INTERRUPTED
 *   (set_cancel): out may be written in part.
 * - The bits equal the card's for up to 64 rows (DECODE_MAX_ROWS); with more rows the card takes
 *   other kernels. */
void limb_expert_ffn(struct backend *b, const float *x, const struct expert_job *jobs, int n_jobs,
	int rows, int n_used, float *out);

/* The same for fast prompts (limb_matmul.h), for any number of rows: x and the hidden rows are
 * rounded to 16 bits, so the bits are not the card's. */
void limb_expert_prompts(struct backend *b, const float *x, const struct expert_job *jobs,
	int n_jobs, int rows, int n_used, float *out);

/* The most bytes of cpu_scratch that limb_expert_prompts takes for `rows` rows, each with n_used
 * experts of these shapes. The matrices are covered; their data are not read. */
uint64_t limb_expert_prompts_bytes(
	const struct cpu_backend *b, const struct expert_job *shape, int rows, int n_used);

#endif
