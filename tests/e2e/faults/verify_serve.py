#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A server whose model has experts with wrong bytes: the answer that needs one ends with an error that names it, /metrics
counts it, and the server goes on.

    verify_serve.py MODEL WRONG_LAYER"""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../serve"))
from serve_lib import Server, check, counter, finish  # noqa: E402

model, layer = sys.argv[1:]
body = {"prompt": "Define river.", "max_tokens": 4, "temperature": 0}

for options in ["--cache-gb", "0.004"], ["--cache-gb", "0.004", "--no-direct", "--verify", "always"], []:
    with Server(*options, model=model) as s:
        for tries in (1, 2):
            status, _, data = s.request("POST", "/v1/completions", body)
            check(status == 500, "the answer should fail, found", status, data, options)
            wrong = counter(s, "experts_wrong")
            check(wrong >= tries, "counted as wrong", options)
            # not one more for each answer: one may end by an expert that the answer before has left being read again
            check(counter(s, "experts_reread") >= wrong, "counted as read again", options)
            check(counter(s, "answers_failed") == tries, "counted as failed", options)
        check(counter(s, "experts_verified") > 1, "others were compared", options)
        check(s.request("GET", "/v1/models")[0] == 200, "the server goes on", options)
    # when the server has ended, and with it the thread that reads its log
    named = [line for line in s.log if f"of layer {layer}: {model}: blk.{layer}.ffn_up_exps.weight" in line]
    check(len(named) == 2, "the log should name it each time", "".join(s.log), options)
with Server("--verify", "off", model=model) as s:
    status, _, data = s.request("POST", "/v1/completions", body)
    check(status == 200, "--verify off uses them as they are", status, data)
    check(counter(s, "experts_verified") == 0, "and counts nothing")
finish()
