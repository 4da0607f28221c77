#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# `glmstream bench decode --routing`: a model with random weights decodes with the routing of a
# trace; the figures agree with each other, confined routing misses nothing, and it says whose
# routing it is. Not how fast: that says nothing in a test.
# shellcheck disable=SC2317 # functions called through check
# shellcheck source=tests/e2e/lib/lib.sh
. "$(dirname "$0")/../lib/lib.sh"
# shellcheck source=tests/e2e/lib/bench_model.sh
. tests/e2e/lib/bench_model.sh

trace=tests/data/trace_small.gltr1
bench="bench decode -m $work/m.gguf --backend cpu --seconds 0.01 --repeats 1 --no-direct"

run $bench --cache-gb 0.006 --routing $trace --lookahead 1 -n 100 --json
exits 0
check "says whose routing it is" grep -q "^routing: replayed, not the model's" "$work/err"
check "hits and misses are all" figures 'abs(named("cold start: experts in tier 0") + named("cold start: experts missed") - 100) < 0.01'
check "a cold cache misses" figures 'named("cold start: experts missed") > 1 and named("cold start: read") > 0 and named("cold start: read, busy") > 0'
check "both intervals" figures 'named("cold start (tokens 0 to 64)") > 0 and named("steady state (tokens 75 to 100)") > 0'
check "computing alone misses nothing" figures 'named("computing alone (all hits") > 0 and len([k for k in f if "all the same" in k]) == 0'
check "start-up adds up" figures 'abs(sum(f[k] for k in f if k.startswith("of which")) - named("from the command to the first")) < 0.01'
check "token 64 comes after the first, and nothing is said of token 512" figures \
	'named("from the command to token 64") > named("from the command to the first") and "from the command to token 512" not in f'
run $bench --cache-gb 0.006 --routing $trace -n 100
check "on paper too" grep -q "^routing replayed from $trace: not the choice of this model" "$work/out"

# six experts of each layer fit: after the first tokens nothing is missed
run $bench --cache-gb 0.006 --resident 6 -n 100 --json
exits 0
check "confined routing misses nothing" figures 'named("steady state: experts missed") == 0 and section["steady state: experts missed"] == "confined"'
# drafts with assumed acceptance: all right, all wrong, some
run $bench --cache-gb 0.006 --routing $trace -n 100 --accept 1,1 --json
exits 0
check "all drafts are right" figures '2.9 < named("accept length, assumed: 1, 1") <= 3 and named("rows, those") == 3 and named("of it drafting") > 0'
check "the draft layer's experts" figures 'named("MTP layer: experts used by drafts") == 8 and 99.9 < named("MTP layer: of them in tier 0") + named("MTP layer: of them in tier 1") + named("MTP layer: of them missed") < 100.1 and named("MTP layer: waited for them") >= 0'
run $bench --cache-gb 0.006 --routing $trace -n 100 --accept 0 --json
exits 0
check "no draft is right" figures 'named("accept length, assumed: 0") == 1 and named("rows, those") == 2'
check "part of the waits is for experts that only drafts need" figures '0 < named("cold start: ... that only drafts need") <= named("cold start: waited for experts")'
run $bench --cache-gb 0.006 --routing $trace -n 100 --accept 0.72,0.60,0.50 --far
exits 0
check "says that acceptance is assumed" grep -q "^acceptance of drafts is assumed, not that of this model" "$work/out"
# two stages on one card: one trace for both
run $bench --cards 0,0 --cache-gb 0.006 --routing $trace -n 100 --accept 1,1 --lookahead 1 --json
exits 0
check "hits and misses of two stages are all" figures 'abs(named("cold start: experts in tier 0, or loading") + named("cold start: experts missed") - 100) < 0.01'
check "all drafts of two stages are right" figures '2.9 < named("accept length, assumed: 1, 1") <= 3'
check "the trace is read once" [ "$(grep -c '^routing: replayed' "$work/err")" = 1 ]
run $bench --cards 0,0 --cache-gb 0.006 --resident 6 -n 100 --json
exits 0
check "confined routing of two stages misses nothing" figures 'named("steady state: experts missed") == 0'
run $bench --accept 0.5
error_is_one_sentence 2 "--accept belongs to bench decode with --routing"
run $bench --routing $trace --accept 1.5
error_is_one_sentence 2 "--accept"
run $bench --routing $trace --accept 0,0,0,0,0,0,0,0
error_is_one_sentence 2 "more than 7 drafts"
run $bench --routing $trace -n 8 --json # no cache at all
exits 0
check "without streaming nothing is read" figures 'not any("read" in k for k in f if k.startswith("cold"))'
run $bench --cache-gb 0.006 --routing $trace -n 500000 --most-seconds 0.3 -c 600000
error_is_one_sentence 2 "a context of 600000 tokens was asked for"
run $bench --cache-gb 0.006 --routing $trace -n 800 --most-seconds 0.02 --json
exits 0
check "ends in time" figures 'len([k for k in f if "tokens 0 to 800" in k]) == 0'

run bench prefill -m "$work/m.gguf" --backend cpu --cache-gb 0.006 --seconds 0.01 --repeats 2 -p 40,64 --json
exits 0
check "prompts of both sizes" figures 'named("40 tokens, run 2: read") > 0 and sum(k.startswith("64 tokens, run") for k in f) == 10'
check "cached experts that a prompt leaves" figures 'len([k for k in f if "cached before and after" in k]) == 4 and
	all(v <= int(k.split(" of ")[1].split()[0]) for k, v in f.items() if "cached before and after" in k)'

# The drive itself is sampled while decoding pauses, and no token is lost. Samples of 2 ms, one in
# 20 ms: the 200 tokens of the steady state take that long on any machine.
run ${bench% --no-direct} -v --seconds 0.0005 --cache-gb 0.006 --routing $trace -n 800 -c 1024 --json
exits 0
check "all tokens count" figures 'named("steady state (tokens 600 to 800)") > 0 and
	named("from the command to token 512") > named("from the command to token 64")'
if grep -q "^reader: .*O_DIRECT in" "$work/err"; then
	check "the drive's bandwidth during the run" figures 'named("steady state: limit: drive") > 0 and
		all(v > 0 for k, v in f.items() if "limit: drive" in k)'
else
	skip_part "the drive's bandwidth during the run: no O_DIRECT in $work"
fi

# several answers at once; one row of 6 MoE layers uses 24 distinct experts
run $bench --rows 1,3 -p 4 -n 4 --mb 16 --json
exits 0
check "answers at once" figures 'named("distinct experts of all layers, 1") == 24 < named("distinct experts of all layers, 3") <= 72 and named("3 answers, 4 tokens after 4") > 0'
distinct=$(figures 'not print(named("distinct experts of all layers, 3"))')
run $bench --rows 1,3 -p 4 -n 4 --mb 16 --temp 1000 --json
exits 0
check "other tokens at another temperature" figures 'named("distinct experts of all layers, 1") == 24 and named("distinct experts of all layers, 3") != '"$distinct"
run $bench --rows 65
error_is_one_sentence 2 "65"
run $bench --rows 2 --routing $trace
error_is_one_sentence 2 "\-\-rows"

run $bench --cache-gb 0.006 --routing "$work/missing"
error_is_one_sentence 3 'missing'
run $bench --cache-gb 0.006 --routing "$work/shape.json"
error_is_one_sentence 3 'not a trace'
run $bench --resident 3
error_is_one_sentence 2 'confined to 3 experts'
run bench prefill -m "$work/m.gguf" --routing $trace
error_is_one_sentence 2 'bench decode'

finish
