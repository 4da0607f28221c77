# SPDX-License-Identifier: MIT
"""What one request may cost the others: small bodies that ask for much memory or much time of the compute thread. The server
has 1 GB of addresses; each shape must be refused or answered, and the answers of another client go on meanwhile."""
import json
import os
import resource
import threading
import time

from serve_lib import PROGRAM, Server, check, finish, gauge, wait_gauge

CHAT = "/v1/chat/completions"
SAN = "san-" in PROGRAM
ASK = {"messages": [{"role": "user", "content": "Define river."}], "temperature": 0, "max_tokens": 20,
       "enable_thinking": False}


def user(text):
    return [{"role": "user", "content": text}]


def function(name, **members):
    return {"type": "function", "function": {"name": name, **members}}


def busy(s):
    """Processor seconds of the server so far: other programs do not change them."""
    with open(f"/proc/{s.process.pid}/stat") as f:
        fields = f.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Other:
    """Another client: asks the same again and again, and remembers the slowest answer, by the server's processor time."""

    def __init__(self, server):
        self.server, self.slowest, self.count, self.end = server, 0, 0, False
        self.expected = self.ask()
        self.thread = threading.Thread(target=self.run)

    def ask(self):
        status, data = self.server.post(CHAT, ASK)
        return status, data["choices"][0]["message"]["content"] if status == 200 else data

    def run(self):
        while not self.end:
            start = busy(self.server)
            answer = self.ask()
            self.slowest = max(self.slowest, busy(self.server) - start)
            self.count += 1
            check(answer == self.expected, "another client's answer", answer, self.expected)
            time.sleep(0.05)  # one answer after the other would take most of the processor

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
        start = busy(s)
        status, data = s.post(path, references(20000, 1000))
        took = busy(s) - start
        check(status in (400, 413) and "more than" in str(data), "20 GB of prompt text", path, status, data)
        check(SAN or took < 5, "20 GB of prompt text: refused after", took)
    status, data = s.post(CHAT, references(2, 0))
    check(status == 200, "a tool that is named twice", status, data)


def trees(count, n):
    """A small body with many values: the tree of tools is a hundred times as large."""
    body = {"messages": user("Define river."), "n": n, "max_tokens": 2, "enable_thinking": False,
            "tools": [function("f", defer_loading=True, parameters={"x": [{}] * count})]}
    return json.dumps(body, separators=(",", ":")).encode()


def memory(s):
    """Peak of the server's memory in MB."""
    with open(f"/proc/{s.process.pid}/status") as f:
        return next(int(line.split()[1]) >> 10 for line in f if line.startswith("VmHWM"))


def test_trees(s):
    """16 answers each to 12 clients: the tools of a request exist once, and all requests together are counted."""
    body, seen = trees(149000, 16), []

    def one():
        status, data = s.post(CHAT, body)
        seen.append(status)
        check(status == 200 or status == 429, "300,000 values", status, data)

    threads = [threading.Thread(target=one) for _ in range(12)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    check(200 in seen, "one of them is answered", seen)
    peak = gauge(s, "request_bytes_peak")
    check(90e6 < peak <= gauge(s, "request_bytes_limit"), "counted:", peak, gauge(s, "request_bytes_limit"))
    check(gauge(s, "requests_over_budget_total") > 0, "twelve at a time are more than the limit", seen)
    # the client has its answer before the server has let go of the request
    held = wait_gauge(s, "request_bytes", lambda n: n < 1e6)
    check(held < 1e6, "nothing is held when nothing is under way", held)
    check(SAN or memory(s) < 500, "memory of twelve requests of 0.45 MB:", memory(s))
    print(f"12 requests of {len(body) / 1e6:.2f} MB: {sorted(seen)}, at most {memory(s)} MB of memory")


def long_names(kilobytes):
    properties = {f"{i:03d}" + "k" * (kilobytes << 10): {"type": "string"} for i in range(256)}
    return {"messages": user("x"), "enable_thinking": False, "tool_choice": "required", "max_tokens": 40,
            "temperature": 0, "tools": [function("f", defer_loading=True, parameters={
                "type": "object", "properties": properties, "required": [next(iter(properties))]})]}


def schema(value):
    return {"messages": user("x"), "enable_thinking": False, "max_tokens": 80, "temperature": 1, "seed": 3,
            "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": value}}}


def schemas():
    """Schemas whose masks or whose compilation would take long without a limit."""
    yield "many places", {**schema({"type": "string", "pattern": "^.*[a-m].{900}$"}), "max_tokens": 200}  # each token adds states
    yield "many sets", schema({"type": "string", "pattern": "^[a-z ]*[aeiou ][a-z ]{400}$"})
    yield "many alternatives", schema({"anyOf": [{"type": "string", "pattern": f"^[a-z]*{c}[a-z ]{{30,300}}$"}
                                                 for c in "abcdefghijklmnopqrstuvwxyz"]})
    yield "long enum", schema({"enum": ["a" * 60 + str(i) for i in range(5000)]})
    yield "references", schema({"$defs": {f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}, {"type": "array", "items": {
        "$ref": f"#/$defs/d{i + 1}"}}]} for i in range(60)} | {"d60": {"type": "integer"}}, "$ref": "#/$defs/d0"})
    yield "products", schema({"type": "object", "properties": {
        f"p{i}": {"type": "string", "pattern": "^(a|b)*a(a|b){100}$", "minLength": 101, "maxLength": 102}
        for i in range(1500)}})
    yield "long names", long_names(20)
    yield "names", {**long_names(0), "max_tokens": 400}


def test_schemas(s, other):
    for name, body in schemas():
        other.slowest, start = 0, time.monotonic()
        status, data = s.post(CHAT, body)
        took = time.monotonic() - start
        check(status in (200, 400), name, status, data)
        if status == 400:
            check(any(word in str(data) for word in ("too much time", "too long", "too large", "too many states", "a property has")), name, data)
        check(SAN or other.slowest < 10, name, "another client waited", other.slowest)
        print(f"{name}: {status} {data['error']['message'][:60] if status == 400 else ''} after {took:.2f} s, another client's slowest answer {other.slowest:.2f} s")


def ended_children():
    """Processor seconds of the servers that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_stop_in_mask():
    before = ended_children()
    with Server("-t", "1", "-c", "2048", "--sessions", "2") as s:
        body = next(schemas())[1]
        t = threading.Thread(target=lambda: s.post(CHAT, body))
        t.start()
        time.sleep(0.3)
        s.stop()
        t.join()
    check(SAN or ended_children() - before < 7, "a server that was stopped in a mask took processor seconds:", ended_children() - before)


def main():
    options = ["-t", "1", "-c", "2048", "--sessions", "2"]
    with Server(*options, address_bytes=None if SAN else 1 << 30) as s:
        test_references(s)
        with Other(s) as other:
            test_trees(s)
            test_schemas(s, other)
        check(SAN or other.slowest < 10, "another client's slowest answer took", other.slowest)
        print(f"another client: {other.count} answers, the slowest took {other.slowest:.2f} s")
    test_stop_in_mask()
    finish()


main()
