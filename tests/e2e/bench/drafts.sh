#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# `glmstream bench decode --draft`: answers with drafts beside the same answers without. Acceptance
# is the model's own, and the figures agree with each other. Not how fast: that says nothing in a
# test.
# shellcheck disable=SC2317 # functions called through check
# shellcheck source=tests/e2e/lib/lib.sh
. "$(dirname "$0")/../lib/lib.sh"

need_pocket

printf 'Define river.\n\nSay this: red red red red red red red red.\n' >"$work/questions"
bench="bench decode --backend cpu -t 1 --repeats 1 -f $work/questions"

figures() { # condition in Python over named(part of a name)
	python3 - "$work/out" "$1" <<'END'
import json, sys
o = json.loads(open(sys.argv[1]).read().strip().splitlines()[-1])
f = {x["name"]: x for x in o["figures"]}
def named(part, what="median"):
    found = [v[what] for k, v in f.items() if k.startswith(part)]
    assert len(found) == 1, (part, list(f))
    return found[0]
assert eval("(" + sys.argv[2] + ")"), f
END
}

for _ in 1 2 3; do # a machine that does other things
	run $bench -n 16 --draft 2 --json
	! figures '0.1 < named("rate with drafts / without") < 10' || break
done
exits 0
check "a blank line is no question" figures '[k for k in f if k.startswith("without, 2 questions")]'
check "the limit is the rate without drafts" figures 'named("--draft 2", "limit") == named("without, 2") and named("--draft 2", "limit_name") == "without"'
check "up to three rows a step" figures '1.5 < named("rows") <= 3'
check "some drafts are right, not all" figures '0 < named("right at position 1,") < 100 and 1 < named("accept length") < 3'
check "the MTP layer computes" figures 'named("right by the MTP layer") > 0 and named("of it computing drafts") > 0'
check "nothing behind the second draft" figures 'not [k for k in f if "position 3" in k]'
check "rates in pairs" figures '0.1 < named("rate with drafts / without") < 10 and 0.1 < named("the same by processor time") < 10'

# a carriage return that stays in these questions changes what is right
same() { # the figures of acceptance in $work/lf and $work/out
	python3 - "$work/lf" "$work/out" <<'END'
import json, sys
def counts(path):
    o = json.loads(open(path).read().strip().splitlines()[-1])
    return {f["name"]: f["median"] for f in o["figures"] if f["name"].startswith(("accept length", "rows", "right at", "right by"))}
lf, crlf = counts(sys.argv[1]), counts(sys.argv[2])
assert lf and lf == crlf, (lf, crlf)
END
}
printf 'Count from 3 to 9.\nSay this: red red\n' >"$work/count"
sed 's/$/\r/' "$work/count" >"$work/crlf"
run ${bench/questions/count} -n 24 --draft 2 --json
exits 0
cp "$work/out" "$work/lf"
run ${bench/questions/crlf} -n 24 --draft 2 --json
exits 0
check "lines may end with CRLF" same

# streamed: a cache for each side; -v says what each engine opened
run $bench -n 8 --draft 2 --cache-gb 0.006 --json -v
exits 0
check "streamed: the same answers" figures 'named("rate with drafts / without") > 0'
check "streamed: an engine for each side" test "$(grep -c '^experts: streamed' "$work/err")" = 2

run $bench -n 16 --draft auto
exits 0
check "as text" grep -qE '^drafts +--draft auto .*% of .*, without' "$work/out"

# flat probabilities: the noise of the position alone decides, for the draft as for the token
run $bench -n 24 --draft 1 --temp 1000 --json
exits 0
check "both draws use the same noise" figures 'named("right at position 1,") > 90'

: >"$work/none"
run bench decode --draft auto -f "$work/none"
error_is_one_sentence 3 'none: holds no questions'
run bench decode --draft auto -f "$work/missing"
error_is_one_sentence 3 'missing'
run bench decode --draft 8
error_is_one_sentence 2 '--draft'
run bench decode --draft 1 --rows 2
error_is_one_sentence 2 '--draft belongs to bench decode without'
run bench prefill --draft 1
error_is_one_sentence 2 '--draft belongs to bench decode'
run bench decode --temp 1
error_is_one_sentence 2 '--temp belongs to'
run bench decode --draft off --temp 1
error_is_one_sentence 2 '--temp belongs to'
run bench decode --backend cpu -t 1 --repeats 1 --draft off -p 4 -n 4 --mb 16 --json
exits 0
check "off: one answer without drafts" figures 'not [k for k in f if "draft" in k] and named("4 tokens after 4") > 0'
run bench decode --draft auto --cache-gb auto
error_is_one_sentence 2 'two caches'
for option in --seconds --mb; do
	run bench decode --draft auto $option 1
	error_is_one_sentence 2 "^glmstream: $option belongs to bench copy, ops, prefill and decode without --draft"
done
run bench decode --draft auto -n 5000
error_is_one_sentence 2 'do not fit the context'

finish
