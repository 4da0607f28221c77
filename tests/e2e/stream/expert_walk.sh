#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The walk of one expert in the header of stream/loader/loader.h is true: each of its 20 lines names a function, and the file
# that defines it. Files without a folder are of stream/loader.
set -eu
header=stream/loader/loader.h
n=0
while read -r function file; do
	[ -f "$file" ] || file=stream/loader/$file
	grep -qE "^[a-z][^;=]*[ *]$function\(" "$file" || { echo "$header: $file does not define $function"; exit 1; }
	n=$((n + 1))
done < <(sed -nE 's/^ \* +[0-9]+  .* ([a-z_0-9]+) \(([a-z_0-9\/]+\.c)\)$/\1 \2/p' "$header")
[ "$n" = 20 ] || { echo "$header: $n lines of the walk name a function and its file, expected 20"; exit 1; }
