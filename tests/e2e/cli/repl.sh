#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The chat's line editor and commands, typed key by key through a pseudo-terminal. Needs a build
# with libedit.
# shellcheck source=tests/e2e/lib/lib.sh
. "$(dirname "$0")/../lib/lib.sh"
need_pocket
exec python3 tests/e2e/cli/repl.py "$GLMSTREAM" "$work" "$POCKET"
