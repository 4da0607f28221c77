# SPDX-License-Identifier: MIT
"""Request smuggling. Every entry of smuggling_list.py is sent to the server itself, where a second parser of the strict grammar says
how many answers must come, and to nginx in front of it, where a request that the server sees must be one that nginx has sent. After
each entry another request is sent, which has to be answered as itself. A back end that ignores bodies shows that this finds something.

    smuggling.sh [NAME]     all entries, or those whose name contains NAME"""
import collections
import concurrent.futures
import http.server
import json
import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time

from serve_lib import PROGRAM, ROOT, Server, check, finish, user
from smuggling_list import entries, length, with_mark

WORKERS, WAIT = 12, 0.4
NGINX = shutil.which("nginx", path=os.environ["PATH"] + ":/usr/sbin:" + ROOT + "/build/nginx/usr/sbin")
TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]"
HEAD = re.compile(rb"(?:\r\n)?(" + TOKEN + rb"{1,32}) (/[!-~]*|\*|http://[^/? ]+[!-~]*) HTTP/1\.([01])\r\n((?:" + TOKEN +
                  rb"+:[\t -~\x80-\xff]*\r\n)*)\r\n")
CHUNK = re.compile(rb"([0-9A-Fa-f]{1,15})((?:;" + TOKEN + rb"+(?:=(?:" + TOKEN + rb"+|\"(?:[\t !#-\[\]-~\x80-\xff]|\\[\t -~\x80-\xff])*\"))?)*)\r\n")
TRAILERS = re.compile(rb"((?:" + TOKEN + rb"+:[\t -~\x80-\xff]*\r\n)*)\r\n")
FRAMING = (b"host", b"content-length", b"transfer-encoding")


def fields(block):
    for line in block.split(b"\r\n")[:-1]:
        name, _, value = line.partition(b":")
        yield name.lower(), value.strip(b" \t")


def chunks_end(data):
    """How many bytes a chunked body has; 0: it is wrong; None: it goes on."""
    at = 0
    while True:
        m = CHUNK.match(data, at)
        if not m:
            return 0
        size = int(m[1], 16)
        if not size:
            m = TRAILERS.match(data, m.end())
            return m.end() if m and not any(n in FRAMING for n, _ in fields(m[1])) else 0
        at = m.end() + size + 2
        if at > len(data):
            return None
        if data[at - 2:at] != b"\r\n" or len(m[2]) > 16000:
            return 0


def one_request(data):
    """The length of the request that data begins with; 0: it is refused; None: it goes on."""
    m = HEAD.match(data)
    if not m or b"#" in m[2] or (m[2] == b"*" and m[1] != b"OPTIONS") or len(m[2]) > 8000:
        return 0
    all_fields = list(fields(m[4]))
    hosts, lengths, codings = ([v for n, v in all_fields if n == wanted] for wanted in FRAMING)
    target = re.match(rb"http://([^/? ]+)", m[2])
    if len(hosts) > 1 or (not hosts and m[3] == b"1") or not all(re.fullmatch(rb"[!$%&'()*+,\-.0-9:;=A-Z\[\]_a-z~]*", h) for h in hosts) or \
            len(lengths) > 1 or len(codings) > 1 or (lengths and codings) or (target and hosts != [target[1]]):
        return 0
    if lengths:
        if not re.fullmatch(rb"\d{1,200}", lengths[0]) or int(lengths[0]) > 2**60:
            return 0
        end = m.end() + int(lengths[0])
        return end if end <= len(data) else None
    if codings:
        if codings[0].lower() != b"chunked" or m[3] == b"0":
            return 0
        n = chunks_end(data[m.end():])
        return n and m.end() + n
    return m.end()


def expected(data):
    """(whole requests, whether one that is refused follows, whether one without an end follows)."""
    n = 0
    while data:
        end = one_request(data)
        if not end:
            return n, end == 0, end is None
        n, data, head = n + 1, data[end:], HEAD.match(data)
        if any(name == b"connection" and b"close" in value.lower() for name, value in fields(head[4])):
            break
    return n, False, False


def follow_up(mark, close=True):
    body = json.dumps({"messages": user("next-" + mark)}).encode()
    return (b"POST /apply-template HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n" % len(body) +
            (b"Connection: close\r\n" if close else b"") + b"\r\n" + body)


class Client:
    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=20)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.got, self.closed = b"", False

    def send(self, pieces):
        try:
            for i, piece in enumerate(pieces):
                if i:
                    time.sleep(0.05)
                self.socket.sendall(piece)
        except OSError:
            pass

    def read(self, enough, seconds):
        """Until enough() or the end of the connection, at most so long."""
        end = time.monotonic() + seconds
        while not self.closed and not enough() and time.monotonic() < end:
            self.socket.settimeout(max(0.01, end - time.monotonic()))
            try:
                piece = self.socket.recv(65536)
                self.got += piece
                self.closed = not piece
            except socket.timeout:
                pass
            except OSError:
                self.closed = True

    def responses(self):
        """(status, body) of the complete responses; 1xx do not count."""
        found, data = [], self.got
        while m := re.match(rb"HTTP/1\.[01] (\d+)[^\r\n]*\r\n((?:[^\r\n]+\r\n)*)\r\n", data):
            size = re.search(rb"(?i)^content-length: *(\d+)", m[2], re.M)
            if m[1].startswith(b"1"):
                data = data[m.end():]
                continue
            n = int(size[1]) if size else 0
            if len(data) < m.end() + n and b"HEAD" not in self.method:
                break
            if b"HEAD" in self.method:
                n = 0 if data[m.end():m.end() + 5] == b"HTTP/" or len(data) == m.end() else n
            found.append((int(m[1]), data[m.end():m.end() + n]))
            data = data[m.end() + n:]
        return found

    method = b""


def is_next(responses, mark):
    return bool(responses) and responses[-1][0] == 200 and b"next-" + mark.encode() in responses[-1][1]


def try_directly(port, name, pieces, mark):
    """The server alone gives as many answers as the second parser finds requests, then the one to the next request or its end."""
    whole, refused, goes_on = expected(b"".join(pieces) + follow_up(mark))
    c = Client(port)
    c.method = pieces[0][:5]
    c.send([*pieces, follow_up(mark)] if len(pieces) > 1 else [b"".join(pieces) + follow_up(mark)])
    wanted = whole + refused
    # the next request ends the connection; what goes on for ever has no answer
    c.read(lambda: len(c.responses()) >= wanted, 20)
    c.read(lambda: len(c.responses()) > wanted, WAIT if goes_on else 20)
    statuses = [r[0] for r in c.responses()]
    early = [413, 431, 404, 405, 204]  # an answer before the body was sent, after which the connection ends
    right = len(statuses) == wanted or (0 < len(statuses) <= wanted and statuses[-1] in early) or (not wanted and len(statuses) <= 1)
    check(right and (not refused or statuses[-1] >= 400), "directly:", name, "gave", statuses, "and not", whole,
        "and refused" if refused else "")
    c.socket.close()


def try_proxied(port, name, pieces, mark):
    c = Client(port)
    c.method = pieces[0][:5]
    c.send(pieces)
    c.read(lambda: len(c.responses()) > 0, WAIT)
    if not c.closed and c.responses():
        c.send([follow_up(mark)])
        c.read(lambda: is_next(c.responses(), mark), WAIT)
    for _, body in c.responses():
        other = re.search(rb"(own|next)-(?!%s)\d{4}" % mark.encode(), body)
        check(not other, "proxied:", name, "was answered with another's answer:", body)
    c.socket.close()
    other = Client(port)
    other.send([follow_up(mark)])
    other.read(lambda: is_next(other.responses(), mark), 20)
    check(is_next(other.responses(), mark), "proxied:", name, "poisoned the next request:", other.got[:300])
    other.socket.close()


def run_all(entry, port, offset, pattern):
    """Marks of four digits that begin at offset."""
    with concurrent.futures.ThreadPoolExecutor(WORKERS) as pool:
        jobs = []
        for i, (name, pieces) in enumerate(entries()):
            mark = f"{offset + i:04d}"
            if pattern in name:
                jobs.append(pool.submit(entry, port, name, with_mark(pieces, mark), mark))
        for job in jobs:
            job.result()
    return len(jobs)


# ---- nginx ----

def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Nginx:
    """The configuration that the manual shows: with keep-alive, once more without, and once with bodies that are passed on as they
    come. Of it only ports and file names are replaced."""

    def __init__(self, folder, back_end_ports):
        self.folder, self.ports, self.tls_port = folder, [], 0
        text = subprocess.run([PROGRAM, "help", "proxy"], capture_output=True, text=True, check=True).stdout
        shown = re.search(r"^nginx.*:\n((?:    .*\n)+)", text, re.M)[1]
        check("proxy_buffering off;" in shown and "keepalive" in shown, "the manual shows a configuration:", shown)
        blocks = []
        for i, port in enumerate(back_end_ports):
            block = shown.replace("127.0.0.1:8080", f"127.0.0.1:{port}").replace("upstream glmstream", f"upstream back_end_{i}")
            block = block.replace("http://glmstream", f"http://back_end_{i}")
            if i == 1:
                block = re.sub(r"keepalive \d+;|proxy_http_version 1.1;|proxy_set_header Connection \"\";", "", block)
            if i == 2:
                block = block.replace("proxy_buffering off;", "proxy_buffering off;\n proxy_request_buffering off;")
            self.ports.append(free_port())
            listen = f"listen 127.0.0.1:{self.ports[-1]};"
            if i == 0 and self.make_certificate():
                self.tls_port = free_port()
                listen += f"\n    listen 127.0.0.1:{self.tls_port} ssl;"
                block = re.sub(r"(ssl_certificate) .*;", rf"\1 {folder}/cert;", block)
                block = re.sub(r"(ssl_certificate_key) .*;", rf"\1 {folder}/key;", block)
            else:
                block = re.sub(r"ssl_certificate.*;", "", block)
            blocks.append(block.replace("listen 443 ssl;", listen))
        places = "".join(f"  {x}_temp_path {folder}/{x};\n" for x in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        config = (f"worker_processes 1;\npid {folder}/pid;\nerror_log {folder}/error.log;\nevents {{ worker_connections 512; }}\n"
                  f"http {{\n{places}  log_format seen '$server_port|$upstream_status|$request';\n  access_log {folder}/access.log seen;\n" +
                  "".join(blocks) + "}\n")
        if os.getuid() == 0:
            config = "user root;\n" + config
        with open(folder + "/conf", "w") as f:
            f.write(config)
        self.process = subprocess.Popen([NGINX, "-p", folder, "-e", folder + "/error.log",
                                         "-c", folder + "/conf", "-g", "daemon off;"], stderr=subprocess.PIPE, text=True)
        end = time.monotonic() + 20
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise RuntimeError("nginx does not start: " + self.process.stderr.read())
            try:
                socket.create_connection(("127.0.0.1", self.ports[-1]), timeout=1).close()
                return
            except OSError:
                time.sleep(0.05)

    def make_certificate(self):
        if not shutil.which("openssl"):
            print("[  SKIPPED ] TLS: no openssl")
            return False
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "1", "-subj",
                        "/CN=llm.example.org", "-keyout", self.folder + "/key",
                        "-out", self.folder + "/cert"], check=True, capture_output=True)
        return True

    def passed_on(self):
        """How often nginx has sent a request for a hidden path, by mark."""
        self.process.terminate()  # the log is complete
        self.process.wait(20)
        seen = collections.Counter()
        with open(self.folder + "/access.log", errors="replace") as f:
            for line in f:
                _, upstream, request = line.rstrip("\n").split("|", 2)
                m = re.search(r"/smuggled-(\d{4})", request)
                if m and upstream != "-":
                    seen[m[1]] += upstream.count(",") + 1
        return seen

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(20)


def test_tls(nginx):
    """An answer over TLS is whole; a stream without an end comes as it is written."""
    if not nginx.tls_port:
        return
    context = ssl.create_default_context()
    context.load_verify_locations(nginx.folder + "/cert")
    body = json.dumps({"messages": user("Define river."), "max_tokens": 20, "temperature": 0, "stream": True,
                       "enable_thinking": False}).encode()
    host = b"Host: llm.example.org\r\nConnection: close\r\n"
    for request, wanted, times in (
            (b"POST /v1/chat/completions HTTP/1.1\r\n" + host + length(body) + b"\r\n" + body, b"data: [DONE]", 1),
            (b"GET /v1/glmstream/events?map=0 HTTP/1.1\r\n" + host + b"\r\n", b"data: ", 3)):
        with context.wrap_socket(socket.create_connection(("127.0.0.1", nginx.tls_port), timeout=60), server_hostname="llm.example.org") as s:
            s.sendall(request)
            got = b""
            while got.count(wanted) < times and (piece := s.recv(65536)):
                got += piece
        check(b" 200 OK" in got and got.count(wanted) >= times, "a stream over TLS:", request[:40], got[:300])


class Naive(http.server.BaseHTTPRequestHandler):
    """Takes the body of a POST for the next request."""
    protocol_version, seen, lock = "HTTP/1.1", [], threading.Lock()

    def do_GET(self):
        with self.lock:
            self.seen.append(self.path)
        body = self.path.encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET

    def log_message(self, *_):
        pass


class NaiveServer(http.server.ThreadingHTTPServer):
    def handle_error(self, request, client_address):
        pass  # nginx has closed the connection


def test_control(folder):
    with NaiveServer(("127.0.0.1", 0), Naive) as naive:
        threading.Thread(target=naive.serve_forever, daemon=True).start()
        with Nginx(folder, [naive.server_port]) as nginx:
            for i, (name, pieces) in enumerate(entries()):
                if name.startswith(("CL.0: GET", "body: TE")):
                    c = Client(nginx.ports[0])
                    c.send(with_mark(pieces, f"{i:04d}"))
                    c.read(lambda: c.responses(), 5)
                    c.socket.close()
            passed = nginx.passed_on()
        naive.shutdown()
    hidden = [p for p in Naive.seen if p.startswith("/smuggled-")]
    check(hidden and not passed, "a back end that ignores bodies is found out:", hidden, passed)


def main():
    pattern = sys.argv[1] if len(sys.argv) > 1 else ""
    began = time.monotonic()
    with Server("-t", "1", "-c", "512", "--sessions", "1", "--allow-host", "llm.example.org", "--trusted-proxy", "127.0.0.1") as s:
        n = run_all(try_directly, s.port, 0, pattern)
        print(f"{n} requests to the server alone, {time.monotonic() - began:.1f} s")
        passed = collections.Counter()
        if not NGINX:
            print("[  SKIPPED ] nginx: not installed (nginx-light)")
        else:
            with tempfile.TemporaryDirectory() as folder:
                with Nginx(folder, [s.port] * 3) as nginx:
                    test_tls(nginx)
                    for i, port in enumerate(nginx.ports):
                        n = run_all(try_proxied, port, 2000 + 2000 * i, pattern)
                        print(f"{n} requests through nginx, form {i + 1}, {time.monotonic() - began:.1f} s")
                    passed = nginx.passed_on()
            with tempfile.TemporaryDirectory() as folder:
                test_control(folder)
    seen = collections.Counter(m[1] for line in s.log for m in [re.search(r"GET /smuggled-(\d{4}) ", line)] if m)
    names = [name for name, _ in entries()]
    for mark, times in seen.items():
        at = int(mark)
        if at >= 2000:
            check(times <= passed[mark], "proxied:", names[at % 2000], "the server has seen a request that nginx has not sent")
    print(f"{len(names)} entries; nginx has sent {sum(passed.values())} of the hidden requests as requests of their own")
    finish()


main()
