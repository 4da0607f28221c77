#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Another program takes the card's memory while a server answers (card_memory.py). Skips without a
# card. TAKE_CARD_MEMORY names the helper where there is no compiler.
# shellcheck source=tests/e2e/lib/lib.sh
. "$(dirname "$0")/../lib/lib.sh"
need_pocket
case $GLMSTREAM in *san-*) skip "a sanitizer and a driver do not go together" ;; esac
take=${TAKE_CARD_MEMORY:-}
if [ -z "$take" ]; then
	c_tool take_card_memory -ldl
	take=$work/take_card_memory
fi
"$take" 1000000 </dev/null >"$work/out" 2>"$work/err"
[ $? != 77 ] || skip "no card here"
run -m "$POCKET" --backend cuda -p river -n 1 -q
[ $rc = 0 ] || skip "the program computes on no card here: $(head -n 1 "$work/err")"
PYTHONPATH=tests/e2e/serve python3 tests/e2e/trust/card_memory.py "$take"
