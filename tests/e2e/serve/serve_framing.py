# SPDX-License-Identifier: MIT
"""HTTP as strangers may send it: requests that a proxy could read another way than the server, Host headers of other names on
every address, and refused requests whose bodies do not come."""
import re
import socket
import time

from serve_lib import Server, check, finish

BODY = b'{"messages":[{"role":"user","content":"Define river."}],"max_tokens":2,"temperature":0}'
OPTIONS = ["-t", "1", "-c", "512", "--sessions", "1"]


def raw(s, data, seconds=20):
    """The statuses of all responses until the server closes, and whether it closed."""
    c = socket.create_connection(("127.0.0.1", s.port), timeout=seconds)
    got, closed = b"", False
    try:
        c.sendall(data)
        while True:
            piece = c.recv(65536)
            if not piece:
                closed = True
                break
            got += piece
    except OSError:
        pass
    c.close()
    return [int(x) for x in re.findall(rb"HTTP/1\.[01] (\d+)", got)], closed


def post(headers, body=BODY):
    return b"POST /v1/chat/completions HTTP/1.1\r\n" + headers + b"\r\n" + body


def test_framing(s):
    host, end, inner = b"Host: 127.0.0.1\r\n", b"Connection: close\r\n", b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    length = b"Content-Length: %d\r\n" % len(BODY)
    chunks = b"%x\r\n" % len(BODY) + BODY + b"\r\n0\r\n\r\n"
    chunked = b"Transfer-Encoding: chunked\r\n"
    good = {"plain": post(host + length + end), "chunked": post(host + chunked + end, chunks),
            "HTTP/1.0 without Host": b"GET /health HTTP/1.0\r\n\r\n"}
    bad = {"two Hosts": post(host + host + length),
           "no Host": post(length),
           "two equal lengths": post(host + length + length),
           "two lengths": post(host + b"Content-Length: 5\r\n" + length),
           "length and chunks": post(host + length + chunked, chunks),
           "chunks and length": post(host + chunked + b"Content-Length: 6\r\n", chunks),
           "two encodings": post(host + chunked + chunked, chunks),
           "blank in a name": post(host + b"Content-Length : 5\r\n" + length),
           "no Host, a request as body": post(b"Content-Length: %d\r\n" % len(inner), inner),
           "smuggled": b"POST /nothing HTTP/1.1\r\n" + host + b"Content-Length: 6\r\n" + chunked + b"\r\n0\r\n\r\n" + inner}
    for name, data in good.items():
        check(raw(s, data)[0] == [200], name, raw(s, data))
    for name, data in bad.items():
        statuses, closed = raw(s, data)
        check(statuses in ([400], []) and closed, name, "is refused and the connection closed:", statuses, closed)


def ask(s, host):
    return raw(s, b"GET /v1/models HTTP/1.1\r\nHost: " + host.encode() + b"\r\nOrigin: http://" + host.encode() +
               b"\r\nConnection: close\r\n\r\n")[0]


def test_hosts():
    """A web page whose name was made to mean this machine sends that name as Host and as Origin."""
    with Server(*OPTIONS, "--host", "0.0.0.0", "--allow-host", "my.lan") as s:
        for host in ("evil.com", f"evil.com:{s.port}", "127.0.0.1.evil.com", "[::1].evil.com", "10.0.0.1.", "localhost@evil.com"):
            check(ask(s, host) == [403], "no key, every address:", host, ask(s, host))
        for host in ("127.0.0.1", f"10.0.0.7:{s.port}", f"localhost:{s.port}", "[fd00::7]:80", "my.lan"):
            check(ask(s, host) == [200], "no key, every address:", host, ask(s, host))
    with Server(*OPTIONS, "--host", "0.0.0.0", "--api-key", "k") as s:
        check(ask(s, "any.name") == [401], "with a key names do not matter", ask(s, "any.name"))


def test_refused_bodies():
    """Without the key: the headers and one byte of a body on every connection."""
    with Server(*OPTIONS, "--max-connections", "16", "--api-key", "k") as s:
        held = []
        for _ in range(16):
            c = socket.create_connection(("127.0.0.1", s.port), timeout=5)
            c.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100000\r\n\r\n{")
            held.append(c)
        start, status = time.monotonic(), 0
        while status != 200 and time.monotonic() - start < 40:
            try:
                status = s.get("/health")[0]
            except OSError:
                time.sleep(0.2)
        took = time.monotonic() - start
        check(status == 200 and took < 20, "refused connections are let go after", took)
        for c in held:
            c.close()


def main():
    with Server(*OPTIONS) as s:
        test_framing(s)
    test_hosts()
    test_refused_bodies()
    finish()


main()
