# SPDX-License-Identifier: MIT
"""Load on the server: serve_load.py [--seconds 5] [--clients 64] [--sessions 8] [--rude N] [--streamed]
    [--addresses N] [--usage FILE]

Each client asks again and again, in turn whole and streamed, and compares every answer with the one that another server,
without drafts, streaming and stored prompts, gave to the same request when nothing else ran. Prints tokens per second (all, and
of a client), times to the first token and to the end, and how the server's memory grew. With --rude there are N others besides
who vanish, stall, reset, send halves of requests, garbage, framing that is not allowed, dripped headers, bodies of 64 MB, JSON
nested 10,000 deep and prompts that are too long: they must get a refusal (or the door), and the clients must not notice.

--streamed: experts come through a small cache, prompts are stored in a folder. --addresses: the clients come from so many
addresses (one from the first; those with --rude from one more), each a client of its own for --client-share. From 60 s on there
are long answers, which are preempted for clients with other addresses, and long prompts, which are stored. --usage: the figures
of the server's process go into a file every 30 s.

Afterwards there are as many descriptors and threads as before. From 10 minutes on also: the memory of the last fifth of the run is
that of the fifth after the fifth minute, within 2 %. So that this says something about all of the run, the server remembers few
answers: their limit is reached before the fifth minute."""
import argparse
import http.client
import json
import os
import random
import resource
import socket
import statistics
import struct
import tempfile
import threading
import time

from serve_lib import WEATHER, Server, check, finish, gauge

CHAT = "/v1/chat/completions"
WORDS = "river lake tree house water king stone bird".split()


def requests():
    asks = []
    for i, word in enumerate(WORDS):
        asks.append({"messages": [{"role": "user", "content": f"Define {word}."}], "max_tokens": 40, "temperature": 0})
        asks.append({"messages": [{"role": "system", "content": "You are asked about words. " * (i % 4 * 8)},
                                  {"role": "user", "content": f"Use {word} in a sentence."}],
                     "max_tokens": 40, "temperature": 1.2, "seed": i})
        asks.append({"messages": [{"role": "user", "content": f"What is the weather in {word.title()}?"}],
                     "tools": [WEATHER], "max_tokens": 60, "temperature": 0.7, "seed": i})
    return asks


def long_requests():
    """Answers that hold a session until it is taken from them, and prompts with a block that is stored (512 tokens)."""
    asks = [{"messages": [{"role": "user", "content": f"Tell me of the {word}."}], "max_tokens": 300, "ignore_eos": True,
             "temperature": 0.9, "seed": i} for i, word in enumerate(WORDS)]
    return asks + [{"messages": [{"role": "system", "content": f"You are asked about the {word}. " * 90},
                                 {"role": "user", "content": f"Define {word}."}],
                    "max_tokens": 30, "temperature": 0.8, "seed": i} for i, word in enumerate(WORDS[:4])]


def summary(message):
    calls = [(c["function"]["name"], c["function"]["arguments"]) for c in message.get("tool_calls") or []]
    return [message.get("content") or "", message.get("reasoning_content") or "", calls]


def ask_whole(connection, ask):
    connection.request("POST", CHAT, json.dumps(ask), {"Content-Type": "application/json"})
    r = connection.getresponse()
    data = json.loads(r.read())
    if r.status == 429:
        return None
    if r.status != 200:
        raise ValueError(f"status {r.status}: {data}")
    return summary(data["choices"][0]["message"]), data["usage"]["completion_tokens"], None


def ask_stream(connection, ask):
    start, first = time.monotonic(), None
    body = {**ask, "stream": True, "stream_options": {"include_usage": True}}
    connection.request("POST", CHAT, json.dumps(body), {"Content-Type": "application/json"})
    r = connection.getresponse()
    if r.status == 429:
        r.read()
        return None
    message, tokens = {"content": "", "reasoning_content": "", "tool_calls": []}, 0
    for line in r:
        if not line.startswith(b"data: {"):
            continue
        data = json.loads(line[6:])
        if "error" in data:
            raise ValueError(str(data))
        for choice in data["choices"]:
            delta = choice["delta"]
            message["content"] += delta.get("content") or ""
            message["reasoning_content"] += delta.get("reasoning_content") or ""
            for call in delta.get("tool_calls") or []:  # the first piece has the name, the others more of the arguments
                if call["index"] == len(message["tool_calls"]):
                    message["tool_calls"].append({"function": {"name": call["function"]["name"], "arguments": ""}})
                message["tool_calls"][call["index"]]["function"]["arguments"] += call["function"].get("arguments") or ""
            if first is None and (len(delta) and delta.get("content") != ""):
                first = time.monotonic() - start
        if data.get("usage"):
            tokens = data["usage"]["completion_tokens"]
    return summary(message), tokens, first


class Load:
    def __init__(self, server, asks, expected, seconds, addresses):
        self.server, self.asks, self.expected, self.addresses = server, asks, expected, addresses
        self.end = time.monotonic() + seconds
        self.lock = threading.Lock()
        self.firsts, self.wholes, self.per_client, self.problems = [], [], [], []
        self.tokens = self.answers = self.refused = 0

    def connect(self, number):
        address = 1 + number % (self.addresses - 1) if number and self.addresses > 1 else 0
        source = (f"127.0.0.{2 + address}", 0) if self.addresses else None
        return http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=600, source_address=source)

    def client(self, number):
        rng = random.Random(number)
        connection, tokens, start = self.connect(number), 0, time.monotonic()
        while time.monotonic() < self.end:
            i = rng.randrange(len(self.asks))
            began = time.monotonic()
            try:
                got = (ask_stream if rng.random() < 0.5 else ask_whole)(connection, self.asks[i])
            except (OSError, ValueError, LookupError, TypeError, http.client.HTTPException) as e:
                self.problems.append(f"client {number}: {type(e).__name__} {e}")
                connection.close()
                connection = self.connect(number)
                continue
            with self.lock:
                if got is None:
                    self.refused += 1
                    continue
                summary_got, n, first = got
                if summary_got != self.expected[i]:
                    self.problems.append(f"client {number}: {self.asks[i]} gave {summary_got}, alone {self.expected[i]}")
                self.answers += 1
                self.tokens += n
                tokens += n
                self.wholes.append(time.monotonic() - began)
                if first is not None:
                    self.firsts.append(first)
        with self.lock:
            self.per_client.append(tokens / (time.monotonic() - start))
        connection.close()


class Rude:
    """One who behaves badly, in one way after the other."""

    def __init__(self, server, end, statuses):
        self.server, self.end, self.statuses = server, end, statuses
        self.ways = [self.vanish, self.vanish_early, self.stall, self.garbage, self.drip, self.big_body, self.deep,
                     self.not_utf8, self.wrong, self.half_body, self.half_chunk, self.reset, self.framing, self.too_long]

    def raw(self, data, read=True):
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=10) as s:
            try:
                s.sendall(data)
            except OSError:
                pass  # it may refuse before all is sent
            if not read:
                return
            try:
                head = s.recv(100)
                if head.startswith(b"HTTP/"):
                    self.note(int(head.split()[1]))
            except OSError:
                pass

    def post(self, body, read=True):
        self.raw(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                 b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body, read)

    def note(self, status):
        self.statuses[status] = self.statuses.get(status, 0) + 1

    def ask(self, **more):
        return json.dumps({"messages": [{"role": "user", "content": "Tell me a story."}], "max_tokens": 200, **more}).encode()

    def vanish(self):  # in the middle of a stream
        c = self.server.connect(10)
        c.request("POST", CHAT, self.ask(stream=True), {"Content-Type": "application/json"})
        time.sleep(random.random() * 0.5)
        c.close()

    def vanish_early(self):
        self.post(self.ask(stream=random.random() < 0.5), read=False)

    def stall(self):  # reads nothing of a stream
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=10) as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            body = self.ask(stream=True, n=4)
            s.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            time.sleep(min(2, max(0, self.end - time.monotonic())))

    def garbage(self):
        self.raw(os.urandom(2000) + b"\r\n\r\n")

    def drip(self):  # a header, byte by byte
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=10) as s:
            for c in b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nX-Slow: " + b"a" * 100:
                if time.monotonic() > self.end:
                    return
                try:
                    s.send(bytes([c]))
                except OSError:
                    return
                time.sleep(0.05)

    def big_body(self):
        self.post(b" " * 64_000_000)

    def deep(self):
        self.post(b'{"messages":' + b"[" * 10000 + b"]" * 10000 + b"}")

    def not_utf8(self):
        self.post(b'{"messages":[{"role":"user","content":"\xff\xfe\xfd"}]}')

    def wrong(self):
        self.post(random.choice([b"", b"{}", b"[1,2", b'{"messages":1}', b'{"messages":[{"role":"user","content":"x"}],"n":0}']))

    def half_body(self):
        self.raw(b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5000\r\n\r\n" + self.ask()[:40], read=False)

    def half_chunk(self):  # and then nothing for a while
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=10) as s:
            s.sendall(b"POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n1000\r\n{")
            time.sleep(min(1, max(0, self.end - time.monotonic())))

    def reset(self):  # RST in the middle of an answer
        body = self.ask(stream=True)
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=10) as s:
            s.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            s.recv(10)
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def framing(self):
        self.raw(random.choice([
            b"GET /health HTTP/1.1\nHost: localhost\n\n", b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: a\r\n b\r\n\r\n",
            b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n",
            b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0x5\r\n"]))

    def too_long(self):
        self.post(json.dumps({"messages": [{"role": "user", "content": "river " * 20000}]}).encode())

    def run(self, number):
        i = number
        while time.monotonic() < self.end:
            try:
                self.ways[i % len(self.ways)]()
            except OSError:
                pass
            i += 1


USAGE_COUNTS = ("answers", "answers_preempted", "draft_steps", "draft_rows", "store_tokens")


class Usage:
    """What the server's process holds, seen now and then: seconds, MB, descriptors, threads, per cent of what it may remember."""

    def __init__(self, server, path):
        self.server, self.pid, self.seen = server, server.process.pid, []
        self.began, self.written = time.monotonic(), -30
        self.file = open(path, "w", encoding="ascii") if path else None
        if self.file:
            print("seconds MB descriptors threads remembered_%", *USAGE_COUNTS, file=self.file, flush=True)

    def count_threads(self):
        """Without those that io_uring starts in the process for a while."""
        names = []
        for task in os.listdir(f"/proc/{self.pid}/task"):
            try:
                with open(f"/proc/{self.pid}/task/{task}/comm", encoding="ascii", errors="replace") as f:
                    names.append(f.read())
            except OSError:
                pass  # it has ended
        return len([n for n in names if not n.startswith("iou-")])

    def look(self):
        with open(f"/proc/{self.pid}/status", encoding="ascii") as f:
            resident = next(int(line.split()[1]) for line in f if line.startswith("VmRSS:"))
        fds = len(os.listdir(f"/proc/{self.pid}/fd"))
        remembered = gauge(self.server, "remembered_answer_bytes") / gauge(self.server, "remembered_answer_bytes_limit")
        self.seen.append((time.monotonic() - self.began, resident * 1024 / 1e6, fds, self.count_threads(),
                          100 * remembered))
        if self.file and self.seen[-1][0] >= self.written + 30:
            self.written = self.seen[-1][0]
            counts = [gauge(self.server, name + "_total") for name in USAGE_COUNTS]
            print(*(f"{x:.1f}" for x in self.seen[-1]), *(f"{x:.0f}" for x in counts), file=self.file, flush=True)
        return self.seen[-1]

    def median(self, what, begin, end):
        """Of what was seen then; if nobody looked, of what was seen nearest to it."""
        nearest = min(self.seen, key=lambda x: abs(x[0] - (begin + end) / 2))
        return statistics.median([x[what] for x in self.seen if begin <= x[0] <= end] or [nearest[what]])

    def check_flat(self, seconds):
        """The fifth of the run after minute 5 (or after half of the run), and the last."""
        begin = min(300, seconds / 2)
        for what, name in ((1, "MB"), (2, "descriptors"), (3, "threads"), (4, "per cent of the remembered answers' limit")):
            first, last = self.median(what, begin, begin + seconds / 5), self.median(what, seconds * 0.8, seconds)
            more = f", {(last / first - 1) * 100:+.2f} %" if first else ""
            print(f"{name}: median {first:.1f} in the fifth from {begin:.0f} s on, {last:.1f} in the last{more}")
            if seconds >= 600:
                check(what > 1 or last <= first * 1.02, name, "are not flat:", first, last)
                check(what < 4 or first > 90, "so few answers were remembered in the beginning:", first, "%")

    def check_idle(self, before):
        """As many descriptors and threads as before there were clients; a connection needs a moment to end."""
        end = time.monotonic() + 70  # the server keeps an idle connection for 60 s
        while (after := self.look())[2:4] != before[2:4] and time.monotonic() < end:
            time.sleep(0.2)
        check(after[2:4] == before[2:4], "descriptors and threads before and after:", before[2:4], after[2:4])
        return after


def percentiles(values):
    values = sorted(values) or [0.0]
    return " / ".join(f"{values[min(len(values) - 1, int(len(values) * p))] * 1000:.0f}" for p in (0.5, 0.95, 0.99, 1))


def answer_alone(asks):
    """The right answers, and tokens per second."""
    with Server("--sessions", "1", "-c", "1024", "-q", "--draft", "off", "--remember-gb", "0", "--no-profile") as s:
        c = s.connect()
        began = time.monotonic()
        answers = [ask_whole(c, a) for a in asks]
        seconds = time.monotonic() - began
        c.close()
    return [a[0] for a in answers], sum(a[1] for a in answers) / seconds


def run(o, more):
    asks = requests() + (long_requests() if o.seconds >= 60 else [])
    expected, tok_s_alone = answer_alone(asks)
    with Server("--sessions", str(o.sessions), "-c", "1024", "-q", "--queue", "1000", "--remember-gb", "0.0002",
                *(("--client-share", "75") if o.addresses else ()), *more) as s:
        usage = Usage(s, o.usage)
        time.sleep(0.5)
        before = usage.look()
        while (again := usage.look())[2:4] != before[2:4]:  # threads of its own requests may still be counted
            before = again
            time.sleep(0.2)
        load = Load(s, asks, expected, o.seconds, o.addresses)
        threads = [threading.Thread(target=load.client, args=(i,)) for i in range(o.clients)]
        statuses = {}
        rude = Rude(s, load.end, statuses)
        threads += [threading.Thread(target=rude.run, args=(i,)) for i in range(o.rude)]
        for t in threads:
            t.start()
        while time.monotonic() < load.end:
            usage.look()
            time.sleep(min(0.5, o.seconds / 20))
        for t in threads:
            t.join()
        check(not load.problems, len(load.problems), "wrong answers or failures:", load.problems[:3])
        check(load.answers > 0 and load.tokens > 0, "answers", load.answers)
        bad = {k: v for k, v in statuses.items() if not 400 <= k < 500 and k not in (200, 503)}
        check(not bad, "the rude should get refusals:", statuses)
        state = s.wait_idle()
        check(state["totals"]["failed"] == 0 and state["healthy"], "nothing failed", state["totals"])
        print(f"{o.clients} clients, {o.sessions} sessions, {o.seconds:g} s: {load.answers} answers, {load.refused} refused, "
              f"{len(load.problems)} wrong, {load.tokens / o.seconds:.1f} tok/s in all (alone, one after the other: {tok_s_alone:.1f})")
        print(f"tok/s of a client: least {min(load.per_client):.2f}, most {max(load.per_client):.2f}")
        print(f"ms to the first token, 50/95/99/100 %: {percentiles(load.firsts)}")
        print(f"ms to the end of an answer:            {percentiles(load.wholes)}")
        if o.rude:
            print("what the rude got:", dict(sorted(statuses.items())),
                  "connections cut:", s.get("/metrics")[1].split("\nglmstream_connections_cut_total ")[1].split("\n")[0])
        usage.check_flat(o.seconds)
        after = usage.check_idle(before)
        print(f"MB, descriptors, threads: {before[1:4]} before, {after[1:4]} after")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--sessions", type=int, default=8)
    parser.add_argument("--rude", type=int, default=0)
    parser.add_argument("--streamed", action="store_true")
    parser.add_argument("--addresses", type=int, default=0)
    parser.add_argument("--usage")
    o = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1]),) * 2)
    with tempfile.TemporaryDirectory() as folder:
        run(o, ["--cache-gb", "0.006", "--ram-gb", "0.003", "--session-dir", folder, "--session-dir-gb", "0.05",
                "--draft", "auto"] if o.streamed else [])
    finish()


if __name__ == "__main__":
    main()
