# SPDX-License-Identifier: MIT
"""One client can't keep the others out: connections, places in the queue, memory, sessions in turn. Clients are addresses of
this machine (127.0.0.2, ...), addresses that a trusted proxy passes on, or keys."""
import http.client
import json
import select
import signal
import socket
import threading
import time

from serve_lib import Server, check, finish, gauge, user, wait_gauge

CHAT, EVENTS = "/v1/chat/completions", "/v1/glmstream/events?map=0"
SHORT = {"messages": user("Define river."), "max_tokens": 1, "enable_thinking": False}
LONG = {"prompt": "The river", "ignore_eos": True, "stream": True}


def connect(s, address):
    return http.client.HTTPConnection("127.0.0.1", s.port, timeout=60, source_address=(address, 0))


def ask(s, address, method="GET", path="/health", body=None, **headers):
    """(status, headers, body); 0 for a connection that is closed without an answer."""
    c = connect(s, address)
    try:
        c.request(method, path, json.dumps(body) if body else None, {"Content-Type": "application/json", **headers})
        r = c.getresponse()
        return r.status, {k.lower(): v for k, v in r.getheaders()}, r.read().decode()
    except OSError:
        return 0, {}, ""
    finally:
        c.close()


def served(s, address, **headers):
    """A connection that was closed counts until the server has seen it."""
    until = time.monotonic() + 60
    while ask(s, address, **headers)[0] != 200:
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


def hold(s, address, n, path=EVENTS, **headers):
    """n connections with an endless answer each; and the statuses."""
    held = []
    for _ in range(n):
        c = connect(s, address)
        c.request("GET", path, headers=headers)
        held.append((c, c.getresponse()))
    return held, [r.status for _, r in held]


def hold_three(s, address, **headers):
    """Connections of the checks before end when the server has seen it."""
    for _ in range(300):
        held, seen = hold(s, address, 3, **headers)
        if seen == [200] * 3:
            break
        close(held)
        time.sleep(0.1)
    return held, seen


def close(held):
    for c, r in held:
        r.close()
        c.close()


def is_open(sock):
    """The other end has neither closed the connection nor sent anything."""
    return not select.select([sock], [], [], 0)[0]


def refused(s, what):
    name = f'glmstream_client_refused_total{{what="{what}"}} '
    return next(int(line[len(name):]) for line in s.get("/metrics")[1].splitlines() if line.startswith(name))


def is_refusal(answer, word):
    status, headers, body = answer
    return status == 429 and int(headers.get("retry-after", 0)) >= 1 and word in body and \
        json.loads(body)["error"]["code"] == "client_share"


def test_connections():
    with Server("--max-connections", "16", "--client-share", "75", "-c", "512", "-q") as s:
        held, seen = hold(s, "127.0.0.2", 12)
        check(seen == [200] * 12, "alone a client may have three quarters", seen)
        answers = [ask(s, "127.0.0.2") for _ in range(3)]
        check(all(is_refusal(a, "too many connections") for a in answers), "one more", answers)
        check(all(a[1].get("connection") == "close" for a in answers), "the connection ends", answers)
        check(served(s, "127.0.0.3"), "another client is served")
        few, seen = hold_three(s, "127.0.0.3")
        check(seen == [200] * 3 and ask(s, "127.0.0.3")[0] in (429, 503), "another's share of what is left", seen)
        check(served(s, "127.0.0.4"), "a third client is served")
        for _ in range(5):  # a machine that is busy may need longer than the 3 s after which the silent are cut
            silent = [connect(s, "127.0.0.2") for _ in range(40)]
            for c in silent:
                c.connect()
            check(served(s, "127.0.0.4"), "forty more that say nothing")
            if waits := is_open(silent[0].sock):
                break
            for c in silent:
                c.close()
        check(waits, "another client waits until those who say nothing are cut")
        close(few)
        close(held)
        check(served(s, "127.0.0.2"), "room again")
        check(refused(s, "connections") >= 4, "counted", refused(s, "connections"))
        for c in silent:
            c.close()


def test_responses():
    """Responses that a client asks for and does not read count for its share of memory."""
    with Server("--client-share", "50", "--max-body-mb", "16", "-c", "512", "-q") as s:
        limit, body = gauge(s, "request_bytes_limit"), {"content": "a b " * 300000, "with_pieces": True}
        held = []
        for i in range(6):
            c = connect(s, "127.0.0.2")
            c.request("POST", "/tokenize", json.dumps(body), {"Content-Type": "application/json"})
            r = c.getresponse()
            held.append((c, r))
            if r.status != 200:
                break
        unread = gauge(s, "request_bytes")
        check(10e6 * i < unread <= limit, i, "responses of 14 MB that wait take", unread)
        check(0 < i < 5 and r.status == 429 and "too much memory" in r.read().decode(), "one more", i, r.status)
        check(refused(s, "memory") == 1, "counted", refused(s, "memory"))
        answer = ask(s, "127.0.0.3", "POST", CHAT, SHORT)
        check(answer[0] == 200, "another client is served", answer)
        tokens = json.loads(held[0][1].read())["tokens"]
        check(len(tokens) > 500000, "it comes whole when it is read", len(tokens))
        close(held)
        left = wait_gauge(s, "request_bytes", lambda held: held < 1e6)
        check(left < 1e6, "nothing is held when all were taken", left)


class Stream:
    """A streamed answer on a socket of its own; what has come is seen without waiting."""

    def __init__(self, s, address, body):
        data = json.dumps(body).encode()
        self.socket = socket.create_connection(("127.0.0.1", s.port), 60, (address, 0))
        self.socket.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
        self.seen = b""

    def has(self, what):
        while select.select([self.socket], [], [], 0)[0] and (piece := self.socket.recv(65536)):
            self.seen += piece
        return what in self.seen

    def wait_for(self, what):
        end = time.monotonic() + 120
        while not self.has(what) and time.monotonic() < end:
            time.sleep(0.02)
        return what in self.seen


def test_queue():
    with Server("--sessions", "1", "--queue", "4", "--client-share", "75", "-c", "4096", "--draft", "off", "-q") as s:
        asked = {}

        def start(address, name):
            """A request has its place in the queue before its headers are sent, so the order there is that of the calls."""
            asked[name] = Stream(s, address, {**LONG, "max_tokens": 4000})
            check(asked[name].wait_for(b"\r\n\r\n"), "headers", name)

        start("127.0.0.2", "first")
        s.wait_state("one is served", lambda active, waiting: active and not waiting)
        for i in range(1, 4):
            start("127.0.0.2", f"a{i}")
        answer = ask(s, "127.0.0.2", "POST", "/v1/completions", {**LONG, "stream": False})
        check(is_refusal(answer, "places"), "a fourth that waits", answer)
        start("127.0.0.3", "b")
        check(s.wait_state("4 waiting", lambda active, waiting: waiting == 4), "the other client waits in the free place")
        check(s.get("/metrics")[1].count("glmstream_clients 3"), "three clients")
        # Each is long, and ends when its client leaves. Who waits gets comments as signs of life, no data. Who has begun must be the
        # first of the order, however late this program looks; the last is looked at first.
        order = ["first", "b", "a1", "a2", "a3"]
        for at in range(1, 5):
            asked[order[at - 1]].socket.close()
            check(asked[order[at]].wait_for(b"data: "), "an answer begins", order[at])
            begun = [name for name in reversed(order[at:]) if asked[name].has(b"data: ")][::-1]
            check(begun == order[at:at + len(begun)], "clients take turns", begun)
        asked["a3"].socket.close()
        check(refused(s, "places") == 1, "counted", refused(s, "places"))


def test_sessions():
    """Two long answers in two sessions: one is paused for the other client, and both go on. A client must have waited for half
    a second: the server is stopped for so long, and computes nothing meanwhile, however fast it is."""
    with Server("--sessions", "2", "--client-share", "75", "-c", "4096", "-q") as s:
        held = []
        for _ in range(2):
            c = connect(s, "127.0.0.2")
            c.request("POST", "/v1/completions", json.dumps({**LONG, "max_tokens": 4000}))
            held.append((c, c.getresponse()))
        check(s.wait_state("two answers", lambda active, waiting: active == 2), "both are computed")
        answers = []
        other = threading.Thread(target=lambda: answers.append(ask(s, "127.0.0.3", "POST", CHAT, {**SHORT, "max_tokens": 3})))
        other.start()
        while other.is_alive() and not s.get("/health")[1]["waiting"]:
            pass
        s.process.send_signal(signal.SIGSTOP)
        time.sleep(0.6)
        s.process.send_signal(signal.SIGCONT)
        other.join()
        status, _, body = answers[0]
        check(status == 200, "the other client has its answer", status, body)
        text = s.get("/metrics")[1]
        check("glmstream_answers_preempted_total 1\n" in text and "glmstream_answers_total 1\n" in text, "before the others end", text)
        check(gauge(s, "preempted_bytes_limit") > 0, "paused answers have a limit", text)
        check(s.wait_state("two again", lambda active, waiting: active == 2 and not waiting), "the paused answer goes on")
        left = wait_gauge(s, "preempted_bytes", lambda n: n == 0)  # what is shown follows a step later
        check(left == 0 and gauge(s, "preempted_answers") == 0, "nothing is left of it", left)
        close(held)


def test_proxy():
    with Server("--max-connections", "16", "--trusted-proxy", "127.0.0.1", "-c", "512", "-q") as s:
        ours = {"X-Forwarded-For": "127.0.0.9, 10.0.0.1"}
        held, seen = hold(s, "127.0.0.1", 12, **ours)
        check(seen == [200] * 12, "one client behind a proxy", seen)
        check(is_refusal(ask(s, "127.0.0.1", **ours), "too many requests"), "one more of it")
        check(is_refusal(ask(s, "127.0.0.1", **{"X-Forwarded-For": "10.0.0.2,10.0.0.1"}), "too many requests"),
              "what a client writes before the proxy does not count")
        check(served(s, "127.0.0.1", **{"X-Forwarded-For": "10.0.0.2"}), "another client behind it")
        check(served(s, "127.0.0.1"), "the proxy itself")
        few, seen = hold_three(s, "127.0.0.2", **{"X-Forwarded-For": "10.0.0.3"})
        check(seen == [200] * 3 and ask(s, "127.0.0.2", **{"X-Forwarded-For": "10.0.0.4"})[0] in (429, 503),
              "from elsewhere the header says nothing", seen)
        close(held + few)


def test_keys():
    with Server("--max-connections", "16", "--api-key", "first,second", "-c", "512", "-q") as s:
        held, seen = hold(s, "127.0.0.1", 12, Authorization="Bearer first")
        check(seen == [200] * 12, "a key", seen)
        # connections count for the address, so the others come from another one
        answer = ask(s, "127.0.0.2", "POST", CHAT, SHORT, **{"x-api-key": "first"})
        check(is_refusal(answer, "too many requests"), "the same key from elsewhere", answer)
        check(ask(s, "127.0.0.2", "POST", CHAT, SHORT, **{"x-api-key": "second"})[0] == 200, "the other key")
        for wrong in ("third", "first,second", "", "firs"):
            check(ask(s, "127.0.0.2", "POST", CHAT, SHORT, **{"x-api-key": wrong})[0] == 401, "no key", wrong)
        close(held)


def test_default():
    """Nobody else can connect: nothing is held back."""
    with Server("--max-connections", "16", "-c", "512", "-q") as s:
        held, seen = hold(s, "127.0.0.1", 15)
        check(seen == [200] * 15 and s.get("/health")[0] == 200, "all connections", seen)
        close(held)


for test in (test_connections, test_responses, test_queue, test_sessions, test_proxy, test_keys, test_default):
    began = time.monotonic()
    test()
    print(f"{test.__name__}: {time.monotonic() - began:.1f} s")
finish()
