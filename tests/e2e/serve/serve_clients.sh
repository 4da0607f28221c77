#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The HTTP server with the official openai and anthropic Python clients (serve_clients.py).
# $SERVE_PYTHON names a Python that has them, else python3; .ci/run makes one. Skips without them.
set -u
cd "$(dirname "$0")/../../.." || exit 1
python=${SERVE_PYTHON:-python3}
command -v "$python" >/dev/null 2>&1 || {
	echo "no $python"
	exit 77
}
exec "$python" tests/e2e/serve/serve_clients.py
