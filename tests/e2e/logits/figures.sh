#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The commands that print figures: what they say is computed again here from the files they wrote.
# shellcheck source=tests/e2e/lib/lib.sh
. "$(dirname "$0")/../lib/lib.sh"
need_pocket
exec python3 tests/e2e/logits/figures.py "$GLMSTREAM" "$work"
