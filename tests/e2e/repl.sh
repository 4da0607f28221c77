#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The chat's line editor and commands, typed key by key through a pseudo-terminal. Needs python3 and a build with libedit.
# shellcheck source=tests/e2e/lib.sh
. "$(dirname "$0")/lib.sh"
command -v python3 >/dev/null 2>&1 || skip "no python3"
need_pocket
exec python3 tests/e2e/repl.py "$GLMSTREAM" "$work"
