/* SPDX-License-Identifier: MIT */
/* Open MPI's handles are addresses of objects in the library, so they come with it. */
#include "src/ranks/mpi_calls.h"

#if HAVE_MPI

#include <dlfcn.h>
#include <mpi.h>

#define MPI_CALLS(X)                                                                               \
	X(MPI_Init_thread)                                                                             \
	X(MPI_Comm_rank)                                                                               \
	X(MPI_Comm_size)                                                                               \
	X(MPI_Comm_set_errhandler)                                                                     \
	X(MPI_Error_string)                                                                            \
	X(MPI_Isend)                                                                                   \
	X(MPI_Irecv)                                                                                   \
	X(MPI_Test)                                                                                    \
	X(MPI_Get_count)                                                                               \
	X(MPI_Cancel)                                                                                  \
	X(MPI_Request_free)                                                                            \
	X(MPI_Finalize)

static struct {
#define X(name) __typeof__(&(name)) name;
	MPI_CALLS(X)
#undef X
	MPI_Comm world;
	MPI_Datatype byte;
	MPI_Errhandler errors_return;
} mpi; /* set by mpi_start, then constant */

_Static_assert(sizeof(MPI_Request) == sizeof(void *), "a request is an address");

static int load_library(struct err *e)
{
	/* global: the parts that it loads itself look for its names */
	void *library = dlopen("libmpi.so.40", RTLD_NOW | RTLD_GLOBAL);
	if (!library) {
		err_set(e, ERR_RUN, "started by mpirun, and Open MPI cannot be loaded: %s", dlerror());
		return err_hint(e, "apt-get install openmpi-bin has it, on each host");
	}
	const char *missing = NULL;
#define X(name)                                                                                    \
	*(void **)(void *)&mpi.name = dlsym(library, #name);                                           \
	missing = mpi.name ? missing : #name;
	MPI_CALLS(X)
#undef X
	mpi.world = dlsym(library, "ompi_mpi_comm_world");
	mpi.byte = dlsym(library, "ompi_mpi_byte");
	mpi.errors_return = dlsym(library, "ompi_mpi_errors_return");
	if (!mpi.world || !mpi.byte || !mpi.errors_return)
		missing = "MPI_COMM_WORLD";
	return missing ? err_set(e, ERR_RUN, "libmpi.so.40 has no %s: not Open MPI 4 or 5", missing)
				   : 0;
}

static int mpi_failure(int code, struct err *e)
{
	char text[MPI_MAX_ERROR_STRING] = "";
	int n = 0;
	mpi.MPI_Error_string(code, text, &n);
	return err_set(e, ERR_RUN, "MPI: %s", text);
}

int mpi_start(uint32_t *rank, uint32_t *count, struct err *e)
{
	int provided = 0, me = 0, n = 0, rc = load_library(e);
	if (rc)
		return rc;
	if (mpi.MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &provided) != MPI_SUCCESS)
		return err_set(e, ERR_RUN, "MPI does not start");
	if (provided < MPI_THREAD_SERIALIZED)
		return err_set(e, ERR_RUN,
			"this MPI lets one thread call it only (level %d), expected MPI_THREAD_SERIALIZED",
			provided);
	mpi.MPI_Comm_set_errhandler(mpi.world, mpi.errors_return);
	mpi.MPI_Comm_rank(mpi.world, &me);
	mpi.MPI_Comm_size(mpi.world, &n);
	*rank = (uint32_t)me;
	*count = (uint32_t)n;
	return 0;
}

void mpi_stop(void)
{
	mpi.MPI_Finalize();
}

void mpi_send(struct mpi_transfer *t, const void *data, size_t bytes, uint32_t to, int tag)
{
	MPI_Request request = NULL;
	t->failed = mpi.MPI_Isend(data, (int)bytes, mpi.byte, (int)to, tag, mpi.world, &request);
	t->request = t->failed ? NULL : (void *)request;
}

void mpi_receive(struct mpi_transfer *t, void *data, size_t capacity, uint32_t from, int tag)
{
	MPI_Request request = NULL;
	t->failed = mpi.MPI_Irecv(data, (int)capacity, mpi.byte, (int)from, tag, mpi.world, &request);
	t->request = t->failed ? NULL : (void *)request;
}

int mpi_test(struct mpi_transfer *t, size_t *bytes, struct err *e)
{
	MPI_Request request = t->request;
	MPI_Status status;
	int done = 0, n = 0;
	if (t->failed)
		return mpi_failure(t->failed, e);
	int code = mpi.MPI_Test(&request, &done, &status);
	if (code != MPI_SUCCESS) {
		t->request = NULL;
		return mpi_failure(code, e);
	}
	if (!done)
		return 0;
	t->request = NULL;
	mpi.MPI_Get_count(&status, mpi.byte, &n);
	if (bytes)
		*bytes = (size_t)n;
	return 1;
}

void mpi_cancel(struct mpi_transfer *t)
{
	MPI_Request request = t->request;
	if (!request)
		return;
	mpi.MPI_Cancel(&request);
	mpi.MPI_Request_free(&request);
	t->request = NULL;
}

#else

int mpi_start(uint32_t *rank, uint32_t *count, struct err *e)
{
	*rank = *count = 0;
	err_set(e, ERR_USAGE, "started by mpirun, and this program was built without MPI");
	return err_hint(e, "a build where libopenmpi-dev is installed has it");
}

void mpi_stop(void) {}

void mpi_send(struct mpi_transfer *t, const void *data, size_t bytes, uint32_t to, int tag)
{
	(void)data;
	(void)bytes;
	(void)to;
	(void)tag;
	*t = (struct mpi_transfer){0};
}

void mpi_receive(struct mpi_transfer *t, void *data, size_t capacity, uint32_t from, int tag)
{
	mpi_send(t, data, capacity, from, tag);
}

int mpi_test(struct mpi_transfer *t, size_t *bytes, struct err *e)
{
	(void)t;
	(void)bytes;
	return err_set(e, ERR_RUN, "built without MPI");
}

void mpi_cancel(struct mpi_transfer *t)
{
	(void)t;
}

#endif
