#!/bin/sh
# SPDX-License-Identifier: MIT
# The pocket checkpoint, converted by our converter and run by our engine on the CPU in float32, against the results of
# Hugging Face transformers 5.17 (reference.json, reference.safetensors beside the checkpoint); then what each recipe costs:
# mean KL(bf16 || recipe) over all rows of the prompts under 200 tokens. Needs ../shared/pocket (or POCKET_SRC), else skips.
set -eu
build=${BUILD:-build/release}
src=${POCKET_SRC:-../shared/pocket}
glm=$build/glmstream
if [ ! -f "$src/reference.safetensors" ]; then
	echo "skipped: no checkpoint at $src"
	exit 77
fi
command -v python3 >/dev/null || { echo "skipped: no python3"; exit 77; }
dir=$(mktemp -d "${TMPDIR:-/tmp}/glmstream-parity.XXXXXX")
trap 'rm -rf "$dir"' EXIT INT TERM

"$glm" convert "$src" -o "$dir/bf16.gguf" --recipe bf16 >/dev/null 2>&1
"$build/tests/test_forward_golden" "$dir/bf16.gguf" "$src/reference"

python3 - "$src/reference.json" "$dir" <<'EOF'
import json, sys
for name, v in json.load(open(sys.argv[1], encoding="utf-8")).items():
    if len(v["ids"]) < 200:
        open(f"{sys.argv[2]}/{name}.ids", "w").write(" ".join(map(str, v["ids"])))
EOF

rows() { # recipe: the logits of every row of every prompt
	for ids in "$dir"/*.ids; do
		"$glm" dump-logits -q -m "$dir/$1.gguf" --backend cpu --kv-f32 --ids "$ids" --all -o "$ids.$1.f32" >/dev/null
	done
	cat "$dir"/*.ids."$1".f32 >"$dir/$1.f32"
	rm -f "$dir"/*.ids."$1".f32
}

rows bf16
status=0
for recipe in q8:0.004 q4:0.015 q2:0.11 iq2:none; do
	limit=${recipe#*:}
	recipe=${recipe%:*}
	"$glm" convert "$src" -o "$dir/$recipe.gguf" --recipe "$recipe" >/dev/null 2>&1
	rows "$recipe"
	"$glm" compare "$dir/bf16.f32" "$dir/$recipe.f32" --vocab 8192 --json >"$dir/$recipe.json"
	python3 - "$dir/$recipe.json" "$recipe" "$limit" "$(stat -c %s "$dir/$recipe.gguf")" <<'EOF' || status=1
import json, sys
r, (recipe, limit, size) = json.load(open(sys.argv[1])), sys.argv[2:]
kl = r["kl"]
print(f"{recipe:4s} KL(bf16 || {recipe}) {kl:.5f} nats over {r['rows']} rows (limit {limit}), top-1 agreement "
      f"{r['top1_agreement']:.4f}, {int(size) / 1e6:.2f} MB")
sys.exit(limit != "none" and not kl <= float(limit))
EOF
	rm -f "$dir/$recipe.gguf" "$dir/$recipe.f32"
done
exit $status
