/* SPDX-License-Identifier: MIT */
/* Completion scripts for bash and zsh: a fixed part that finds the command, and tables written from
 * those of the parser. */
#include "tools/commands/manual.h"

#include <stdio.h>
#include <string.h>

/* What a value is, as far as a shell can help with it. */
enum value_kind { VALUE_NONE, VALUE_TEXT, VALUE_FILE, VALUE_FOLDER, VALUE_WORDS, VALUE_RULES };

static enum value_kind value_kind(const struct arg *a)
{
	const char *v = a->value ? a->value : "";
	if (a->kind == ARG_FLAG)
		return VALUE_NONE;
	if (a->words && a->file == ARG_NO_FILE) /* behind the = of PATTERN=TYPE, or alone */
		return strchr(v, '=') ? VALUE_RULES : VALUE_WORDS;
	if (strstr(v, "DIR") || strstr(v, "FOLDER"))
		return VALUE_FOLDER;
	return a->file != ARG_NO_FILE ? VALUE_FILE : VALUE_TEXT;
}

static void put_words(const struct arg_word *w)
{
	for (; w->word; w++)
		printf("%s%s", w->word, w[1].word ? " " : "");
}

/* ---- bash ---- */

/* Command and part are one word of the tables: "trace_show". */
static void put_key(const char *name)
{
	for (; *name; name++)
		putchar(*name == ' ' ? '_' : *name);
}

static void bash_options(
	void *user, const char *name, const struct command *c, const struct args *a)
{
	(void)user;
	(void)c;
	fputs("\t", stdout);
	put_key(name);
	fputs(") echo '", stdout);
	for (size_t g = 0; g < a->n_groups; g++)
		for (size_t i = 0; i < a->groups[g].n; i++) {
			const struct arg *o = &a->groups[g].args[i];
			if (o->help && o->letter)
				printf("-%c ", o->letter);
			if (o->help && o->name)
				printf("--%s ", o->name);
		}
	fputs("--help' ;;\n", stdout);
}

static void bash_values(void *user, const char *name, const struct command *c, const struct args *a)
{
	(void)user;
	(void)c;
	for (size_t g = 0; g < a->n_groups; g++)
		for (size_t i = 0; i < a->groups[g].n; i++) {
			const struct arg *o = &a->groups[g].args[i];
			enum value_kind kind = o->help ? value_kind(o) : VALUE_NONE;
			if (kind == VALUE_NONE)
				continue;
			fputs("\t", stdout);
			if (o->letter) {
				put_key(name);
				printf(":-%c%s", o->letter, o->name ? " | " : "");
			}
			if (o->name) {
				put_key(name);
				printf(":--%s", o->name);
			}
			fputs(") echo '", stdout);
			if (kind == VALUE_RULES)
				fputs("@rules ", stdout);
			if (kind == VALUE_WORDS || kind == VALUE_RULES)
				put_words(o->words);
			else
				fputs(kind == VALUE_FILE     ? "@file"
					  : kind == VALUE_FOLDER ? "@folder"
											 : "@text",
					stdout);
			fputs("' ;;\n", stdout);
		}
	for (size_t i = 0; i < a->n_positional; i++) {
		if (a->positional[i].kind != ARG_CHOICE)
			continue;
		fputs("\t", stdout);
		put_key(name);
		printf(":%zu) echo '", i + 1);
		put_words(a->positional[i].words);
		fputs("' ;;\n", stdout);
	}
}

/* "run inspect ..." */
static void put_names(void)
{
	for (const struct command *c = commands; c->name; c++)
		printf("%s ", c->name);
	fputs("help", stdout);
}

static void put_parts(void)
{
	for (const struct command *c = commands; c->name; c++)
		if (c->parts)
			printf("\t%s) echo '%s' ;;\n", c->name, c->parts);
}

int completion_print_bash(struct err *e)
{
	const struct manual_visitor options = {.each = bash_options}, values = {.each = bash_values};
	fputs("# bash completion of glmstream, written by `glmstream help --bash`\n"
		  "_glmstream_options() {\n\tcase $1 in\n",
		stdout);
	int rc = manual_visit(&options, e);
	if (rc)
		return rc;
	fputs(
		"\tesac\n}\n# the words that a value may be, or @file, @folder, @text; nothing for flags\n"
		"_glmstream_values() {\n\tcase $1:$2 in\n",
		stdout);
	if ((rc = manual_visit(&values, e)))
		return rc;
	fputs("\tesac\n}\n_glmstream_parts() {\n\tcase $1 in\n", stdout);
	put_parts();
	fputs("\tesac\n}\n_glmstream_commands='", stdout);
	put_names();
	fputs(
		"'\n"
		"_glmstream() {\n"
		"\tlocal word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} command=run "
		"from=1 n=1 i values\n"
		"\tCOMPREPLY=()\n"
		"\t# the word breaks at =: --policy=l is three words, --types A=Q4_K,B=Q five\n"
		"\tfor ((i = COMP_CWORD; i > 0; i--)); do\n"
		"\t\t[[ ${COMP_WORDS[i]} != -* ]] || break\n\tdone\n"
		"\tlocal rules=${COMP_WORDS[i]} last=$word in_rules=\n"
		"\tif [[ $i == $((COMP_CWORD - 1)) || $before == = || $word == = ]]; then\n"
		"\t\tin_rules=1\n\tfi\n"
		"\tif [[ $word == = ]]; then\n\t\tword=\n"
		"\telif [[ $before == = ]]; then\n\t\tbefore=${COMP_WORDS[COMP_CWORD - 2]}\n\tfi\n"
		"\t# a word that is no command names a model: the options are those of run\n"
		"\tif [[ $COMP_CWORD -gt 1 && \" $_glmstream_commands \" == *\" ${COMP_WORDS[1]} \"* ]]; "
		"then\n"
		"\t\tcommand=${COMP_WORDS[1]} from=2\n"
		"\t\tvalues=$(_glmstream_parts \"$command\")\n"
		"\t\tif [[ -n $values ]]; then\n"
		"\t\t\tif [[ $COMP_CWORD == 2 ]]; then\n"
		"\t\t\t\tmapfile -t COMPREPLY < <(compgen -W \"$values\" -- "
		"\"$word\")\n\t\t\t\treturn\n\t\t\tfi\n"
		"\t\t\tcommand=${command}_${COMP_WORDS[2]} from=3\n\t\tfi\n"
		"\t\tif [[ $command == help ]]; then\n\t\t\tmapfile -t COMPREPLY < <(compgen -W "
		"\"$_glmstream_commands clients proxy\" -- \"$word\")\n"
		"\t\t\treturn\n\t\tfi\n"
		"\tfi\n"
		"\tvalues=$(_glmstream_values \"$command\" \"$before\")\n"
		"\tif [[ -z $values && $word != -* ]]; then\n"
		"\t\t# which positional argument this is\n"
		"\t\tfor ((i = from; i < COMP_CWORD; i++)); do\n"
		"\t\t\tif [[ ${COMP_WORDS[i]} == -* ]]; then\n"
		"\t\t\t\t[[ -z $(_glmstream_values \"$command\" \"${COMP_WORDS[i]}\") ]] || i=$((i + 1))\n"
		"\t\t\telse\n\t\t\t\tn=$((n + 1))\n\t\t\tfi\n\t\tdone\n"
		"\t\tvalues=$(_glmstream_values \"$command\" \"$n\")\n"
		"\t\t[[ -n $values ]] || values=@file\n"
		"\t\tif [[ $COMP_CWORD == 1 ]] && compgen -W \"$_glmstream_commands\" -- \"$word\" "
		">/dev/null; then\n"
		"\t\t\tvalues=$_glmstream_commands\n\t\tfi\n"
		"\tfi\n"
		"\tlocal of\n\tof=$(_glmstream_values \"$command\" \"$rules\")\n"
		"\tcase $in_rules$of in\n"
		"\t'1@rules '*)\n"
		"\t\tif [[ $last == = || ${COMP_WORDS[COMP_CWORD - 1]} == = || $word == *=* ]]; then\n"
		"\t\t\tlocal head=\n"
		"\t\t\t[[ $word != *=* ]] || head=${word%=*}=\n"
		"\t\t\tmapfile -t COMPREPLY < <(compgen -P \"$head\" -W \"${of#@rules }\" -- "
		"\"${word##*=}\")\n"
		"\t\tfi\n\t\treturn\n\t\t;;\n\tesac\n"
		"\tcase $values in\n"
		"\t'') mapfile -t COMPREPLY < <(compgen -W \"$(_glmstream_options \"$command\")\" -- "
		"\"$word\") ;;\n"
		"\t@file) compopt -o filenames\n\t\tmapfile -t COMPREPLY < <(compgen -f -- \"$word\") ;;\n"
		"\t@folder) compopt -o filenames\n\t\tmapfile -t COMPREPLY < <(compgen -d -- \"$word\") "
		";;\n"
		"\t@text) ;;\n"
		"\t*) mapfile -t COMPREPLY < <(compgen -W \"$values\" -- \"$word\") ;;\n"
		"\tesac\n"
		"}\n"
		"complete -F _glmstream glmstream\n",
		stdout);
	return 0;
}

/* ---- zsh ---- */

/* Inside '[...]' of an _arguments specification, itself in single quotes. */
static void zsh_text(const char *text)
{
	for (; *text; text++) {
		if (*text == '\'')
			fputs("'\\''", stdout);
		else if (strchr("[]:\\", *text))
			printf("\\%c", *text);
		else
			putchar(*text == '\n' ? ' ' : *text);
	}
}

static void zsh_value(const struct arg *a)
{
	enum value_kind kind = value_kind(a);
	if (kind == VALUE_NONE)
		return;
	putchar(':');
	zsh_text(a->value ? a->value : "value");
	putchar(':');
	if (kind == VALUE_WORDS) {
		putchar('(');
		put_words(a->words);
		putchar(')');
	} else if (kind != VALUE_TEXT && kind != VALUE_RULES) {
		fputs(kind == VALUE_FILE ? "_files" : "_files -/", stdout);
	}
}

static void zsh_option(const struct arg *a)
{
	bool takes = a->kind != ARG_FLAG;
	fputs("\t\t'", stdout);
	if (a->letter && a->name)
		printf("(-%c --%s)'{-%c%s,--%s%s}'", a->letter, a->name, a->letter, takes ? "+" : "",
			a->name, takes ? "=" : "");
	else if (a->letter)
		printf("-%c%s", a->letter, takes ? "+" : "");
	else
		printf("--%s%s", a->name, takes ? "=" : "");
	putchar('[');
	zsh_text(a->help);
	putchar(']');
	zsh_value(a);
	fputs("' \\\n", stdout);
}

static void zsh_command(void *user, const char *name, const struct command *c, const struct args *a)
{
	(void)user;
	(void)c;
	fputs("\t", stdout);
	put_key(name);
	fputs(") _arguments -s \\\n", stdout);
	for (size_t g = 0; g < a->n_groups; g++)
		for (size_t i = 0; i < a->groups[g].n; i++)
			if (a->groups[g].args[i].help)
				zsh_option(&a->groups[g].args[i]);
	for (size_t i = 0; i < a->n_positional; i++) {
		printf("\t\t'%zu", i + 1);
		zsh_value(&a->positional[i]);
		fputs("' \\\n", stdout);
	}
	fputs("\t\t'--help[show the options]' ;;\n", stdout);
}

int completion_print_zsh(struct err *e)
{
	const struct manual_visitor each = {.each = zsh_command};
	fputs("#compdef glmstream\n# zsh completion of glmstream, written by `glmstream help --zsh`\n"
		  "_glmstream_arguments() {\n\tcase $1 in\n",
		stdout);
	int rc = manual_visit(&each, e);
	if (rc)
		return rc;
	fputs("\tesac\n}\n_glmstream_parts() {\n\tcase $1 in\n", stdout);
	put_parts();
	fputs(
		"\tesac\n}\n_glmstream() {\n\tlocal -a commands parts\n\tlocal command=run\n\tcommands=(\n",
		stdout);
	for (const struct command *c = commands; c->name; c++) {
		printf("\t\t'%s:", c->name);
		zsh_text(c->help);
		fputs("'\n", stdout);
	}
	fputs("\t\t'help:what a command does'\n\t)\n"
		  "\tif (( CURRENT == 2 )) && [[ $words[2] != -* ]]; then\n"
		  "\t\t_describe command commands || _files\n\t\treturn\n\tfi\n"
		  "\t# a word that is no command names a model: the options are those of run\n"
		  "\tif (( ${commands[(I)${(b)words[2]}:*]} )); then\n"
		  "\t\tcommand=$words[2]\n\t\tshift words\n\t\t(( CURRENT-- ))\n"
		  "\t\tif [[ $command == help ]]; then\n\t\t\t_describe command "
		  "commands\n\t\t\treturn\n\t\tfi\n"
		  "\t\tparts=(${(s: :)\"$(_glmstream_parts $command)\"})\n"
		  "\t\tif (( $#parts )); then\n"
		  "\t\t\tif (( CURRENT == 2 )); then\n\t\t\t\tcompadd -- $parts\n\t\t\t\treturn\n\t\t\tfi\n"
		  "\t\t\tcommand=${command}_$words[2]\n\t\t\tshift words\n\t\t\t(( CURRENT-- "
		  "))\n\t\tfi\n\tfi\n"
		  "\t_glmstream_arguments $command\n"
		  "}\n"
		  "_glmstream \"$@\"\n",
		stdout);
	return 0;
}
