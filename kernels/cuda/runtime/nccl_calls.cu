/* SPDX-License-Identifier: MIT */
#include "kernels/cuda/runtime/nccl_calls.cuh"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

#define NCCL_OLDEST 20900 /* 2.9.0; since then a version is 10000 * major + 100 * minor + patch */

static struct nccl_calls calls;
static char text[256];      /* what `missing` points to */
static const char *missing; /* why `calls` cannot be used; NULL: it can */
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void load(void)
{
	missing = text;
	void *library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
	if (!library) {
		const char *why = dlerror();
		snprintf(text, sizeof text, "NCCL cannot be loaded (%s)", why ? why : "libnccl.so.2");
		return;
	}
	const struct {
		void *place;
		const char *name;
	} names[] = {
#define CALL(name) {&calls.name, #name}
		CALL(ncclGetVersion), CALL(ncclGetUniqueId), CALL(ncclCommInitRank), CALL(ncclCommDestroy),
		CALL(ncclCommAbort), CALL(ncclGetErrorString), CALL(ncclGroupStart), CALL(ncclGroupEnd),
		CALL(ncclSend), CALL(ncclRecv), CALL(ncclAllReduce)
#undef CALL
	};
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		if (!(*(void **)names[i].place = dlsym(library, names[i].name))) {
			snprintf(text, sizeof text, "libnccl.so.2 has no %s", names[i].name);
			return;
		}
	int version = 0;
	if (calls.ncclGetVersion(&version) || version < NCCL_OLDEST) {
		snprintf(text, sizeof text, "libnccl.so.2 is older than 2.9 (version %d)", version);
		return;
	}
	snprintf(calls.version, sizeof calls.version, "%d.%d.%d", version / 10000, version / 100 % 100,
		version % 100);
	missing = NULL;
}

const struct nccl_calls *nccl_load(const char **why)
{
	pthread_once(&once, load);
	*why = missing;
	return missing ? NULL : &calls;
}
