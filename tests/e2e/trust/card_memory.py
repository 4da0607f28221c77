# SPDX-License-Identifier: MIT
"""Another program takes the card's memory (take_card_memory) before a server starts, before its first answer, and in the middle
of an answer. The server answers rightly or refuses; it never ends, and never answers wrongly; when the memory is free again it
answers as before. Called by card_memory.sh: HELPER."""
import subprocess
import sys
import threading

from serve_lib import NotStarted, Server, check, finish, user

HELPER = sys.argv[1]
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
OPTIONS = ("-t", "2", "-c", "2048", "--sessions", "4", "-q", "--backend", "cuda")
LONG = " ".join(f"The river number {i} runs to the sea." for i in range(80))
BODIES = [
    (COMPLETIONS, {"prompt": "The river", "max_tokens": 20, "temperature": 0, "ignore_eos": True}),
    (COMPLETIONS, {"prompt": LONG, "max_tokens": 8, "temperature": 0, "ignore_eos": True}),
    (COMPLETIONS, {"prompt": ["The river", "The sea", "The stone", "The dog"], "max_tokens": 20, "temperature": 0,
                   "ignore_eos": True}),
    (CHAT, {"messages": user("Define river."), "max_tokens": 20, "temperature": 0, "logprobs": True, "top_logprobs": 4}),
]


class Taken:
    """The card's memory, but for so many MiB."""

    def __init__(self, leave):
        self.leave = leave

    def __enter__(self):
        self.process = subprocess.Popen([HELPER, str(self.leave)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        print(self.process.stdout.readline().strip(), "MiB", flush=True)
        return self

    def __exit__(self, *exception):
        self.process.stdin.close()
        self.process.wait(60)


def texts(data):
    return [c.get("text") or c["message"]["content"] for c in data["choices"]]


def ask(s, path, body):
    status, data = s.post(path, body)
    return status, texts(data) if status == 200 else str(data)


def ask_all(s, expected, *what):
    seen = {}
    for (path, body), right in zip(BODIES, expected):
        got = ask(s, path, body)
        seen[got[0]] = seen.get(got[0], 0) + 1
        check(s.process.poll() is None, *what, "the server has ended", "".join(s.log[-5:]))
        check(got == right or got[0] in (500, 503), *what, got, "expected", right)
    return seen


def main():
    with Server(*OPTIONS) as s:
        expected = [ask(s, *b) for b in BODIES]
        check(all(e[0] == 200 for e in expected), "with all memory", expected)
    for leave in (0, 64, 512):
        with Server(*OPTIONS) as s:  # nothing was computed yet: what grows with the first step is missing
            with Taken(leave):
                print(leave, "MiB left, before the first answer:", ask_all(s, expected, leave, "before"), flush=True)
            answers = [ask(s, *b) for b in BODIES]
            if leave or answers == expected:
                check(answers == expected, leave, "behind it, all are right", "".join(s.log[-8:]))
                check(s.get("/health")[0] == 200, leave, "its health", s.get("/health"))
            else:  # CUDA 13.0: a kernel whose loading has failed once fails for the life of the process
                print("it refuses until it is started again:", s.log[-1].strip(), flush=True)
                check(all(a[0] in (500, 503) for a in answers), leave, "behind it, all are refused", answers)
                check(s.get("/health")[0] == 503, leave, "its health", s.get("/health"))
        with Server(*OPTIONS) as s:
            got = []
            body = {"prompt": "The river", "max_tokens": 1500, "temperature": 0, "ignore_eos": True}
            whole = ask(s, COMPLETIONS, body)
            thread = threading.Thread(target=lambda: got.append(ask(s, COMPLETIONS, body)))
            thread.start()
            with Taken(leave):
                print(leave, "MiB left, in the middle:", ask_all(s, expected, leave, "in the middle"), flush=True)
                thread.join()
            check(got[0] == whole or got[0][0] in (500, 503), leave, "an answer under way", got[0][0])
            check([ask(s, *b) for b in BODIES] == expected, leave, "behind it, all are right")
        with Taken(leave):
            try:
                with Server(*OPTIONS) as s:
                    print(leave, "MiB left, at the start:", ask_all(s, expected, leave, "at the start"), flush=True)
            except NotStarted as e:
                print(leave, "MiB left, at the start: status", e.status, e.log.strip()[:300], flush=True)
                check(e.status in (1, 4) and "glmstream: " in e.log, leave, "at the start", e.status, e.log)
    finish()


main()
