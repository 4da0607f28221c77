#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# What export writes is loaded by Hugging Face transformers: BF16 and F32 have the logits of the
# checkpoint that was converted, to the last bit; packed types have those that this program
# computes. Skips without torch and transformers (some GB from PyPI, so not a step of CI);
# TRANSFORMERS_PYTHON names a Python that has them.
# shellcheck disable=SC2317 # functions called through check
# shellcheck source=tests/e2e/lib/lib.sh
. "$(dirname "$0")/../lib/lib.sh"
here=tests/e2e/convert
python=${TRANSFORMERS_PYTHON:-python3}
"$python" -c 'import torch, transformers' 2>/dev/null || skip "no torch and transformers in $python"
export RUN_LIMIT=600 HF_HUB_OFFLINE=1

looked_at() { # same|near, folder, other
	"$python" "$here/export_transformers.py" "$@" "$work/ids" >>"$work/err" 2>&1
}
there_and_back() { # name, folder, recipe, arguments of export
	run convert "$2" -o "$work/$1.gguf" --recipe "$3" -q
	exits 0
	run export -m "$work/$1.gguf" -o "$work/$1.back" -q "${@:4}"
	exits 0
}
python3 -c 'import random; r = random.Random(7); print(*[r.randrange(515) for _ in range(150)])' >"$work/ids"

for which in glm-5.2:f32 glm-5:bf16; do
	family=${which%:*} recipe=${which#*:}
	python3 "$here/gen_checkpoint.py" "$work/src" --family "$family" --shape even --dtype "$recipe" --vocab 8192 \
		--set latent_rms_norm_eps=1e-06 --tokenizer tests/data/tokenizer/pocket-tokenizer.json >"$work/gen" ||
		wrong "the generator failed: $which"
	there_and_back "$family" "$work/src" "$recipe"
	check "$family, $recipe: logits of the original" looked_at same "$work/src" "$work/$family.back"
	rm -r "$work/src" "$work/$family.gguf" "$work/$family.back"
done

src=${POCKET_SRC:-../shared/pocket2}
if [ -f "$src/config.json" ]; then
	there_and_back pocket "$src" bf16
	check "the pocket checkpoint: logits of the original" looked_at same "$src" "$work/pocket.back"
	there_and_back packed "$src" q4 --dtype f32
	run dump-logits -m "$work/packed.gguf" --backend cpu --kv-f32 --ids "$work/ids" --all -o "$work/packed.f32"
	exits 0
	check "its q4: logits of this program" looked_at near "$work/packed.back" "$work/packed.f32"
else
	skip_part "no checkpoint at $src"
fi
finish
