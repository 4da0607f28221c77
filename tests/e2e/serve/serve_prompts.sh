#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# How far a prompt is, on all streams; who leaves stops it; short prompts beside long ones
# (serve_prompts.py).
set -u
cd "$(dirname "$0")/../../.." || exit 1
exec python3 tests/e2e/serve/serve_prompts.py
