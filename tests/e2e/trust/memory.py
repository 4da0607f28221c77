# SPDX-License-Identifier: MIT
"""Bytes that a server has allocated, counted in its process (fail_alloc.c): as many after 1,000 answers as after 500, while other
clients vanish, stall and send what must be refused. What the server remembers of answers stays within its limit, which the first 500
reach. The KV caches and the workspace are taken at the start."""
import mmap
import os
import struct
import sys
import threading
import time

from serve_lib import WEATHER, Server, check, finish, gauge, user
from serve_load import Rude

WORK = sys.argv[1]
CONTROL = os.path.join(WORK, "control")
CONTROL_BYTES = 40
ANSWERS = 500
CLIENTS = 4
RUDE = 3  # times that each way of behaving badly is tried among so many answers
LIMIT_GB = 0.00006
SPREAD = 4000  # bytes; which answers are remembered last varies; the smallest block that leaks with each answer makes 12,000
PLAIN = {"temperature": 0, "max_tokens": 1, "enable_thinking": False}


def ask(s, connection, number):
    """One answer; all have the same shapes in turn, and each another text, so that each is remembered anew."""
    text = user(f"Define {number:06d}.")
    shapes = [
        ("/v1/chat/completions", {**PLAIN, "messages": text}),
        ("/v1/chat/completions", {**PLAIN, "messages": text, "stream": True}),
        ("/v1/chat/completions", {**PLAIN, "messages": text, "tools": [WEATHER], "logprobs": True, "top_logprobs": 2}),
        ("/v1/responses", {"input": text, "max_output_tokens": 1, "temperature": 0, "enable_thinking": False}),
        ("/v1/messages", {"messages": text, "max_tokens": 1, "temperature": 0}),
        ("/v1/completions", {"prompt": f"River {number:06d}", "max_tokens": 1, "temperature": 0}),
        ("/v1/chat/completions", {**PLAIN, "messages": text, "n": 0}),  # refused
        ("/completion", {"prompt": f"River {number:06d}", "n_predict": 1, "temperature": 0}),
    ]
    path, body = shapes[number % len(shapes)]
    status, _, data = s.request("POST", path, body, connection=connection)
    check(status == (400 if "n" in body else 200), path, "gave", status, data)


def answers(s, first):
    def client(which):
        connection = s.connect()
        for i in range(first + which, first + ANSWERS, CLIENTS):
            ask(s, connection if i % 3 else None, i)
        connection.close()

    def misbehave(way):
        for _ in range(RUDE):
            try:
                way()
            except OSError:
                pass  # cut off

    threads = [threading.Thread(target=client, args=(i,)) for i in range(CLIENTS)]
    rude = Rude(s, time.monotonic() + 4, {})
    threads += [threading.Thread(target=misbehave, args=(way,)) for way in rude.ways]
    for t in threads:
        t.start()
    for t in threads:
        t.join()


def allocated(s, control):
    """Bytes and blocks, once no connection but the one that asks is left: the least of several looks, as that one ends too."""
    end = time.monotonic() + 60
    while (held := (gauge(s, "connections"), gauge(s, "request_bytes"))) != (1, 0) and time.monotonic() < end:
        time.sleep(0.05)
    check(held == (1, 0), "connections and bytes of requests, when all have ended:", held)
    looks = []
    for _ in range(100):
        time.sleep(0.05)
        looks.append(struct.unpack("qq", control[24:40]))
    return min(looks)


def check_limits(s):
    for name in ("remembered_answer_bytes", "kept_response_bytes"):
        now, limit = gauge(s, name), gauge(s, name + "_limit")
        check(limit == LIMIT_GB * 1e9 / 2, name, "limit", limit)
        check(0.8 * limit < now <= limit, name, "is", now, "of", limit)


def main():
    with open(CONTROL, "wb") as f:
        f.write(bytes(CONTROL_BYTES))
    with open(CONTROL, "r+b") as f:
        control = mmap.mmap(f.fileno(), CONTROL_BYTES)
    with Server("--sessions", "2", "-c", "512", "-q", "--queue", "100", "--remember-gb", str(LIMIT_GB),
                model=os.path.join(WORK, "small.gguf"),
                env={"LD_PRELOAD": os.path.join(WORK, "fail_alloc.so"), "FAIL_CONTROL": CONTROL}) as s:
        memory = s.get("/v1/glmstream/state?map=0")[1]["memory"]
        with open(f"/proc/{s.process.pid}/status", encoding="ascii") as f:
            resident = int(next(line for line in f if line.startswith("RssAnon:")).split()[1]) * 1024
        check(resident >= memory["kv_bytes"] + memory["workspace_bytes"], "at the start", resident, "bytes are resident of", memory)
        seen = []
        for i in range(2):
            answers(s, i * ANSWERS)
            seen.append(allocated(s, control))
            check_limits(s)
        (bytes_1, blocks_1), (bytes_2, blocks_2) = seen
        print(f"allocated after {ANSWERS} answers: {bytes_1} bytes in {blocks_1} blocks; after as many more {bytes_2} in {blocks_2}")
        check(bytes_1 > 100_000, "this does not count allocations:", bytes_1)
        check(bytes_2 <= bytes_1 + SPREAD, "memory grows with the number of answers:", seen)
    finish()


main()
