#!/bin/sh
# SPDX-License-Identifier: MIT
# Checks the size of things and that names are distinct; prints each breach, exit status 1 if
# there is any.
#   - no function above 150 lines (kernels in kernels/cuda: 250)
#   - no folder with more than 14 source files (.c, .cu)
#   - no static function of one name in more than 3 files, no struct of one name defined in two
#   - no static variable within a function of kernels/, cache/, stream/ and src/ that is written:
#     several stages compute at the same time (constants, thread_local and mutexes are fine)
#   - no line above 100 columns in the Makefile and what it includes
set -eu
cd "$(dirname "$0")/../.."
export LC_ALL=C

sources=$(find src cache stream kernels tools tests -type f \( -name '*.[ch]' -o -name '*.cu' \
	-o -name '*.cuh' \) | sort)

# shellcheck disable=SC2086 # lists of file names without blanks
awk '
function breach(where, text) {
	printf "%s: %s\n", where, text
	bad = 1
}
FNR == 1 {
	kernel = FILENAME ~ /^kernels\/cuda\//
	is_source = FILENAME ~ /\.(c|cu)$/
	begin = 0
	if (is_source) {
		folder = FILENAME
		sub(/\/[^\/]*$/, "", folder)
		n_sources[folder]++
	}
}
/^{/ { begin = FNR }
/^}/ && begin {
	n = FNR - begin + 1
	limit = kernel ? 250 : 150
	if (n > limit)
		breach(FILENAME ":" begin, "a function of " n " lines, limit " limit)
	begin = 0
}
/^static / && match($0, /[A-Za-z_][A-Za-z_0-9]*\(/) {
	name = substr($0, RSTART, RLENGTH - 1)
	if (name !~ /^__/ && index(static_in[name] " ", " " FILENAME " ") == 0) {
		static_in[name] = static_in[name] " " FILENAME
		n_static[name]++
	}
}
FILENAME ~ /^(kernels|cache|stream|src)\// && /^[ \t]+static [^(]*[;=]/ &&
!/const|_Thread_local|thread_local|__device__|__shared__|static_assert|pthread_/ {
	breach(FILENAME ":" FNR, "a static variable that stages share")
}
is_source && /^struct [a-z_0-9]+ {/ {
	if ($2 in struct_in && struct_in[$2] != FILENAME)
		breach(FILENAME ":" FNR, "struct " $2 " is also defined in " struct_in[$2])
	struct_in[$2] = FILENAME
}
END {
	for (folder in n_sources)
		if (n_sources[folder] > 14)
			breach(folder, n_sources[folder] " source files, limit 14")
	for (name in n_static)
		if (n_static[name] > 3)
			breach("static " name, "defined in " n_static[name] " files:" static_in[name])
	exit bad
}
' $sources && status=0 || status=1

awk 'length($0) > 100 {
	print FILENAME ":" FNR ": more than 100 columns"
	bad = 1
}
END { exit bad }' Makefile kernels/cuda/cuda.mk || status=1
[ "$status" = 0 ] && echo "shape: $(printf '%s\n' "$sources" | grep -c .) sources keep the limits"
exit "$status"
