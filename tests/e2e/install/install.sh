#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# `make install` into a staging folder, what it puts there, the completions and the manual it
# writes, and `make uninstall`.
# shellcheck source=tests/e2e/lib/lib.sh
. "$(dirname "$0")/../lib/lib.sh"
need_pocket
case $GLMSTREAM in */san-*) skip "a sanitizer build is not installed" ;; esac

stage=$work/stage
# the tree is built: make may copy, but neither compile nor link (it would need the flags of that
# build)
make -s -o all install BUILD="$(dirname "$GLMSTREAM")" DESTDIR="$stage" PREFIX=/opt/glm CUDA=0 >"$work/out" 2>&1
rc=$?
said="make install"
exits 0
root=$stage/opt/glm
(cd "$stage" && find . -type f | sort) >"$work/files"
printf './opt/glm/%s\n' bin/glmstream lib/systemd/system/glmstream.service share/bash-completion/completions/glmstream \
	share/glmstream/glm52-routing.gltr1 share/glmstream/pocket.gguf share/glmstream/pocket.gguf.xxh3 \
	share/man/man1/glmstream.1 share/zsh/site-functions/_glmstream >"$work/expected"
check "install puts these files and no others" cmp "$work/files" "$work/expected"
check "the unit names the program where it is" grep -q "^ExecStart=/opt/glm/bin/glmstream serve" \
	"$root/lib/systemd/system/glmstream.service"
"$GLMSTREAM" serve --help >"$work/serve-help" 2>&1
while read -r option; do
	check "the unit uses options that there are: $option" grep -q -- "$option " "$work/serve-help"
done < <(grep '^ExecStart=' "$root/lib/systemd/system/glmstream.service" | grep -o -- '--[a-z-]*')
# the program's own names: the profile of a streamed model stands below XDG_CACHE_HOME
# shellcheck disable=SC2317 # called through check
unit_says() { grep -qx "$1" "$root/lib/systemd/system/glmstream.service"; }
check "the unit has a folder for profiles" unit_says 'CacheDirectory=glmstream'
check "and names the folder that it is in" unit_says 'Environment=XDG_CACHE_HOME=%C'
check "bad usage is not tried for ever" unit_says 'StartLimitBurst=20'
check "no placeholder is left" [ "$(grep -c @PREFIX@ "$root/lib/systemd/system/glmstream.service")" = 0 ]

# the installed program, alone, with its own model
(cd / && env -u GLMSTREAM_POCKET "$root/bin/glmstream" -p "Define river." --temp 0 --think off -n 30) >"$work/out" 2>"$work/err"
rc=$?
said="the installed program"
exits 0
check "it answers" grep -q river "$work/out"
check "it has verified its model" grep -q '; bytes verified$' "$work/err"

# ---- manual and completion against the help of every command -------------------------------------
commands=$("$GLMSTREAM" --help | sed -n '/^Commands:/,/^$/s/^  \([a-z-]*\) .*/\1/p')
check "there are commands" [ "$(wc -w <<<"$commands")" -ge 10 ]
man=$root/share/man/man1/glmstream.1
check "the manual knows the chat" grep -q 'fB/cache' "$man"
if command -v man >/dev/null 2>&1; then
	check "the manual has no faults" [ -z "$(man --warnings -l "$man" 2>&1 >/dev/null)" ]
else
	skip_part "the manual by man: it is not installed"
fi
bash -n "$root/share/bash-completion/completions/glmstream"
check "bash reads its completion" [ $? = 0 ]
# shellcheck source=/dev/null
. "$root/share/bash-completion/completions/glmstream"
# shellcheck disable=SC2317 # called by the completion
compopt() { :; } # there is no completion in progress
complete_as_bash() { # words, the last one is completed
	COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
	_glmstream
	echo "${COMPREPLY[*]}"
}
missing='' n_options=0
for command in $commands; do
	check "the manual tells of $command" grep -qx "\.SS ${command//-/\\\\-}\( .*\)\?" "$man"
	parts=$(_glmstream_parts "$command")
	for part in ${parts:-""}; do
		# shellcheck disable=SC2086 # no part is no word
		help=$("$GLMSTREAM" "$command" $part --help)
		check "$command $part has an example" grep -q '^Example' <<<"$help"
		# shellcheck disable=SC2086
		offered=" $(complete_as_bash glmstream "$command" $part -) "
		while read -r option; do
			n_options=$((n_options + 1))
			[[ $offered == *" $option "* ]] || missing+=" $command $part $option;"
			grep -q -- "\\\\fB${option//-/\\\\-}\\\\fR" "$man" || missing+=" manual: $option;"
		done < <(grep -oE '^  (-[a-zA-Z]|   )?,? *(--[a-z0-9-]+)?' <<<"$help" | grep -oE -- '--?[a-zA-Z0-9-]+')
	done
done
check "options were found" [ $n_options -ge 150 ]
check "completion and manual know every option (not:$missing)" [ -z "$missing" ]
check "commands are completed" [ "$(complete_as_bash glmstream ins)" = inspect ]
check "or a model is: without a command" [ "$(cd "$work" && complete_as_bash glmstream expe)" = expected ]
check "behind a model, too, options are those of run" [ "$(complete_as_bash glmstream M.gguf --pol)" = --policy ]
check "and words of a choice" [ "$(complete_as_bash glmstream M.gguf --policy s)" = sieve ]
check "options without a command are those of run" [ "$(complete_as_bash glmstream --pol)" = --policy ]
check "words of a choice" [ "$(complete_as_bash glmstream run --policy s)" = sieve ]
check "also behind =" [ "$(complete_as_bash glmstream run --policy = l)" = "lfu lru" ]
check "recipes" [ "$(complete_as_bash glmstream convert SRC --recipe iq)" = "iq2 iq2-s iq2-t" ]
check "types" [ "$(complete_as_bash glmstream synth --experts IQ3)" = "IQ3_XXS IQ3_S" ]
check "types of a rule" [ "$(complete_as_bash glmstream convert SRC --types 'blk.*' = Q8)" = Q8_0 ]
check "of its second part" [ "$(complete_as_bash glmstream convert SRC --types 'blk.*' = 'Q8_0,output*' = Q6)" = Q6_K ]
check "in quotes" [ "$(complete_as_bash glmstream convert SRC --types "'blk.*=Q8")" = "'blk.*=Q8_0" ]
check "no guesses for a pattern" [ -z "$(complete_as_bash glmstream convert SRC --types bl)" ]
check "files behind a rule" [ "$(cd "$work" && complete_as_bash glmstream convert --types 'blk.*' = Q8_0 expe)" = expected ]
check "parts of a command" [ "$(complete_as_bash glmstream trace s)" = "show simulate" ]
check "words of an argument" [ "$(complete_as_bash glmstream bench re)" = read ]
check "files" [ "$(cd "$work" && complete_as_bash glmstream -m expe)" = expected ]
check "no guesses for free text" [ -z "$(complete_as_bash glmstream -p "")" ]
if command -v zsh >/dev/null 2>&1; then
	zsh -n "$root/share/zsh/site-functions/_glmstream"
	check "zsh reads its completion" [ $? = 0 ]
else
	skip_part "the completion by zsh: it is not installed"
fi
if command -v systemd-analyze >/dev/null 2>&1; then
	sed "s|/opt/glm/bin/glmstream|$root/bin/glmstream|" "$root/lib/systemd/system/glmstream.service" >"$work/glmstream.service"
	systemd-analyze verify --man=no "$work/glmstream.service" >"$work/verify" 2>&1
	check "systemd has nothing against the unit" [ "$(grep -c glmstream.service "$work/verify")" = 0 ]
else
	skip_part "the unit by systemd-analyze: it is not installed"
fi

make -s uninstall DESTDIR="$stage" PREFIX=/opt/glm >"$work/out" 2>&1
rc=$?
said="make uninstall"
exits 0
check "uninstall leaves no file" [ -z "$(find "$stage" -type f)" ]
check "nor a folder of ours" [ ! -e "$root/share/glmstream" ]
finish
