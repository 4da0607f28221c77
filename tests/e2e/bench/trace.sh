#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# glmstream trace show and simulate on a small synthetic trace: figures, JSON, plot, refusals.
# shellcheck disable=SC2317 # functions called through check
# shellcheck source=tests/e2e/lib/lib.sh
. "$(dirname "$0")/../lib/lib.sh"
trace=tests/data/trace_small.gltr1

# hits of a policy in the JSON of the last run
hits() {
	sed -n "s/.*\"policy\": \"$1\", \"hits\": \([0-9]*\),.*/\1/p" "$work/out" | head -n 1
}

# what the independent simulator found for a pool of so many slots
reference() {
	sed -n "s/^rank one 0 $1 $2 15360 //p" tests/data/trace_small.expect
}

run trace show "$trace"
exits 0
check "show counts the tokens" grep -q '160 tokens, 15360 accesses' "$work/out"
run trace show shipped
exits 0
check "the shipped trace has a name" grep -q 'top 8 of 256' "$work/out"
run trace show "$trace" --json
exits 0
check "show --json is one object" grep -q '^{.*"tokens": 160.*}$' "$work/out"

for slots in 96 800; do
	for policy in lru lfu sieve belady belady-bypass; do
		run trace simulate "$trace" --experts "$slots" --policy "$policy" --json
		exits 0
		check "$policy with $slots slots hits as often as in the independent simulator" \
			[ "$(hits "$policy")" = "$(reference "$policy" "$slots")" ]
		check "slots and accesses are printed" grep -q "^{\"slots\": $slots, \"accesses\": 15360, " "$work/out"
	done
done
run trace simulate "$trace" --cache-gb 0.5,1,2 --ram-gb 0,1 --expert-bytes 1000000 --policy all --lookahead 1 \
	--disk-gb-s 5 --pcie-gb-s 50 --gpu-ms 20
exits 0
check "a table with every combination" [ "$(grep -c ' belady ' "$work/out")" = 6 ]
check "the model of the speeds is stated" grep -q 'overlap = the longest' "$work/out"

run trace simulate "$trace" --svg "$work/hits.svg"
exits 0
check "the plot is an SVG with a curve for every policy" [ "$(grep -c 'stroke-width="2"' "$work/hits.svg")" = 4 ]
check "the plot is well-formed" python3 -c "import sys, xml.dom.minidom as m; m.parse(sys.argv[1])" "$work/hits.svg"
check "lru has the colour that it has in every plot" grep -q '<g stroke="#0072b2" fill="#0072b2"><title>lru<' "$work/hits.svg"
run trace simulate "$trace" --svg "$work/lfu.svg" --policy lfu --force
exits 0
check "lfu too, alone" grep -q '<g stroke="#d55e00" fill="#d55e00"><title>lfu<' "$work/lfu.svg"
run trace simulate "$trace" --cache-gb 0.5 --expert-bytes 1000000 --policy lfu --disk-gb-s 1
exits 0
check "a link that is not given is no limit" grep -q 'PCIe no limit' "$work/out"
check "columns have units" grep -q 'overlap tok/s serial tok/s' "$work/out"
run trace simulate shipped --experts 400 --policy lfu --json
exits 0
check "the shipped trace has 1,536 tokens" grep -q '"tokens": 1536' "$work/out"

head -c 20000 "$trace" >"$work/cut"
run trace simulate "$work/cut" --experts 500 --json
exits 0
check "a trace that ends early is used, with a warning" grep -q '^warning: .*ends early: 104 of 160 tokens' "$work/err"

run trace
error_is_one_sentence 2 missing
run trace record "$work/a.trace" --trace "$work/b.trace" -p x -n 1
error_is_one_sentence 2 'trace record: .*a.trace" is the trace already'
run trace simulate "$trace" --experts 100 --policy lru --half-life 9
error_is_one_sentence 2 '^glmstream: --half-life is of the policy lfu'
run trace simulate "$trace" --experts 100 --prefetch-cold 9
error_is_one_sentence 2 '^glmstream: --prefetch-cold .* --lookahead'
run trace simulate "$trace" --experts 0
error_is_one_sentence 2 --experts
run trace simulate "$trace" --experts 5,,7
error_is_one_sentence 2 --experts
run trace simulate "$trace" --cache-gb 1
error_is_one_sentence 2 "no sizes of experts"
run trace simulate "$trace" --experts 100 --policy mru
error_is_one_sentence 2 mru
run trace simulate "$work/nowhere" --experts 100
error_is_one_sentence 3 nowhere
run trace simulate Makefile --experts 100
error_is_one_sentence 3 "not a trace"
run trace simulate "$trace" --cache-gb 0.0001 --expert-bytes 1000000
error_is_one_sentence 4 1000000

finish
