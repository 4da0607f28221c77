/* SPDX-License-Identifier: MIT */
#include "tests/ranks/rank_test.h"
#include "tests/support/temp_dir.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

char mpirun_said[65536];

bool mpirun_found(void)
{
	return HAVE_MPI && !system("command -v mpirun >/dev/null 2>&1");
}

int mpirun_self(const char *argument, int n)
{
	char self[1024], command[2048];
	ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
	assert_true(length > 0);
	self[length] = 0;
	snprintf(command, sizeof command,
		"TMPDIR='%s' OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 timeout -k 5 300 "
		"mpirun --oversubscribe --bind-to none -np %d '%s' %s 2>&1 </dev/null",
		temp_dir(), n, self, argument);
	FILE *f = popen(command, "r");
	assert_non_null(f);
	mpirun_said[fread(mpirun_said, 1, sizeof mpirun_said - 1, f)] = 0;
	int status = pclose(f);
	if (getenv("RANKS_SAID"))
		fprintf(stderr, "%s %d:\n%s", argument, n, mpirun_said);
	assert_true(WIFEXITED(status));
	return WEXITSTATUS(status);
}

#ifdef COVERAGE_FOLDER
void __gcov_dump(void); /* _exit writes no counts of coverage */
#define WRITE_COUNTS() __gcov_dump()
#else
#define WRITE_COUNTS() ((void)0)
#endif

_Noreturn void rank_end(struct ranks *r, int rc, struct err *e)
{
	bool abrupt;
	const uint32_t me = r ? ranks_me(r) : 0;
	rc = ranks_close(r, rc, &abrupt, e);
	if (rc)
		fprintf(stderr, "from %u: %s\n", me, e->text);
	WRITE_COUNTS();
	_exit(rc > 0 ? rc : err_exit_status(rc));
}
