# SPDX-License-Identifier: MIT
"""Types into the chat; called by repl.sh with the path of the program and an empty folder, which becomes HOME.

What a message really held is seen through /undo, which prints what it takes back.
"""
import filecmp
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import time

from checks import check, finish
from session_bytes import session_bytes

PROGRAM, HOME, POCKET = sys.argv[1:4]
LIMIT_S = 100
ESCAPES = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]|\r|\x07")


class Chat:
    """The program on a terminal of 100 columns. `stdout` names a file that takes the answers instead."""

    def __init__(self, *args, stdout=None, **env):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ.update(TERM="xterm", HOME=HOME, LANG="C", COLUMNS="100", **env)
            os.environ.pop("LC_ALL", None)
            os.environ.pop("XDG_STATE_HOME", None)
            if stdout:
                os.dup2(os.open(stdout, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), 1)
            os.execv(PROGRAM, [PROGRAM, "-t", "1", "--temp", "0", "--think", "off", *args])
        self.seen = b""
        self.raw = b""
        self.wait_for(b"> ")

    def pump(self, seconds):
        """Takes what comes within a while; False when the other end is gone."""
        if select.select([self.fd], [], [], seconds)[0]:
            try:
                data = os.read(self.fd, 65536)
            except OSError:
                return False
            if not data:
                return False
            self.raw += data
            self.seen = ESCAPES.sub(b"", self.raw)
        return True

    def wait_for(self, text, since=0, limit=LIMIT_S):
        """Reads until `text` was shown behind offset `since`; returns what was shown there."""
        end = time.time() + limit
        while text not in self.seen[since:] and time.time() < end and self.pump(0.1):
            pass
        return self.seen[since:]

    def quiet(self, seconds=0.15):
        """Reads until nothing has come for a while."""
        at = len(self.raw)
        while self.pump(seconds) and len(self.raw) > at:
            at = len(self.raw)

    def keys(self, data):
        os.write(self.fd, data)

    def line(self, data, answer):
        """Types a line and waits for `answer` behind it and then for the prompt (or the end); returns what was shown since."""
        self.quiet()
        at = len(self.seen)
        self.keys(data + b"\r")
        if answer in self.wait_for(answer, at):
            self.wait_for(b"\n> ", self.seen.index(answer, at))
        return self.seen[at:]

    def say(self, data):
        """Types a line and waits for the statistics that end its answer."""
        shown = self.line(data, b" new at ")
        return shown

    def undo(self):
        return self.line(b"/undo", b"tak").split(b"/undo", 1)[-1]

    def status(self, limit=30):
        end = time.time() + limit
        while time.time() < end:
            self.pump(0.05)
            pid, code = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return os.WEXITSTATUS(code) if os.WIFEXITED(code) else 128 + os.WTERMSIG(code)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        return None


def first_screen():
    """Three lines: what this is, what to type, how to go on; and what it says to type works."""
    c = Chat()
    c.quiet(0.5)
    lines = c.seen.decode().split("\n")
    check("three lines and the prompt", len(lines) == 4 and lines[3] == "> ", c.seen)
    check("what this is", "small model" in lines[0], c.seen)
    example = re.search(r"For example: (.*)", lines[1])
    check("what to type", example, c.seen)
    check("how to get help and leave", "/help" in lines[2] and "Ctrl+D" in lines[2], c.seen)
    shown = c.say(example[1].encode() if example else b"x")
    check("the example is answered right", b"river (noun): a large natural stream of water" in shown, shown)
    c.line(b"/quit", b"/quit")
    c.status()
    c = Chat("-m", POCKET)
    c.quiet(0.5)
    check("another model is named", b"pocket.gguf: 7 layers + MTP" in c.seen and c.seen.count(b"\n") == 3, c.seen)
    c.line(b"/quit", b"/quit")
    c.status()
    c = Chat("-q")
    c.quiet(0.5)
    check("-q says nothing", c.seen == b"> ", c.seen)
    c.line(b"/quit", b"/quit")
    c.status()


def full_context():
    c = Chat("-c", "60")
    c.say(b"Define dog.")
    shown = c.line(b"Define dog.", b"hint:")
    check("a full context is said", b"do not fit the context of 60" in shown, shown)
    check("and the way out", b"hint: /undo takes back the last message" in shown and b"/reset begins" in shown, shown)
    c.line(b"/undo", b"taken back")
    shown = c.say(b"Define island.")
    check("which works", b"island (noun)" in shown, shown)
    c.line(b"/reset", b"a new conversation")
    c.line(b"/set n 40", b"n 40")
    c.say(b"Define dog.")
    shown = c.say(b"Define dog.")
    check("an answer cut off by it says so too", b"/undo and /reset make room" in shown, shown)
    c.line(b"/quit", b"/quit")
    check("it leaves with status 0", c.status() == 0, c.raw)


def messages():
    """What the editor makes of typed text is what the conversation holds."""
    c = Chat("-n", "3")
    shown = c.line(b"/stats", b"no answer yet")
    check("/stats before any answer", b"no answer yet" in shown, shown)
    text = "Größe 日本語 🙂".encode()
    shown = c.say(text)
    check("typed Unicode is shown", text in shown, shown)
    shown = c.undo()
    check("and arrives whole", b"taken back: " + text in shown, shown)

    c.quiet()
    at = len(c.seen)
    c.keys(b"Define \\\r")
    c.wait_for(b"... ", at)
    shown = c.say(b"river.")
    check("a continued line is answered", b" new at " in shown, shown)
    shown = c.undo()
    check("a backslash at the end of a line continues it", b"taken back: Define \nriver." in shown, shown)

    c.quiet()
    c.keys(b"\x1b[200~first line\rsecond line\r\x1b[201~")
    shown = c.say(b"")
    shown = c.undo()
    check("several pasted lines are one message", b"taken back: first line\nsecond line" in shown, shown)

    pasted = "Größe\t日本語\n\nГород 🙂"
    c.quiet()
    c.keys(b"\x1b[200~" + pasted.replace("\n", "\r").encode() + b"\x07\r\x1b[201~")
    shown = c.say(b"")
    shown = c.undo()
    check("pasted Unicode too", b"taken back: " + pasted.replace("\t", " ").encode() in shown, shown)

    shown = c.undo()
    check("/undo ends where nothing is left", b"there is nothing to take back" in shown, shown)

    c.quiet()
    c.keys(b"axc\x02\x02\x1b[3~b\x05d")  # two left, delete x, b; end, d
    c.keys(b"\x7f")
    shown = c.say(b"d")
    shown = c.undo()
    check("editing keys edit", b"taken back: abcd" in shown or b"taken back: bacd" in shown, shown)

    at = len(c.seen)
    c.keys("half a lineü".encode())
    c.wait_for("ü".encode(), at)
    c.keys(b"\x04")
    c.quiet()
    check("Ctrl+D on a line with text does not leave", os.waitpid(c.pid, os.WNOHANG)[0] == 0)
    c.keys(b"\x03")
    shown = c.wait_for(b"^C\n> ", at)
    check("Ctrl+C clears the line", b"^C\n> " in shown, shown)
    shown = c.line(b"/undo", b"nothing to take back")
    check("and says nothing", b"nothing to take back" in shown, shown)

    path = os.path.join(HOME, "prompt.txt")
    with open(path, "wb") as f:
        f.write(b"Define tree.\nplease\n")
    shown = c.line(b"/read " + path.encode(), b" new at ")
    check("/read sends a file", b" new at " in shown, shown)
    shown = c.undo()
    check("with all its lines", b"taken back: Define tree.\nplease" in shown, shown)
    with open(path, "wb") as f:
        f.write(b"\x1b]0;OWNED\x07\x1b[31mred\xc2\x9b2J\xe2\x80\xaeend")
    c.line(b"/read " + path.encode(), b" new at ")
    at = len(c.raw)
    shown = c.undo()
    check("/undo shows a message without its escapes", b"taken back: ?]0;OWNED??[31mred?2J?end" in shown, shown)
    check("the terminal gets none of them", b"\x1b[31m" not in c.raw[at:] and b"\xc2\x9b" not in c.raw[at:], c.raw[at:])
    shown = c.line(b"/read /no/such/file", b"/no/such/file: No such file")
    check("/read names a file that is missing", b"glmstream: /no/such/file" in shown, shown)
    c.quiet()  # the prompt is there: a key typed before it would still meet the terminal's line mode
    c.keys(b"\x04")
    check("Ctrl+D on an empty line leaves", c.status() == 0, c.raw)


def completion():
    """Tab: commands, their words, names of settings, files."""
    folder = os.path.join(HOME, "tab")
    os.makedirs(os.path.join(folder, "deep"))
    for name in ("alpha one.session", "beta.session", ".hidden", "deep\u202e.session", "deep\x07"):
        open(os.path.join(folder, name), "w").close()
    c = Chat("-n", "2")

    def tab(keys, shown):
        c.quiet()
        at = len(c.seen)
        c.keys(keys)
        seen = c.wait_for(shown, at)
        check(keys.decode(), shown in seen, seen)
        c.keys(b"\x03")
        c.wait_for(b"^C\n> ", at)

    tab(b"/lo\t", b"/load ")
    tab(b"/s\t", b"/stats  /system  /save  /save!  /set")
    tab(b"/think h\t", b"/think high ")
    tab(b"/system c\t", b"/system clear ")
    tab(b"/set mi\t", b"/set min-p ")
    at = folder.encode()
    tab(b"/load " + at + b"/al\t", b"/load " + at + b"/alpha one.session ")
    tab(b"/load " + at + b"/\t", b"deep/  ")
    # the only name below "d": the others would act on the terminal and are not offered
    tab(b"/load " + at + b"/d\t", b"/load " + at + b"/deep/")
    tab(b"/load " + at + b"/.h\t", b"/.hidden ")
    check("hidden files are not offered unasked", c.seen.count(b".hidden") == 1, c.seen)
    shown = c.say(b"/ho\t\x03Define river.")  # nothing to offer: nothing happens
    check("after all that a question is answered", b" new at " in shown, shown)
    at = len(c.seen)
    c.keys(b"hello\t")
    c.wait_for(b"hello", at)
    c.quiet(0.5)
    check("a message is not completed", c.seen[at:].endswith(b"hello"), c.seen[at:])
    c.keys(b"\x03")
    c.line(b"/quit", b"/quit")
    check("it leaves with status 0", c.status() == 0, c.raw)


def history():
    c = Chat("-n", "1")
    c.say(b"Define history.")
    c.quiet()
    at = len(c.seen)
    c.keys(b"\x1b[A")
    shown = c.wait_for(b"Define history.", at)
    check("the up key recalls the last line", b"Define history." in shown, shown)
    c.keys(b"\x03")
    c.line(b"/quit", b"/quit")
    check("/quit leaves", c.status() == 0, c.raw)
    path = os.path.join(HOME, ".local/state/glmstream/history")
    check("the history has a file", os.path.exists(path))
    check("only its owner may read it", os.path.exists(path) and os.stat(path).st_mode & 0o077 == 0)
    c = Chat("-n", "1")
    at = len(c.seen)
    c.keys(b"\x1b[A\x1b[A")
    shown = c.wait_for(b"Define history.", at)
    check("the next session remembers it", b"Define history." in shown, shown)
    c.keys(b"\x03\x04")
    check("Ctrl+D leaves", c.status() == 0, c.raw)
    with open(path, "w") as f:
        f.write("my notes")
    c = Chat("-n", "1")
    c.say(b"Define history.")
    c.line(b"/quit", b"/quit")
    c.status()
    check("a file in its place that is no history stays", open(path).read() == "my notes")
    os.unlink(path)


def interrupts():
    c = Chat("-n", "2000")
    for _ in range(10):  # it may have ended before
        c.quiet()
        at = len(c.seen)
        c.keys(b"Tell me a story about a fox named Ben.\r")
        c.wait_for(b"Once", at)
        c.keys(b"\x03")
        shown = c.wait_for(b"\n> ", at)
        if b"(stopped)" in shown:
            break
        c.quiet(1)
        c.undo()
    check("Ctrl+C stops the answer", b"(stopped)" in shown, shown)
    c.line(b"/set n 4", b"n 4")
    shown = c.say(b"Define river.")
    check("and keeps the session", b"river" in shown.split(b"Define river.", 1)[-1], shown)
    shown = c.undo()
    check("/undo takes back the last message only", b"taken back: Define river." in shown, shown)
    shown = c.undo()
    check("then the stopped one", b"taken back: Tell me a story" in shown, shown)
    shown = c.undo()
    check("and no more", b"nothing to take back" in shown, shown)
    # typed while the answer runs: not mixed into it, and the next message
    c.quiet()
    at = len(c.seen)
    c.keys(b"Define island.\r")
    c.wait_for(b"island", at + len(b"Define island."), 60)
    c.keys(b"/stats\r")
    shown = c.wait_for(b"in all:", at)
    check("what is typed during an answer comes next", b"in all:" in shown, shown)
    c.quiet()
    c.keys(b"\x04")
    check("it leaves with status 0", c.status() == 0, c.raw)


def commands():
    c = Chat("-n", "2", NO_COLOR="1")
    for line, answer in [
        (b"/think high", b"reasoning: high"),
        (b"/think off", b"reasoning: off"),
        (b"/think", b"reasoning: off"),
        (b"/think loud", b"/think takes max, high or off"),
        (b"/set", b"temp 0, top-p"),
        (b"/set temp 0.5", b"temp 0.5,"),
        (b"/set --top-k 7", b"top-k 7,"),
        (b"/set presence-penalty 1", b"presence-penalty 1,"),
        (b"/set temp x", b"is not a number"),
        (b"/set n -1", b"glmstream: n: -1"),
        (b"/set temp", b"usage: /set NAME VALUE"),
        (b"/set wit 3", b"/set knows no \"wit\""),
        (b"/system You are brief.", b"system message set"),
        (b"/system", b"system message: You are brief."),
        (b"/system clear", b"system message removed"),
        (b"/system", b"no system message"),
        (b"/quti", b"did you mean /quit"),
        (b"/stats now", b"/stats takes no argument"),
        (b"/exit now", b"/exit takes no argument"),
        (b"/cache", b"no expert cache"),
        (b"/reset", b"a new conversation"),
        (b"/help", b"/undo"),
    ]:
        shown = c.line(line, answer)
        check(line.decode(), answer in shown, shown)
    shown = c.line(b"/help", b"Ctrl+C stops")
    for what in (b"/save --force FILE", b"/exit"):
        check(f"/help names {what.decode()}", what in shown, shown)
    shown = c.say(b"Define river.")
    check("after all that a question is answered", b" new at " in shown, shown)
    check("NO_COLOR means no colours", not re.search(rb"\x1b\[[0-9;]*m", c.raw), c.raw)
    os.kill(c.pid, signal.SIGTERM)
    check("SIGTERM ends it", c.status() is not None, c.raw)


def streams():
    """With stdout in a file, the file gets the answers and nothing else."""
    path = os.path.join(HOME, "answers")
    c = Chat("-n", "40", stdout=path)
    c.say(b"Define river.")
    c.line(b"/stats", b"in all:")
    c.line(b"/quit", b"/quit")
    check("it leaves with status 0", c.status() == 0, c.raw)
    with open(path, "rb") as f:
        text = f.read()
    check("stdout has the answer", b"river" in text, text)
    check("stdout has nothing else", text.count(b"\n") == 1 and b"\x1b" not in text and b">" not in text, text)


def cache_map():
    """/cache draws every expert, says the same as the counts below it, and fills while the model talks."""
    c = Chat("-n", "24", "--chunk", "32", "--cache-gb", "0.006", "--ram-gb", "0.004")
    empty = c.line(b"/cache", b"policy").decode()
    check("an empty cache is drawn", "cache    0 of 224 experts" in empty, empty.encode())
    c.say(b"Tell me about " + b"the river and " * 100)
    full = c.line(b"/cache", b"policy").decode()
    rows = re.findall(r"^ *(\d+|MTP)  (.{32}) +(\d+) %$", full, re.M)
    check("seven layers of 32 experts", [r[0] for r in rows] == ["1", "2", "3", "4", "5", "6", "MTP"], full.encode())
    for sign, tier in (("\u2588", "cache"), ("=", "RAM")):
        drawn = sum(r[1].count(sign) for r in rows)
        said = re.search(rf"^  {tier} +(\d+) of 224 experts", full, re.M)
        check(f"as many {sign} as the line below says", said and 0 < drawn == int(said[1]), full.encode())
    check("hit rates", re.search(r"accesses +\d+: [0-9.]+ % cache, [0-9.]+ % RAM, [0-9.]+ % read", full), full.encode())
    check("80 columns are enough", all(len(line) <= 80 for line in full.splitlines()), full.encode())
    check("one stage is not named", "stage" not in full, full.encode())
    shown = c.line(b"/stats", b"sampling:")
    check("/stats counts experts", b"experts in all:" in shown and b"memory:" in shown, shown)
    c.line(b"/quit", b"/quit")
    check("it leaves with status 0", c.status() == 0, c.raw)


def map_of_stages():
    """Each stage is named in front of its rows."""
    c = Chat("-n", "4", "--cards", "0,0", "--cache-gb", "0.02")
    shown = c.line(b"/cache", b"policy").decode()
    lines = [x for x in shown.splitlines() if re.match(r"  stage | *(\d+|MTP)  .{32} ", x)]
    stage = re.match(r"  stage 0: layers 0 to (\d), card 0$", lines[0].rstrip())
    end = int(stage[1]) if stage else 0
    check("the first stage", 1 <= end <= 5, shown.encode())
    check("its rows", [x.split()[0] for x in lines[1:end + 1]] == [str(i) for i in range(1, end + 1)], shown.encode())
    check("the second stage", lines[end + 1].rstrip() == f"  stage 1: layers {end + 1} to 6 and MTP, card 0", shown.encode())
    check("its rows", [x.split()[0] for x in lines[end + 2:]] == [str(i) for i in range(end + 1, 7)] + ["MTP"], shown.encode())
    c.line(b"/quit", b"/quit")
    check("it leaves with status 0", c.status() == 0, c.raw)


def long_prompt():
    """A prompt of seconds shows how far it is; Ctrl+C stops it at once, and what was computed of it is not computed again."""
    progress = rb"reading the prompt .*?([0-9]+) of ([0-9]+) tok, [0-9.]+ tok/s, [0-9a-z ]+ left"
    c = Chat("-n", "8", "--chunk", "1", "--draft", "off", "--cache-gb", "0.003")
    shown = c.say(b"Define river.")
    rate = re.search(rb"(\d+) prompt at ([0-9.]+) tok/s", shown)  # a busy machine makes it a long one
    short = rate and int(rate[1]) / float(rate[2]) < 0.25
    check("a short prompt shows no progress", rate and (b"reading" not in shown or not short), c.seen)
    text = b"Tell me about " + b"the river and " * (100 if "san-" in PROGRAM else 500)
    at = len(c.seen)
    c.keys(text + b"\r")
    c.wait_for(b" left", at)
    end = time.time() + 60
    while len(set(re.findall(progress, c.seen[at:]))) < 3 and b"\n> " not in c.seen[at:] and time.time() < end:
        c.pump(0.1)
    said = re.findall(progress, c.seen[at:])
    check("a long one does", len(said) > 1 and int(said[-1][0]) > int(said[0][0]), c.seen[at:])
    computed = int(said[-1][0]) if said else 0
    at, start = len(c.seen), time.time()
    c.keys(b"\x03")
    shown = c.wait_for(b"\n> ", at)
    took = time.time() - start
    print(f"stopped after {1000 * took:.0f} ms")
    check("Ctrl+C stops it", b"\n> " in shown, shown)
    at = len(c.raw)
    shown = c.say(text)
    total, reused = counts(shown)
    check("it was stopped in its middle, and its beginning is not computed again", computed <= reused < total - 1, shown)
    said = re.search(progress, shown)
    check("the line counts what is new", said and int(said[2]) == total - reused, shown)
    check("and is taken away", b"\r\x1b[K" in c.raw[at:], c.raw[at:])
    c.line(b"/quit", b"/quit")
    check("it leaves with status 0", c.status() == 0, c.raw)


def counts(shown):
    """Prompt tokens and how many of them were not computed, of the statistics line in `shown`."""
    m = re.search(rb"(\d+) prompt(?: \((\d+) reused\))?", shown)
    return (int(m[1]), int(m[2] or 0)) if m else (0, 0)


def sessions():
    """/save, /load, --session; /undo takes back a turn without its prompt being read again."""

    def say(chat, text):
        return chat.line(text, b"; cpu")  # -v: with the hash of the logits

    def logits(shown):
        return shown.split(b" logits ")[-1][:16]

    path = os.path.join(HOME, "chat.session").encode()
    c = Chat("-n", "12", "-v")
    shown = c.line(b"/save", b"usage: /save FILE")
    check("/save wants a name the first time", b"usage: /save FILE" in shown, shown)
    shown = c.line(b"/load", b"usage: /load FILE")
    check("/load always", b"usage: /load FILE" in shown, shown)
    say(c, b"Define river.")
    first = say(c, b"Define tree.")
    c.undo()
    again = say(c, b"Define tree.")
    prompt, reused = counts(again)
    before = counts(first)
    check("after /undo the prompt up to the change is not read again", reused >= before[1] > 0, again)
    check("and the answer is the same", logits(first) == logits(again), again)
    shown = c.line(b"/save " + path, b" saved (")
    check("/save says what it saved", b"2 turns, " in shown, shown)
    want = say(c, b"Define island.")
    shown = c.line(b"/load " + path, b"tree (noun)")
    check("/load says what it read", b"2 turns, " in shown, shown)
    check("and shows the last turn", re.search(rb"\n> Define tree\.\ntree \(noun\): a tall", shown), shown)
    got = say(c, b"Define island.")
    check("what follows is the same", logits(want) == logits(got), got)
    check("with as many tokens computed", counts(want) == counts(got), got)
    for text in (b"Define island.", b"Define tree.", b"Define river."):
        shown = c.undo()
        check("/undo works after /load", b"taken back: " + text in shown, shown)
    shown = c.line(b"/load /no/such/file", b"No such file")
    check("/load names a file that is missing", b"glmstream: /no/such/file" in shown, shown)
    shown = c.line(b"/save /no/such/folder/x", b"No such file")
    check("/save names a folder that is missing", b"glmstream: /no/such/folder/x" in shown, shown)
    c.quiet()
    c.keys(b"\x04")
    check("without --session nothing is saved at the end", c.status() == 0, c.raw)

    c = Chat("-n", "12", "-v", "--session", path.decode())
    c.wait_for(b"tree (noun): a tall")
    c.quiet(0.5)
    check("--session reads the file", b"2 turns, " in c.seen, c.seen)
    check("and shows the last turn", re.search(rb"\n> Define tree\.\ntree \(noun\): a tall", c.seen), c.seen)
    shown = say(c, b"Define island.")
    check("and goes on in it", logits(want) == logits(shown), shown)
    c.undo()
    c.undo()
    c.quiet()
    os.kill(c.pid, signal.SIGHUP)
    c.status()
    c = Chat("-n", "12", "--session", path.decode())
    check("SIGHUP saves what was taken back", b"1 turn, " in c.seen, c.seen)
    with open(path, "ab") as f:  # another program
        f.write(b" ")
    shown = c.line(b"/save", b"another program")
    check("what another program has written stays", b"another program has written this session" in shown, shown)
    shown = c.line(b"/save " + path + b".mine", b" saved (")
    check("the chat goes on in a file of its own", b"1 turn, " in shown, shown)
    c.line(b"/quit", b"/quit")
    check("it leaves with status 0", c.status() == 0, c.raw)


def taken_back():
    """What /reset, /undo and /system took back is in no file that is saved later; /save replaces sessions only."""

    def holds(name, text):
        ids = subprocess.run([PROGRAM, "tokenize"], input=text.encode(), capture_output=True, check=True).stdout.split()
        data = session_bytes(name)
        return text.encode() in data or struct.pack(f"<{len(ids)}i", *map(int, ids)) in data

    def save(chat, name, command=b"/save "):
        return chat.line(command + name.encode(), b" saved (")

    one, two, three = (os.path.join(HOME, n) for n in ("one.session", "two.session", "three.session"))
    c = Chat("-n", "12")
    c.line(b"/system You like the word marzipan.", b"system message set")
    c.say(b"Define zebra.")
    c.say(b"Define island.")
    save(c, one)
    check("a saved chat holds what was said", holds(one, "Define zebra") and holds(one, "Define island"))
    check("and the system message", holds(one, "the word marzipan"))
    c.undo()
    c.line(b"/system clear", b"system message removed")
    shown = save(c, two)
    check("/undo is not in the file", b"1 turn, " in shown and not holds(two, "Define island"), shown)
    check("what stays is", holds(two, "Define zebra"))
    check("nor is the old system message", not holds(two, "the word marzipan"))
    c.line(b"/reset", b"a new conversation")
    shown = save(c, three)
    check("/reset is not in the file", b"0 turns, " in shown and not holds(three, "Define zebra"), shown)
    shown = c.line(b"/load " + two.encode(), b" read (")
    check("a file saved after /undo is read", b"1 turn, " in shown, shown)
    shown = c.say(b"Define river.")
    check("and goes on", b" new at " in shown, shown)

    # the first block of a prefix store is a session without a chat: its rows are read, its note is refused
    store = os.path.join(HOME, "store")
    others = "The cat and the walnut."
    run = [PROGRAM, "-t", "1", "-n", "1", "--think", "off", "-q", "--session-dir", store, "-p", (others + " ") * 120]
    subprocess.run(run, stdin=subprocess.DEVNULL, capture_output=True, check=True)
    part = os.path.join(store, os.listdir(store)[0])
    check("a part holds its text", holds(part, " " + others), part)
    shown = c.line(b"/load " + part.encode(), b"holds no chat")
    check("a part of a prefix store is no chat", b"holds no chat" in shown, shown)
    shown = save(c, three)
    check("/load of it leaves the chat as it was", b"2 turns, " in shown and holds(three, "Define river"), shown)
    check("none of it is in the file", not holds(three, " " + others))

    notes = os.path.join(HOME, "notes.txt")
    with open(notes, "w") as f:
        f.write("my notes")
    shown = c.line(b"/save " + notes.encode(), b"hint: ")
    check("/save leaves other files alone", b"exists and is not a session" in shown, shown)
    check("and says how to replace them", b"/save! " + notes.encode() + b" replaces it" in shown, shown)
    check("they are as they were", open(notes).read() == "my notes")
    shown = save(c, notes, b"/save! ")
    check("/save! replaces them", open(notes, "rb").read(7) == b"GLMSESS", shown)
    with open(notes, "w") as f:
        f.write("my notes")
    shown = save(c, notes, b"/save --force ")
    check("so does /save --force", open(notes, "rb").read(7) == b"GLMSESS", shown)
    with open(notes, "w") as f:
        f.write("my notes")
    shown = c.line(b"/save " + notes.encode() + b" --force", b" saved (")
    check("and /save FILE --force", open(notes, "rb").read(7) == b"GLMSESS", shown)
    check("under no other name", not os.path.exists(notes + " --force"))
    with open(notes, "w") as f:
        f.write("my notes")
    shown = c.line(b"/save --force " + notes.encode() + b" --force", b" saved (")
    check("and --force on both sides", open(notes, "rb").read(7) == b"GLMSESS", shown)
    check("which is no part of a name", not os.path.exists(notes + " --force"))
    shown = save(c, notes)
    check("a session is replaced by /save", b"2 turns, " in shown, shown)
    c.line(b"/quit", b"/quit")
    check("it leaves with status 0", c.status() == 0, c.raw)

    # the chat's own model
    model = os.path.join(HOME, "model.gguf")
    shutil.copyfile(POCKET, model)
    c = Chat("-m", model, "-n", "4")
    c.say(b"Define zebra.")
    shown = c.line(b"/save! " + model.encode(), b"hint: ")
    check("/save! does not replace the model", b"is an input of this command" in shown, shown)
    c.line(b"/exit", b"/exit")
    check("which is as it was", c.status() == 0 and filecmp.cmp(model, POCKET, False), c.raw)

    # with --session the file follows the chat
    c = Chat("-n", "12", "--session", two)
    c.line(b"/reset", b"a new conversation")
    c.line(b"/quit", b"/quit")
    c.status()
    check("--session: what /reset took back is gone at the end", not holds(two, "Define zebra"))


# long_prompt comes last: its small budget leaves a profile, from which a later start fills the cache
for part in (first_screen, full_context, messages, completion, history, interrupts, commands, streams, sessions, taken_back, cache_map, map_of_stages,
             long_prompt):
    part()
finish()
