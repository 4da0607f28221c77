#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# `glmstream plan`: cards of 24 and 16 GB work with the small recipes, a refusal says what would fit,
# the model of speed stays near the runs that were measured on an H200
# (tests/bench/RESULTS.md), and --table has every card.
# shellcheck disable=SC2317 # functions called through check
# shellcheck source=tests/e2e/lib/lib.sh
. "$(dirname "$0")/../lib/lib.sh"

need_pocket
export RUN_LIMIT=600

value() { # key, least, most: of the JSON object in $work/out
	python3 - "$work/out" "$@" <<'END'
import json, sys
v = json.load(open(sys.argv[1]))[sys.argv[2]]
print(sys.argv[2], v)
sys.exit(not float(sys.argv[3]) <= v <= float(sys.argv[4]))
END
}

run plan --vram-gb 24 --ram-gb 64 --disk-gb-s 7 --ctx 32768 --recipe iq2-s --json
exits 0
check "a 24 GB card holds a context of 32768" value context 32768 32768
check "iq2-s keeps at most 11 GB resident" value resident_bytes 9e9 11e9
check "and has room for more than a token's experts" value experts_on_card 608 1200
check "it decodes" value tok_s 0.5 20
check "cold starts are slower" python3 -c '
import json, sys
o = json.load(open(sys.argv[1]))
sys.exit(not 0 < o["tok_s_cold"] < o["tok_s"])' "$work/out"
run plan --vram-gb 16 --ram-gb 64 --disk-gb-s 7 --ctx 8192 --recipe q2-s --json
exits 0
check "a 16 GB card works with 8192" value experts_on_card 100 600
run plan --vram-gb 24 --ram-gb 64 --disk-gb-s 7
exits 0
lacks() { ! grep -qE -- "$1" "$work/err"; }
says() { check "says $1" grep -qE -- "$1" "$work/out"; }
says 'GB for experts: [0-9]+ of 19456 fit'
says 'glmstream convert GLM-5.2-FP8/ -o glm52-iq2-s.gguf --recipe iq2-s'
says 'glmstream -m glm52-iq2-s.gguf --cache-gb auto --ram-gb auto -c 32768'
says 'not measured'

# converting: README's core hours, and with the card the time of the drive
run plan --vram-gb 24 --ram-gb 64 --disk-gb-s 7 -j 1
exits 0
says 'while it is converted: about [1-9][0-9]? min with the card, [0-9.]+ h on 1 core alone$'
for recipe in 'iq2 27 31' 'iq2-s 27 31' 'q2 5 6.5'; do
	read -r name least most <<<"$recipe"
	run plan --vram-gb 80 --ram-gb 64 --disk-gb-s 2 -j 1 --recipe "$name" --json
	exits 0
	check "$name on one core" value convert_cpu_hours "$least" "$most"
	check "$name with the card" value convert_hours 0.1 0.2
done

# --sessions and --no-mtp are budgeted as run and serve do
run plan --vram-gb 24 --ram-gb 64 -c 8192 --json
exits 0
cp "$work/out" "$work/one"
compared() { # Python expression of the plans o (this) and p (one session, with MTP)
	python3 - "$work/out" "$work/one" "$1" <<'END'
import json, sys
o, p = (json.load(open(f)) for f in sys.argv[1:3])
sys.exit(not eval(sys.argv[3]))
END
}
run plan --vram-gb 24 --ram-gb 64 -c 8192 --sessions 4 --json
exits 0
check "four sessions have four caches" compared 'o["sessions"] == 4 and o["kv_bytes"] == 4 * p["kv_bytes"]'
check "and leave less for experts" compared 'o["cache_bytes"] < p["cache_bytes"] - 2e9'
run plan --vram-gb 24 --ram-gb 64 -c 8192 --no-mtp --json
exits 0
check "no MTP layer: 78 layers of weights and caches" compared '
not o["mtp"] and p["mtp"] and o["kv_bytes"] < p["kv_bytes"] and o["resident_bytes"] < p["resident_bytes"] - 5e7'
check "and more for experts" compared 'o["cache_bytes"] > p["cache_bytes"]'
run plan --vram-gb 24 --ram-gb 64 -c 8192 --sessions 2 --no-mtp
exits 0
says 'caches of 2 sessions of 8192 tokens'
says 'glmstream serve -m glm52-iq2-s.gguf --cache-gb auto --ram-gb auto -c 8192 --sessions 2 --draft off'
run plan --vram-gb 16 --ram-gb 64 -c 8192 --sessions 8
error_is_one_sentence 4 'caches of 65536 tokens'
run plan --sessions 65 --vram-gb 24
error_is_one_sentence 2 'sessions'

# experts that the processor computes make the link's part shorter, and change nothing else
run plan --vram-gb 16 --ram-gb 256 -c 8192 --disk-gb-s 7 --json
exits 0
cp "$work/out" "$work/one"
run plan --vram-gb 16 --ram-gb 256 -c 8192 --disk-gb-s 7 --cpu-gb-s 50 --json
exits 0
check "the processor helps" compared 'o["tok_s"] > 1.2 * p["tok_s"] and o["cpu_gb_s"] == 50 and o["hit_rate"] == p["hit_rate"]'
run plan --vram-gb 16 --ram-gb 256 -c 8192 --disk-gb-s 7 --cpu-gb-s 0.1 --json
exits 0
check "a slow one does not, and does no harm" compared 'abs(o["tok_s"] - p["tok_s"]) < 0.01 * p["tok_s"]'
run plan --vram-gb 16 --ram-gb 256 -c 8192 --cpu-gb-s 50
exits 0
says 'the processor computes experts at 50 GB/s'
says '--cache-gb auto --ram-gb auto -c 8192 --cpu-experts auto'
run plan --table --cpu-gb-s 50
error_is_one_sentence 2 'table.*only --trace'

# a file in place of a recipe, with a trace of its own
head -n 4 tests/data/pocket_ids.txt >"$work/ids"
run dump-logits -q -m "$POCKET" --ids "$work/ids" --chunk 1 --trace "$work/trace" -o "$work/x.f32"
exits 0
run plan -m "$POCKET" --vram-gb 24 --ram-gb 64 -c 1024 --trace "$work/trace"
exits 0
says '224 of 224 fit'
run plan -m "$POCKET" --vram-gb 24 --ram-gb 64 -c 1024 --trace "$work/trace" --measure --json
exits 0
check "the drive was measured" value disk_gb_s 0.001 1000
run plan -m "$POCKET" --vram-gb 24 --ram-gb 64 --trace "$work/trace" --json
exits 0
check "without -c the context is at most the model's" grep -q '"context": 4096,' "$work/out"
run plan -m "$POCKET" --vram-gb 24 --ram-gb 64 --jobs 2
error_is_one_sentence 2 '^glmstream: --jobs: '
run plan -m "$POCKET" --vram-gb 24 --ram-gb 64 -c 1024
error_is_one_sentence 3 'another model'
for draft in auto off; do # the program's own words on the CPU; the plan is of a card
	run run -m "$POCKET" -v -p x -n 1 -c 1024 --draft "$draft"
	exits 0
	run_gb=$(sed -n 's/.*memory: \([0-9.]*\) GB resident weights, \([0-9.]*\) GB caches.*/\1 \2/p' "$work/err")
	mtp=()
	[ "$draft" = auto ] || mtp=(--no-mtp)
	run plan -m "$POCKET" --vram-gb 24 --ram-gb 64 -c 1024 --trace "$work/trace" --json "${mtp[@]}"
	exits 0
	check "weights and caches with --draft $draft are those of a run" [ "$run_gb" = "$(python3 -c '
import json, sys
o = json.load(open(sys.argv[1]))
print("%.3f %.3f" % (o["resident_bytes"] / 1e9, o["kv_bytes"] / 1e9))' "$work/out")" ]
done

# refusals
run plan --vram-gb 24 --ram-gb 64 --recipe iq2
error_is_one_sentence 4 'recipe iq2-s or q2-s'
check "a shorter context is named" grep -qE -- '-c [0-9]+ would fit' "$work/err"
c=$(sed -n 's/.*hint: -c \([0-9]*\) would fit.*/\1/p' "$work/err")
run plan --vram-gb 24 --ram-gb 64 --recipe iq2 -c "$c" --json
exits 0
run plan --vram-gb 16 --ram-gb 64 --recipe iq2 -c 65536
error_is_one_sentence 4 'recipe iq2-s or q2-s.*would fit with -c'
run plan --vram-gb 12 --ram-gb 64 --recipe iq2-s -c 8192
error_is_one_sentence 4 'recipe iq2-t .* would fit with -c'
c=$(sed -n 's/.*would fit with -c \([0-9]*\).*/\1/p' "$work/err")
run plan --vram-gb 12 --ram-gb 64 --recipe iq2-t -c "$c" --json
exits 0
check "iq2-t keeps at most 8 GB resident" value resident_bytes 7e9 8e9
run plan --vram-gb 16 --ram-gb 64 --recipe iq2-s -c 65536
error_is_one_sentence 4 'would fit'
run plan --vram-gb 20 --ram-gb 64
error_is_one_sentence 2 'no card of 20 GB'
run plan --vram-gb 8 --ram-gb 64 -c 4096
error_is_one_sentence 4 'needs a card with more memory'
hint_is() { check "the hint is: $1" grep -qE -- "^hint: .*$1" "$work/err"; }
hint_is 'at least 14\.[0-9] GB free, a card of 16 GB'
run plan --vram-gb 8 --ram-gb 64
error_is_one_sentence 4 'needs a card with more memory'
hint_is 'options as they are need 1[78]\.[0-9] GB free, a card of 24 GB'
run plan --vram-gb 24 --ram-gb 64 --recipe iq2
hint_is '-c [0-9]+ would fit.*options as they are need 2[67]\.[0-9] GB free, a card of 32 GB'
run plan --vram-gb 24 --ram-gb 64 --tiers 20,1 # a budget of the first tier that the card lacks
error_is_one_sentence 4 'cache-gb .* would fit'
hint_is 'a card of 48 GB'
run plan --vram-gb 24 --ram-gb 64 --tiers 0.5,1
error_is_one_sentence 4 'smallest that works is'
hint_is '--cache-gb auto would fit'
run plan --vram-gb 12 --ram-gb 64 --tiers 0.5,1
hint_is 'smallest cache the model needs 1[78]\.[0-9] GB free, a card of 24 GB'
run plan --vram-gb 24 --ram-gb 64 --tiers 2,70 # no card helps a host that has too little
error_is_one_sentence 4 'ram-gb .* would fit'
check "no card is named" lacks 'a card of'
run plan --vram-gb 24 --ram-gb 1
error_is_one_sentence 2 'out of range'
run plan --vram-gb 24 --ram-gb 2 --json
exits 0
check "2 GB of RAM hold no experts" value experts_in_ram 0 0
run plan --card "RTX 9999"
error_is_one_sentence 2 'not in the table'
run plan --card RTX # several
error_is_one_sentence 2 'not in the table.*RTX 4090'
run plan --card 4090 --ram-gb 64 --tiers 5,20
exits 0
says 'on RTX 4090:'
says 'glmstream -m glm52-iq2-s.gguf --cache-gb 5 --ram-gb 20 -c 32768'
run plan --vram-gb 24 --card-gb-s 400 --ram-gb 64 # a bandwidth that no such card has
exits 0
says 'on a card with 24 GB and 400 GB/s: .* 400 GB/s; link 25 GB/s'
run plan --vram-gb 24 --card-gb-s 936 --ram-gb 64
exits 0
says 'on RTX 3090:'
run plan --vram-gb 24 --ram-gb 64
exits 0
says 'on RTX 4090:'
run plan --vram-gb 20 --card-gb-s 500 --pcie-gb-s 25 --ram-gb 64 --json
exits 0
says '"card": ?"a card with 20 GB and 500 GB/s"'
run plan -m "$POCKET" --recipe iq2 --vram-gb 24
error_is_one_sentence 2 'one of them'
run plan --vram-gb 24 --recipe q3
error_is_one_sentence 2 'recipe'
run plan --vram-gb 24 --tiers 5
error_is_one_sentence 2 'two sizes'
for option in --json "--recipe q2" "--ram-gb 64" "-c 8192" "--tiers 5,20" "--sessions 2" --no-mtp; do
	# shellcheck disable=SC2086 # an option and its value
	run plan --table $option
	error_is_one_sentence 2 'table.*only --trace'
done

# RESULTS.md: tiers, drive GB/s, tok/s measured; steady state, then cold start
measured() { # recipe, tiers, drive, key, measured tok/s
	run plan --card H200 --ram-gb 160 --recipe "$1" --ctx 2048 --tiers "$2" --disk-gb-s "$3" --json
	exits 0
	check "$1 $2 at $3 GB/s: $4 is near $5" value "$4" "$(awk "BEGIN { print $5 * 0.86 }")" \
		"$(awk "BEGIN { print $5 * 1.18 }")"
}
measured iq2 123,88 10 tok_s 72.7
measured iq2 120,88 10 tok_s 68.4
measured q2 120,115 10 tok_s 39.0
measured iq2 120,0 2.88 tok_s 5.41
measured iq2 12,64 2.42 tok_s 2.48
measured iq2 20,0 2.73 tok_s 1.07
measured iq2 120,0 2.26 tok_s_cold 1.67
measured iq2 12,64 2.32 tok_s_cold 1.29
measured iq2 20,0 2.20 tok_s_cold 0.770

run plan --table
exits 0
check "eight cards" [ "$(grep -cE '^\| [0-9]+ GB \(' "$work/out")" = 8 ]
says "^\| 8 GB, iq2-t, [0-9]+ \| does not fit: needs 1[0-2]\.[0-9] GiB( \| -){3} \|$"
check "every row has five cells" [ "$(grep -vcE '^(\|[^|]+){5}\|$' "$work/out")" = 0 ]
sed '/^|/!d' "$work/out" >"$work/table"
check "the README has the table" python3 - "$work/table" README.md <<'END'
import sys
table, readme = (open(f).read() for f in sys.argv[1:3])
sys.exit(table not in readme)
END
needs=$(sed -n 's/^| 8 GB.* needs \([0-9.]*\) GiB.*/\1/p' "$work/out")
run plan --vram-gb "$needs" --card-gb-s 500 --pcie-gb-s 25 --ram-gb 64 -c 1024 --recipe iq2-t --json
exits 0
run plan --vram-gb "$(awk "BEGIN { print $needs - 0.1 }")" --ram-gb 64 -c 1024 --recipe iq2-t
error_is_one_sentence 4
finish
