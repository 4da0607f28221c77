#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Small random checkpoints of GLM-5, 5.1, 5.2 and 5.3, whole and cut to fewer layers, with and
# without an MTP layer: what config.json says decides what is computed, and the logits are those of
# Hugging Face transformers (tests/golden/make_family.py). Each as a folder and as a GGUF.
# shellcheck disable=SC2317 # functions called through check
# shellcheck source=tests/e2e/lib/lib.sh
. "$(dirname "$0")/../lib/lib.sh"
data=tests/data/family
golden=$(dirname "$GLMSTREAM")/tests/test_forward_golden

# a tokenizer of as many ids as the checkpoints have rows: the pocket model's, cut
python3 - tests/data/tokenizer/pocket-tokenizer.json "$work/tokenizer.json" 515 <<'END' || wrong "no tokenizer"
import json, sys
t = json.load(open(sys.argv[1], encoding="utf-8"))
model, first = t["model"], int(sys.argv[3]) - len(t["added_tokens"])
model["vocab"] = {word: i for word, i in model["vocab"].items() if i < first}
model["merges"] = [m for m in model["merges"] if all(w in model["vocab"] for w in (*m, "".join(m)))]
for i, token in enumerate(t["added_tokens"]):
    token["id"] = first + i
json.dump(t, open(sys.argv[2], "w", encoding="utf-8"))
END

members=$(python3 -c 'import json; print(*json.load(open("'$data'/members.json")))')
for name in $members; do
	mapfile -t arguments < <(python3 -c '
import json, sys
print(*json.load(open(sys.argv[1]))[sys.argv[2]], sep="\n")' "$data/members.json" "$name")
	python3 tests/e2e/convert/gen_checkpoint.py "$work/$name" --tokenizer "$work/tokenizer.json" \
		"${arguments[@]}" >"$work/gen" || wrong "the generator failed: $name"
	run convert "$work/$name" -o "$work/$name.gguf" --recipe f32 -q
	exits 0
	check "$name: the GGUF has the logits of transformers" "$golden" "$work/$name.gguf" "$data/$name"
	check "$name: so has the folder" "$golden" "$work/$name" "$data/$name"
	rm -r "${work:?}/$name" "$work/$name.gguf"
done
check "all members were there" [ "$(wc -w <<<"$members")" -ge 4 ]
finish
