#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Prompts on a card in one pass against two (--exact-prompts), on the pocket model. Skips without a
# card.
#
# Texts of 128 tokens, of which attention selects all positions. Rounding to 11 bits may choose
# another expert where two scores of a router are nearly equal; from there on the row, and those
# that attend to it, are other ones. So
#   - where a row's experts differ first, one of them is another: a near tie; all are counted;
#   - the KL is that of the rows before the first difference of their text.
# shellcheck disable=SC2317 # functions called through check
# shellcheck disable=SC2154 # rc and work are of lib.sh
# shellcheck source=tests/e2e/lib/lib.sh
. "$(dirname "$0")/../lib/lib.sh"
need_pocket
rows=128 n_texts=16

"$GLMSTREAM" tokenize -m "$POCKET" <src/GLOSSARY.md | tr ' ' '\n' | grep . >"$work/all"
dump() { # ids, name, options...
	run dump-logits --backend cuda -m "$POCKET" --ids "$1" --all -c 512 -o "$2.f32" \
		--taps "$2.taps" --force "${@:3}"
}
head -n $rows "$work/all" >"$work/ids"
dump "$work/ids" "$work/one"
[ "$rc" = 0 ] || ! grep -q '^glmstream: backend cuda' "$work/err" || skip "$(head -n 1 "$work/err")"
exits 0

# appends the rows before the first difference to same.one.f32 and same.two.f32, and counts
cut_text() {
	python3 - "$work" "$rows" <<'PYTHON'
import json, struct, sys

work, rows = sys.argv[1], int(sys.argv[2])

def router(name):
    data = open(f"{work}/{name}.taps", "rb").read()
    n = struct.unpack("<Q", data[:8])[0]
    t = json.loads(data[8:8 + n])["router"]
    a, b = t["data_offsets"]
    size = {"U8": 1, "U16": 2}[t["dtype"]]
    ids = struct.unpack("<%d%s" % ((b - a) // size, "BH"[size - 1]), data[8 + n + a:8 + n + b])
    _, layers, used = t["shape"]
    at = lambda r, l: set(ids[(r * layers + l) * used:(r * layers + l + 1) * used])
    return [[at(r, l) for l in range(layers)] for r in range(rows)], layers * used

(one, per_row), (two, _) = router("one"), router("two")
differ = [[len(a - b) for a, b in zip(x, y)] for x, y in zip(one, two)]
first = [next((d for d in row if d), 0) for row in differ]
same = next((r for r in range(rows) if first[r]), rows)
for name in ("one", "two"):
    data = open(f"{work}/{name}.f32", "rb").read()
    open(f"{work}/same.{name}.f32", "ab").write(data[:len(data) // rows * same])
open(f"{work}/counts", "a").write(
    f"{sum(map(sum, differ))} {rows * per_row} {max(first)} {same}\n")
PYTHON
}

for ((i = 0; i < n_texts; i++)); do
	tail -n +$((i * rows + 1)) "$work/all" | head -n $rows >"$work/ids"
	dump "$work/ids" "$work/one"
	exits 0
	dump "$work/ids" "$work/two" --exact-prompts
	exits 0
	check "the taps of text $i" cut_text
done
differ() {
	! cmp -s "$@"
}
check "the option has an effect" differ "$work/one.f32" "$work/two.f32"

n_vocab=$(($(stat -c %s "$work/one.f32") / 4 / rows))
run compare "$work/same.two.f32" "$work/same.one.f32" --vocab $n_vocab --json
exits 0
results_are_near() {
	python3 - "$work" $((rows * n_texts)) <<'PYTHON'
import json, sys

r = json.load(open(f"{sys.argv[1]}/out"))
counts = [list(map(int, line.split())) for line in open(f"{sys.argv[1]}/counts")]
other, ids = sum(c[0] for c in counts), sum(c[1] for c in counts)
worst, same, rows = max(c[2] for c in counts), sum(c[3] for c in counts), int(sys.argv[2])
print(f"KL(two passes || one) {r['kl']:.3g} nats over {same} of {rows} rows; {other} of {ids} "
      f"expert ids differ, at first at most {worst} of a row and layer")
sys.exit(not (0 < r["kl"] < 1e-5 and worst <= 1 and 4 * same > rows and other < 0.002 * ids))
PYTHON
}
check "KL of one pass below 1e-5 nats, and experts that differ at near ties alone" results_are_near

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
