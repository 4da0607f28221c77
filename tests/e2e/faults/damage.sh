#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Damaged and hostile files: a mapped model that becomes shorter or is written into, weights that are
# NaN or infinite, names with terminal escapes, full disks and file size limits, files that others
# may read.
# shellcheck disable=SC2317 # functions called through check
# shellcheck source=tests/e2e/lib/lib.sh
. "$(dirname "$0")/../lib/lib.sh"
need_pocket
short=(-p 'Define river.' -n 2 --temp 0 --think off -q)
loud=("${short[@]:0:8}")

# ---- a model that becomes shorter or is changed, in the chat and in the server; weights that are no numbers ----
python3 tests/e2e/faults/damage.py "$GLMSTREAM" "$POCKET" "$work"
rc=$?
if [ $rc != 0 ]; then
	said=damage.py
	wrong "damage.py found something"
fi

# ---- what is printed of names ----
no_escapes() { # of both ranges, and no bidirectional controls
	! LC_ALL=C grep -qP '\x1b|\x07|\xc2[\x80-\x9f]|\xe2\x80[\x8e\x8f\xa8-\xae]|\xe2\x81[\xa6-\xa9]' "$1"
}

odd=$work/$'\e[31mname\xc2\x9b0m\xe2\x80\xae.gguf'
ln -s "$POCKET" "$odd"
run inspect "$odd"
exits 0
check "the name is shown" grep -q '?\[31mname?0m?.gguf' "$work/out"
check "without its escapes" no_escapes "$work/out"
run -m "$odd.none" -p river
exits 3
check "an error's name has no escapes" no_escapes "$work/err"
mkdir "$odd.folder"
printf 'glmstream-convert 5 %016x\n' 1 >"$odd.folder/export.journal"
run export -m "$POCKET" -o "$odd.folder" -q
exits 0
check "a note names the folder" grep -q 'name.*export.journal belongs to another' "$work/err"
check "without its escapes" no_escapes "$work/err"
rm -r "$odd.folder"

# ---- limits: the end of a file is a write error with a sentence ----
limited() { # blocks of 1 kB, arguments
	local blocks=$1
	shift
	(
		# a build that counts coverage would cut the counts of other runs
		export GCOV_PREFIX=$work/gcov
		ulimit -f "$blocks"
		run "$@"
		echo "$rc" >"$work/rc"
	)
	rc=$(cat "$work/rc") said="ulimit -f $blocks; glmstream $*"
}

limited 4 "${short[@]}" --session "$work/s"
exits 1
check "the sentence says why" grep -q '^glmstream: .*/s: .*File too large' "$work/err"
check "nothing half-written is left" [ -z "$(find "$work" -name 's' -o -name '*.part')" ]
if [ -w /dev/full ]; then
	for option in --trace --warm; do
		run "${short[@]}" --cache-gb 0.006 $option /dev/full
		check "$option to a full disk fails" [ "$rc" != 0 ]
		check "with a sentence" grep -q '^glmstream: .*/dev/full: ' "$work/err"
	done
fi

# ---- files and folders of private text ----
umask 022
run "${short[@]}" --session "$work/private"
exits 0
chmod 644 "$work/private"
run "${short[@]}" --session "$work/private"
exits 0
check "an old session file becomes private" [ "$(stat -c %a "$work/private")" = 600 ]
mkdir -m 777 "$work/open"
run "${loud[@]}" --session-dir "$work/open"
exits 0
check "a folder open to others is named" grep -q '^warning: .*/open: other users may write' "$work/err"
mkdir -m 700 "$work/closed"
run "${loud[@]}" --session-dir "$work/closed"
exits 0
check "one that is closed is not" [ "$(grep -c '^warning: ' "$work/err")" = 0 ]
touch -d '2 hours ago' "$work/closed/movie.mkv.part"
run "${short[@]}" --session-dir "$work/closed"
check "unfinished files of others stay" [ -e "$work/closed/movie.mkv.part" ]

finish
