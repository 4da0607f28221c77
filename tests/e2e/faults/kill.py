# SPDX-License-Identifier: MIT
"""kill.py PROGRAM FOLDER ROUNDS [convert|target|session|store|profile|tune|layers ...]: rounds of kill -9; layers only if named. Every second round kills before a writing system call, or in the middle of one
(fail_write); the others at any time. What a killed run has left is what the next one begins with."""
import hashlib
import os
import random
import re
import shutil
import subprocess
import sys
import time

from checks import check, finish

PROGRAM, WORK, ROUNDS = sys.argv[1], sys.argv[2], int(sys.argv[3])
SEED = int(os.environ.get("KILL_SEED", time.time_ns() % 10**6))
rng = random.Random(SEED)
TRACED = [WORK + "/fail_write"]
LIMIT = 400


def run(args, text="", before=()):
    return subprocess.run([*before, PROGRAM, *args], input=text.encode(), capture_output=True, timeout=LIMIT)


def digest(path):
    with open(path, "rb") as f:
        return hashlib.sha256(f.read()).hexdigest()


class Killer:
    """Runs a command that ends by kill -9, or has ended before."""

    def __init__(self, args, text=""):
        self.args, self.text = args, text
        self.calls = 0
        self.kills = {"KILL": 0, "torn": 0, "time": 0, "over": 0}

    def learn(self, args=None, fresh=lambda: None):
        """How many writing calls and how much time a whole run has; fresh is called behind each."""
        began = time.monotonic()
        r = run(args or self.args, self.text)
        self.seconds = time.monotonic() - began
        check(f"a whole run of {self.args}", r.returncode == 0, r.stderr)
        fresh()
        r = run(args or self.args, self.text, [*TRACED, "0", "EIO"])
        fresh()
        m = re.search(rb"^calls (\d+)", r.stderr, re.M)
        if m:
            self.calls = int(m[1])
        else:
            print("[  SKIPPED ] kills at writing calls: system calls cannot be traced here")
        return self

    def kill(self, i, args=None):
        if self.calls and i % 2 == 0:
            how = rng.choice(["KILL", "torn"])
            # every call comes up, then again in another order
            at = (i // 2 * 7919) % self.calls + 1
            r = run(args or self.args, self.text, [*TRACED, str(at), how])
            killed = r.returncode == 137
        else:
            how = "time"
            p = subprocess.Popen([PROGRAM, *(args or self.args)], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            try:
                p.stdin.write(self.text.encode())
                p.stdin.close()
            except BrokenPipeError:
                pass
            time.sleep(rng.random() * self.seconds)
            p.kill()
            killed = p.wait() == -9
        self.kills[how if killed else "over"] += 1

    def say(self, name, began):
        k = self.kills
        print(f"{name}: {sum(k.values())} rounds, killed before one of {self.calls} writing calls {k['KILL']}, within one {k['torn']}, at any time "
              f"{k['time']}; over before {k['over']}; {time.monotonic() - began:.0f} s", flush=True)
        check(f"{name}: runs are killed", k["KILL"] + k["torn"] + k["time"] > 0, k)


def test_convert(name="convert", types=("--recipe", "q8")):
    began, out = time.monotonic(), WORK + "/out.gguf"
    args = ["convert", WORK + "/tiny", "-o", out, *types, "-q", "-j", "1"]
    k = Killer(args).learn([*args[:3], WORK + "/good.gguf", *args[4:], "--force"])
    want = digest(WORK + "/good.gguf")
    for i in range(ROUNDS):
        k.kill(i)
        if os.path.exists(out):
            check(f"{name} {i}: what is there is whole", digest(out) == want)
        elif rng.random() < 0.4 or i == ROUNDS - 1:
            r = run(args)
            check(f"{name} {i}: the same command again", r.returncode == 0 and digest(out) == want, r)
        if os.path.exists(out):
            left = [f for f in os.listdir(WORK) if f.startswith("out.gguf.")]
            for f in left:  # killed between the name and the end of the journal: the same command takes it away
                check(f"{name} {i}: left beside the model", f == "out.gguf.journal", left)
                os.unlink(WORK + "/" + f)
            os.unlink(out)
    k.say(name, began)


def test_target():
    """Types by a sample of the weights, which a run that goes on takes from the journal."""
    test_convert("target", ("--target-gb", "0.012"))


def test_layers():
    """Layers of GLM-5.2's shape: 8 GB, by hand. Every run goes on where the one before was killed."""
    began, out, source = time.monotonic(), WORK + "/layers.gguf", WORK + "/layers"
    r = subprocess.run([PROGRAM, "synth", "-o", source, "--format", "hf", "--layers", "4", "--expert-count", "16", "--no-mtp", "-q"], capture_output=True)
    check("layers: a checkpoint", r.returncode == 0, r.stderr)
    args = ["convert", source, "-o", out, "--recipe", "q2", "-q"]
    command = [PROGRAM, *args]
    whole = time.monotonic()
    r = subprocess.run(command, capture_output=True)
    check("layers: a whole run", r.returncode == 0, r.stderr)
    whole, want = time.monotonic() - whole, digest(out)
    os.unlink(out)
    kills, files, went_on = 0, 0, 0
    for i in range(ROUNDS):
        had = os.path.exists(out + ".journal")
        with open(WORK + "/said", "wb") as said:
            p = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=said)
            try:
                p.wait(rng.random() * whole / 8)
            except subprocess.TimeoutExpired:
                p.kill()
        kills += p.wait() == -9
        with open(WORK + "/said", "rb") as said:
            went_on += b"going on with an earlier run" in said.read()
        check(f"layers {i}: killed or done", p.returncode in (-9, 0), p.returncode)
        if p.returncode == 0 or i == ROUNDS - 1:
            r = subprocess.run(command, capture_output=True) if p.returncode else r
            check(f"layers {i}: the same bytes", r.returncode == 0 and digest(out) == want, (had, r.stderr))
            os.unlink(out)
            files += 1
    print(f"layers: {kills} kills of {ROUNDS} runs, {went_on} went on, {files} files with the same bytes; a whole run takes "
          f"{whole:.0f} s, all {time.monotonic() - began:.0f} s", flush=True)
    check("layers: runs are killed", kills > ROUNDS // 2, kills)


def test_session():
    began, file, copy = time.monotonic(), WORK + "/chat", WORK + "/copy"
    common = ["-t", "1", "--temp", "0", "--think", "off", "-n", "2", "-c", "1500", "--session"]
    k = Killer([*common, file, "-q"], "Define river.\nDefine dog.\nDefine stone.\n").learn()
    turns = 0
    for i in range(ROUNDS):
        if turns > 40:
            os.unlink(file)
            turns = 0
        k.kill(i)
        if not os.path.exists(file):
            check(f"session {i}: the file is gone", turns == 0, turns)
            continue
        shutil.copy(file, copy)
        r = run(["-t", "1", "--temp", "0", "-n", "0", "-c", "1500", "--session", copy, "-p", "x"])
        m = re.search(rb"copy: (\d+) turns?, ", r.stderr)
        now = int(m[1]) if m else 0
        check(f"session {i}: {turns} turns before, {now} after", r.returncode == 0 and now >= turns, r.stderr)
        turns = now
    k.say("session", began)


def test_store():
    began, store = time.monotonic(), WORK + "/store"
    texts, answers = [], []
    for word in ("river", "stone", "tree", "house"):
        texts.append(WORK + "/" + word)
        with open(texts[-1], "w", encoding="ascii") as f:
            f.writelines(f"The {word} number {i} is by the sea.\n" for i in range(60))
        answers.append(run([*STORED, "-f", texts[-1]]).stdout)
    more = ["--session-dir", store, "--session-dir-gb", "0.01"]
    k = Killer([*STORED, "-f", texts[0], *more]).learn(fresh=lambda: shutil.rmtree(store))
    for i in range(ROUNDS):
        args = [*STORED, "-f", rng.choice(texts), *more]
        k.kill(i, args)
        r = run(args)
        check(f"store {i}: the same answer", r.returncode == 0 and r.stdout == answers[texts.index(args[args.index("-f") + 1])], r)
        check(f"store {i}: no damaged block", b"damaged" not in r.stderr, r.stderr)
        size = sum(os.path.getsize(os.path.join(store, f)) for f in os.listdir(store) if not f.endswith(".part"))
        check(f"store {i}: within its limit", size <= 10e6, size)
        for f in os.listdir(store):  # those of killed runs go after an hour
            if f.endswith(".part"):
                os.unlink(os.path.join(store, f))
        if rng.random() < 0.5:  # else there is nothing to write for the next
            shutil.rmtree(store)
    k.say("store", began)


def test_profile():
    began, file = time.monotonic(), WORK + "/profile"
    args = ["-t", "1", "--temp", "0", "--think", "off", "-n", "4", "-c", "400", "--cache-gb", "0.006", "-v", "-p", "Define river.", "--warm", file]
    k = Killer(args).learn()
    known = 0
    for i in range(ROUNDS):
        k.kill(i)
        r = run(args)
        m = re.search(rb"names (\d+) experts", r.stderr)
        now = int(m[1]) if m else -1
        check(f"profile {i}: {known} experts before, {now} after", r.returncode == 0 and now >= known, r.stderr)
        known = now
    k.say("profile", began)


def test_tune():
    """The trace and the plot are absent, old or whole; no temporary trace is left; the next run is right."""
    began, trace, plot, questions, folder = time.monotonic(), WORK + "/trace", WORK + "/plot.svg", WORK + "/questions", WORK + "/tmp"
    os.mkdir(folder)
    os.environ["TMPDIR"] = folder
    with open(questions, "w", encoding="ascii") as f:
        f.write("Define river.\n")
    args = ["tune", "-f", questions, "-n", "2", "-t", "1", "-c", "300", "--cache-gb", "0.006", "-q", "--trace", trace, "--svg", plot]

    def forget():
        for f in (trace, plot):
            if os.path.exists(f):
                os.unlink(f)

    k = Killer(args).learn(fresh=forget)
    for i in range(ROUNDS):
        k.kill(i)
        if os.path.exists(trace):
            r = run(["trace", "show", trace])
            check(f"tune {i}: the trace is whole", r.returncode == 0, r)
        if os.path.exists(plot):
            with open(plot, encoding="utf-8") as f:
                text = f.read()
            check(f"tune {i}: the plot is whole", text.startswith("<") and text.rstrip().endswith("</svg>"), text[-200:])
        left = [f for f in os.listdir(folder) if f.startswith("glmstream")]
        check(f"tune {i}: no temporary trace", not left, left)
        if i == ROUNDS - 1 or rng.random() < 0.1:
            r = run(args)
            check(f"tune {i}: the same command again", r.returncode == 0 and b"recommended: " in r.stdout and os.path.exists(plot), r)
        if rng.random() < 0.5:  # else the next replays the trace and replaces the plot
            forget()
    k.say("tune", began)


STORED = ["-m", WORK + "/small.gguf", "-n", "2", "--temp", "0", "--think", "off", "-q", "-t", "1", "-c", "1100"]
for part in (test_convert, test_target, test_session, test_store, test_profile, test_tune, test_layers):
    if part.__name__[5:] in sys.argv[4:] or (len(sys.argv) < 5 and part != test_layers):
        part()
finish(f", seed {SEED}")
