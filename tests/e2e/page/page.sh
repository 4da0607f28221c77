#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The page at / in headless Chromium, driven by Playwright for Python. Both are looked for, neither is installed:
#   apt-get install chromium; python3 -m venv build/browser && build/browser/bin/pip install playwright axe-playwright-python
# SHOTS=FOLDER keeps screenshots.
# shellcheck source=tests/e2e/lib/lib.sh
. "$(dirname "$0")/../lib/lib.sh"
need_pocket
has_command serve || skip "this build has no server"
case $GLMSTREAM in */san-*) skip "a browser waits for no sanitizer" ;; esac
chromium=$(command -v chromium || command -v chromium-browser || command -v google-chrome) || skip "no chromium"
python=
for p in build/browser/bin/python python3; do
	"$p" -c 'import playwright.sync_api' 2>/dev/null && python=$p && break
done
[ -n "$python" ] || skip "no playwright for python3"

"$GLMSTREAM" serve --port 0 --cache-gb 0.006 --ram-gb 0.004 --sessions 2 >"$work/out" 2>"$work/err" &
server=$!
trap 'kill $server 2>/dev/null; rm -rf "$work"' EXIT
for _ in $(seq 1200); do
	grep -q '^listening on ' "$work/out" && break
	sleep 0.1
done
url=$(sed -n 's/^listening on //p' "$work/out")
if [ -z "$url" ]; then
	echo "the server does not start"
	cat "$work/err"
	exit 1
fi
# alone on two cores it takes 145 s; at a load of 18 it took 267 s
timeout -k 5 580 "$python" tests/e2e/page/page.py "$url/" "$chromium" "${SHOTS:-}"
rc=$?
check "the browser has no complaint" [ $rc = 0 ]
kill -TERM $server
wait $server
rc=$? said="SIGTERM to the server"
exits 0
finish
