#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# `glmstream bench decode --fill`: decodes behind a long context that nothing computed, says what
# that context takes, and refuses what it cannot be combined with. Not how fast.
# shellcheck disable=SC2317 # functions called through check
# shellcheck source=tests/e2e/lib/lib.sh
. "$(dirname "$0")/../lib/lib.sh"
# shellcheck source=tests/e2e/lib/bench_model.sh
. tests/e2e/lib/bench_model.sh

bench="bench decode -m $work/m.gguf --backend cpu --seconds 0.01 --repeats 1 --no-direct -c 8192"

run $bench --fill 7000 -p 16 -n 8 --json
exits 0
check "decodes behind the fill" figures 'named("8 tokens after 7016") > 0'
# 8 latents of 288 values and, in four layers and the draft's, index keys of 64 values
check "the context's size" figures 'abs(named("context of 8192 positions, 7000 of them filled") * 1e9 - 8192 * 2 * (8 * 288 + 5 * 64)) < 4096'
check "nothing lies in host memory" [ "$(grep -c 'in host memory' "$work/out")" = 0 ]
run $bench --fill 7000 -p 16 -n 8 --kv-ram on --json
exits 0
check "latents in host memory" figures 'abs(named("latents in host memory") * 1e9 - 8192 * 2 * 8 * 288) < 4096'
check "64 rows of each of seven layers" figures 'abs(named("latents over the link") * 1e6 - 64 * 7 * 576) < 1'
run $bench --fill 5000 -n 20 --cache-gb 0.006 --resident 6 --kv-ram on --json
exits 0
check "with confined routing" figures 'named("latents over the link") > 0'
check "of which nothing is missed" figures 'named("cold start: experts missed") == 0'
run $bench --fill 300 -n 70 --cache-gb 0.006 --routing tests/data/trace_small.gltr1 --accept 0.5
exits 0
check "with drafts" grep -q 'accept length, assumed' "$work/out"

run $bench --fill 9000
exits 2
check "more than the context" grep -q 'do not fit the context of 8192' "$work/err"
run bench prefill -m "$work/m.gguf" --fill 100
exits 2
check "belongs to decode" grep -q -- '--fill belongs to bench decode' "$work/err"
run $bench --fill 100 --rows 1,2
exits 2
run $bench --fill 0
exits 2
run $bench --kv-ram maybe
exits 2
finish
