#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The confinement of the server and of answers: -v says what is confined; what the options name can
# still be read and written; nothing is lost by it.
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
(cd "$work/b" && timeout 60 "$GLMSTREAM" "${short[@]}" -q -m copy.gguf --session s) >"$work/out" 2>"$work/err"
rc=$?
exits 0
check "names without a folder work" [ -s "$work/b/s" ]

# a running server, seen from outside, and what its process may do
if has_command serve; then
	"$GLMSTREAM" serve -v --port 0 -c 400 --session-dir "$work/f" --api-key=k3y-0f-mine >"$work/out" 2>"$work/err" &
	pid=$!
	for _ in $(seq 100); do
		grep -q http "$work/out" && break
		sleep 0.1
	done
	check "the server says what is confined" grep -q '^sandbox: .*(seccomp)$' "$work/err"
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
	kill $pid
	wait $pid
	rc=$? said="glmstream serve"
	exits 0
fi
echo "landlock: $landlock"
finish
