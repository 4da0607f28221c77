#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Fails allocations of a running server while it answers (fault_requests.py).
# shellcheck source=tests/e2e/lib/lib.sh
. "$(dirname "$0")/../lib/lib.sh"
need_pocket
need_fail_alloc
PYTHONPATH=tests/e2e/serve python3 tests/e2e/faults/fault_requests.py "$work"
