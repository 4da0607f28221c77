/* SPDX-License-Identifier: MIT */
/* Candidates for an argument follow from its placeholder in the command table: FILE, NAME VALUE, or
 * alternatives a|b|c. */
#include "tools/chat/chat_complete.h"

#include "src/base/err.h"
#include "src/base/mem.h"
#include "tools/chat/cmd_chat.h"
#include "tools/options/run_opts.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Appends word[0..n) if it begins as typed. */
static void add_word(struct buf *words, const char *word, size_t n, const char *typed)
{
	size_t k = strlen(typed);
	if (n >= k && !memcmp(word, typed, k)) {
		buf_append(words, word, n);
		buf_putc(words, 0);
	}
}

/* Names that would act on the terminal when they are listed are left out. */
static bool is_plain(const char *name)
{
	return !strcmp(ERR_PLAIN(name), name);
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
	return strcmp((*a)->d_name, (*b)->d_name);
}

/* Files and folders (with a slash) that begin as typed; hidden ones only behind a dot. */
static void add_files(struct buf *words, const char *typed)
{
	const char *slash = strrchr(typed, '/'), *name = slash ? slash + 1 : typed;
	char *folder = mem_strndup(typed, (size_t)(name - typed));
	struct dirent **list;
	int n = scandir(*folder ? folder : ".", &list, NULL, by_name);
	for (int i = 0; i < n; i++) {
		const char *entry = list[i]->d_name;
		struct stat st;
		struct buf path = {0};
		buf_printf(&path, "%s%s", folder, entry);
		if ((entry[0] != '.' || name[0] == '.') && strcmp(entry, ".") != 0 &&
			strcmp(entry, "..") != 0 && is_plain(entry)) {
			if (!stat(buf_str(&path), &st) && S_ISDIR(st.st_mode))
				buf_putc(&path, '/');
			add_word(words, path.data, path.len, typed);
		}
		buf_free(&path);
		free(list[i]);
	}
	if (n >= 0)
		free(list);
	free(folder);
}

static void add_argument(struct buf *words, const char *placeholder, const char *typed)
{
	if (!strcmp(placeholder, "FILE")) {
		add_files(words, typed);
	} else if (!strcmp(placeholder, "NAME VALUE")) {
		const char *name;
		for (size_t i = 0; (name = run_opts_set_name(i)); i++)
			add_word(words, name, strlen(name), typed);
	} else {
		for (const char *p = placeholder; *p;) {
			size_t n = strcspn(p, "|");
			if (*p >= 'a' && *p <= 'z') /* a word; TEXT is a name for any text */
				add_word(words, p, n, typed);
			p += n + (p[n] == '|');
		}
	}
}

void chat_complete(const char *before, size_t *start, struct buf *words)
{
	const char *text[3];
	size_t n = strcspn(before, " \t");
	*start = 0;
	if (before[0] != '/')
		return;
	if (before[n])
		*start = n + strspn(before + n, " \t");
	for (size_t i = 0; chat_command(i, text); i++)
		if (!before[n])
			add_word(words, text[0], strlen(text[0]), before);
		else if (strlen(text[0]) == n && !strncmp(text[0], before, n))
			add_argument(words, text[1], before + *start);
}
