#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The profile that streaming runs keep: where it stands, what the next start says of it, who goes
# without, and that it is never in the way.
# shellcheck disable=SC2317 # functions called through check
# shellcheck source=tests/e2e/lib/lib.sh
. "$(dirname "$0")/../lib/lib.sh"
need_pocket
short=(-p 'Define river.' -n 12 --temp 0 --think off -c 400)
streamed=("${short[@]}" --cache-gb 0.02 -v)
folder=$work/.cache/glmstream/profiles

n_profiles() { # folder
	find "$1" -name '*.profile' 2>/dev/null | wc -l
}

run "${short[@]}" -q
exits 0
cp "$work/out" "$work/answer"
check "a mapped model keeps no profile" [ "$(n_profiles "$folder")" = 0 ]

run "${streamed[@]}" --no-profile
exits 0
check "--no-profile keeps none" [ "$(n_profiles "$folder")" = 0 ]

run "${streamed[@]}"
exits 0
check "the answer is the same" cmp -s "$work/out" "$work/answer"
check "a first start has none" grep -q '^profile: 0 experts of earlier runs and 0 of published' "$work/err"
check "it leaves one" [ "$(n_profiles "$folder")" = 1 ]
check "for the user alone" [ "$(stat -c %a "$folder")" = 700 ]
check "without text" [ "$(grep -cvE '^([0-9]+,[0-9]+,[0-9.e+]+|# glmstream profile 2 .*|layer,expert,count)$' "$folder"/*.profile)" = 0 ]

run "${streamed[@]}"
exits 0
check "the second start loads it" grep -qE '^profile: [1-9][0-9]* experts of earlier runs' "$work/err"
check "and answers the same" cmp -s "$work/out" "$work/answer"

cksum "$folder"/*.profile >"$work/before"
run "${streamed[@]}" --no-profile
check "--no-profile says nothing of it" [ "$(grep -c '^profile:' "$work/err")" = 0 ]
check "and leaves it" [ "$(cksum "$folder"/*.profile)" = "$(cat "$work/before")" ]
run "${streamed[@]}" --warm "$work/own"
exits 0
check "--warm takes its place" [ -s "$work/own" ]
check "and leaves it as well" [ "$(cksum "$folder"/*.profile)" = "$(cat "$work/before")" ]
run bench decode -n 4 --repeats 1 --cache-gb 0.02
exits 0
check "measuring neither uses nor changes it" [ "$(cksum "$folder"/*.profile)" = "$(cat "$work/before")" ]

# another folder; one that is relative is not a place
XDG_CACHE_HOME=$work/xdg run "${streamed[@]}"
check "XDG_CACHE_HOME is obeyed" [ "$(n_profiles "$work/xdg/glmstream/profiles")" = 1 ]
XDG_CACHE_HOME=xdg run "${streamed[@]}"
check "unless it is relative" [ ! -e xdg ]

# never in the way
echo notes >"$work/file"
XDG_CACHE_HOME=$work/file run "${short[@]}" --cache-gb 0.02 -q
exits 0
check "a folder that cannot be made is no error" [ ! -s "$work/err" ]
check "and the answer is there" cmp -s "$work/out" "$work/answer"
profile=$(echo "$folder"/*.profile)
echo 'not a profile' >"$profile"
run "${short[@]}" --cache-gb 0.02 -q
exits 0
check "a foreign file is no error" [ ! -s "$work/err" ]
check "and stays" [ "$(cat "$profile")" = 'not a profile' ]
rm "$profile"
HOME='' run "${streamed[@]}"
exits 0
check "no home, no profile" [ ! -e "$profile" ]

# the server, confined as it is
if has_command serve; then
	"$GLMSTREAM" serve --port 0 -c 400 --cache-gb 0.02 >"$work/out" 2>"$work/err" &
	pid=$!
	for _ in $(seq 1200); do
		url=$(sed -n 's/^listening on //p' "$work/out")
		[ -n "$url" ] && break
		sleep 0.1
	done
	curl -s -m 30 "$url/v1/completions" -d '{"prompt": "Define river.", "max_tokens": 4}' >/dev/null
	kill -TERM $pid
	wait $pid
	rc=$? said="SIGTERM to serve"
	exits 0
	check "a confined server keeps one at its end" [ -s "$profile" ]
else
	skip_part "serve: this program has none"
fi
finish
