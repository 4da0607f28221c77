#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# HTTP as strangers may send it: framing, Host, bodies of refused requests (serve_framing.py).
set -u
cd "$(dirname "$0")/../../.." || exit 1
exec python3 tests/e2e/serve/serve_framing.py
