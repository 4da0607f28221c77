# SPDX-License-Identifier: MIT
"""What one request may cost the others: small bodies that ask for much memory or much time of the compute thread. The server
has 1 GB of addresses; each shape must be refused or answered, and the answers of another client go on meanwhile."""
import json
import threading
import time

from serve_lib import PROGRAM, Server, check, finish

CHAT = "/v1/chat/completions"
SAN = "san-" in PROGRAM
ASK = {"messages": [{"role": "user", "content": "Define river."}], "temperature": 0, "max_tokens": 20,
       "enable_thinking": False}


def user(text):
    return [{"role": "user", "content": text}]


def function(name, **members):
    return {"type": "function", "function": {"name": name, **members}}


class Other:
    """Another client: asks the same again and again, and remembers the slowest answer."""

    def __init__(self, server):
        self.server, self.slowest, self.count, self.end = server, 0, 0, False
        self.expected = self.ask()
        self.thread = threading.Thread(target=self.run)

    def ask(self):
        status, data = self.server.post(CHAT, ASK)
        return status, data["choices"][0]["message"]["content"] if status == 200 else data

    def run(self):
        while not self.end:
            start = time.monotonic()
            answer = self.ask()
            self.slowest = max(self.slowest, time.monotonic() - start)
            self.count += 1
            check(answer == self.expected, "another client's answer", answer, self.expected)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.end = True
        self.thread.join()


def references(count, kilobytes):
    """One tool that messages name `count` times: its text would stand in the prompt as often."""
    return {"messages": [{"role": "tool", "content": [{"type": "tool_reference", "name": "f"}] * count}] + user("x"),
            "tools": [function("f", defer_loading=True, description="x" * (kilobytes << 10))], "max_tokens": 1}


def test_references(s):
    for path in (CHAT, "/apply-template"):
        start = time.monotonic()
        status, data = s.post(path, references(20000, 1000))
        took = time.monotonic() - start
        check(status in (400, 413) and "more than" in str(data), "20 GB of prompt text", path, status, data)
        check(SAN or took < 5, "20 GB of prompt text: refused after", took)
    status, data = s.post(CHAT, references(2, 0))
    check(status == 200, "a tool that is named twice", status, data)


def main():
    options = ["-t", "1", "-c", "2048", "--sessions", "2"]
    with Server(*options, address_bytes=None if SAN else 1 << 30) as s:
        with Other(s) as other:
            test_references(s)
        check(SAN or other.slowest < 5, "another client's slowest answer took", other.slowest)
        print(f"another client: {other.count} answers, the slowest took {other.slowest:.2f} s")
    finish()


main()
