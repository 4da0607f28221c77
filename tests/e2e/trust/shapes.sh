#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Requests of every expensive shape: how long each may hold up the answers of others (shapes.py).
set -u
cd "$(dirname "$0")/../../.." || exit 1
PYTHONPATH=tests/e2e/serve exec python3 tests/e2e/trust/shapes.py "$@"
