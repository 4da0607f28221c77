#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The pocket checkpoint, converted by our converter and run by our engine on the CPU in float32,
# against the results of Hugging Face transformers 5.17 (reference.json, reference.safetensors
# beside the checkpoint); then what each recipe costs: mean KL(bf16 || recipe) over all rows of the
# prompts under 200 tokens, and that types chosen for the bytes of a recipe cost no more. Needs
# ../shared/pocket2 (or POCKET_SRC), else skips.
# shellcheck disable=SC2317 # functions called through check
# shellcheck source=tests/e2e/lib/lib.sh
. "$(dirname "$0")/../lib/lib.sh"
src=${POCKET_SRC:-../shared/pocket2}
[ -f "$src/reference.safetensors" ] || skip "no checkpoint at $src"
export RUN_LIMIT=600

run convert "$src" -o "$work/bf16.gguf" --recipe bf16 -q
exits 0
check "logits of transformers" "$(dirname "$GLMSTREAM")/tests/test_forward_golden" \
	"$work/bf16.gguf" "$src/reference"
# the folder as it is has the bits of that file, so its logits are those of transformers too
seq 1 60 >"$work/ids"
run dump-logits -m "$work/bf16.gguf" --ids "$work/ids" --all -o "$work/file.f32"
exits 0
run dump-logits -m "$src" --ids "$work/ids" --all -o "$work/folder.f32" --cache-gb 0.05
exits 0
check "the folder itself" cmp "$work/file.f32" "$work/folder.f32"

case $GLMSTREAM in
*/san-*) # every row of every prompt by nine files: values, about which a sanitizer says nothing
	skip_part "what recipes cost: a sanitizer build takes too long"
	finish
	;;
esac

python3 - "$src/reference.json" "$work" <<'EOF'
import json, sys
for name, v in json.load(open(sys.argv[1], encoding="utf-8")).items():
    if len(v["ids"]) < 200:
        open(f"{sys.argv[2]}/{name}.ids", "w").write(" ".join(map(str, v["ids"])))
EOF

rows() { # recipe: the logits of every row of every prompt
	local ids
	for ids in "$work"/*.ids; do
		run dump-logits -q -m "$work/$1.gguf" --backend cpu --kv-f32 --ids "$ids" --all \
			-o "$ids.$1.f32"
		exits 0
	done
	cat "$work"/*.ids."$1".f32 >"$work/$1.f32"
	rm -f "$work"/*.ids."$1".f32
}

# The KL of the last comparison is below the limit; "none": it is only printed.
kl_is_below() { # recipe, limit
	python3 - "$work/out" "$1" "$2" "$(stat -c %s "$work/$1.gguf")" <<'EOF'
import json, sys
r, (recipe, limit, size) = json.load(open(sys.argv[1])), sys.argv[2:]
kl = r["kl"]
print(f"{recipe:5s} KL(bf16 || {recipe}) {kl:.5f} nats over {r['rows']} rows (limit {limit}), "
      f"top-1 agreement {r['top1_agreement']:.4f}, {int(size) / 1e6:.2f} MB")
sys.exit(limit != "none" and not kl <= float(limit))
EOF
}

# Types chosen for the bytes of a recipe cost no more than the recipe.
target_is_better() { # recipe, its bytes; $work/out is its comparison
	local limit
	limit=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["kl"])' "$work/out")
	run convert "$src" -o "$work/for-$1.gguf" -q \
		--target-gb "$(python3 -c 'import sys; print("%.9f" % (int(sys.argv[1]) * 1e-9))' "$2")"
	exits 0
	check "no more bytes than $1" [ "$(stat -c %s "$work/for-$1.gguf")" -le "$2" ]
	rows "for-$1"
	run compare "$work/bf16.f32" "$work/for-$1.f32" --vocab 8192 --json
	exits 0
	check "KL at the bytes of $1" kl_is_below "for-$1" "$limit"
	rm -f "$work/for-$1.gguf" "$work/for-$1.f32"
}

rows bf16
for recipe in q8:0.004 q4:0.018 q2:0.11 q2-s:0.11 iq2:none iq2-s:0.14 iq2-t:0.16; do
	limit=${recipe#*:}
	recipe=${recipe%:*}
	run convert "$src" -o "$work/$recipe.gguf" --recipe "$recipe" -q
	exits 0
	rows "$recipe"
	run compare "$work/bf16.f32" "$work/$recipe.f32" --vocab 8192 --json
	exits 0
	check "KL of $recipe" kl_is_below "$recipe" "$limit"
	size=$(stat -c %s "$work/$recipe.gguf")
	rm -f "$work/$recipe.gguf" "$work/$recipe.f32"
	case $recipe in q2 | iq2 | q4) ;; *) continue ;; esac
	target_is_better "$recipe" "$size"
done
finish
