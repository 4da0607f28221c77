#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Request smuggling: the server alone, and behind nginx with the configuration of `glmstream help
# proxy` (smuggling.py). Without nginx only the first part.
set -u
cd "$(dirname "$0")/../../.." || exit 1
export PYTHONPATH=$PWD/tests/e2e/serve
exec python3 tests/e2e/trust/smuggling.py "$@"
