#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""How soon the work on a long prompt ends when its client leaves: tests/card/stop.py MODEL [option of serve ...].
Clients leave at other points of a chunk each; prints milliseconds from leaving until nobody is served, which a request
for the server's state tells, every 5 ms."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../e2e/serve"))
from serve_lib import Server, check, finish, leave, user  # noqa: E402

CLIENTS = 8
WORDS = int(os.environ.get("STOP_WORDS", "18000"))


def main(model, *options):
    with Server(*options, "--sessions", "2", "--draft", "off", model=model) as server:
        took = []
        for i in range(CLIENTS):
            prompt = f"Tell me about {i}, " + "the river and the mountain and a small bird " * (WORDS // 9)
            body = {"messages": user(prompt), "max_tokens": 2}
            ms, tokens = leave(server, "/v1/messages", body, True, 1, later=0.1 * i)
            usage = server.post("/v1/messages/count_tokens", {"messages": user(prompt)})[1]["input_tokens"]
            check(0 < tokens < usage, "the prompt was stopped in its middle", tokens, usage)
            took.append(1000 * ms)
        print(f"{CLIENTS} prompts of {usage} tokens: stopped after",
              ", ".join(f"{ms:.0f}" for ms in took), f"ms; the longest {max(took):.0f} ms")


main(*sys.argv[1:])
finish()
