/* SPDX-License-Identifier: MIT */
/* The argument's placeholder in the command table says what it may be: FILE, a|b|c, NAME VALUE. */
#include "tools/chat/chat_complete.h"

#include "src/base/mem.h"
#include "tools/chat/cmd_chat.h"
#include "tools/options/run_opts.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static void add(struct buf *words, const char *word, size_t n, const char *typed)
{
	size_t k = strlen(typed);
	if (n >= k && !memcmp(word, typed, k)) {
		buf_append(words, word, n);
		buf_putc(words, 0);
	}
}

static bool has_control(const char *name)
{
	for (; *name; name++)
		if ((unsigned char)*name < 32 || *name == 127)
			return true;
	return false;
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
			strcmp(entry, "..") != 0 && !has_control(entry)) {
			if (!stat(buf_str(&path), &st) && S_ISDIR(st.st_mode))
				buf_putc(&path, '/');
			add(words, path.data, path.len, typed);
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
			add(words, name, strlen(name), typed);
	} else {
		for (const char *p = placeholder; *p;) {
			size_t n = strcspn(p, "|");
			if (*p >= 'a' && *p <= 'z') /* TEXT stands for anything */
				add(words, p, n, typed);
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
			add(words, text[0], strlen(text[0]), before);
		else if (strlen(text[0]) == n && !strncmp(text[0], before, n))
			add_argument(words, text[1], before + *start);
}
