#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# `glmstream bench read`: figures of every source, the file as it was, nothing left behind, bad
# input refused. Not how fast: that says nothing in a test.
# shellcheck disable=SC2317 # functions called through check
# shellcheck source=tests/e2e/lib/lib.sh
. "$(dirname "$0")/../lib/lib.sh"


folder=$work/files
mkdir "$folder"

empty_folder() {
	[ -z "$(ls -A "$folder")" ]
}

# one line per source and mode, each with a rate above zero
has_figure() { # source, mode
	grep -E "^read +$1 $2, depth 4, 1024 KiB" "$work/out" | grep -qE ' [0-9.]*[1-9][0-9.]* +GB/s'
}

run bench read --dir "$folder" --gb 0.03 --depth 4
exits 0
check "threads read" has_figure threads buffered
check "it says how much it reads in all" grep -qE '^bench read: 0\.[0-9]+ GB in all: 1 queue depth' "$work/err"
check "and how long that takes" grep -qE '^reading .* (s|left)' "$work/err"
check "O_DIRECT or a filesystem without it" grep -qE '^read +threads (O_DIRECT|buffered)' "$work/out"
if grep -q 'without io_uring' "$work/err"; then
	skip_part "io_uring: this system refuses it"
else
	check "uring reads" has_figure uring buffered
	if command -v fio >/dev/null 2>&1; then
		check "fio reads" has_figure fio buffered
		check "readers are held against fio" grep -qE '^read +uring .*% of .*fio' "$work/out"
	else
		check "the missing fio is named" grep -q 'without fio' "$work/err"
	fi
fi
check "the test file is gone" empty_folder

if ! grep -q 'without io_uring' "$work/err" && grep -q 'uring O_DIRECT' "$work/out"; then
	run bench read --dir "$folder" --gb 0.03 --repeats 1 --no-fio
	exits 0
	check "the depth that is found has a figure" \
		grep -qE '^read +uring O_DIRECT, depth found: [0-9]+, [0-9]+ KiB.* [0-9.]*[1-9][0-9.]* +GB/s' "$work/out"
fi

head -c 5000000 /dev/urandom >"$folder/model" # no whole number of reads
before=$(cksum <"$folder/model")
run bench read -f "$folder/model" --depth 4 --no-fio
exits 0
check "no fio was asked for" [ "$(grep -c '^read  *fio' "$work/out")" = 0 ]
check "the file is as it was" [ "$(cksum <"$folder/model")" = "$before" ]
check "and alone" [ "$(ls "$folder")" = model ]

run bench read -f "$folder/none"
check "a missing file is named" grep -q "$folder/none" "$work/err"
exits 3
head -c 1000 /dev/zero >"$folder/small"
run bench read -f "$folder/small"
check "a file below one read is refused" grep -q 'small: 1000 bytes' "$work/err"
exits 3
run bench read -f "$folder"
exits 3
run bench read --dir "$folder/none" --gb 0.01
exits 3

# an option that the part does not read is refused, not ignored
refused() { # pattern, then the command line behind bench
	local pattern=$1
	shift
	run bench "$@"
	error_is_one_sentence 2 "$pattern"
}
refused '^glmstream: --model belongs to bench prefill, decode and session' read -m "$folder/model"
check "the hint names -f" grep -q '^hint: -f FILE' "$work/err"
refused '^glmstream: --ram-gb belongs to bench prefill, decode and session' copy --ram-gb 4
refused '^glmstream: --cpu-experts belongs to' ops --cpu-experts auto
refused '^glmstream: --gb belongs to bench read' copy --gb 1
refused '^glmstream: --depth belongs to bench read' decode --depth 4
refused '^glmstream: --seconds belongs to bench copy, ops, prefill and decode' read --seconds 1
refused '^glmstream: --threads belongs to bench copy, ops' read -t 1
refused '^glmstream: --backend belongs to bench ops' read --backend cpu
refused '^glmstream: --backend belongs to bench ops' copy --backend cpu
refused '^glmstream: --exact-prompts belongs to bench ops' copy --exact-prompts
refused '^glmstream: --fast-prompts belongs to bench ops' read --fast-prompts
refused '^glmstream: --verify belongs to bench prefill' copy --verify off
refused '^glmstream: --force belongs to bench prefill' read --force
refused '^glmstream: --dir: with -f no file is made' read -f "$folder/model" --dir "$folder"
refused '^glmstream: -q and -v exclude each other' copy -q -v
run bench read -q -f "$folder/model" --depth 4 --no-fio --repeats 1
exits 0
check "-q leaves notes out" [ "$(grep -c '^bench read:' "$work/err")" = 0 ]
refused '^glmstream: -n belongs to bench decode' session -n 4
refused '^glmstream: --file belongs to .* bench decode with --draft' decode -f "$folder/model"
refused '^glmstream: --only belongs to bench ops' copy --only q_a
refused 'not with --kv-type fp8' session --kv-type fp8 --dir "$folder"

# Ctrl+C while reading: ends, and leaves nothing
rm -f "$folder"/*
timeout --preserve-status -s INT 1 "$GLMSTREAM" bench read --dir "$folder" --gb 2 --depth 1 \
	--no-fio >"$work/out" 2>"$work/err"
rc=$? said="SIGINT to bench read"
exits 130
check "nothing is left after Ctrl+C" empty_folder
finish
