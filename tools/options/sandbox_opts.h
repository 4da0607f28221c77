/* SPDX-License-Identifier: MIT */
/* --no-sandbox, and which files a command still needs when it is confined
 * (src/base/host/sandbox.h). */
#ifndef GLM_TOOLS_SANDBOX_OPTS_H
#define GLM_TOOLS_SANDBOX_OPTS_H

#include "src/base/args.h"
#include "tools/options/common_opts.h"

/* Zero-initialise. */
struct sandbox_opts {
	bool off, any_file;
	int landlock; /* what sandbox_files returned; 0: not called */
	struct arg args[1];
};

/* Its variable is in *o, which must stay where it is. */
struct arg_group sandbox_opts_group(struct sandbox_opts *o);

/* Confines the files to what these options name. Before common_opts_open, which starts threads.
 * p, session (a file that is replaced), read_only (one that is only read): may be NULL. port: that
 * a server will listen at, -1: none. */
void sandbox_opts_files(struct sandbox_opts *o, const struct common_opts *c,
	const struct prefix_opts *p, const char *session, const char *read_only, int port);

/* Instead, for the chat on a terminal, whose commands open any file (so does libedit, for its
 * history): no TCP, no programs, no special files, links or sockets are made. */
void sandbox_opts_any_file(struct sandbox_opts *o, const struct common_opts *c);

/* Confines the calls, when everything is open, and says in one line what is confined: a server
 * always, others with -v, or where the kernel refuses a part (a server warns then). */
void sandbox_opts_calls(const struct sandbox_opts *o, bool server);

#endif
