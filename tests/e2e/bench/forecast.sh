#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# inspect --trace: what it foretells for a budget is what a run with that budget then finds;
# refusals. bench decode with a cache: every figure is there, and logits do not depend on it.
# shellcheck disable=SC2317 # functions called through check
# shellcheck source=tests/e2e/lib/lib.sh
. "$(dirname "$0")/../lib/lib.sh"
need_pocket
export RUN_LIMIT=600

head -n 6 tests/data/pocket_ids.txt >"$work/ids" # 144 tokens, each a decode step
run dump-logits -m "$POCKET" --ids "$work/ids" --chunk 1 --lookahead 2 --trace "$work/all" -o "$work/x.f32" --force
exits 0
run inspect "$POCKET" --trace "$work/all" --cache-gb 0.004,0.008,1 --json
exits 0
cp "$work/out" "$work/forecast"

foretold() { # the n-th budget of the forecast, trace of a run with it
	"$GLMSTREAM" trace show "$2" --json >"$work/show" || return 1
	python3 - "$work/forecast" "$1" "$work/show" <<'EOF'
import json, sys
p = json.load(open(sys.argv[1]))["trace_forecast"]["budgets"][int(sys.argv[2])]
f = json.load(open(sys.argv[3]))["found_in"]
real = f["cache"] / (f["cache"] + f["ram"] + f["disk"])
print(f"{p['cache_gb']} GB: foretold {p['hit_rate']}, found {real}")
sys.exit(abs(p["hit_rate"] - real) > 1e-9 or "tok_s" in p)
EOF
}
n=0
for budget in 0.004 0.008; do
	run dump-logits -m "$POCKET" --ids "$work/ids" --chunk 1 --cache-gb $budget --trace "$work/t$n" -o "$work/x.f32" --force
	exits 0
	check "hits with $budget GB are those foretold" foretold $n "$work/t$n"
	n=$((n + 1))
done
check "a budget above everything is capped" python3 -c '
import json, sys
o = json.load(open(sys.argv[1]))
b = o["trace_forecast"]["budgets"][2]
sys.exit(not 0.014 < b["cache_gb"] < 0.02)' "$work/forecast"

run inspect "$POCKET" --trace "$work/all" --cache-gb 0.004 --disk-gb-s 1 --gpu-ms 2
exits 0
check "what is modelled is called that" grep -q 'modelled, not measured' "$work/out"
speed_follows() { # 2 ms and the bytes of the row at 1 GB/s
	awk '$1 == "0.004" { ms = 2 + $4; d = $5 - 1000 / ms; found = d < 0.5 && d > -0.5 } END { exit !found }' "$work/out"
}
check "tokens per second follow from the rates given" speed_follows
run inspect "$POCKET" --trace "$work/all" --cache-gb 0.004 --measure --gpu-ms 2
exits 0
check "the drive is measured when asked" grep -qE 'drive measured +[0-9.]*[1-9]' "$work/out"

run inspect "$POCKET" --trace "$work/all" --cache-gb 0.002 --ram-gb 0.012 --measure --pcie-gb-s 0.5
exits 0
check "with a link and a second tier the processor is measured, type by type" \
	grep -qE 'processor +measured.*Q3_K.* [0-9.]*[1-9][0-9.]* GB/s' "$work/out"
check "what it is held against is named" grep -qE 'GB/s by the processor, 0.5 over the link' "$work/out"
speed() { # of one budget, with these options
	"$GLMSTREAM" inspect "$POCKET" --trace "$work/all" --cache-gb 0.002 --ram-gb 0.012 --disk-gb-s 5 \
		--pcie-gb-s 0.5 --json "$@" | python3 -c '
import json, sys
print(json.load(sys.stdin)["trace_forecast"]["budgets"][0]["tok_s"])'
}
faster() { [ "$(python3 -c "print($(speed --cpu-gb-s 2) > 1.5 * $(speed))")" = True ]; }
check "a processor of four times the link makes the forecast faster" faster
run inspect "$POCKET" --trace "$work/all" --cache-gb 0.004 --disk-gb-s 1 --cpu-gb-s 2
error_is_one_sentence 2 "--pcie-gb-s"
run inspect "$POCKET" --trace "$work/all" --cache-gb 0.004 --ram-gb 1 --pcie-gb-s 1 --cpu-gb-s 2
error_is_one_sentence 2 "--disk-gb-s"

run inspect "$POCKET" --vram-gb 16 --ctx 512
exits 0
check "what fits a card of 16 GB with 512 tokens" grep -A1 '^what fits (context 512' "$work/out"
check "one row for one card" [ "$(grep -A9 '^what fits' "$work/out" | grep -c ' GB  ')" = 1 ]
run inspect "$POCKET" --vram-gb 0.5
exits 0
check "of a card that is too small it says why" grep -q 'too small: .*are free' "$work/out"
run inspect "$POCKET" --ctx 100000
error_is_one_sentence 2 "--ctx"
run bench
exits 0
check "bench alone says what there is" grep -q '^Usage: glmstream bench read|copy|ops' "$work/out"
run inspect "$POCKET" --ram-gb 1
error_is_one_sentence 2 '^glmstream: --ram-gb needs --trace FILE'
run inspect "$POCKET" --trace "$work/all" --pcie-gb-s 9
error_is_one_sentence 2 '^glmstream: --pcie-gb-s is of use only with'
run inspect "$POCKET" --cache-gb 0.004
error_is_one_sentence 2 "--trace"
run inspect "$POCKET" --trace "$work/all" --cache-gb 0.001
error_is_one_sentence 4 "smallest that works"
least=$(sed -n 's/.*smallest that works is \([0-9.]*\) GB.*/\1/p' "$work/err")
run inspect "$POCKET" --trace "$work/all" --cache-gb "$least"
exits 0
run inspect "$POCKET" --trace "$work/all" --policy belady
error_is_one_sentence 2 belady
run inspect "$POCKET" --trace "$work/all" --gpu-ms 4
error_is_one_sentence 2 "--disk-gb-s"
run inspect "$POCKET" --trace tests/data/trace_small.gltr1
error_is_one_sentence 3 "another model"
run inspect "$POCKET" --trace Makefile
error_is_one_sentence 3 "not a trace"

run bench decode -m "$POCKET" --cache-gb 0.004 --lookahead 3 -p 16 -n 16 --repeats 2 --seconds 0.05 --mb 16
exits 0
for ahead in 0 1 2 3; do
	check "bench decode tells how far lookahead $ahead is from the bound" \
		grep -qE "lookahead $ahead: .* times the bound of .* \(computing .*, reading .*\)" "$work/out"
done
check "hits per tier" grep -q 'lookahead 0: experts in tier 0' "$work/out"
check "waits" grep -q 'lookahead 2: waited for experts' "$work/out"
run bench decode -m "$POCKET" --cache-gb 0.004 --ram-gb 0.004 -p 16 -n 16 --repeats 1 --seconds 0.05 --mb 16 --json
exits 0
check "one JSON object" last_line_is_json "$work/out" figures
check "the second tier is shown" grep -q 'lookahead 1: experts in tier 1' "$work/out"
run bench decode -m "$POCKET" -p 16 -n 16 --repeats 1 --mb 16
exits 0
check "without a cache there is nothing streamed" [ "$(grep -c '^stream' "$work/out")" = 0 ]

finish
