#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Clients who behave and clients who do not, with streamed experts and stored prompts
# (serve_load.py): every answer is right, memory, descriptors and threads stay what they are.
#     long_run.sh [SECONDS [CLIENTS [RUDE]]]      3600 48 16 by hand; 4 18 14 in the tests
set -u
cd "$(dirname "$0")/../../.." || exit 1
exec python3 tests/e2e/serve/serve_load.py --streamed --seconds "${1:-4}" --clients "${2:-18}" \
	--rude "${3:-14}"
