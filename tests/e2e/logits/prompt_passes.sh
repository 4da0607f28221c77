#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Prompts on a card in one pass against two (--exact-prompts), on the pocket model: the KL of the
# logits, greedy answers, and the experts that the routers chose. Where these differ it is a near
# tie: of a row's experts in a layer the last one alone is another. Skips without a card.
# shellcheck disable=SC2317 # functions called through check
# shellcheck source=tests/e2e/lib/lib.sh
. "$(dirname "$0")/../lib/lib.sh"
need_pocket

head -c 6000 src/GLOSSARY.md | "$GLMSTREAM" tokenize -m "$POCKET" >"$work/ids"
run dump-logits --backend cuda -m "$POCKET" --ids "$work/ids" --all -c 4096 --chunk 256 \
	-o "$work/one.f32" --taps "$work/one.taps"
[ "$rc" = 0 ] || ! grep -q '^glmstream: backend cuda' "$work/err" || skip "$(head -n 1 "$work/err")"
exits 0
run dump-logits --backend cuda -m "$POCKET" --ids "$work/ids" --all -c 4096 --chunk 256 \
	--exact-prompts -o "$work/two.f32" --taps "$work/two.taps"
exits 0
n_rows=$(wc -w <"$work/ids")
n_vocab=$(($(stat -c %s "$work/one.f32") / 4 / n_rows))
differ() {
	! cmp -s "$@"
}
check "the option has an effect" differ "$work/one.f32" "$work/two.f32"

run compare "$work/two.f32" "$work/one.f32" --vocab $n_vocab --json
exits 0
kl_is_small() {
	python3 -c 'import json, sys
r = json.load(open(sys.argv[1]))
kl, top1, rows = r["kl"], r["top1_agreement"], r["rows"]
print(f"KL(two passes || one) {kl:.3g} nats over {rows} rows, top-1 agreement {top1:.4f}")
sys.exit(not 0 < kl < 1e-5)' "$work/out"
}
check "KL of one pass below 1e-5 nats" kl_is_small

# near ties: a layer's sets of experts differ in one; and few of them do
routing_is_near() {
	python3 - "$work/two.taps" "$work/one.taps" <<'PYTHON'
import json, struct, sys

def router(path):
    data = open(path, "rb").read()
    n = struct.unpack("<Q", data[:8])[0]
    t = json.loads(data[8:8 + n])["router"]
    a, b = t["data_offsets"]
    ids = struct.unpack(f"<{(b - a) // 2}H", data[8 + n + a:8 + n + b])
    used = t["shape"][-1]
    return [set(ids[i:i + used]) for i in range(0, len(ids), used)], used

(two, used), (one, _) = router(sys.argv[1]), router(sys.argv[2])
differ = [len(a - b) for a, b in zip(two, one)]
swapped = sum(differ)
print(f"{swapped} of {len(two) * used} expert ids differ, at most {max(differ)} of a row's {used}")
sys.exit(len(two) != len(one) or max(differ) > 1 or swapped > 0.002 * len(two) * used)
PYTHON
}
check "experts differ at near ties alone" routing_is_near

# questions of more than 64 tokens, so that their prompts are computed in the way of prompts
text=$(head -c 700 src/GLOSSARY.md)
for word in river cloud table winter music; do
	for exact in "" --exact-prompts; do
		run -m "$POCKET" --backend cuda -q $exact --temp 0 -n 48 -p "$text Define $word."
		exits 0
		cp "$work/out" "$work/answer${exact:+.exact}"
	done
	check "the same greedy answer about $word" cmp "$work/answer" "$work/answer.exact"
done
finish
