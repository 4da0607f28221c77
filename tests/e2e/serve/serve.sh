#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The HTTP server, with Python's standard library as the client (serve.py); arguments name some of
# its tests.
set -u
cd "$(dirname "$0")/../../.." || exit 1
exec python3 tests/e2e/serve/serve.py "$@"
