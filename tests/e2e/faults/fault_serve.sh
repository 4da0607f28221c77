#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Fails system calls that change files and folders of a running server (fault_serve.py).
# shellcheck source=tests/e2e/lib/lib.sh
. "$(dirname "$0")/../lib/lib.sh"
need_pocket
case $GLMSTREAM in *san-*) skip "a sanitizer makes the runs too slow" ;; esac
c_tool fail_write
PYTHONPATH=tests/e2e/serve python3 tests/e2e/faults/fault_serve.py "$work"
