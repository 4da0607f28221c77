/* SPDX-License-Identifier: MIT */
/*
 * libedit where there is one and stdin is a terminal, else getline.
 *
 * Ctrl+C at the prompt is a key, not a signal: the terminal makes no signals while a line is
 * edited, so none races with the editor; Ctrl+Z is done by hand. Terminals bracket pasted text by
 * ESC[200~ and ESC[201~ when asked to; what lies between goes into the line as it is, line feeds
 * included.
 */
#include "tools/chat/line_edit.h"

#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/base/out_file.h"
#include "tools/output/interrupt.h"
#include "tools/output/terminal.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>
#include <wchar.h>
#include <wctype.h>

#if HAVE_EDIT
#include <histedit.h>
#endif

#define HISTORY_LINES 1000
#define PASTE_BEGIN   "\033[200~"
#define PASTE_END     "\033[201~"
#define PASTE_ON      "\033[?2004h"
#define PASTE_OFF     "\033[?2004l"

struct line_edit {
	bool terminal; /* stdin is one */
	char *history_file;
	char *prompt; /* what the editor shows now */
	char *line;   /* of getline */
	size_t line_cap;
	bool dropped;                 /* Ctrl+C was pressed */
	line_edit_complete *complete; /* NULL: Tab does nothing */
#if HAVE_EDIT
	EditLine *editor; /* NULL: plain lines */
	History *history;
	HistEvent event;
	bool pastes; /* the terminal was asked to bracket pastes */
#endif
};

char *line_edit_history_path(void)
{
	const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
	if (state && state[0] == '/')
		return mem_printf("%s/glmstream/history", state);
	return home && *home ? mem_printf("%s/.local/state/glmstream/history", home) : NULL;
}

/* ---- libedit ---- */

#if HAVE_EDIT
static char *show_prompt(EditLine *editor)
{
	struct line_edit *l;
	el_get(editor, EL_CLIENTDATA, &l);
	return l->prompt;
}

/* Ctrl+C: leaves the line on the screen and ends it; line_edit_read throws it away. */
static unsigned char key_drop(EditLine *editor, wint_t c)
{
	(void)c;
	struct line_edit *l;
	el_get(editor, EL_CLIENTDATA, &l);
	l->dropped = true;
	return CC_NEWLINE;
}

/* Ctrl+D: the end on an empty line, else deletes the character under the cursor. */
static unsigned char key_end(EditLine *editor, wint_t c)
{
	(void)c;
	const LineInfo *line = el_line(editor);
	if (line->lastchar == line->buffer)
		return CC_EOF;
	if (line->cursor == line->lastchar)
		return CC_NORM;
	el_push(editor, "\033[3~");
	return CC_NORM;
}

/* Ctrl+Z: gives the terminal back while the program sleeps. */
static unsigned char key_suspend(EditLine *editor, wint_t c)
{
	(void)c;
	el_set(editor, EL_PREP_TERM, 0);
	fputc('\n', stderr);
	raise(SIGTSTP);
	el_set(editor, EL_PREP_TERM, 1);
	return CC_REDISPLAY;
}

/* Reads up to PASTE_END and inserts it; by wide characters, as el_getc fails at those of several
 * bytes. Control characters other than line feed and tab have no place in a message. */
static unsigned char key_paste(EditLine *editor, wint_t c)
{
	(void)c;
	static const wchar_t end[] = L"" PASTE_END;
	const size_t n_end = ARRAY_LEN(end) - 1;
	wchar_t *text = NULL, ch;
	size_t n = 0, capacity = 0, kept = 0;
	while (el_wgetc(editor, &ch) == 1) {
		if (n + 1 >= capacity) {
			capacity = MAX(1024, capacity * 2);
			text = mem_grow(text, capacity, sizeof *text);
		}
		text[n++] = ch == L'\r' ? L'\n' : ch == L'\t' ? L' ' : ch;
		if (n >= n_end && !wmemcmp(text + n - n_end, end, n_end)) {
			n -= n_end;
			break;
		}
	}
	for (size_t i = 0; i < n; i++) {
		const bool ends_line = text[i] == 0x2028 || text[i] == 0x2029; /* Unicode's own ends */
		if (ends_line || text[i] == L'\n' || !iswcntrl((wint_t)text[i]))
			text[kept++] = ends_line ? L'\n' : text[i];
	}
	while (kept && text[kept - 1] == L'\n') /* Return stays the person's to press */
		kept--;
	if (kept) {
		text[kept] = 0;
		el_winsertstr(editor, text);
	}
	free(text);
	return CC_REFRESH;
}

/* How many first bytes all words have in common, no character cut; *n counts them. */
static size_t common_length(const struct buf *words, size_t *n)
{
	const char *first = words->data;
	size_t common = words->len ? strlen(first) : 0;
	*n = 0;
	for (size_t at = 0; at < words->len; at += strlen(words->data + at) + 1) {
		size_t same = 0;
		while (same < common && words->data[at + same] == first[same])
			same++;
		common = same;
		++*n;
	}
	while (common && ((unsigned char)first[common] & 0xc0) == 0x80)
		common--;
	return common;
}

/* Tab: inserts what all candidates have in common; when that is nothing, shows them. */
static unsigned char key_complete(EditLine *editor, wint_t c)
{
	(void)c;
	struct line_edit *l;
	el_get(editor, EL_CLIENTDATA, &l);
	if (!l->complete)
		return CC_ERROR;
	const LineInfo *line = el_line(editor);
	char *before = mem_strndup(line->buffer, (size_t)(line->cursor - line->buffer));
	struct buf words = {0};
	size_t start = 0, n, typed;
	l->complete(before, &start, &words);
	typed = strlen(before) - start;
	size_t common = common_length(&words, &n);
	unsigned char result = CC_ERROR;
	if (n && (common > typed || n == 1)) {
		struct buf more = {0};
		buf_append(&more, words.data + typed, common - typed);
		if (n == 1 && common && words.data[common - 1] != '/')
			buf_putc(&more, ' ');
		result = more.len && !el_insertstr(editor, buf_str(&more)) ? CC_REFRESH : CC_ERROR;
		buf_free(&more);
	} else if (n) {
		fputc('\n', stderr);
		for (size_t at = 0; at < words.len; at += strlen(words.data + at) + 1)
			fprintf(stderr, "%s  ", words.data + at);
		fputc('\n', stderr);
		result = CC_REDISPLAY;
	}
	buf_free(&words);
	free(before);
	return result;
}

static void make_parents(const char *path)
{
	char *p = mem_strdup(path);
	for (char *slash = strchr(p + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
		*slash = 0;
		mkdir(p, 0700);
		*slash = '/';
	}
	free(p);
}

static void open_editor(struct line_edit *l)
{
	l->editor = el_init("glmstream", stdin, stderr, stderr);
	if (!l->editor)
		return;
	l->history = history_init();
	history(l->history, &l->event, H_SETSIZE, HISTORY_LINES);
	history(l->history, &l->event, H_SETUNIQUE, 1);
	if (l->history_file) {
		make_parents(l->history_file);
		history(l->history, &l->event, H_LOAD, l->history_file);
	}
	el_set(l->editor, EL_CLIENTDATA, l);
	el_set(l->editor, EL_PROMPT, show_prompt);
	el_set(l->editor, EL_EDITOR, "emacs");
	el_set(l->editor, EL_SIGNAL, 0);
	el_set(l->editor, EL_HIST, history, l->history);
	/* el_set would copy these names and never free them */
	el_wset(l->editor, EL_ADDFN, L"glm-drop", L"Throw the line away", key_drop);
	el_wset(l->editor, EL_ADDFN, L"glm-end", L"End of input on an empty line", key_end);
	el_wset(l->editor, EL_ADDFN, L"glm-suspend", L"Suspend the program", key_suspend);
	el_wset(l->editor, EL_ADDFN, L"glm-paste", L"Insert pasted text", key_paste);
	el_wset(l->editor, EL_ADDFN, L"glm-complete", L"Complete a command or file", key_complete);
	el_set(l->editor, EL_SETTY, "-d", "-isig", NULL);
	el_set(l->editor, EL_BIND, "^C", "glm-drop", NULL);
	el_set(l->editor, EL_BIND, "^D", "glm-end", NULL);
	el_set(l->editor, EL_BIND, "^Z", "glm-suspend", NULL);
	el_set(l->editor, EL_BIND, "^I", "glm-complete", NULL);
	el_set(l->editor, EL_BIND, "^R", "em-inc-search-prev", NULL);
	el_set(l->editor, EL_BIND, "\\e[3~", "ed-delete-next-char", NULL);
	el_set(l->editor, EL_BIND, "\\e[1;5C", "em-next-word", NULL);
	el_set(l->editor, EL_BIND, "\\e[1;5D", "ed-prev-word", NULL);
	el_set(l->editor, EL_BIND, PASTE_BEGIN, "glm-paste", NULL);
	l->pastes = terminal_has_escapes(STDERR_FILENO);
}

static void switch_pastes(struct line_edit *l, bool on)
{
	if (!l->pastes)
		return;
	fputs(on ? PASTE_ON : PASTE_OFF, stderr);
	fflush(stderr);
}

static void remember(struct line_edit *l, const char *text)
{
	if (!l->editor || !text[strspn(text, " \t\n")])
		return;
	struct out_file out;
	history(l->history, &l->event, H_ENTER, text);
	/* a history that cannot be kept is no error */
	if (!l->history_file || out_file_open_private(&out, l->history_file, &out_history, false, NULL))
		return;
	out.no_sync = 1;
	const int fd = fcntl(out.fd, F_DUPFD_CLOEXEC, 0);
	FILE *f = fd < 0 ? NULL : fdopen(fd, "w"); /* libedit asks a stream for its descriptor */
	bool saved = f && history(l->history, &l->event, H_SAVE_FP, f) >= 0;
	if (f)
		saved &= !fclose(f);
	else if (fd >= 0)
		close(fd);
	if (saved)
		out_file_commit(&out, NULL);
	else
		out_file_abort(&out);
}
#endif

/* ---- both ---- */

struct line_edit *line_edit_new(const char *history_file)
{
	struct line_edit *l = NEW(struct line_edit);
	l->terminal = isatty(STDIN_FILENO);
	l->history_file = history_file ? mem_strdup(history_file) : NULL;
#if HAVE_EDIT
	if (l->terminal)
		open_editor(l);
#endif
	return l;
}

void line_edit_free(struct line_edit *l)
{
	if (!l)
		return;
#if HAVE_EDIT
	if (l->editor)
		el_end(l->editor);
	if (l->history)
		history_end(l->history);
#endif
	free(l->history_file);
	free(l->line);
	free(l);
}

void line_edit_completes_with(struct line_edit *l, line_edit_complete *complete)
{
	l->complete = complete;
}

void line_edit_hide_typing(struct line_edit *l, bool hide)
{
	struct termios t;
	if (!l->terminal || tcgetattr(STDIN_FILENO, &t))
		return;
	if (hide) /* not canonical either: keys wait for the editor as they are, Ctrl+D and backspace
				 too */
		t.c_lflag &= ~(tcflag_t)(ECHO | ICANON);
	else
		t.c_lflag |= ECHO | ICANON;
	tcsetattr(STDIN_FILENO, TCSANOW, &t);
}

/* One physical line without its line feed; NULL at the end. */
static const char *read_one(struct line_edit *l, const char *prompt, size_t *n)
{
#if HAVE_EDIT
	if (l->editor) {
		l->prompt = (char *)prompt;
		l->dropped = false;
		switch_pastes(l, true);
		/* before the prompt: a key pressed at once would else come in the terminal's own mode,
		 * where Ctrl+D is no character */
		el_set(l->editor, EL_PREP_TERM, 1);
		int count = 0;
		const char *text = el_gets(l->editor, &count);
		switch_pastes(l, false);
		if (!text || count <= 0) {
			l->dropped |= interrupt_taken() && !interrupt_ending(); /* a signal, not the key */
			return NULL;
		}
		*n = strlen(text);
		*n -= *n && text[*n - 1] == '\n';
		return text;
	}
#endif
	if (l->terminal) {
		fputs(prompt, stderr);
		fflush(stderr);
	}
	errno = 0;
	ssize_t got = getline(&l->line, &l->line_cap, stdin);
	if (got < 0) {
		l->dropped = errno == EINTR && !interrupt_ending();
		clearerr(stdin);
		return NULL;
	}
	*n = (size_t)got;
	*n -= *n && l->line[*n - 1] == '\n';
	return l->line;
}

enum line_edit_result line_edit_read(struct line_edit *l, const char *prompt, struct buf *out)
{
	buf_clear(out);
	l->dropped = false;
	for (const char *show = prompt;; show = "... ") {
		size_t n = 0;
		const char *text = read_one(l, show, &n);
		if (l->dropped) {
			if (l->terminal)
				fputs("^C\n", stderr);
			return LINE_EDIT_INTERRUPTED;
		}
		if (!text) {
			if (l->terminal)
				fputc('\n', stderr);
			if (!out->len)
				return LINE_EDIT_END;
			break; /* the end after a continued line: that much was said */
		}
		bool more = n && text[n - 1] == '\\';
		buf_append(out, text, n - more);
		if (!more)
			break;
		buf_putc(out, '\n');
	}
#if HAVE_EDIT
	remember(l, buf_str(out));
#endif
	return LINE_EDIT_LINE;
}
