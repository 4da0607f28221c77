#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# What a server allocates does not grow with the number of answers (memory.py).
# shellcheck source=tests/e2e/lib/lib.sh
. "$(dirname "$0")/../lib/lib.sh"
need_pocket
cc=${CC-}
cc=$(command -v "${cc##* }" || command -v cc || command -v gcc || command -v clang) || skip "no C compiler"
case $GLMSTREAM in *san-*) skip "a sanitizer has allocation of its own" ;; esac
"$cc" -O1 -shared -fPIC -o "$work/fail_alloc.so" tests/e2e/trust/fail_alloc.c ||
	cannot_test "the tool does not compile"
PYTHONPATH=tests/e2e/serve python3 tests/e2e/trust/memory.py "$work"
