# SPDX-License-Identifier: MIT
"""Drives the chat through a pseudo-terminal; called by terminal.sh with the path of the program."""
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time

from checks import check, finish

PROGRAM = sys.argv[1]
LIMIT_S = 90
ESCAPES = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]|\r")
COLOUR = re.compile(rb"\x1b\[[0-9;]*m")


class Terminal:
    def __init__(self, *args, env=None, columns=80):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            termios.tcsetwinsize(0, (24, columns))
            os.environ.update({"TERM": "xterm-256color", **(env or {})})
            os.execv(PROGRAM, [PROGRAM, *args])
        self.raw = b""

    def read_until(self, done, limit=LIMIT_S):
        """Reads until done(text since the last call) is true, or the program ends; returns that text, escapes removed."""
        start, at = time.time(), len(self.raw)
        while time.time() - start < limit:
            text = ESCAPES.sub(b"", self.raw[at:])
            if done(text):
                return text
            if select.select([self.fd], [], [], 0.1)[0]:
                try:
                    data = os.read(self.fd, 4096)
                except OSError:  # the other end is gone
                    break
                if not data:
                    break
                self.raw += data
        return ESCAPES.sub(b"", self.raw[at:])

    def prompt(self):
        """Reads until the program asks for the next line."""
        return self.read_until(lambda s: s.endswith(b"> "))

    def send(self, data):
        os.write(self.fd, data)

    def status(self, limit=20):
        """Exit status; 128 + signal when killed; None when it does not end (it is killed then)."""
        end = time.time() + limit
        while time.time() < end:
            if select.select([self.fd], [], [], 0)[0]:
                try:
                    self.raw += os.read(self.fd, 4096)
                except OSError:
                    pass
            pid, code = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return os.WEXITSTATUS(code) if os.WIFEXITED(code) else 128 + os.WTERMSIG(code)
            time.sleep(0.05)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        return None


def chat_and_interrupt():
    t = Terminal("--temp", "0", "--think", "off", "-n", "600")
    t.prompt()
    t.send(b"Define river.\r")
    answer = t.prompt()
    check("a question is answered", answer.count(b"river") >= 2, answer)
    # a long answer, stopped in the middle
    t.send(b"Tell me a story about a fox named Ben.\r")
    t.read_until(lambda s: b"nce" in s.split(b"Ben.", 1)[-1])
    t.send(b"\x03")
    answer = t.prompt()
    check("Ctrl+C stops the answer", b"The end." not in answer, answer)
    t.send(b"Define island.\r")
    answer = t.prompt()
    check("Ctrl+C keeps the session", answer.count(b"island") >= 2, answer)
    t.send(b"/no-such-command\r")
    answer = t.prompt()
    check("an unknown / command is refused by name", b"no-such-command" in answer.split(b"\n", 1)[-1], answer)
    t.send(b"/help\r")
    answer = t.prompt()
    check("/help lists the commands", b"/quit" in answer and b"/reset" in answer, answer)
    t.send(b"/quit\r")
    check("/quit leaves with status 0", t.status() == 0, t.raw)


def control_d():
    t = Terminal("--temp", "0", env={"NO_COLOR": "1"})
    t.prompt()
    t.send(b"\x04")
    check("Ctrl+D leaves with status 0", t.status() == 0, t.raw)
    check("NO_COLOR means no colours", not COLOUR.search(t.raw), t.raw)


def progress():
    """The line is cut to the terminal; a terminal without escape sequences gets lines, as a log does."""
    for columns in (100, 40, 12, 3):
        t = Terminal("verify", columns=columns)
        check("verify ends with status 0", t.status() == 0, t.raw)
        drawn = [ESCAPES.sub(b"", s) for s in re.findall(rb"\r([^\r\n]*?)\x1b\[K", t.raw)]
        widest = max((len(s.decode()) for s in drawn), default=0)
        check(f"progress fits {columns} columns", 0 < widest < columns, t.raw)
    t = Terminal("verify", env={"TERM": "dumb"})
    check("verify on a dumb terminal ends with status 0", t.status() == 0, t.raw)
    check("a dumb terminal gets no escape sequences", b"\x1b" not in t.raw, t.raw)


def interrupt_single_answer():
    """SIGINT during one answer: what is there stays, exit status 130."""
    p = subprocess.Popen([PROGRAM, "-p", "Tell me a story about a fox named Ben.", "--temp", "1", "--seed", "3", "-n", "100000"],
                         stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if select.select([p.stdout], [], [], LIMIT_S)[0]:
        os.read(p.stdout.fileno(), 1)
    p.send_signal(signal.SIGINT)
    try:
        out, err = p.communicate(timeout=20)
        ended_before = p.returncode == 0 and b"The end." in out
        check("SIGINT ends an answer with status 130", p.returncode == 130 or ended_before, err)
        check("it is not an error message", b"bug:" not in err and b"Sanitizer" not in err, err)
    except subprocess.TimeoutExpired:
        p.kill()
        check("SIGINT ends an answer", False)


chat_and_interrupt()
control_d()
progress()
interrupt_single_answer()
finish()
