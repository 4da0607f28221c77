#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Requests that ask for much more memory or time than they have bytes (serve_cost.py).
set -u
cd "$(dirname "$0")/../../.." || exit 1
exec python3 tests/e2e/serve/serve_cost.py
