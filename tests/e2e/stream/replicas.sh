#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Copies of the model on other drives are read beside it, and the logits are those of one file. One
# copy lies on the same drive, the other on another (in memory) where there is one: only that one
# can show that copies are really read.
# shellcheck disable=SC2317 # functions called through check
# shellcheck source=tests/e2e/lib/lib.sh
. "$(dirname "$0")/../lib/lib.sh"
need_pocket

other=$work # a folder on another drive
if [ -d /dev/shm ] && [ -w /dev/shm ] && [ "$(stat -c %d /dev/shm)" != "$(stat -c %d "$POCKET")" ]; then
	other=$(mktemp -d /dev/shm/glmstream-test-XXXXXX)
	trap 'rm -rf "$work" "$other"' EXIT
fi
cp "$POCKET" "$work/a.gguf"
cp "$POCKET" "$other/b.gguf"
head -n 12 tests/data/pocket_ids.txt >"$work/ids"
hash_of() {
	sed -n 's/.*"logits_hash": "\([0-9a-f]*\)".*/\1/p' "$1"
}

run dump-logits -m "$POCKET" --ids "$work/ids" --all -o "$work/mapped.f32"
exits 0
hash=$(hash_of "$work/out")
check "a hash is printed" [ "${#hash}" = 16 ]
for io in uring threads; do
	for extra in "" --no-direct "--lookahead 2"; do
		# shellcheck disable=SC2086 # words
		run dump-logits -v -m "$POCKET" --ids "$work/ids" --all --chunk 8 -o "$work/streamed.f32" --force --cache-gb 0.004 --io $io \
			$extra --replicas "$work/a.gguf,$other/b.gguf"
		if [ $io = uring ] && [ $rc != 0 ] && grep -q 'io_uring' "$work/err"; then
			skip_part "copies by io_uring $extra: this system refuses it"
			continue
		fi
		exits 0
		check "logits of three copies by $io $extra" cmp -s "$work/mapped.f32" "$work/streamed.f32"
		check "hash of three copies by $io $extra" [ "$(hash_of "$work/out")" = "$hash" ]
		check "the reader says that it has them" grep -q '^reader: .*3 files on [12] drive' "$work/err"
	done
done

# a copy of the same size with other bytes: the logits show whether it was read
if [ "$other" != "$work" ]; then
	truncate -s 4000000 "$other/b.gguf"
	truncate -s "$(stat -c %s "$POCKET")" "$other/b.gguf"
	run dump-logits -m "$POCKET" --ids "$work/ids" --all --chunk 8 -o "$work/streamed.f32" --force --cache-gb 0.004 --verify off \
		--replicas "$other/b.gguf"
	exits 0
	check "reads go to the copy as well" [ "$(hash_of "$work/out")" != "$hash" ]
else
	skip_part "a copy on another drive: /dev/shm is none"
fi

head -c 1000000 "$work/a.gguf" >"$work/short.gguf"
run dump-logits -m "$POCKET" --ids "$work/ids" -o "$work/x.f32" --cache-gb 0.004 --replicas "$work/short.gguf"
error_is_one_sentence 3 short.gguf
run dump-logits -m "$POCKET" --ids "$work/ids" -o "$work/x.f32" --cache-gb 0.004 --replicas "$work/none.gguf"
error_is_one_sentence 3 none.gguf
run dump-logits -m "$POCKET" --ids "$work/ids" -o "$work/x.f32" --cache-gb 0.004 --replicas "$work/a.gguf,,"
error_is_one_sentence 2 "empty file name"
run dump-logits -m "$POCKET" --ids "$work/ids" -o "$work/x.f32" --replicas "$work/a.gguf"
error_is_one_sentence 2 cache-gb
finish
