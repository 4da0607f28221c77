#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The chat on a terminal: prompt, answer, Ctrl+C, Ctrl+D, colours; and SIGINT to a single answer.
# shellcheck source=tests/e2e/lib/lib.sh
. "$(dirname "$0")/../lib/lib.sh"
need_pocket
python3 tests/e2e/cli/terminal.py "$GLMSTREAM"
