#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Answers that follow JSON schemas, checked with PyPI's jsonschema (serve_schemas.py).
# $SERVE_PYTHON names a Python that has it, else python3; .ci/run makes one. Skips without it.
set -u
cd "$(dirname "$0")/../../.." || exit 1
for python in ${SERVE_PYTHON:-} python3 none; do
	"$python" -c 'import jsonschema' 2>/dev/null && break
done
[ "$python" = none ] || exec "$python" tests/e2e/serve/serve_schemas.py
echo "no Python here has jsonschema (PyPI): answers by schemas are not tested"
exit 77
