#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# --cards: the layers of the model on several stages. Logits, answers and sessions are those of one
# stage; the plan says where the layers lie; what cannot be is refused in a sentence.
# shellcheck source=tests/e2e/lib/lib.sh
. "$(dirname "$0")/../lib/lib.sh"
need_pocket

head -n 12 tests/data/pocket_ids.txt >"$work/ids"
logits() { # file, options: of all positions
	local out=$1
	shift
	run dump-logits -v --backend cpu -m "$POCKET" --ids "$work/ids" --all --chunk 8 -o "$work/$out" \
		--force "$@"
	exits 0
}

logits one.f32
check "one stage has no line of its own" [ "$(grep -c '^stage ' "$work/err")" = 0 ]
logits two.f32 --cards 0,0
check "logits of two stages" cmp -s "$work/one.f32" "$work/two.f32"
check "two stages are named" [ "$(grep -c '^stage [01]: layers .* on card 0' "$work/err")" = 2 ]
sum=$(awk "/^stage [01]: .* % of a token's time\$/ {sum += \$(NF - 5)} END {print sum}" "$work/err")
check "their parts of a token's time are all of it" [ $((sum >= 99 && sum <= 101)) = 1 ]
check "the last layers lie on the last stage" grep -q '^stage 1: layers [1-6] to 6' "$work/err"
logits three.f32 --cards 0,0,0 --cache-gb 0.02 --ram-gb 0.01 --lookahead 2
check "logits of three stages with caches" cmp -s "$work/one.f32" "$work/three.f32"
logits auto.f32 --cards auto
check "auto on the CPU is one stage" cmp -s "$work/one.f32" "$work/auto.f32"

# answers, and a session that goes on under another number of stages
answer() { # file, options
	local out=$1
	shift
	run --backend cpu -m "$POCKET" --temp 0 --think off -n 24 -p "Define river." -q "$@"
	exits 0
	check "an answer came" [ -s "$work/out" ]
	cp "$work/out" "$work/$out"
}
answer text.one --draft off --session "$work/a"
answer text.two --cards 0,0 --draft 3 --session "$work/b"
check "the same answer with drafts" cmp -s "$work/text.one" "$work/text.two"
answer more.one --draft off --session "$work/a"
answer more.two --cards 0,0,0 --draft off --session "$work/b"
check "the same second answer" cmp -s "$work/more.one" "$work/more.two"

# several answers: micro-batches, in flight at the same time
run bench decode --backend cpu -m "$POCKET" -t 1 --cards 0,0 --rows 1,5 --prompt 8 -n 6 --repeats 1
exits 0
check "one answer is not cut" [ "$(grep -c ' 1 rows in ' "$work/out")" = 0 ]
check "five answers are" grep -q 'stages computing at a time, mean (2): 5 rows in 2 micro-batches' \
	"$work/out"
check "shares of the time are named" \
	[ "$(grep -Ec 'of the time [012] stages? computed: 5 rows' "$work/out")" = 3 ]
sum=$(awk '/of the time/ {sum += $(NF - 1)} END {print (sum > 99 && sum < 101)}' "$work/out")
check "they are all of it" [ "$sum" = 1 ]

# the time of each stage; of one answer they compute one after the other
times() { # what: of the stages, and of all of it
	awk -v what="$1" '$0 ~ "^rows +" what ": stage" {n++; sum += $(NF - 1)}
		$0 ~ "^rows +" what " +[0-9]" {all = $(NF - 1)}
		END {print (n == 2 && sum > 0.3 * all && sum <= 1.01 * all)}' "$work/out"
}
check "both stages are named" [ "$(grep -Ec 'a step of 1: stage [01] \(layers [0-9] to [0-9], card 0\)' "$work/out")" = 2 ]
check "their times are those of a step" [ "$(times 'a step of 1')" = 1 ]
# a prompt of several chunks: they are in flight too, and the plan counts their rows
run bench prefill --backend cpu -m "$POCKET" -t 1 --cards 0,0 --chunk 256 --prompt 700 --seconds 0.01 --repeats 1
exits 0
check "chunks in flight" grep -q 'stages computing at a time, mean (2): 700 tokens in chunks of 256' "$work/out"
check "memory of their rows" grep -qx 'rows between stages: up to 0.7885 MB of host memory, chunks of 256' "$work/err"
run bench prefill --backend cpu -m "$POCKET" -t 1 --cards 0,0 --chunk 256 --prompt 200 --seconds 0.01 --repeats 1
exits 0
check "a single chunk is not" [ "$(grep -c 'at a time' "$work/out")" = 0 ]
run bench decode --backend cpu -m "$POCKET" -t 1 --cards 0,0,0 --routing shipped --cache-gb 0.03 -n 40 \
	--no-direct --seconds 0.01 --repeats 1 -q
exits 0
check "computing alone by stage" [ "$(grep -c 'computing alone: stage' "$work/out")" = 3 ]
run bench decode --backend cpu -m "$POCKET" -t 1 --rows 1 --prompt 8 -n 6 --repeats 1
exits 0
check "one stage has no line of its own" [ "$(grep -c ': stage' "$work/out")" = 0 ]

# a server with stages: 8 clients get the answers of one stage; its state says where the layers lie
serve() { # file, options
	local out=$1 url='' i server
	shift
	"$GLMSTREAM" serve --backend cpu -m "$POCKET" --port 0 --sessions 4 -c 512 --cache-gb 0.02 "$@" \
		>"$work/served" 2>"$work/err" &
	server=$! said="glmstream serve $*"
	for ((i = 0; i < 600 && ${#url} == 0; i++)); do
		sleep 0.1
		url=$(sed -n 's/^listening on //p' "$work/served")
	done
	python3 tests/e2e/stream/ranks_clients.py "$url" >"$work/$out" 2>>"$work/err"
	check "8 clients were answered" [ $? = 0 ]
	python3 -c 'import json, sys, urllib.request
state = json.load(urllib.request.urlopen(sys.argv[1] + "/v1/glmstream/state"))
print(json.dumps(state["stages"]))' "$url" >"$work/$out.stages"
	kill $server
	wait $server
	rc=$?
	exits 0
}
if has_command serve; then
	serve clients.1
	check "the state of one stage" grep -qx '\[{"first": 0, "end": 7, "mtp": true, "rank": 0, "card": 0}\]' "$work/clients.1.stages"
	serve clients.2 --cards 0,0
	check "8 clients of two stages" cmp -s "$work/clients.1" "$work/clients.2"
	check "the state of two stages" grep -qE '^\[\{"first": 0, "end": ([1-6]), "mtp": false, "rank": 0, "card": 0\}, \{"first": \1, "end": 7, "mtp": true, "rank": 0, "card": 0\}\]$' "$work/clients.2.stages"
else
	skip_part 'a server with stages: this build has no server'
fi

dump() { run dump-logits --backend cpu -m "$POCKET" --ids "$work/ids" -o "$work/x.f32" --force "$@"; }
dump --cards 1
error_is_one_sentence 2 'there is no card 1'
dump --cards 0,0,0,0,0,0,0,0
error_is_one_sentence 2 '8 stages were asked for, the model has 7 layers'
for bad in "" "," "0," ",0" "0,,0" x 0x1 -1 99999; do
	dump "--cards=$bad"
	error_is_one_sentence 2 'cards'
done
dump --cards 0,0 --cache-gb 5 --ram-gb 3
check "a stage's share is not called what was asked for" [ "$(grep -c 'asked for' "$work/err")" = 0 ]
for option in cache ram; do
	check "lines name shares of --$option-gb" \
		[ "$(grep -c "GB of --$option-gb for this stage, all its experts need .*: capped" "$work/err")" = 2 ]
done
dump --cards 0,0 --cache-gb 0.0001
check "a cache below the floor of two stages is refused" [ "$rc" != 0 ]
error_is_one_sentence "$rc" 'the stages on card 0'
run tune -m "$POCKET" --backend cpu --cards 0,0
error_is_one_sentence 2 'cards'
for command in tune plan; do # of one card, as they say
	run $command --help
	check "$command says what forecasts several cards" grep -q 'inspect --cards' <(tr -s ' \n' ' ' <"$work/out")
done
run bench ops --cards 0,0
error_is_one_sentence 2 'open a model'
finish
