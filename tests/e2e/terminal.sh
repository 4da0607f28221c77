#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The chat on a terminal: prompt, answer, Ctrl+C, Ctrl+D, colours; and SIGINT to a single answer. Needs python3 (its pty
# module), else it is skipped.
# shellcheck source=tests/e2e/lib.sh
. "$(dirname "$0")/lib.sh"
command -v python3 >/dev/null 2>&1 || skip "no python3"
need_pocket
python3 tests/e2e/terminal.py "$GLMSTREAM"
