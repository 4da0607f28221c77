#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# What a request of any shape takes from the others (shapes.py).
set -u
cd "$(dirname "$0")/../../.." || exit 1
PYTHONPATH=tests/e2e/serve exec python3 tests/e2e/trust/shapes.py "$@"
