/* SPDX-License-Identifier: MIT */
/*
 * Moves registers between the warpgroups of a block (setmaxnreg, sm_90a). All four warps of a
 * warpgroup make the same call: the warpgroups that compute take what the others give back. N:
 * registers of a thread from here on, a multiple of 8.
 */
#ifndef GLM_KERNELS_CUDA_REGISTERS_CUH
#define GLM_KERNELS_CUDA_REGISTERS_CUH

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

template <int N> static __device__ __forceinline__ void registers_more()
{
	asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

template <int N> static __device__ __forceinline__ void registers_fewer()
{
	asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

#endif

#endif
