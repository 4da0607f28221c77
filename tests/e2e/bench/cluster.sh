#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# inspect --hosts N --cards M: the forecast of a cluster. Its measured figures stand in
# tests/bench/RESULTS.md, every option changes what it names, refusals say what would work.
# shellcheck disable=SC2317 # functions called through check
# shellcheck source=tests/e2e/lib/lib.sh
. "$(dirname "$0")/../lib/lib.sh"
need_pocket

# Python expressions over o, the JSON object of the run before, s1 and s64, its speeds, and a, its
# assumptions by name
holds() {
	python3 - "$work/out" "$@" <<'END'
import json, sys
o = json.load(open(sys.argv[1]))
s1, s64 = o["speeds"][0], o["speeds"][-1]
a = {x["name"]: x for x in o["assumptions"]}
wrong = [x for x in sys.argv[2:] if not eval(x)]
if wrong:
    print(wrong, s1, s64)
sys.exit(bool(wrong))
END
}

run inspect --hosts 1 --cards 2 --card H200
exits 0
says() { check "says $1" grep -qE -- "$1" "$work/out"; }
says '^forecast, not measured: GLM-5.2, recipe iq2 on 1 host of 2 cards: H200 of 141 GiB'
says '^  one stream +1[01][0-9] tok/s, [0-9.]+ ms a token: computing'
says '^  64 +streams +[0-9]+ tok/s in all'
says 'one micro-batch at a time: [0-9]+ tok/s'
says 'data sheet: https://.*h200'
says 'measured on two H200s: .*\[--hop-us\]'
says '^  TensorSharp +3 RTX PRO 6000 +IQ2_XXS +1 +43.9$'
says '^  a cluster +32 RTX 4090 +FP8 +64 +656..725$'
says 'RESULTS.md, experts IQ2_XXS'
says '^  iq2 +11 +64 +21.23 +[0-9.]+ +[+-][0-9.]+%'

run inspect --cards 2 --card H200 --json
exits 0
cp "$work/out" "$work/two"
in_results() { # every figure that is said to be measured, in its row
	python3 - "$work/two" tests/bench/RESULTS.md <<'END'
import json, re, sys
o, results = json.load(open(sys.argv[1])), open(sys.argv[2]).read()
wrong = 0
def number(value, text):
    form = f"{value:.1f}" if value < 1000 else f"{value:,.0f}"
    return re.search(rf"(?<![\d.,]){re.escape(form)}(?![.,]?\d)", text)
where = {"iq2": "computing alone {}[, ]", "q2": "Q2_K \\|.*; {} ms a token", "iq2-s": "{} ms a token of iq2-s"}
measured = [x for x in o["assumptions"] if "results_row" in x]
for x in measured:
    lines = [l for l in results.splitlines() if l.removeprefix("| ").startswith(x["results_row"])]
    if not any(number(x["value"], l[len(x["results_row"]):]) for l in lines):
        print("not in RESULTS.md:", x)
        wrong += 1
for s in o["measured_steps"]:
    row = where[s["recipe"]] if s["layers"] == 78 else rf"^\| {s['rows']} \|.*\| {{}} \|"
    rows = re.findall(row.format(re.escape(f"{s['measured_ms']:.2f}")), results, re.M)
    if not rows:
        print("not in RESULTS.md:", s)
        wrong += 1
    if abs(s["model_ms"] / s["measured_ms"] - 1) > 0.1:
        print("too far off:", s)
        wrong += 1
sys.exit(wrong > 0 or len(measured) < 6 or len(o["measured_steps"]) < 8)
END
}
check "RESULTS.md has the measured figures" in_results
for recipe in q2 iq2-s; do
	run inspect --cards 16 --card H200 --recipe $recipe --json
	exits 0
	cp "$work/out" "$work/two"
	check "and those of $recipe" in_results
done
run inspect --cards 2 --card H200 --json
check "two cards hold everything" holds 'o["everything_fits"] and all(s["experts_share"] == 1 for s in o["stages"])'
check "the layers lie on both" holds '[s["end_layer"] for s in o["stages"]] == [o["stages"][1]["first_layer"], 78]'
check "it is called modelled, and every figure has a source" holds 'o["modelled"] and all(x["source"] for x in o["assumptions"])'
check "many streams are faster in all and slower each" holds 's1["tok_s"] * 2 < s64["tok_s"] < 64 * s1["tok_s"]'
one=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["speeds"][0]["round_ms"])' "$work/out")
many=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["speeds"][1]["round_ms"])' "$work/out")

# option, name of the assumption, its value, how one stream and 64 change
option() {
	# shellcheck disable=SC2086 # several options
	run inspect --cards 2 --card H200 $1 --json
	exits 0
	check "$1 is listed as given, and changes what it names" holds \
		"a['$2']['source'] == 'as given' and abs(a['$2']['value'] - $3) < 1e-6 * max($3, 1)" "$4" "$5"
}
option "--card-gb-s 9600" "bandwidth of its memory" 9600 "s1['round_ms'] < $one * 0.52" "s64['round_ms'] < $many"
option "--gpu-ms 20" "computing of a token, one card" 20 "19.9 < s1['compute_ms'] < 20.1" "s64['round_ms'] > $many * 2"
option "--row-part 0" "a further row of a step adds" 0 "s1['round_ms'] == $one" "s64['round_ms'] < $many * 0.9"
option "--step-rows 4" "rows of a step, at most" 4 "s1['round_ms'] == $one" "s64['rows'] <= 4 and s64['micro_batches'] >= 16"
option "--hop-us 1036" "hand-over, latency" 1036 "abs(s1['round_ms'] - $one - 1) < 1e-6" "s64['round_ms'] > $many"
option "--pcie-gb-s 1" "link to a card" 1 "s1['round_ms'] > $one + 0.04" "s64['round_ms'] > $many"
option "--disk-gb-s 7" "drive of a host" 7 "s1['round_ms'] == $one" "o['load_seconds'] < 32"
option "--vram-gb 288" "memory of a card" 288 "s1['round_ms'] == $one" "s64['round_ms'] == $many"
run inspect --hosts 2 --card H200 --net-us 1020 --net-gb-s 1 --json
exits 0
check "between hosts: rows, and the command of a step" holds "2 < s1['round_ms'] - $one < 3"
check "and listed" holds "a['between hosts']['value'] == 1 and a['between hosts, latency']['source'] == 'as given'"

# --help names the values that are used
run inspect --help
for name in hop-us net-us net-gb-s row-part step-rows; do
	default=$(grep -A3 -E -- "--$name " "$work/out" | grep -oE '\(default: [0-9.]+' | head -n 1 | tr -dc 0-9.)
	cp "$work/out" "$work/help"
	run inspect --cards 2 --card H200 "--$name" "${default:-none}" --json
	exits 0
	check "--$name is $default if it is not given" holds "abs(s1['round_ms'] - $one) < 1e-9 and abs(s64['round_ms'] - $many) < 1e-9"
	cp "$work/help" "$work/out"
done

# caches that do not hold all experts
run inspect --cards 2 --card H200 --cache-gb 50 --streams 1 --json
exits 0
check "misses are waited for" holds 's1["waits_ms"] > 10 and len(o["speeds"]) == 1 and not o["everything_fits"]'
waits=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["speeds"][0]["waits_ms"])' "$work/out")
run inspect --cards 2 --card H200 --cache-gb 50 --streams 1 --ram-gb 90 --json
exits 0
check "the second tier spares the drive" holds "0 < s1['waits_ms'] < $waits / 2"
run inspect --cards 2 --card H200 --cache-gb 50 --streams 1 --lookahead 0 --json
exits 0
check "without lookahead they take longer" holds "s1['waits_ms'] > $waits"
run inspect "$POCKET" --cards 2 --vram-gb 8 --card-gb-s 10 --pcie-gb-s 10 --ctx 512 --json
exits 0
check "a file, experts at random: the shipped trace is not of it" holds 'o["routing"] == "random" and s1["distinct_experts"] == 4'

run inspect "$POCKET" --cards 2 --vram-gb 24 --card-gb-s 400 --ctx 512 --json
exits 0
check "a bandwidth that no card of the table has: no name of the table" holds 'o["card"] == ""'

# refusals
run inspect --cards 2 --card 4090 --vram-gb 12
error_is_one_sentence 4 'such cards are the least that work'
least=$(sed -n 's/.*hint: \([0-9]*\) such cards.*/\1/p' "$work/err")
run inspect --cards "$least" --card 4090 --vram-gb 12 --json
exits 0
check "the least works" holds 'not o["everything_fits"]'
run inspect --cards $((least - 1)) --card 4090 --vram-gb 12
error_is_one_sentence 4 "$least such cards are the least"
run inspect --hosts 10 --cards 8 --card H200
error_is_one_sentence 2 '78 layers at least, and 64 cards'
run inspect --cards 2
error_is_one_sentence 2 '--card H200'
run inspect --cards 2 --card H300
error_is_one_sentence 2 'not in the table.*H200'
run inspect --cards 2 --vram-gb 100
error_is_one_sentence 2 'no card of 100 GB'
run inspect --card H200
error_is_one_sentence 2 'glmstream: --[a-z-]+ needs --hosts N or --cards M'
run inspect --cards 2 --card H200 --measure
error_is_one_sentence 2 'this machine.*--disk-gb-s'
run inspect --cards 2 --card H200 --gpu-ms 0
error_is_one_sentence 2 '--gpu-ms: 0'
run inspect --cards 2 --card H200 --tensors
error_is_one_sentence 2 '--tensors'
run inspect --cards 2 --card H200 --cache-gb 10,20
error_is_one_sentence 2 'one size each'
run inspect --cards 2 --card H200 --streams 1000 --ctx 16
error_is_one_sentence 3 '1536 decode steps'
run inspect --cards 2 --card H200 --policy belady
error_is_one_sentence 2 belady
run inspect "$POCKET" --cards 2 --card H200 --recipe q2
error_is_one_sentence 2 'one of them'
run inspect "$POCKET" --cards 2 --card H200 --ctx 512 --trace shipped
error_is_one_sentence 3 'another model'
run inspect --cards 2 --card H200 --cache-gb 50 --trace random
error_is_one_sentence 3 '--trace FILE'
finish
