#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# kill -9 of conversions (by recipe, for a target size), chats that save, runs that store prompts,
# runs that keep a profile, and measurements for tuning (kill.py): nothing that was there is lost,
# and the next run is right.
#     kill.sh [ROUNDS [PART ...]]      of each of the six parts; 4 in the tests, 125 and more by hand
#     kill.sh ROUNDS layers            a conversion of layers of the full shape, 16 GB in TMPDIR
# shellcheck source=tests/e2e/lib/lib.sh
. "$(dirname "$0")/../lib/lib.sh"
need_pocket
c_tool fail_write
python3 tests/e2e/convert/gen_checkpoint.py "$work/tiny" \
	--tokenizer tests/data/tokenizer/pocket-tokenizer.json >"$work/gen" || cannot_test "no checkpoint"
small_model # for prompts that are stored
export GLMSTREAM_POCKET=$POCKET
python3 tests/e2e/faults/kill.py "$GLMSTREAM" "$work" "${1:-4}" "${@:2}"
