#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# How often the lookahead predicts the experts that a later layer then uses: on the pocket model,
# token after token over 2,048 ids, against the recall that tests/golden/lookahead_ref.py computes
# over the same ids and the unquantised weights (in numpy; the program predicts before the shared
# expert, so its recall is a little lower). And the hit rates of that routing.
# shellcheck disable=SC2317 # functions called through check
# shellcheck source=tests/e2e/lib/lib.sh
. "$(dirname "$0")/../lib/lib.sh"
need_pocket
ids=tests/data/pocket_ids.txt
export RUN_LIMIT=1500

run dump-logits -m "$POCKET" --ids "$ids" --chunk 1 --lookahead 3 --trace "$work/t" -o "$work/logits"
exits 0
run trace show "$work/t" --json
exits 0
cp "$work/out" "$work/show.json"
check "every token is a decode step of its own" grep -q '"tokens": 2048, "accesses": 49152' "$work/show.json"

recall_is() { # distance, reference
	python3 - "$work/show.json" "$1" "$2" <<'EOF'
import json, sys
look = {x["distance"]: x["recall"] for x in json.load(open(sys.argv[1]))["lookahead"]}
got, want = look[int(sys.argv[2])], float(sys.argv[3])
print(f"+{sys.argv[2]}: recall {100 * got:.1f} %, reference {100 * want:.1f} %")
sys.exit(abs(got - want) > 0.02)
EOF
}
check "recall one layer ahead" recall_is 1 0.7409
check "recall two layers ahead" recall_is 2 0.5743
check "recall three layers ahead" recall_is 3 0.4709

run trace simulate "$work/t" --policy lru,lfu,sieve,belady --svg "$work/hits.svg" --json
exits 0
cp "$work/out" "$work/sim.json"
curves_make_sense() { # hits grow with the budget; nobody beats Belady; repeating tokens make a cache worth having
	python3 - "$work/sim.json" <<'EOF'
import json, sys
bad = 0
last = {}
for b in json.load(open(sys.argv[1]))["budgets"]:
    rate = {r["policy"]: r["hit_rate"] for r in b["results"]}
    print(b["slots"], " ".join(f"{p} {100 * v:.1f}" for p, v in rate.items()))
    bad += any(v > rate["belady"] + 1e-9 for v in rate.values())
    bad += rate["belady"] < last.get("belady", 0) or rate["lru"] < last.get("lru", 0)
    last = rate
sys.exit(bad > 0 or len(last) != 4)
EOF
}
check "hit rates of lru, lfu, sieve and belady" curves_make_sense
check "the plot has a curve for every policy" [ "$(grep -c 'stroke-width="2"' "$work/hits.svg")" = 4 ]

finish
