#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# A server with streamed experts, drafts and stored prompts under load from well-behaved and hostile
# (RUDE) clients of five addresses (serve_load.py): every answer is right; memory, descriptors and
# threads do not grow.
#     long_run.sh [SECONDS [CLIENTS [RUDE [FILE]]]]      3600 48 16 by hand; 4 18 14 in the tests
# FILE: the server's memory, descriptors, threads, answers every 30 s.
set -u
cd "$(dirname "$0")/../../.." || exit 1
exec python3 tests/e2e/serve/serve_load.py --streamed --addresses 4 --seconds "${1:-4}" \
	--clients "${2:-18}" --rude "${3:-14}" ${4:+--usage "$4"}
