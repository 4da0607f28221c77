/* SPDX-License-Identifier: MIT */
/*
 * Private to kernels/cuda/runtime: the functions of NCCL that are used. The library (libnccl.so.2)
 * is loaded at run time and never required. Its header is not needed to build either: the
 * prototypes are declared here.
 */
#ifndef GLM_KERNELS_CUDA_NCCL_CALLS_CUH
#define GLM_KERNELS_CUDA_NCCL_CALLS_CUH

#include <cuda_runtime.h>
#include <stddef.h>

typedef struct ncclComm *nccl_comm;

enum { NCCL_SUCCESS = 0 };                /* ncclResult_t */
enum { NCCL_INT8 = 0, NCCL_FLOAT32 = 7 }; /* ncclDataType_t */
enum { NCCL_SUM = 0 };                    /* ncclRedOp_t */

struct nccl_id {
	char bytes[128];
};

struct nccl_calls {
	char version[32]; /* "2.21.5" */
	int (*ncclGetVersion)(int *version);
	int (*ncclGetUniqueId)(struct nccl_id *id);
	int (*ncclCommInitRank)(nccl_comm *comm, int n_ranks, struct nccl_id id, int rank);
	int (*ncclCommDestroy)(nccl_comm comm);
	int (*ncclCommAbort)(nccl_comm comm);
	const char *(*ncclGetErrorString)(int result);
	int (*ncclGroupStart)(void);
	int (*ncclGroupEnd)(void);
	int (*ncclSend)(
		const void *data, size_t count, int type, int peer, nccl_comm comm, cudaStream_t stream);
	int (*ncclRecv)(
		void *data, size_t count, int type, int peer, nccl_comm comm, cudaStream_t stream);
	int (*ncclAllReduce)(const void *in, void *out, size_t count, int type, int op, nccl_comm comm,
		cudaStream_t stream);
};

/* Loads the library, once in a process; *why is NULL then. Returns NULL: it cannot be used, and
 * *why gives the reason as a clause. Both stay valid. Any thread. */
const struct nccl_calls *nccl_load(const char **why);

#endif
