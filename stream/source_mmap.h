/* SPDX-License-Identifier: MIT */
/* Two expert sources without streaming: all experts are in the mapped file (source_mmap_open, CPU
 * backend) or in a copy on the card (source_device_open). acquire gives views that are ready at
 * once; close frees the copy. */
#ifndef GLM_STREAM_SOURCE_MMAP_H
#define GLM_STREAM_SOURCE_MMAP_H

#include "src/format/gguf.h"
#include "stream/check/expert_check.h"
#include "stream/expert_source.h"
#include "stream/tensor_load.h"

/* The stacked tensors of one layer, {n_in, n_out, n_experts}; all NULL on layers without experts.
 */
struct expert_tensors {
	const struct gguf_tensor *gate, *up, *down;
};

/* layers: [n_layers], copied; the tensors must outlive the source. Close with ops->close. */
struct expert_source *source_mmap_open(const struct expert_tensors *layers, int n_layers);

/* Of a source of source_mmap_open, before its first use: acquire compares experts with their check
 * values, as `mode` says. An expert that is wrong twice fails acquire with ERR_RUN. values outlive
 * the source; NULL: nothing is compared. */
void source_mmap_check(
	struct expert_source *s, const struct check_values *values, enum check_mode mode);

/* checked, reread and wrong of either source here, up to now. Any thread. */
void source_mmap_figures(const struct expert_source *s, struct expert_stats *out);

/* The same with all tensors copied to the device memory of lo->backend, which must outlive the
 * source.
 * - Where tensor_load serves the backend, it reads every expert once and compares it if lo says so;
 *   else the mapped bytes are uploaded and not compared.
 * - Errors: ERR_MEMORY when the tensors do not fit; those of tensor_load. *out is then NULL. */
int source_device_open(const struct expert_tensors *layers, int n_layers,
	const struct tensor_load_options *lo, struct expert_source **out, struct err *e);

#endif
