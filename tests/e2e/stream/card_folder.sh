#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# What a card makes of a checkpoint's folder in FP8 with block scales: logits near the CPU's, in
# steps of few rows and in prompts; the same bits for every size of cache. And what `imatrix`
# collects on a card: numpy's sums, the same bytes for every size of cache. Skips without a card.
# shellcheck disable=SC2317 # functions called through check
# shellcheck disable=SC2154 # rc and work are of lib.sh
# shellcheck source=tests/e2e/lib/lib.sh
. "$(dirname "$0")/../lib/lib.sh"
need_pocket

python3 -c 'import random; r = random.Random(5); print(*[r.randrange(500) for _ in range(200)])' >"$work/ids"
dump() { # name of the result, model, arguments
	run dump-logits -m "$work/$2" --ids "$work/ids" --all -c 256 -o "$work/$1.f32" --force "${@:3}"
}
# With random weights some experts nearly tie, and a rounding decides which is chosen. A row with
# another expert differs, and the rows that attend to it. So the first 8 rows must agree closely and
# nine tenths of all rows roughly.
rows_are_near() { # least cosine of the first 8 rows
	python3 - "$work/out" "$1" <<-'END'
	import json, sys
	rows = json.load(open(sys.argv[1]))["per_row"]
	cosines = [r["cosine"] for r in rows]
	near = sum(c > 0.999 for c in cosines)
	print(f"least of the first 8 {min(cosines[:8])}, {near} of {len(cosines)} above 0.999")
	sys.exit(not (min(cosines[:8]) >= float(sys.argv[2]) and near >= 0.9 * len(cosines)))
	END
}
for shape in tiny ragged; do
	name=$shape-fp8
	python3 tests/e2e/convert/gen_checkpoint.py "$work/$name" --dtype fp8 --shape $shape --vocab 8192 \
		--tokenizer tests/data/tokenizer/pocket-tokenizer.json >"$work/gen" || wrong "the generator failed"
	dump cpu $name --backend cpu
	exits 0
	for how in "--chunk 4" "--chunk 200" "--chunk 200 --exact-prompts"; do
		# shellcheck disable=SC2086 # words
		dump card $name --backend cuda $how
		[ "$rc" = 0 ] || ! grep -q '^glmstream: backend cuda' "$work/err" || skip "$(head -n 1 "$work/err")"
		exits 0
		run compare "$work/cpu.f32" "$work/card.f32" --vocab 8192 --json
		exits 0
		check "$name $how: the card's logits are near the CPU's" rows_are_near 0.9999
		for cache in "--cache-gb 0.0016" "--cache-gb 0.0016 --ram-gb 0.001"; do
			# shellcheck disable=SC2086 # words
			dump streamed $name --backend cuda $how $cache
			exits 0
			check "$name $how $cache: the same bits" cmp "$work/card.f32" "$work/streamed.f32"
		done
	done
done

text=tools/pocket/LICENSE.wordnet
collect() { # name of the result, arguments
	run imatrix --backend cuda -m "$POCKET" -f "$text" -c 160 -q -o "$work/$1.gguf" "${@:2}"
	exits 0
}
collect exact --kv-f32 --exact-prompts # one pass chooses other experts at near ties
check "numpy's sums" python3 tests/e2e/convert/imatrix.py reference "$work/exact.gguf" 1e-4
collect whole
collect streamed --cache-gb 0.006 --ram-gb 0.003 --save-every 1
check "the same sums with experts streamed" cmp "$work/whole.gguf" "$work/streamed.gguf"
finish
