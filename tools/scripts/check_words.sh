#!/bin/sh
# SPDX-License-Identifier: MIT
# Refuses the words of tools/scripts/words.txt in sources, scripts and documentation. Prints each use
# as FILE:LINE: what to write instead; exit status 1 if there is any.
#   tools/scripts/check_words.sh [--count]     --count: how many uses per word and folder, status 0
set -u
cd "$(dirname "$0")/../.." || exit 1
export LC_ALL=C
list=tools/scripts/words.txt

# The list and this file name the words; RESULTS quotes commands and commits of their time.
files=$({
	find src cache stream kernels tools tests -type f \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' \
		-o -name '*.py' -o -name '*.sh' -o -name '*.md' \)
	echo Makefile kernels/cuda/cuda.mk README.md .ci/run
} | tr ' ' '\n' | grep -vxE 'tests/bench/(RESULTS|results/[a-z]*)\.md|tools/scripts/check_words\.sh' | sort)

uses() { # prints FILE:LINE:TEXT of each use of $pattern below $scope
	# shellcheck disable=SC2086 # a word list
	printf '%s\n' $files | grep -E "${scope:-.}" |
		xargs grep -niE "(^|[^A-Za-z])($pattern)([^A-Za-z]|\$)" /dev/null
}

total=0
tab=$(printf '\t')
while IFS=$tab read -r pattern term scope; do
	case $pattern in '' | '#'*) continue ;; esac
	found=$(uses)
	[ -n "$found" ] || continue
	n=$(printf '%s\n' "$found" | grep -c .)
	total=$((total + n))
	if [ "${1:-}" = --count ]; then
		printf '%5d %s (%s):%s\n' "$n" "$pattern" "$term" "$(printf '%s\n' "$found" |
			awk -F: '{ sub(/\/[^\/]*$/, "", $1); n[$1]++ } END { for (f in n) printf " %s %d", f, n[f] }')"
	else
		printf '%s\n' "$found" | sed -E "s|^([^:]*:[0-9]*):.*|\1: '$(printf %s "$pattern" | tr '|' '/')' - write: $term|"
	fi
done <"$list"
echo "words: $total uses of words that tools/scripts/words.txt refuses"
[ "$total" = 0 ] || [ "${1:-}" = --count ]
