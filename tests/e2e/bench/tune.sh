#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# glmstream tune: measures, records, models, runs two settings, recommends one that then works; says
# so when there is nothing to tune. Not which setting wins: that depends on the machine.
# shellcheck disable=SC2317 # functions called through check
# shellcheck source=tests/e2e/lib/lib.sh
. "$(dirname "$0")/../lib/lib.sh"
need_pocket
export RUN_LIMIT=600 TMPDIR=$work

run tune -m "$POCKET"
exits 0
check "a model that fits needs no tuning" grep -q '^Nothing to tune: all experts' "$work/out"
run tune -m "$POCKET" --json --cache-gb 1
exits 0
check "and in JSON" grep -q '"nothing_to_tune": true' "$work/out"

printf 'Define river.\n\nWhat is 12 + 30?\r\n' >"$work/questions"
run tune -m "$POCKET" -f "$work/questions" -n 16 --cache-gb 0.006 --trace "$work/t" --svg "$work/speeds.svg" --json
exits 0
cp "$work/out" "$work/json"
consistent() { # the figures of a report agree with each other and with the trace
	python3 - "$work/json" <<'EOF'
import json, sys
o = json.load(open(sys.argv[1]))
m, points, tried = o["machine"], o["points"], o["measured"]
assert not o["nothing_to_tune"] and m["disk_gb_s"] >= m["disk_gb_s_one"] > 0 and m["copy_gb_s"] > 0 and m["compute_ms"] > 0
budgets = sorted({p["cache_gb"] for p in points})
assert budgets[-1] == 0.006 and len(budgets) >= 3, budgets
assert {p["policy"] for p in points} == {"lru", "lfu", "sieve"} and {p["lookahead"] for p in points} == {0, 1, 2, 3}
for p in points:
    assert 0 <= p["hit_rate"] <= 1 and p["tok_s_modelled"] > 0
    assert p["tok_s_modelled"] <= 1e3 / m["compute_ms"] * 1.0001, p
    if p["lookahead"] == 0:  # nobody computes while a layer waits: the drive's rates bound the model from both sides
        for rate, side in (m["disk_gb_s_one"], 1), (m["disk_gb_s"], -1):
            ms = m["compute_ms"] + p["bytes_read_per_token"] / rate / 1e6
            assert side * (1e3 / p["tok_s_modelled"] - ms) <= 1e-4 * ms, (p, ms)
lru = [p["hit_rate"] for p in points if p["policy"] == "lru" and p["lookahead"] == 0]
assert lru[-1] > lru[0], lru
best = max(p["tok_s_modelled"] for p in points if p["cache_gb"] == 0.006)
assert len(tried) == 2 and max(t["tok_s_modelled"] for t in tried) == best and all(t["tok_s"] > 0 for t in tried)
a, b = sorted(tried, key=lambda t: -t["tok_s"])
equal = a["tok_s"] < 1.03 * b["tok_s"]
assert equal == o["equal"]
effort = lambda t: (t["lookahead"], ("lfu", "lru", "sieve").index(t["policy"]))
pick = min(tried, key=effort) if equal else a
want = f"--cache-gb 0.006 --policy {pick['policy']} --lookahead {pick['lookahead']}"
assert o["recommended"] == want, (o["recommended"], want)
assert budgets[0] <= o["enough_cache_gb"] + 1e-9 and o["enough_cache_gb"] <= 0.006
EOF
}
check "budgets, model, measurement and recommendation agree" consistent
check "a plot with four curves" [ "$(grep -c 'stroke-width="2"' "$work/speeds.svg")" = 4 ]
check "the plot is well-formed" python3 -c "import sys, xml.dom.minidom as m; m.parse(sys.argv[1])" "$work/speeds.svg"
check "its axis begins at 0" grep -q 'text-anchor="end">0<' "$work/speeds.svg"
check "no temporary trace is left" [ -z "$(find "$work" -name 'glmstream-tune-*')" ]
flags=$(sed -n 's/.*"recommended": "\([^"]*\)".*/\1/p' "$work/json")
# shellcheck disable=SC2086 # words
run run -m "$POCKET" -p "Define river." -n 8 --temp 0 --think off $flags
exits 0

run trace show "$work/t" --json
exits 0
check "the trace was kept where --trace said" grep -q '"complete": true' "$work/out"
before=$(cksum <"$work/t")
run tune -m "$POCKET" --trace "$work/t" -n 2 --cache-gb 0.004 --ram-gb 0.004 -t 1
exits 0
check "a trace that is there is replayed" grep -q "modelled from $work/t: " "$work/out"
check "and left alone" [ "$(cksum <"$work/t")" = "$before" ]
check "the recommendation names both tiers" grep -qE '^recommended: --cache-gb 0.004 --ram-gb 0.004 --policy [a-z]+ --lookahead [0-3]$' "$work/out"
check "two settings are measured" [ "$(grep -c 'tok/s (modelled ' "$work/out")" = 2 ]
run tune -m "$POCKET" -n 2 --cache-gb 0.004 --ram-gb auto --io threads --json
exits 0
check "no option is said to have no effect" [ "$(grep -c '^warning' "$work/err")" = 0 ]
check "a trace of our own making is temporary" [ -z "$(find "$work" -name 'glmstream-tune-*')" ]
check "--ram-gb auto is what a run takes: nothing on the CPU" grep -qE '"recommended": "--cache-gb 0.004 --policy [a-z]+ --lookahead [0-3]"' "$work/out"
check "without a card the processor is not tried beside one" [ "$(grep -o '"cpu_experts": false' "$work/out" | wc -l)" = 2 ]
run tune -m "$POCKET" --cpu-experts auto
error_is_one_sentence 2 'cpu-experts'

# the disk is full in the middle of the recording
(
	trap '' XFSZ
	ulimit -f 2
	run tune -m "$POCKET" -n 16 --cache-gb 0.004 -q
	error_is_one_sentence 1 'cannot write the trace'
	[ $n_wrong = 0 ]
) || n_wrong=$((n_wrong + 1))
check "nothing of it is left when it fails" [ -z "$(find "$work" -name 'glmstream-tune-*')" ]

run tune -m "$POCKET" --cache-gb 0.001
error_is_one_sentence 4 '--cache-gb: 0.0010 GB are too few, at least 0.0014 are needed'
run tune -m "$POCKET" --cache-gb 0.004 -n 5000
error_is_one_sentence 2 'prompt and 5000 new tokens do not fit the context of 4096'
check "that is said before the trace is recorded" [ "$(grep -c recording "$work/err")" = 0 ]
run tune -m "$POCKET" --cache-gb 0
error_is_one_sentence 2 cache-gb
run tune -m "$POCKET" -f "$work/none"
error_is_one_sentence 3 none
: >"$work/empty"
run tune -m "$POCKET" -f "$work/empty"
error_is_one_sentence 3 "no prompts"
run tune -m "$POCKET" --cache-gb 0.004 --trace tests/data/trace_small.gltr1
error_is_one_sentence 3 "another model"
run tune -m "$POCKET" --lookahead 2
error_is_one_sentence 2 lookahead

finish
