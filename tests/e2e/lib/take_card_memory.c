/* SPDX-License-Identifier: MIT */
/*
 * take_card_memory LEAVE: takes the memory of the first card but for LEAVE MiB, as another program
 * would, says "taken N" (MiB), holds it until standard input ends, and gives it back. Exit status
 * 77: there is no card. The driver is loaded at run time: it compiles without CUDA.
 */
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

typedef int init_fn(unsigned flags);
typedef int device_get_fn(int *device, int ordinal);
typedef int context_fn(void **context, int device);
typedef int context_set_fn(void *context);
typedef int memory_info_fn(size_t *free_bytes, size_t *total);
typedef int alloc_fn(unsigned long long *p, size_t bytes);

static void *find(void *library, const char *name)
{
	void *f = dlsym(library, name);
	if (!f)
		fprintf(stderr, "the driver lacks %s\n", name);
	return f;
}

int main(int argc, char **argv)
{
	const size_t leave = (size_t)(argc > 1 ? atol(argv[1]) : 0) << 20;
	void *cuda = dlopen("libcuda.so.1", RTLD_NOW), *context;
	int device;
	if (!cuda)
		return 77;
	init_fn *init = (init_fn *)find(cuda, "cuInit");
	device_get_fn *device_get = (device_get_fn *)find(cuda, "cuDeviceGet");
	context_fn *retain = (context_fn *)find(cuda, "cuDevicePrimaryCtxRetain");
	context_set_fn *set = (context_set_fn *)find(cuda, "cuCtxSetCurrent");
	memory_info_fn *info = (memory_info_fn *)find(cuda, "cuMemGetInfo_v2");
	alloc_fn *alloc = (alloc_fn *)find(cuda, "cuMemAlloc_v2");
	if (!init || !device_get || !retain || !set || !info || !alloc || init(0) ||
		device_get(&device, 0))
		return 77;
	if (retain(&context, device) || set(context)) {
		fprintf(stderr, "no context\n");
		return 1;
	}
	size_t taken = 0, free_bytes, total;
	unsigned long long p;
	for (size_t step = (size_t)1 << 30; step >= (size_t)1 << 20;) {
		if (info(&free_bytes, &total))
			return 1;
		if (free_bytes >= leave + step && !alloc(&p, step))
			taken += step;
		else
			step /= 2;
	}
	printf("taken %zu\n", taken >> 20);
	fflush(stdout);
	while (getchar() != EOF)
		;
	return 0; /* the end of the process gives it back */
}
