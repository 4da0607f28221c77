# SPDX-License-Identifier: MIT
"""Models that are damaged while they are used, or before; called by damage.sh: PROGRAM POCKET FOLDER."""
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import threading
import urllib.error
import urllib.request

from checks import check, finish

PROGRAM, POCKET, FOLDER = sys.argv[1:4]
MODEL = os.path.join(FOLDER, "model.gguf")
LOST = "is lost: the file became shorter"
CHANGED = "model.gguf: was changed while in use"


def chat(*options, between):
    """Two turns through a pipe; `between` is called after the first. Returns status, stdout, stderr."""
    p = subprocess.Popen(
        [PROGRAM, "-m", MODEL, "-t", "1", "-c", "400", "-n", "6", "--temp", "0", "--think", "off", "-q", *options],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip
    p.stdin.write(b"Define river.\n")
    p.stdin.flush()
    first = p.stdout.readline()
    between()
    out, err = p.communicate(b"Define dog.\n", timeout=100)
    return p.returncode, first + out, err.decode()


def shorter():
    for options in ([], ["-t", "4"], ["--cards", "0,0"]):
        for size in (25000000, 600000, 0):
            shutil.copy(POCKET, MODEL)
            rc, out, err = chat(*options, between=lambda: os.truncate(MODEL, size))
            what = " ".join([f"cut to {size}", *options])
            check(f"{what}: exit status 1", rc == 1, (rc, out, err))
            check(f"{what}: a sentence", re.search(r"^glmstream: .*model\.gguf: .*" + LOST, err, re.M), err)
    shutil.copy(POCKET, MODEL)
    rc, out, err = chat(between=lambda: None)
    check("a whole model answers twice", rc == 0 and not err, (rc, out, err))


def put_model():
    """A copy that was written long ago: times of modification are as coarse as a tick of the clock."""
    shutil.copy(POCKET, MODEL)
    os.utime(MODEL, (1e9, 1e9))


def overwrite():
    """The model's bytes are others, in a file of the same size."""
    with open(MODEL, "r+b") as f:
        for at in range(1 << 20, os.path.getsize(MODEL) - 4096, 1 << 20):
            f.seek(at)
            f.write(os.urandom(4096))


def replace():
    """Another file takes the place of the model, and is written into."""
    shutil.copy(POCKET, MODEL + ".new")
    os.rename(MODEL + ".new", MODEL)
    overwrite()


STREAMED = ([], ["--cache-gb", "0.006", "--ram-gb", "0"], ["--cache-gb", "0.006", "--verify", "off"])


def changed():
    for options in STREAMED:
        put_model()
        rc, out, err = chat(*options, between=overwrite)
        check("overwritten: exit status 1", rc == 1, (options, rc, out, err))
        check("overwritten: a sentence", re.search(r"^glmstream: .*" + CHANGED, err, re.M), (options, err))
        check("overwritten: no second answer", out.count(b"\n") == 1, (options, out))
        put_model()
        rc, whole, err = chat(*options, between=lambda: None)
        put_model()
        rc, out, err = chat(*options, between=replace)
        check("replaced: the answers are the same", rc == 0 and out == whole and not err, (options, rc, out, whole, err))
    copy = os.path.join(FOLDER, "copy.gguf")
    put_model()
    shutil.copy2(MODEL, copy)
    streamed = ["--cache-gb", "0.006", "--ram-gb", "0", "--replicas", copy]
    rc, out, err = chat(*streamed, between=lambda: os.utime(copy))
    check("a copy is written into: exit status 1", rc == 1, (rc, out, err))
    check("its name", "copy.gguf: was changed while in use" in err, err)


class Server:
    def __init__(self, *options):
        self.p = subprocess.Popen([PROGRAM, "serve", "-m", MODEL, "--port", "0", "-t", "1", "-c", "400", *options],
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)  # fmt: skip
        self.log = []
        self.reader = threading.Thread(target=lambda: self.log.extend(self.p.stderr), daemon=True)
        self.reader.start()
        self.url = self.p.stdout.readline().split()[-1]

    def get(self, path, body=None):
        data = json.dumps(body).encode() if body else None
        try:
            with urllib.request.urlopen(urllib.request.Request(self.url + path, data), timeout=120) as r:
                return r.status, r.read().decode()
        except urllib.error.HTTPError as e:
            return e.code, e.read().decode()

    def ask(self, text):
        return self.get("/v1/chat/completions", {"messages": [{"role": "user", "content": text}], "temperature": 0,
                                                 "max_tokens": 4, "enable_thinking": False})  # fmt: skip

    def end(self):
        """Its exit status. The log is whole then."""
        self.p.terminate()
        status = self.p.wait(120)
        self.reader.join(120)
        return status


def counter(metrics, name):
    found = re.search(r"^glmstream_" + name + r"\S* (\d+)", metrics, re.M)
    return int(found[1]) if found else None


def server_shorter():
    for options in ([], ["--cache-gb", "0.006"]):
        shutil.copy(POCKET, MODEL)
        s = Server(*options)
        check("the server answers", s.ask("Define river.")[0] == 200)
        os.truncate(MODEL, 600000)
        for word in ("dog", "house"):
            status, text = s.ask(f"Define {word}.")
            check("then it fails with 500", status == 500, (options, status, text))
            check("and tells nobody the file's name", "gguf" not in text and "error" in text, text)
        check("its health says so", "fail" in s.get("/health")[1], s.get("/health"))
        check("it ends in order", s.end() == 0)
        check("the log names the file", any("model.gguf" in line and "failed" in line for line in s.log), s.log)


def server_changed():
    for options in STREAMED:
        put_model()
        s = Server(*options)
        check("the server answers", s.ask("Define river.")[0] == 200)
        replace()
        check("and behind a file that was replaced", s.ask("Define dog.")[0] == 200)
        check("its health is good", s.get("/health")[0] == 200)
        check("it ends in order", s.end() == 0)
        put_model()
        s = Server(*options)
        check("the server answers", s.ask("Define river.")[0] == 200)
        overwrite()
        for word in ("dog", "house"):
            status, text = s.ask(f"Define {word}.")
            check("overwritten: it fails with 500", status == 500, (options, status, text))
            check("and tells nobody the file's name", "gguf" not in text and "error" in text, text)
        check("its health says so", "fail" in s.get("/health")[1], s.get("/health"))
        check("it ends in order", s.end() == 0)
        check("the log says why", any(CHANGED in line for line in s.log), (options, s.log))


def not_finite():
    shown = subprocess.run([PROGRAM, "inspect", POCKET, "--json", "--tensors"], capture_output=True, check=True)
    norm = next(t for t in json.loads(shown.stdout)["tensors"] if t["name"] == "output_norm.weight")
    for bad in (float("nan"), float("inf")):
        shutil.copy(POCKET, MODEL)
        with open(MODEL, "r+b") as f:
            f.seek(norm["offset"])
            f.write(struct.pack("<f", bad))
        r = subprocess.run([PROGRAM, "-m", MODEL, "-p", "Define river.", "-n", "9", "-q"], capture_output=True, timeout=100)
        check(f"{bad}: no token comes out", r.returncode == 1 and not r.stdout.strip(), r)
        check(f"{bad}: the sentence", b"not finite" in r.stderr, r.stderr)
        s = Server()
        status, text = s.ask("Define river.")
        check(f"{bad}: the server's answer is an error", status == 500 and "not finite" in text, (status, text))
        check("which is counted", counter(s.get("/metrics")[1], "answers_not_finite") == 1, s.get("/metrics")[1])
        check("it ends in order", s.end() == 0)


shorter()
changed()
if b"\n  serve " in subprocess.run([PROGRAM, "--help"], capture_output=True).stdout:
    server_shorter()
    server_changed()
    not_finite()
finish()
