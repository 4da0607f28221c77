# SPDX-License-Identifier: MIT
"""For the server's tests: starts `glmstream serve` on a free port, talks HTTP with the standard library, counts checks."""
import http.client
import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "../../.."))
PROGRAM = os.environ.get("GLMSTREAM", os.path.join(ROOT, "build/release/glmstream"))
POCKET = os.path.join(ROOT, "tools/pocket/pocket.gguf")
SLOW = "san-thread" in PROGRAM  # a hundred times slower
SAN = "san-" in PROGRAM  # ten times slower: repetitions are fewer
checks, wrong = 0, []
lock = threading.Lock()


def check(condition, *what):
    global checks
    with lock:
        checks += 1
        if not condition:
            text = " ".join(str(w)[:600] for w in what)
            wrong.append(text)
            print("WRONG:", text, flush=True)
    return bool(condition)


def finish():
    print(f"{checks} checks, {len(wrong)} wrong")
    sys.exit(1 if wrong else 0)


def skip(why):
    print(why)
    sys.exit(1 if wrong else 77)


def cannot_test(why):
    print(why)
    sys.exit(1)


class NotStarted(RuntimeError):
    """A server that ended before it listened."""

    def __init__(self, status, log):
        super().__init__("the server did not start: " + log)
        self.status, self.log = status, log


class Server:
    """A running server; ends with the `with` block, and its log is searched for what must not be there. `under`: a command that
    runs the program as its child."""

    def __init__(self, *options, env=None, model=POCKET, address_bytes=None, under=()):
        if not os.path.exists(PROGRAM):
            cannot_test("no program to test")
        listed = subprocess.run([PROGRAM, "--help"], capture_output=True, text=True).stdout
        if "\n  serve " not in listed:
            skip("this build has no serve command (libmicrohttpd is missing)")
        if not os.path.exists(model):
            cannot_test("no pocket model in tools/pocket (make pocket)")
        backend = () if "--backend" in options else ("--backend", "cpu")
        # one thread: others would spin between the layers of a small model
        threads = () if model != POCKET or {"-t", "--backend"} & set(options) else ("-t", "1")
        command = [*under, PROGRAM, "serve", "-m", model, "--port", "0", *backend, *threads, *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                        env={**os.environ, **(env or {})},
                                        preexec_fn=address_bytes and (lambda: resource.setrlimit(
                                            resource.RLIMIT_AS, (address_bytes, address_bytes))))
        # for the end of the program: another test measures how long that takes
        self.patience = 120
        self.log = []
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        line = self.process.stdout.readline()
        if "http://" not in line:
            status = self.process.wait(60)
            self.reader.join(5)
            raise NotStarted(status, "".join(self.log))
        self.pid = self.process.pid
        if under:
            with open(f"/proc/{self.pid}/task/{self.pid}/children") as f:
                self.pid = int(f.read().split()[0])
        self.port = int(line.rsplit(":", 1)[1])
        self.url = f"http://127.0.0.1:{self.port}"

    def _read(self):
        for line in self.process.stderr:
            self.log.append(line)

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        status = self.stop()
        if kind is None:
            check(status == 0, "SIGTERM should end the server with status 0, found", status, "".join(self.log[-20:]))

    def stop(self, sig=signal.SIGTERM):
        if self.process.poll() is None:
            os.kill(self.pid, sig)
            try:
                self.process.wait(self.patience)
            except subprocess.TimeoutExpired:
                check(False, "the server does not end")
                self.process.kill()
                self.process.wait()
        self.reader.join(60)
        log = "".join(self.log)
        for word in ("Sanitizer", "runtime error", "bug:"):
            check(word not in log, "the log says", word, log[-4000:])
        return self.process.returncode

    def connect(self, timeout=900 if "san-" in PROGRAM else 120):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def request(self, method, path, body=None, headers=None, connection=None):
        """(status, headers, parsed JSON or text)."""
        c = connection or self.connect()
        if isinstance(body, (dict, list)):
            body = json.dumps(body).encode()
        c.request(method, path, body, {"Content-Type": "application/json", **(headers or {})})
        r = c.getresponse()
        data = r.read()
        if not connection:
            c.close()
        if data and "/json" in (r.getheader("Content-Type") or ""):
            data = json.loads(data)
        else:
            data = data.decode("utf-8", "replace")
        return r.status, {k.lower(): v for k, v in r.getheaders()}, data

    def post(self, path, body, **headers):
        status, _, data = self.request("POST", path, body, headers)
        return status, data

    def get(self, path, **headers):
        status, _, data = self.request("GET", path, None, headers)
        return status, data

    def stream(self, path, body, headers=None, comments=False):
        """The events of a stream: (event name or None, parsed data or "[DONE]"); comments as ("comment", text) if wanted."""
        c = self.connect()
        c.request("POST", path, json.dumps({**body, "stream": True}),
                  {"Content-Type": "application/json", **(headers or {})})
        r = c.getresponse()
        if r.status != 200:
            yield ("status", r.status)
            yield ("error", json.loads(r.read()))
            c.close()
            return
        check("text/event-stream" in r.getheader("Content-Type"), "a stream has the type text/event-stream")
        name = None
        try:
            for raw in r:
                line = raw.decode().rstrip("\n")
                if line.startswith("event: "):
                    name = line[7:]
                elif line.startswith("data: "):
                    data = line[6:]
                    yield (name, data if data == "[DONE]" else json.loads(data))
                elif line.startswith(":"):
                    if comments:
                        yield ("comment", line)
                elif not line:
                    name = None
                else:
                    check(False, "a line of a stream is neither event nor data:", line)
        finally:  # who closes the generator leaves
            r.close()
            c.close()

    def lines(self, path, body):
        """The objects of a stream of JSON lines."""
        status, headers, data = self.request("POST", path, body)
        check(status == 200 and headers.get("content-type") == "application/x-ndjson", path, status, headers, data)
        return [json.loads(line) for line in data.splitlines()]

    def wait_state(self, what, is_so, seconds=120, **headers):
        """The first state for which is_so(active answers, waiting ones); a test that waits for a while instead depends on load."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            state = self.get("/v1/glmstream/state?map=0", **headers)[1]
            if is_so(state["sessions"]["active"], state["queue"]["waiting"]):
                return state
            time.sleep(0.05)
        check(False, "the server does not become:", what, state)
        return state

    def wait_idle(self, seconds=120):
        return self.wait_state("idle", lambda active, waiting: not active and not waiting, seconds)


def gauge(s, name):
    """A figure of /metrics without labels; -1: there is none of this name."""
    text = s.get("/metrics")[1]
    return next((float(line.split()[1]) for line in text.splitlines() if line.startswith(f"glmstream_{name} ")), -1)


def wait_gauge(s, name, is_so, seconds=120):
    """Asks until is_so(value of the gauge); returns the last value. The answers that ask count as memory themselves until the
    kernel has taken them: who asks twice without a pause may see the first one."""
    end = time.monotonic() + seconds
    while not is_so(value := gauge(s, name)) and time.monotonic() < end:
        time.sleep(0.1)
    return value


def counter(server, name):
    return float(re.search(rf"^glmstream_{name}_total ([0-9.e+]+)$", server.get("/metrics")[1], re.M)[1])


def leave(server, path, body, stream, enough, later=0):
    """Sends a request, leaves `later` seconds after `enough` prompt tokens are computed: how long until nobody is served,
    tokens computed."""
    before = counter(server, "prefill_tokens")
    payload = json.dumps({**body, "stream": stream}).encode()
    s = socket.create_connection(("127.0.0.1", server.port))
    s.sendall(b"POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
              % (path.encode(), len(payload)) + payload)
    end = time.monotonic() + 120
    while counter(server, "prefill_tokens") < before + enough and time.monotonic() < end:
        time.sleep(0.01)
    time.sleep(later)
    start = time.monotonic()
    s.close()
    while server.get("/v1/glmstream/state?map=0")[1]["sessions"]["active"] and time.monotonic() < start + 60:
        time.sleep(0.005)
    return time.monotonic() - start, int(counter(server, "prefill_tokens") - before)


def user(text):
    return [{"role": "user", "content": text}]


WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "Get the weather in a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string", "description": "Name of the city"}},
                   "required": ["city"]}}}
TIME = {"type": "function", "function": {
    "name": "get_time", "description": "Get the local time in a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string", "description": "Name of the city"}},
                   "required": ["city"]}}}
