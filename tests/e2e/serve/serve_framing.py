# SPDX-License-Identifier: MIT
"""HTTP as strangers may send it: requests that a proxy could read another way than the server, Host headers of other names on
every address, refused requests whose bodies do not come, headers byte by byte, and clients that leave."""
import json
import re
import socket
import threading
import time

from serve_lib import SAN, Server, check, finish

BODY = b'{"messages":[{"role":"user","content":"Define river."}],"max_tokens":2,"temperature":0}'
OPTIONS = ["-t", "1", "-c", "512", "--sessions", "1"]


def raw(s, data, seconds=20, half=False):
    """The statuses of all responses until the server closes, and whether it closed."""
    c = socket.create_connection(("127.0.0.1", s.port), timeout=seconds)
    got, closed = b"", False
    try:
        c.sendall(data)
        if half:
            c.shutdown(socket.SHUT_WR)
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
        check(statuses == [400] and closed, name, "is refused and the connection closed:", statuses, closed)


def test_bytes(s):
    """What the library would forgive. Every one is answered, once, and ends the connection; behind each comes a request that must
    not be."""
    get, host = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n", b"Host: 127.0.0.1\r\n"
    after = get + b"\r\n"
    head, end = post(host + b"Transfer-Encoding: chunked\r\n", b""), b"\r\n0\r\n\r\n"
    size, body = b"%x" % len(BODY), BODY
    bad = {400: {
        "bare LF in the request line": b"GET /health HTTP/1.1\n" + host + b"\r\n",
        "bare LF after a header": get + b"X: a\nY: b\r\n\r\n",
        "bare LF at the end": get + b"\n",
        "only bare LF": get.replace(b"\r", b"") + b"\n",
        "bare CR in a value": get + b"X: a\rContent-Length: 5\r\n\r\n",
        "folded header": get + b"X: a\r\n b\r\n\r\n",
        "folded first header": b"GET /health HTTP/1.1\r\n X: a\r\n" + host + b"\r\n",
        "NUL in a value": get + b"X: a\0b\r\n\r\n",
        "NUL in a name": get + b"X\0: a\r\n\r\n",
        "NUL in the target": b"GET /health\0 HTTP/1.1\r\n" + host + b"\r\n",
        "control character in a value": get + b"X: a\x0bb\r\n\r\n",
        "control character in a name": get + b"X\x01: a\r\n\r\n",
        "no colon": get + b"X\r\n\r\n",
        "no name": get + b": a\r\n\r\n",
        "two blanks in the request line": b"GET  /health HTTP/1.1\r\n" + host + b"\r\n",
        "blank in the target": b"GET /health x HTTP/1.1\r\n" + host + b"\r\n",
        "no version": b"GET /health\r\n" + host + b"\r\n",
        "target of another host": b"GET http://evil.com/health HTTP/1.1\r\n" + host + b"\r\n",
        "target without a path": b"CONNECT 127.0.0.1:80 HTTP/1.1\r\n" + host + b"\r\n",
        "Host with a path": b"GET /health HTTP/1.1\r\nHost: 127.0.0.1/x\r\n\r\n",
        "length with a sign": post(host + b"Content-Length: +%d\r\n" % len(BODY)),
        "length in hex": post(host + b"Content-Length: 0x10\r\n"),
        "list of lengths": post(host + b"Content-Length: %d, %d\r\n" % (len(BODY), len(BODY))),
        "no length": post(host + b"Content-Length:\r\n"),
        "chunks in HTTP/1.0": head.replace(b"HTTP/1.1", b"HTTP/1.0") + size + b"\r\n" + body + end,
        "size with 0x": head + b"0x" + size + b"\r\n" + body + end,
        "size with a blank": head + size + b" \r\n" + body + end,
        "size without digits": head + b"\r\n" + end,
        "size and bare LF": head + size + b"\n" + body + end,
        "chunk that is longer": head + size + b"\r\n" + body + b"x" + end,
        "chunk and bare LF": head + size + b"\r\n" + body + b"\n0\r\n\r\n",
        "extension with bare LF": head + size + b";a\n" + body + end,
        "empty extension": head + size + b";\r\n" + body + end,
        "last chunk and bare LF": head + size + b"\r\n" + body + b"\r\n0\n\r\n",
        "length as a trailer": head + size + b"\r\n" + body + b"\r\n0\r\nContent-Length: 5\r\n\r\n",
        "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)),
    }, 414: {"target of 9,000 bytes": b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\n" + host + b"\r\n"},
       501: {"unknown coding": post(host + b"Transfer-Encoding: xchunked\r\n", b""),
             "two codings": post(host + b"Transfer-Encoding: gzip, chunked\r\n", b"")},
       505: {"HTTP/2.0": b"GET /health HTTP/2.0\r\n" + host + b"\r\n"}}
    for status, cases in bad.items():
        for name, data in cases.items():
            statuses, closed = raw(s, data + after)
            check(statuses == [status] and closed, name, "should be answered with", status, "and close:", statuses, closed)
    message = s.request("GET", "/health", headers={"X": "a\x01"})
    check(message[0] == 400 and "control character" in str(message[2]), "the refusal says what is wrong:", message)
    good = {"absolute target": b"GET http://127.0.0.1/health HTTP/1.1\r\n" + host,
            "an empty line first": b"\r\n" + get, "text beyond ASCII": get + b"X: \xc3\xa4\r\n"}
    for name, data in good.items():
        check(raw(s, data + b"Connection: close\r\n\r\n")[0] == [200], name, "is right:", raw(s, data + b"Connection: close\r\n\r\n"))
    chunks = size + b";a=b;c=\"d\"\r\n" + body + b"\r\n0\r\nX: y\r\n\r\n"
    check(raw(s, head + chunks + get + b"Connection: close\r\n\r\n")[0] == [200, 200], "extensions and trailers are read away")
    one_byte = b"".join(b"1\r\n%c\r\n" % c for c in body) + b"0\r\n\r\n"
    check(raw(s, head + one_byte + get + b"Connection: close\r\n\r\n")[0] == [200, 200], "chunks of one byte")
    check(raw(s, (get + b"\r\n") * 40 + get + b"Connection: close\r\n\r\n")[0] == [200] * 41, "41 requests at once")


def test_pieces(s):
    """A request in two pieces, cut at every byte of its framing: as if it came at once."""
    data = (b"\r\nPOST http://127.0.0.1/tokenize HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n"
            b"Connection: close\r\n\r\n3;a\r\n{\"c\r\n12\r\nontent\": \"river.\"}\r\n0\r\nT: a\r\n\r\n")
    whole = raw(s, data)[0]
    bad = raw(s, data.replace(b"12\r\n", b"12\n"))[0]
    check(whole == [200] and bad == [400], "whole:", whole, bad)
    for cut in range(1, len(data), 3):
        with socket.create_connection(("127.0.0.1", s.port), timeout=20) as c:
            c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            c.sendall(data[:cut])
            time.sleep(0.002)
            c.sendall(data[cut:])
            got = b""
            while piece := c.recv(65536):
                got += piece
        check(re.findall(rb"HTTP/1\.[01] (\d+)", got) == [b"%d" % whole[0]], "cut at", cut, got[:60])


def ask(s, host):
    return raw(s, b"GET /v1/models HTTP/1.1\r\nHost: " + host.encode() + b"\r\nOrigin: http://" + host.encode() +
               b"\r\nConnection: close\r\n\r\n")[0]


def test_hosts():
    """A web page whose name was made to mean this machine sends that name as Host and as Origin."""
    with Server(*OPTIONS, "--host", "0.0.0.0", "--allow-host", "my.lan") as s:
        for host in ("evil.com", f"evil.com:{s.port}", "127.0.0.1.evil.com", "[::1].evil.com", "10.0.0.1.", "localhost@evil.com"):
            refused = [400] if "@" in host else [403]
            check(ask(s, host) == refused, "no key, every address:", host, ask(s, host))
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


def leaves(s, request, half):
    """Seconds from the moment at which a client leaves until nobody is served, and what the client got."""
    c = socket.create_connection(("127.0.0.1", s.port), timeout=120)
    c.sendall(request)
    s.wait_state("at work", lambda active, waiting: active)
    time.sleep(0.2)
    start = time.monotonic()
    c.shutdown(socket.SHUT_WR) if half else c.close()
    s.wait_idle()
    took, got = time.monotonic() - start, b""
    while half and (piece := c.recv(65536)):
        got += piece
    c.close()
    return took, got


def test_leaving():
    """A client that closes the connection, or its sending side, ends its answer, also when bytes of a next request lie before the
    end."""
    ask = json.dumps({"prompt": "1 2 1 2 1 2 1 2", "temperature": 0, "max_tokens": 3000, "ignore_eos": True}).encode()
    request = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(ask) + ask
    with Server("-t", "1", "-c", "4096", "--sessions", "1", "--draft", "off") as s:
        for stream in (False, True):
            for after in (b"", b"\r\n", b"GET /health HTTP/1.1\r\n"):
                for half in (False, True):
                    what = ("half-closed" if half else "closed", "a stream" if stream else "a whole answer", after)
                    data = (request.replace(b"{", b'{"stream":true,', 1).replace(b"%d" % len(ask), b"%d" % (len(ask) + 14))
                            if stream else request) + after
                    for _ in range(5):  # a machine that does other things
                        took, got = leaves(s, data, half)
                        soon = took < (10 if SAN else 2)
                        right = not half or (b"[DONE]" not in got if stream else b" 499 " in got[:20] and b"sending side" in got)
                        if soon and right:
                            break
                    check(soon, *what, "is noticed after", took)
                    check(right, *what, "gets", got[-300:])
        check(raw(s, b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", half=True)[0] == [200],
              "what needs no computing is answered all the same")


def cut_after(s, begin, rest, seconds):
    """A client that sends `begin`, `rest` after `seconds`, then a byte of a header now and then: when it is cut."""
    start = time.monotonic()
    with socket.create_connection(("127.0.0.1", s.port)) as c:
        c.sendall(begin)
        if begin:
            c.recv(65536)
        c.settimeout(0.2)
        begun = False
        while time.monotonic() < start + 120:
            try:
                if time.monotonic() > start + seconds:
                    c.sendall(b"a" if begun else rest)
                    begun = True
                if c.recv(100) == b"":
                    break
            except TimeoutError:
                pass
            except OSError:
                break
        return time.monotonic() - start


def test_dripped_headers():
    """15 s for the headers, from the connection or from the first byte of a later request."""
    head = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
    ways = {"a header": (b"", head + b"X: ", 10, 15), "the request line": (b"", b"GET /", 0, 15),
            "a later header": (head + b"\r\n", head + b"X: ", 3, 18), "a later request line": (head + b"\r\n", b"GET /", 3, 18)}
    for _ in range(3):  # a machine that does other things
        took = {}
        with Server(*OPTIONS) as s:
            threads = [threading.Thread(target=lambda n=n, w=w: took.update({n: cut_after(s, *w[:3])})) for n, w in ways.items()]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
        if all(took[name] < seconds + 3 for name, (*_, seconds) in ways.items()):
            break
    for name, (*_, seconds) in ways.items():
        check(seconds - 0.5 < took[name] < seconds + 3, name, "byte by byte: cut after", took[name], "instead of", seconds)


def main():
    with Server(*OPTIONS) as s:
        test_framing(s)
        test_bytes(s)
        test_pieces(s)
    test_hosts()
    test_refused_bodies()
    test_leaving()
    test_dripped_headers()
    finish()


main()
