#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# What a server allocates does not grow with the number of answers (memory.py).
# shellcheck source=tests/e2e/lib/lib.sh
. "$(dirname "$0")/../lib/lib.sh"
need_pocket
need_fail_alloc
small_shape num_hidden_layers=2 first_k_dense_replace=1 # what a prompt costs is not of interest
run synth -o "$work/small.gguf" --shape "$work/shape.json" -q
[ "$rc" = 0 ] || cannot_test "no small model"
PYTHONPATH=tests/e2e/serve python3 tests/e2e/trust/memory.py "$work"
