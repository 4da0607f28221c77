/* SPDX-License-Identifier: MIT */
/* The manual page and the completion of shells, made from the option tables of the commands, so
 * that none of them can say what the parser does not know. Everything is written to stdout. */
#ifndef GLM_TOOLS_MANUAL_H
#define GLM_TOOLS_MANUAL_H

#include "src/base/args.h"
#include "tools/commands/commands.h"

/* `each` gets the table of a command, or of every part of a command that has parts: `name` is
 * "convert" or "trace show". */
struct manual_visitor {
	void (*each)(void *user, const char *name, const struct command *c, const struct args *a);
	void *user;
};
/* Visits the commands of this build in order. 0, or the fault of a command that did not show its
 * table. */
int manual_visit(const struct manual_visitor *v, struct err *e);

/* glmstream(1) in the man macros. */
int manual_print(struct err *e);
/* Plain text for roff: no line begins with a control character, backslashes and dashes are what
 * they look like. */
void manual_put_text(const char *text);
/* For `glmstream help TOPIC`: text in lines of at most 80 columns; lines, each indented. */
void manual_print_wrapped(const char *text);
void manual_print_indented(const char *lines);

/* ---- clients.c: the lines that programs need to use the server ---- */
int clients_print(struct err *e); /* `glmstream help clients`; returns 0 */
void clients_print_man(void);     /* the manual's section */

/* ---- proxies.c: the server behind a proxy, and against whom it is protected ---- */
int proxies_print(struct err *e); /* `glmstream help proxy`; returns 0 */
void proxies_print_man(void);     /* the manual's sections */
void threats_print_man(void);

/* ---- completion.c ---- */
int completion_print_bash(struct err *e);
int completion_print_zsh(struct err *e);

#endif
