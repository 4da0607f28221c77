#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# What one client may take of what all share (serve_shares.py).
set -u
cd "$(dirname "$0")/../../.." || exit 1
exec python3 tests/e2e/serve/serve_shares.py
