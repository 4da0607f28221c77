#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Session files read and written by a second implementation of the format (session_notes.py).
# shellcheck source=tests/e2e/lib/lib.sh
. "$(dirname "$0")/../lib/lib.sh"
need_pocket
run -t 1 --temp 0 --think off -q -n 2 --session "$work/good" -p 'Hi.'
exits 0
python3 tests/e2e/cli/session_notes.py "$GLMSTREAM" "$work/good" "$work" || wrong "see above"
finish
