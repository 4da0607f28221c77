#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# --draft through the program: the same text and the same bits of logits with any number of drafts,
# at every temperature, with small caches, a schema and a chat; what statistics say of it.
# shellcheck disable=SC2317 # functions called through check
# shellcheck source=tests/e2e/lib/lib.sh
. "$(dirname "$0")/../lib/lib.sh"
need_pocket

stats() { # python expression over the object `o` of the last answer's statistics
	grep '^{' "$work/err" | tail -n 1 | python3 -c 'import json, sys
o = json.loads(sys.stdin.read())
sys.exit(0 if eval(sys.argv[1]) else str(o))' "$1"
}

hash_of() {
	grep '^{' "$work/err" | tail -n 1 | sed 's/.*"logits_hash": "\([0-9a-f]*\)".*/\1/'
}

# same_with ARGS...: the answer without drafts, then with them
accepted=0
same_with() {
	run -t 2 --json -q --draft off "$@"
	exits 0
	cp "$work/out" "$work/plain"
	local plain mode
	plain=$(hash_of)
	check "without drafts there are no figures of them" stats 'o["drafts"] is None'
	for mode in auto 1 4 7; do
		run -t 2 --json -q --draft $mode "$@"
		exits 0
		check "--draft $mode: the same text" cmp -s "$work/plain" "$work/out"
		check "--draft $mode: the same logits" [ "$(hash_of)" = "$plain" ]
		[ $mode = auto ] || check "--draft $mode verifies drafts" stats 'sum(o["drafts"]["tried"]) > 0'
		check "--draft $mode: the figures agree" stats 'all((
			sum(o["drafts"]["tried"]) == sum(o["drafts"][s]["tried"] for s in ("lookup", "mtp")),
			sum(o["drafts"]["accepted"]) == sum(o["drafts"][s]["accepted"] for s in ("lookup", "mtp")),
			1 <= o["drafts"]["tokens_per_step"] <= o["drafts"]["rows_per_step"] <= 8))'
		stats 'sum(o["drafts"]["accepted"]) > 0' && accepted=$((accepted + 1))
	done
}

same_with -p 'Define river.' --think off --temp 0
same_with -p 'Tell me a story.' --temp 0.7 --seed 3 -n 40
same_with -p 'Tell me a story.' --temp 1 --top-p 1 --seed 4 -n 40
same_with -p 'Define mountain.' --think off --temp 1.5 --seed 5 -n 40
same_with -p 'Define tree.' --think off --temp 1 --seed 6 -n 40 --cache-gb 0.003
same_with -p 'Define tree.' --think off --temp 0 --repeat-penalty 1.2 --frequency-penalty 0.5 -n 40
same_with --raw -p 'a b c d e f g a b c d e f g a b c d e' --temp 0 -n 40 -c 60
cat >"$work/schema.json" <<'END'
{"type": "object", "properties": {"word": {"type": "string"}, "kinds": {"type": "array",
 "items": {"enum": ["noun", "verb"]}, "maxItems": 3}}, "required": ["word", "kinds"]}
END
same_with -p 'Define river.' --json-schema "$work/schema.json" --temp 1 --seed 7 -n 60
check "drafts were right in most of these" [ $accepted -ge 12 ]

# a chat: later answers repeat earlier ones
printf 'Define river.\nDefine river.\nDefine river.\n' >"$work/lines"
run -t 2 --think off --temp 0 -q --json --draft off <"$work/lines"
cp "$work/out" "$work/plain"
plain=$(hash_of)
run -t 2 --think off --temp 0 -q --json --draft 5 <"$work/lines"
check "a chat: the same text" cmp -s "$work/plain" "$work/out"
check "a chat: the same logits" [ "$(hash_of)" = "$plain" ]
check "prompt lookup is right there" stats 'o["drafts"]["lookup"]["accepted"] > 8'

# the draft layer is loaded only when it may be used
run -p hi -n 1 --draft off
check "--draft off leaves the MTP layer" grep -q '7 layers, 32 experts' "$work/err"
run -p hi -n 1
check "by default it is loaded" grep -q '7 layers + MTP' "$work/err"
echo 1 2 3 >"$work/ids"
run perplexity -f "$work/ids"
check "perplexity leaves it" grep -q '7 layers, 32 experts' "$work/err"
run dump-logits --ids "$work/ids" -o "$work/logits"
check "dump-logits leaves it" grep -q '7 layers, 32 experts' "$work/err"
run dump-logits --ids "$work/ids" -o "$work/logits" --mtp-steps 1 --force
check "but where its drafts are wanted" grep -q '7 layers + MTP' "$work/err"

run -p hi --draft 8
error_is_one_sentence 2 'draft'
run -p hi --draft fast
error_is_one_sentence 2 'draft'
run --help
run run --help
check "the help has it" grep -q -- '--draft N|auto|off' "$work/out"

finish
