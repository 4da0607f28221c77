#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# --session and --session-dir through the program: a chat in pieces is the chat in one go, bit for
# bit; other files are refused; ends by signals lose nothing. GLM_E2E_KILLS sets how many runs are
# killed (4).
# shellcheck disable=SC2317 # functions called through check
# shellcheck source=tests/e2e/lib/lib.sh
. "$(dirname "$0")/../lib/lib.sh"
need_pocket
greedy=(-t 1 --temp 0 --think off -q --json)

# value of a key in the statistics of the last answer
stat_of() {
	grep '^{' "$work/err" | tail -n 1 | sed "s/.*\"$1\": \"\?\([^,\"}]*\).*/\1/"
}

# ---- pieces of a chat are the chat ---------------------------------------------------------------
printf 'Define river.\nDefine tree.\nDefine island.\n' >"$work/lines"
run "${greedy[@]}" <"$work/lines"
exits 0
cp "$work/out" "$work/whole"
whole=$(stat_of logits_hash)
reused=$(stat_of reused_tokens)

file=$work/chat.session
run "${greedy[@]}" --session "$file" -p 'Define river.'
exits 0
cp "$work/out" "$work/pieces"
check "the file is there, for its owner only" [ "$(stat -c %a "$file")" = 600 ]
run "${greedy[@]}" --session "$file" -p 'Define tree.' --chunk 5 --cache-gb 0.003
exits 0
cat "$work/out" >>"$work/pieces"
cp "$file" "$work/two"
run "${greedy[@]}" --session "$file" -p 'Define island.' --cache-gb 0.008 --policy sieve -c 600
exits 0
cat "$work/out" >>"$work/pieces"
check "the same answers" cmp -s "$work/whole" "$work/pieces"
check "the same logits" [ "$(stat_of logits_hash)" = "$whole" ]
check "nothing was computed again" [ "$(stat_of reused_tokens)" = "$reused" ]

# sampled answers go on with the seed of the file
run -t 1 --temp 1 --seed 5 --think off -q --json <"$work/lines"
whole=$(stat_of logits_hash)
rm "$file"
run -t 1 --temp 1 --seed 5 --think off -q --json --session "$file" -p 'Define river.'
run -t 1 --temp 1 -q --json --session "$file" -p 'Define tree.'
run -t 1 --temp 1 -q --json --session "$file" -p 'Define island.'
check "seed, place in it, and --think come from the file" [ "$(stat_of logits_hash)" = "$whole" ]

# --raw is a kind of its own
run -t 1 --temp 0 --raw -q -n 5 --session "$work/raw" -p 'river (noun): a'
exits 0
run -t 1 --temp 0 -q --json -n 5 --session "$work/raw" -p ' of'
exits 0
check "a raw chat goes on as one" [ "$(stat_of reused_tokens)" -ge 6 ]
run -t 1 -q --session "$work/raw" -p x --think off
error_is_one_sentence 3 'no place for --think'
run -t 1 -q --session "$work/raw" -p x --system 'Be brief.'
error_is_one_sentence 3 'no place for --system'
run -t 1 --raw -q --session "$work/two" -p x
error_is_one_sentence 3 "holds a chat with the model's template"

# ---- refusals, which leave the file alone --------------------------------------------------------
head -c 5000 "$work/two" >"$work/bad"
cp "$work/bad" "$work/bad.before"
run "${greedy[@]}" --session "$work/bad" -p x
error_is_one_sentence 3 'bad: ends early'
check "a refused file is not touched" cmp -s "$work/bad" "$work/bad.before"
for at in 0 9 20 300 20000; do
	cp "$work/two" "$work/bad"
	printf '\001' | dd of="$work/bad" bs=1 seek=$at conv=notrunc status=none
	if cmp -s "$work/bad" "$work/two"; then
		printf '\002' | dd of="$work/bad" bs=1 seek=$at conv=notrunc status=none
	fi
	run "${greedy[@]}" --session "$work/bad" -p x
	error_is_one_sentence 3 'bad: '
done
run "${greedy[@]}" --session "$work/two" -c 20 -p x
error_is_one_sentence 3 'holds [0-9]+ tokens, the context has room for 20'
run "${greedy[@]}" --session "$work/no/such/folder/x" -p x
error_is_one_sentence 3
run "${greedy[@]}" --session "$work" -p x
error_is_one_sentence 3 'is a directory, expected a session file'
run "${greedy[@]}" --session-dir-gb 1 -p x
error_is_one_sentence 2 'give --session-dir as well'

# ---- two programs on one file: the second to write is refused, what the first wrote stays --------
mkfifo "$work/pipe"
"$GLMSTREAM" "${greedy[@]}" --session "$work/shared" <"$work/pipe" >"$work/out" 2>"$work/err" &
pid=$!
exec 3>"$work/pipe"
echo 'Define river.' >&3
for ((i = 0; i < 2400; i++)); do
	[ -s "$work/shared" ] && break
	sleep 0.05
done
"$GLMSTREAM" "${greedy[@]}" --session "$work/shared" -p 'Define tree.' >/dev/null 2>&1
cp "$work/shared" "$work/shared.before"
echo 'Define island.' >&3
exec 3>&-
wait $pid
rc=$? said="a chat whose file another program has written"
exits 1
check "both answers are there" grep -q island "$work/out"
check "it says so" grep -q '^glmstream: .*shared: another program has written this session' "$work/err"
check "nothing is lost" cmp -s "$work/shared" "$work/shared.before"

# ---- ends by signals -----------------------------------------------------------------------------
# SIGTERM while a long answer is made: what was said until then is saved
"$GLMSTREAM" -t 1 --temp 0 --think off -q --session "$work/term" -p 'Tell me a story about a fox named Ben.' \
	-n 3000 >"$work/story" 2>"$work/err" &
pid=$!
for ((i = 0; i < 2400; i++)); do
	[ -s "$work/story" ] && break
	sleep 0.05
done
kill -TERM $pid
wait $pid
run "${greedy[@]}" --session "$work/term" -p 'Define river.'
exits 0
check "SIGTERM saves the chat" [ "$(stat_of reused_tokens)" -gt 10 ]

# kill -9 in a chat that saves after every answer: the last whole file always loads and no turn is
# lost
yes 'Define river.' | head -n 100 >"$work/many"
turns=0
rm -f "$file"
for ((k = 0; k < ${GLM_E2E_KILLS:-4}; k++)); do
	[ "$turns" -lt 60 ] || { rm -f "$file" && turns=0; }
	"$GLMSTREAM" -t 1 --temp 0 --think off -q -n 2 --session "$file" <"$work/many" >/dev/null 2>&1 &
	pid=$!
	for ((i = 0; i < 1200 && turns == 0; i++)); do # behind the first answer at least
		[ ! -f "$file" ] || break
		sleep 0.05
	done
	sleep "0.$((RANDOM % 4 + 1))$((RANDOM % 10))"
	kill -KILL $pid
	wait $pid 2>/dev/null
	[ -f "$file" ] || continue
	cp "$file" "$work/copy"
	run -t 1 --temp 0 -n 0 --session "$work/copy" -p x
	exits 0
	now=$(sed -n 's/.*copy: \([0-9]*\) turns\?, .* read .*/\1/p' "$work/err")
	check "no turn is lost ($now after $turns)" [ "${now:-0}" -ge "$turns" ]
	turns=${now:-0}
done
check "a killed run had saved turns" [ "$turns" -gt 0 ]
check "nothing is left beside the file" [ "$(find "$work" -name 'chat.session.*' | wc -l)" -le "${GLM_E2E_KILLS:-4}" ]

# ---- the prefix store ----------------------------------------------------------------------------
for ((i = 0; i < 160; i++)); do printf 'Line %d of the rules: the sea is wide. ' $i; done >"$work/rules"
store=(--session-dir "$work/store" -v --system "$(cat "$work/rules")" -n 8 -p)
run -t 2 --temp 0 --json --think off -n 8 --system "$(cat "$work/rules")" -p 'Define river.'
want=$(stat_of logits_hash)
run -t 2 --temp 0 --json --think off "${store[@]}" 'Define tree.'
exits 0
check "the first prompt finds nothing" [ "$(stat_of reused_tokens)" = 0 ]
run -t 2 --temp 0 --json --think off "${store[@]}" 'Define river.' --cache-gb 0.004 --chunk 100
exits 0
check "the second reads the system message from disk" grep -q 'prefix store: [0-9]* tokens of [0-9]* read' "$work/err"
check "whole blocks of it" [ "$(stat_of reused_tokens)" -ge 1024 ]
check "with the same logits" [ "$(stat_of logits_hash)" = "$want" ]
block=$(find "$work/store" -name '*-000001-*')
printf 'x' | dd of="$block" bs=1 seek=100000 conv=notrunc status=none
run -t 2 --temp 0 --json --think off "${store[@]}" 'Define river.'
exits 0
check "a damaged block is named" grep -q 'warning: .*is damaged.*it is removed' "$work/err"
check "and computed" [ "$(stat_of reused_tokens)" = 512 ]
check "with the same logits again" [ "$(stat_of logits_hash)" = "$want" ]
check "and stored anew" [ -f "$block" ]
run -t 2 --session-dir "$work/store" --session-dir-gb 0.001 -p x
error_is_one_sentence 2 'no room for one block'
finish
