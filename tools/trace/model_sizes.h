/* SPDX-License-Identifier: MIT */
/* Where the bytes of a model file go: tensors sorted into classes, and what follows for memory and
 * streaming. Works on the tensor table alone; no weight is read. */
#ifndef GLM_TOOLS_MODEL_SIZES_H
#define GLM_TOOLS_MODEL_SIZES_H

#include "src/format/gguf.h"
#include "src/model/config.h"

#include <stdint.h>

enum tensor_class {
	CLASS_EMBEDDING,
	CLASS_HEAD,
	CLASS_NORM,
	CLASS_ATTENTION,
	CLASS_INDEXER,
	CLASS_ROUTER,
	CLASS_DENSE,  /* feed-forward networks of the leading layers */
	CLASS_SHARED, /* shared experts */
	CLASS_MTP,    /* everything of the MTP layer but its routed experts */
	CLASS_EXPERTS,
	CLASS_MTP_EXPERTS,
	CLASS_UNUSED, /* indexers that some files carry for layers which share one; names that the model
					 does not have */
	CLASS_LIMIT,
};

struct class_sizes {
	uint64_t tensors, bytes;
	uint64_t type_tensors[DTYPE_LIMIT], type_bytes[DTYPE_LIMIT];
};

struct model_sizes {
	struct class_sizes classes[CLASS_LIMIT];
	uint64_t resident_bytes;         /* every trunk tensor that is not a routed expert, without the
									  * embedding, of which a token reads one row from the file */
	uint64_t mtp_bytes;              /* the MTP layer without its experts */
	uint64_t experts_bytes;          /* routed experts of the trunk */
	uint64_t n_experts;              /* over all trunk layers */
	uint64_t expert_min, expert_max; /* bytes of one expert: layers may differ in type */
	uint64_t layer_min, layer_max;   /* bytes of one layer's experts */
	uint64_t working_set;            /* bytes of the experts that one token uses */
	uint64_t weights_per_token; /* bytes that one decode step reads: resident, an embedding row,
								   working_set */
	uint64_t macs_per_token;    /* multiply-adds with weights that a prefilled token needs: no head,
								   attention not counted */
	uint64_t kv_per_token;      /* in 16 bit: latents of trunk layers, index keys of full ones */
	uint64_t kv_mtp_per_token;  /* ... of the MTP layer */
};

const char *tensor_class_name(enum tensor_class c); /* "routed experts"; static */
const char *tensor_class_key(enum tensor_class c);  /* "experts", for JSON; static */

enum tensor_class tensor_classify(const struct model_config *c, const char *name);

void model_sizes_count(
	const struct gguf *file, const struct model_config *c, struct model_sizes *out);

#endif
