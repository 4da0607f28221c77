#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The confinement of the server and of answers: what is confined is said, and what a kernel refuses;
# what the options name can still be read and written, and nothing beside it; nothing is lost by it.
# shellcheck disable=SC2317 # functions called through check
# shellcheck source=tests/e2e/lib/lib.sh
. "$(dirname "$0")/../lib/lib.sh"
need_pocket
short=(-p 'Define river.' -n 2 --temp 0 --think off -c 400)

run "${short[@]}" -q
exits 0
cp "$work/out" "$work/answer"

run "${short[@]}" -v
exits 0
check "one line says what is confined" [ "$(grep -c '^sandbox: ' "$work/err")" = 1 ]
check "seccomp is on" grep -q '^sandbox: .*(seccomp)$' "$work/err"
check "the answer is the same" cmp -s "$work/out" "$work/answer"
if grep -q '^sandbox: any file (landlock' "$work/err"; then
	skip_part "landlock: this kernel has none"
	landlock=0
else
	landlock=1
fi
run "${short[@]}" -v --no-sandbox
exits 0
check "--no-sandbox says so" grep -q '^sandbox: off$' "$work/err"

run "${short[@]}"
exits 0
check "without -v one answer says nothing of it" [ "$(grep -c sandbox "$work/err")" = 0 ]

# a kernel that lacks a part goes on and says so, also without -v
c_tool deny_calls
lacking() { # what, ARGS...
	timeout -k 5 300 "$work/deny_calls" "$1" -- "$GLMSTREAM" "${@:2}" >"$work/out" 2>"$work/err"
	rc=$? said="without $1: glmstream ${*:2}"
}
lacking landlock "${short[@]}"
if [ $rc = 77 ]; then
	skip_part "older kernels: no filter can be set here"
else
	exits 0
	check "without landlock it says so" grep -q '^sandbox: any file (landlock: Function not implemented); no programs' "$work/err"
	check "and answers" cmp -s "$work/out" "$work/answer"
	lacking seccomp "${short[@]}"
	exits 0
	check "without seccomp it says so" grep -q '^sandbox: .*; any call (seccomp: Function not implemented)$' "$work/err"
	lacking landlock "${short[@]}" --no-sandbox
	exits 0
	check "with --no-sandbox nothing is said" [ "$(grep -c sandbox "$work/err")" = 0 ]
fi

# everything that the options name still works, in folders of its own and through links
mkdir "$work/a" "$work/b" "$work/c" "$work/d"
ln -s "$POCKET" "$work/a/link.gguf"
cp "$POCKET" "$work/b/copy.gguf"
for _ in 1 2; do
	run "${short[@]}" -q -m "$work/a/link.gguf" --cache-gb 0.006 --replicas "$work/b/copy.gguf" \
		--warm "$work/c/profile" --session "$work/d/s" --session-dir "$work/e"
	exits 0
done
check "the profile is there" [ -s "$work/c/profile" ]
check "the session is there" [ -s "$work/d/s" ]
if "$GLMSTREAM" "${short[@]}" -q --no-sandbox --trace "$work/c/t0" >"$work/out" 2>"$work/err"; then
	run "${short[@]}" -q --trace "$work/c/t"
	exits 0
	check "the trace is there" [ -s "$work/c/t" ]
fi
mkdir "$work/g"
echo '{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}' >"$work/g/schema"
echo 'Define river.' >"$work/g/prompt"
run -f "$work/g/prompt" --json-schema "$work/g/schema" -n 2 --temp 0 --think off -c 400 -q
exits 0
(cd "$work/b" && timeout 300 "$GLMSTREAM" "${short[@]}" -q -m copy.gguf --session s) >"$work/out" 2>"$work/err"
rc=$?
exits 0
check "names without a folder work" [ -s "$work/b/s" ]

# a running server, seen from outside, and what its process may do
await() { # FILE, PATTERN
	for _ in $(seq 1200); do
		grep -q "$2" "$1" && return
		sleep 0.1
	done
	return 1
}

ends() { # the server, in order
	kill $pid
	wait $pid
	rc=$? said="glmstream serve"
	exits 0
}

if has_command serve; then
	preload=
	case $GLMSTREAM in
	*san-*) ;;
	*)
		c_tool probe_open.so -shared -fPIC
		preload=$work/probe_open.so
		;;
	esac
	mkdir "$work/h"
	cp "$POCKET" "$work/h/m.gguf"
	cp "$POCKET" "$work/h/copy.gguf"
	echo secret >"$work/h/notes.txt"
	: >"$work/h/m.gguf.xxh4"
	probes=$work/h/m.gguf:$work/h/copy.gguf:$work/h/notes.txt:$work/h/m.gguf.xxh4:$work/h:$work/answer:$work/f
	LD_PRELOAD=$preload PROBE=$probes PROBE_OUT=$work/probed \
		"$GLMSTREAM" serve --port 0 -c 400 -m "$work/h/m.gguf" --session-dir "$work/f" \
		--api-key=k3y-0f-mine >"$work/out" 2>"$work/err" &
	pid=$!
	await "$work/out" http
	check "the server says what is confined" [ "$(grep -c '^sandbox: .*(seccomp)$' "$work/err")" = 1 ]
	check "all its threads have a filter" [ "$(grep -h '^Seccomp:' /proc/$pid/task/*/status | sort -u | tr -d '\t ')" = Seccomp:2 ]
	check "none can gain rights" [ "$(grep -h '^NoNewPrivs:' /proc/$pid/task/*/status | sort -u | tr -d '\t ')" = NoNewPrivs:1 ]
	url=$(sed 's/^listening on //' "$work/out")
	check "its arguments do not show the key" eval "! tr '\\0' ' ' </proc/$pid/cmdline | grep -q k3y"
	check "it answers, with the key" python3 -c '
import json, sys, urllib.request
for i in range(3):
    body = json.dumps({"messages": [{"role": "user", "content": "Define river."}], "max_tokens": 4})
    request = urllib.request.Request(sys.argv[1] + "/v1/chat/completions", body.encode())
    request.add_header("Authorization", "Bearer k3y-0f-mine")
    json.load(urllib.request.urlopen(request, timeout=60))
' "$url"
	if [ -n "$preload" ] && [ $landlock = 1 ]; then
		kill -USR1 $pid
		await "$work/probed" '^end$'
		can() { grep -qxF "$1 $2" "$work/probed"; }
		check "it can read the model" can "$work/h/m.gguf" "1 0"
		check "not the files beside it" can "$work/h/notes.txt" "0 0"
		check "nor another model" can "$work/h/copy.gguf" "0 0"
		check "nor what has a similar name" can "$work/h/m.gguf.xxh4" "0 0"
		check "nor the folder's names" can "$work/h" "0 0"
		check "nor other files" can "$work/answer" "0 0"
		check "but the sessions' folder" can "$work/f" "1 0"
	fi
	ends
	said="without landlock: glmstream serve"
	"$work/deny_calls" landlock -- "$GLMSTREAM" serve -q --port 0 -c 400 >"$work/out" 2>"$work/err" &
	pid=$!
	if await "$work/out" http; then
		check "a server that cannot confine itself warns" grep -q '^warning: sandbox: any file (landlock: ' "$work/err"
		ends
	fi
fi
echo "landlock: $landlock"
finish
