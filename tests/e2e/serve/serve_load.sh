#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Many clients of the HTTP server at once (serve_load.py), well-behaved and rude: two seconds each;
# $LOAD_SECONDS for longer.
set -u
cd "$(dirname "$0")/../../.." || exit 1
python3 tests/e2e/serve/serve_load.py --seconds "${LOAD_SECONDS:-2}" --clients 64 || exit
python3 tests/e2e/serve/serve_load.py --seconds "${LOAD_SECONDS:-2}" --clients 24 --rude
