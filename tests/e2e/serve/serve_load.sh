#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Many clients of the HTTP server at once (serve_load.py): two seconds; $LOAD_SECONDS for longer.
# With clients who behave badly: trust/long_run.sh.
set -u
cd "$(dirname "$0")/../../.." || exit 1
exec python3 tests/e2e/serve/serve_load.py --seconds "${LOAD_SECONDS:-2}" --clients 64
