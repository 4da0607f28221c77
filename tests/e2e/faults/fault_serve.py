# SPDX-License-Identifier: MIT
"""Lets single system calls that change files fail in a running server with a session folder and a trace, while it answers a chat
whose prompt it stores and a response that it keeps. Whatever fails, the server answers, and rightly; what the folder held before
is read again, by this server and by the next one; a server that cannot start, or whose trace is lost, says so and ends with a
status. A call that is interrupted, or writes a part, is made again: then all is kept.

FAULT_POINTS: how many places for each way to fail are tried (0: every one). FAULT_SEED: which. FAULT_HOW: ENOSPC, EIO, EINTR,
storm, short; all without it."""
import os
import random
import re
import shutil
import subprocess
import sys
import time

from serve_lib import NotStarted, Server, check, finish, skip, user

WORK = sys.argv[1]
POINTS = int(os.environ.get("FAULT_POINTS", "2"))
SEED = int(os.environ.get("FAULT_SEED", "1"))
HOWS = os.environ.get("FAULT_HOW", "ENOSPC EIO EINTR storm short").split()
FAIL_WRITE = os.path.join(WORK, "fail_write")
OLD, FOLDER, TRACE = (os.path.join(WORK, name) for name in ("old", "store", "trace"))
CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
PLAIN = {"temperature": 0, "max_tokens": 4, "enable_thinking": False}


def sentences(what):
    """More than a block of the store (512 tokens), less than two."""
    return " ".join(f"The {what} number {i} runs to the sea." for i in range(55))


def start(folder, trace, under=()):
    return Server("-t", "1", "-c", "1024", "--sessions", "1", "--session-dir", folder, *trace, under=under)


def chat(s, text):
    """Status, text, and how many tokens of the prompt were computed."""
    status, data = s.post(CHAT, {**PLAIN, "messages": user(text)})
    if status != 200:
        return status, data, None
    usage = data["usage"]
    return status, data["choices"][0]["message"]["content"], usage["prompt_tokens"] - \
        usage["prompt_tokens_details"]["cached_tokens"]


def respond(s, text, previous=None):
    """Status, text, ID of a response that is kept."""
    status, data = s.post(RESPONSES, {"input": text, "max_output_tokens": 4, "temperature": 0, "enable_thinking": False,
                                      **({"previous_response_id": previous} if previous else {})})
    if status != 200:
        return status, data, None
    return status, "".join(c["text"] for o in data["output"] if o["type"] == "message" for c in o["content"]), data["id"]


def is_read(got, computed):
    """The same answer, and a block of its prompt came from the store."""
    return got[:2] == computed[:2] and got[2] <= computed[2] - 512


class Expected:
    """What a server without faults answers; it fills the old folder."""

    def __init__(self):
        with start(OLD, ()) as s:
            self.river = chat(s, sentences("river"))
            self.kept = respond(s, "Define river.")
        with start(OLD, ()) as s:  # reads what the first one wrote
            self.again = chat(s, sentences("river"))
            self.behind = respond(s, "And dog?", self.kept[2])
        shutil.copytree(OLD, FOLDER)
        with start(FOLDER, ()) as s:
            self.sea = chat(s, sentences("sea"))
            self.response = respond(s, "Define dog.")
        check(self.river[0] == self.again[0] == self.sea[0] == 200, self.river, self.again, self.sea)
        check(is_read(self.again, self.river), "a stored prompt is not computed again", self.river, self.again)
        check(self.behind[0] == self.response[0] == 200, self.behind, self.response)


def old_is_there(s, x, *what):
    """The old blocks and the old response."""
    got = chat(s, sentences("river"))
    check(is_read(got, x.river), *what, "the old prompt", got, "expected", x.again)
    got = respond(s, "And dog?", x.kept[2])
    check(got[:2] == x.behind[:2], *what, "behind the old response", got, "expected", x.behind)


def talk(s, x, *what):
    """The script while calls fail."""
    got = chat(s, sentences("sea"))
    check(got[:2] == x.sea[:2], *what, "a new prompt", got, "expected", x.sea)
    got = respond(s, "Define dog.")
    check(got[:2] == x.response[:2], *what, "a response", got, "expected", x.response)
    old_is_there(s, x, *what)
    check(s.get("/health")[0] == 200, *what, "its health", s.get("/health"))


def run(x, number, how, whole):
    """One run with a fault, one behind it. whole: nothing may get lost. Returns how the first ended and its log."""
    what = (f"call {number}: {how}:",)
    shutil.rmtree(FOLDER, ignore_errors=True)
    shutil.copytree(OLD, FOLDER)
    for name in os.listdir(WORK):
        if name.startswith("trace"):
            os.remove(os.path.join(WORK, name))
    try:
        s = start(FOLDER, ("--trace", TRACE), under=(FAIL_WRITE, str(number), how))
    except NotStarted as e:
        if e.status == 77:
            skip("system calls cannot be traced here")
        ended = ("not started", e.status)
        check(not whole and e.status in (1, 3) and re.search(r"^glmstream: .", e.log, re.M), *what, ended, e.log)
        log = e.log
    else:
        try:
            talk(s, x, *what)
        finally:
            status = s.stop()
        log = "".join(s.log)
        ended = ("ended", status)
        check(status == 0 or (not whole and status == 1 and re.search(r"^glmstream: .*trace", log, re.M)), *what, ended, log)
        if whole:
            check("warning: " not in log, *what, "nothing is warned of", log)
            check(os.path.getsize(TRACE) > 0, *what, "the trace is there")
    with start(FOLDER, ()) as s:
        old_is_there(s, x, *what, "the next server:")
        got = chat(s, sentences("sea"))
        check(is_read(got, x.sea) if whole else got[:2] == x.sea[:2], *what, "the next server: the new prompt", got, x.sea)
    return ended, log


def places(kinds, total):
    """Kinds of calls, and numbers of calls."""
    some = random.Random(SEED)
    if not POINTS:
        return kinds + list(range(1, total + 1))
    chosen = some.sample(kinds, min(POINTS, len(kinds)))
    more = POINTS - len(chosen)
    return chosen + sorted(some.sample(range(1, total + 1), min(more, total)))


def main():
    x = Expected()
    began = time.monotonic()
    ended, log = run(x, 0, "EIO", True)
    check(ended == ("ended", 0), "without a fault", ended, log)
    every = int(re.search(r"^calls (\d+)$", log, re.M)[1])
    n, warned, stopped = 0, 0, {}
    for how in HOWS:
        total, kinds = re.search(rf"^{how} (\d+):(.*)$", log, re.M).groups()
        for number in places(kinds.split(), int(total)):
            ended, said = run(x, number, how, how in ("EINTR", "storm", "short"))
            n += 1
            warned += "warning: " in said
            stopped[ended] = stopped.get(ended, 0) + 1
    print(f"{n} failures in {every} calls that write: {stopped}, {warned} warned of, {time.monotonic() - began:.0f} s")
    finish()


if not shutil.which(FAIL_WRITE) or subprocess.run([FAIL_WRITE, "0", "EIO", "/bin/true"], capture_output=True).returncode == 77:
    skip("system calls cannot be traced here")
main()
