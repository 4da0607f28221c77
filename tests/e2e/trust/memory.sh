#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# What a server allocates does not grow with the number of answers (memory.py).
# shellcheck source=tests/e2e/lib/lib.sh
. "$(dirname "$0")/../lib/lib.sh"
need_pocket
need_fail_alloc
small_model
PYTHONPATH=tests/e2e/serve python3 tests/e2e/trust/memory.py "$work"
