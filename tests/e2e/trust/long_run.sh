#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# A server with streamed experts and stored prompts under load from well-behaved and hostile (RUDE)
# clients (serve_load.py): every answer is right; memory, descriptors and threads do not grow.
#     long_run.sh [SECONDS [CLIENTS [RUDE]]]      3600 48 16 by hand; 4 18 14 in the tests
set -u
cd "$(dirname "$0")/../../.." || exit 1
exec python3 tests/e2e/serve/serve_load.py --streamed --seconds "${1:-4}" --clients "${2:-18}" \
	--rude "${3:-14}"
