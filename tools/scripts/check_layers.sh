#!/bin/sh
# SPDX-License-Identifier: MIT
# Checks the shape of the source tree; prints each breach as FILE:LINE: what, exit status 1 if there is any.
#   - includes follow tools/scripts/layers.txt and are written from the root of the tree
#   - JSON is read through src/format/json_parse.h alone
#   - no file above 800 lines, no two sources of one name, no .c file that includes a .c file
set -eu
cd "$(dirname "$0")/../.."
export LC_ALL=C

sources=$(find src cache stream kernels tools tests -type f \( -name '*.c' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' \) 2>/dev/null | sort)
scripts=$(find tools tests -type f \( -name '*.sh' -o -name '*.py' \) | sort)

# shellcheck disable=SC2086 # lists of file names without blanks
awk '
function module_of(path,    m, best) {
	best = ""
	for (m in allowed)
		if (index(path, m "/") == 1 && length(m) > length(best))
			best = m
	return best
}
function permits(list, path,    n, i, word) {
	n = split(list, word, " ")
	for (i = 1; i <= n; i++)
		if (word[i] == "*" || path == word[i] || index(path, word[i] "/") == 1)
			return 1
	return 0
}
function breach(text) {
	printf "%s:%d: %s\n", FILENAME, FNR, text
	bad = 1
}
FILENAME == "tools/scripts/layers.txt" {
	if ($0 ~ /^#/ || NF == 0)
		next
	colon = index($0, ":")
	name = substr($0, 1, colon - 1)
	list = substr($0, colon + 1)
	if (name ~ /^</)
		foreign[name] = list
	else
		allowed[name] = list
	next
}
FNR == 1 {
	here = module_of(FILENAME)
	if (here == "")
		breach("no module of tools/scripts/layers.txt holds this file")
	base = FILENAME
	sub(/.*\//, "", base)
	stem = base
	sub(/\.(c|cu)$/, ".object", stem) # x.c and x.cu would become the same x.o
	if (stem in seen)
		breach("the name is taken by " seen[stem])
	seen[stem] = FILENAME
}
FNR == 801 { breach("more than 800 lines") }
/^[ \t]*#[ \t]*include[ \t]*"/ {
	split($0, quoted, "\"")
	target = quoted[2]
	if (target ~ /\.c$/)
		breach("includes the source file " target)
	there = module_of(target)
	if (there == "")
		breach("\"" target "\" is not written from the root of the tree")
	else if (there != here && !permits(allowed[here], target))
		breach(here " may not include " target)
	next
}
/^[ \t]*#[ \t]*include[ \t]*</ {
	match($0, /<[^>]*>/)
	target = substr($0, RSTART, RLENGTH)
	for (f in foreign) {
		prefix = f
		star = sub(/\*$/, "", prefix)
		if ((star ? index(target, prefix) == 1 : target == f) && !permits(foreign[f], FILENAME))
			breach(FILENAME " may not include " target)
	}
}
/(^|[^a-z_])json_load/ && FILENAME !~ /^tests\// && FILENAME != "src/format/json_parse.c" {
	breach("reads JSON, but not through src/format/json_parse.h")
}
END { exit bad }
' tools/scripts/layers.txt $sources && status=0 || status=1

for f in $scripts Makefile kernels/cuda/cuda.mk; do
	n=$(wc -l <"$f")
	limit=800
	[ "$f" != Makefile ] || limit=260
	if [ "$n" -gt $limit ]; then
		echo "$f:$n: more than $limit lines"
		status=1
	fi
done
[ "$status" = 0 ] && echo "layers: $(printf '%s\n' "$sources" | grep -c .) sources keep the layers"
exit "$status"
