# SPDX-License-Identifier: MIT
"""Lets allocations of a running server fail while it answers one request of each API: a single one, and several or all from one
on until the request is over. The client gets the whole answer, or a refusal (503), an error at the end of a stream, or a closed
connection; never a wrong answer, and the server answers the next request.

FAULT_POINTS: how many places of each request are tried (0: every one). FAULT_SEED: which."""
import http.client
import json
import mmap
import os
import random
import struct
import sys
import time

from serve_lib import TIME, WEATHER, Server, check, finish, user, wait_gauge

WORK = sys.argv[1]
POINTS = int(os.environ.get("FAULT_POINTS", "8"))
SEED = int(os.environ.get("FAULT_SEED", "1"))
CONTROL = os.path.join(WORK, "control")
FOREVER = 1 << 60
TEXT = ("content", "text", "delta", "partial_json", "arguments", "response", "thinking", "reasoning", "reasoning_content")
SCHEMA = {"type": "object", "properties": {"word": {"type": "string", "maxLength": 8}, "n": {"type": "integer"}},
          "required": ["word", "n"], "additionalProperties": False}
FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
STRICT = {"type": "function", "function": {**WEATHER["function"], "strict": True}}
TALK = [{"role": "system", "content": "Short."}, *user("Weather in Rome?"),
        {"role": "assistant", "content": "", "tool_calls": [{"id": "call_1", "type": "function", "function": {
            "name": "get_weather", "arguments": "{\"city\": \"Rome\"}"}}]},
        {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "sunny"}]}, *user("And now?")]
LONG = " ".join(f"The river number {i} runs to the sea." for i in range(40))
CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
PLAIN = {"temperature": 0, "max_tokens": 4, "enable_thinking": False}
SHAPES = [
    ("chat", CHAT, {**PLAIN, "messages": user("Define river."), "logprobs": True, "top_logprobs": 2, "stop": ["zzz", "qqq"],
                    "n": 2}),
    ("chat, conversation with a call", CHAT, {**PLAIN, "messages": TALK, "tools": [WEATHER, TIME], "seed": 1}),
    ("chat, required call", CHAT, {**PLAIN, "max_tokens": 30, "messages": user("Weather in Rome?"),
                                   "tools": [WEATHER, TIME], "tool_choice": "required"}),
    ("chat, strict tool", CHAT, {**PLAIN, "max_tokens": 30, "messages": user("Weather in Rome?"), "tools": [STRICT],
                                 "tool_choice": "required"}),
    ("chat, schema", CHAT, {**PLAIN, "max_tokens": 24, "messages": user("Define river."), "response_format": FORMAT}),
    ("chat, penalties", CHAT, {**PLAIN, "temperature": 1, "top_k": 40, "seed": 5, "messages": user("Define river."),
                               "frequency_penalty": 0.5, "logit_bias": {"100": 1}, "min_tokens": 2}),
    ("chat, long prompt", CHAT, {**PLAIN, "messages": user(LONG)}),
    ("completions", "/v1/completions", {"prompt": ["The river", "The sea"], "max_tokens": 4, "temperature": 0, "logprobs": 2}),
    ("responses", RESPONSES, {"input": "Define river.", "max_output_tokens": 4, "temperature": 0, "enable_thinking": False,
                              "tools": [{"type": "function", **WEATHER["function"]}]}),
    ("messages", MESSAGES, {"messages": user("Define river."), "max_tokens": 4, "temperature": 0, "system": "Short.",
                            "tools": [{"name": "f", "input_schema": SCHEMA}]}),
    ("ollama chat", "/api/chat", {"messages": user("Define river."), "think": False, "format": SCHEMA,
                                  "options": {"temperature": 0, "num_predict": 24}}),
    ("ollama generate", "/api/generate", {"prompt": "Define river.", "think": False,
                                          "options": {"temperature": 0, "num_predict": 4}}),
    ("llama.cpp", "/completion", {"prompt": "The river", "n_predict": 4, "temperature": 0, "n_probs": 2}),
]
OTHERS = [
    ("tokenize", "/tokenize", {"content": "The river runs", "with_pieces": True}),
    ("template", "/apply-template", {"messages": TALK, "tools": [WEATHER]}),
    ("count", "/v1/messages/count_tokens", {"messages": user("Define river.")}),
    ("state", "/v1/glmstream/state", None),
    ("metrics", "/metrics", None),
    ("models", "/v1/models", None),
    ("nothing there", "/nowhere", None),
]


class Control:
    def __init__(self):
        with open(CONTROL, "wb") as f:
            f.write(bytes(24))
        with open(CONTROL, "r+b") as f:
            self.map = mmap.mmap(f.fileno(), 24)

    def set(self, first, count):
        self.map[8:24] = struct.pack("qq", 0, 0)
        self.map[0:8] = struct.pack("q", 0)
        self.map[8:24] = struct.pack("qq", first, count)

    def calls(self):
        return struct.unpack("q", self.map[0:8])[0]


def words(value, out):
    """The texts of an answer or an event, in their order."""
    if isinstance(value, dict):
        for key, v in value.items():
            if key in TEXT and isinstance(v, str):
                out.append(v)
            else:
                words(v, out)
    elif isinstance(value, list):
        for v in value:
            words(v, out)
    return out


def ask(s, path, body, stream):
    """("answer", text), ("refused", status), ("broken",) for a stream that ends with an error or too early, ("closed",)."""
    c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=120)
    try:
        if body is None:
            c.request("GET", path)
        else:
            c.request("POST", path, json.dumps({**body, "stream": stream}), {"Content-Type": "application/json"})
        r = c.getresponse()
        data = r.read().decode()
        if r.status != 200:
            return "refused", r.status, data
        if body is None:
            return "answer", ""
        if not stream:
            return "answer", "".join(words(json.loads(data), []))
        events = [json.loads(line[6:] if line.startswith("data: ") else line) for line in data.splitlines()
                  if line.startswith(("data: {", "{"))]
        ended = "[DONE]" in data or any(e.get("done") or e.get("stop") is True or e.get("type") in
                                        ("message_stop", "response.completed", "response.incomplete") for e in events)
        failed = any("error" in e or e.get("type") in ("error", "response.failed") for e in events)
        # the end of a response repeats it
        events = [e for e in events if not str(e.get("type")).endswith((".done", "completed", "incomplete", ".added"))]
        if failed or not ended:
            return ("broken",)
        texts = {}
        for e in events:
            for part in e.get("choices") or [e]:
                texts[part.get("index", 0)] = texts.get(part.get("index", 0), "") + "".join(words(part, []))
        return "answer", texts
    except TimeoutError:
        return ("timeout",)
    except (OSError, http.client.HTTPException):
        return ("closed",)
    finally:
        c.close()


def lives(s, *what):
    """The server has not ended; else the test does."""
    time.sleep(0.01)
    if not check(s.process.poll() is None, *what, "the server has ended", s.process.returncode):
        s.reader.join(5)
        print("".join(s.log[-5:]))
        finish()


def places(total):
    if not POINTS or total <= POINTS:
        return range(1, total + 1)
    return sorted(random.Random(SEED).sample(range(1, total + 1), POINTS))


def try_shape(s, control, name, path, body, stream):
    control.set(0, 0)
    expected = ask(s, path, body, stream)
    control.set(0, 0)
    again = ask(s, path, body, stream)
    total = control.calls()
    if path != "/nowhere":
        check(expected[0] == "answer" and again == expected, name, "an answer is the same twice", expected, again)
    seen, some = {}, random.Random(SEED)
    for n in places(total):
        for count in (1, some.choice((3, 10, 30, FOREVER))):
            control.set(n, count)
            got = ask(s, path, body, stream)
            control.set(0, 0)
            lives(s, name, f"allocation {n} of {total}, {count}:")
            seen[got[0]] = seen.get(got[0], 0) + 1
            right = got == expected or got[0] in ("broken", "closed") or (got[0] == "refused" and got[1] == 503) or \
                (got[0] == expected[0] == "refused" and not got[2])  # without words
            check(right, name, f"allocation {n} of {total}, {count}:", got, "expected", expected)
        if n % 5 == 0 or n == total:
            end = time.monotonic() + 20
            got = ask(s, path, body, stream)
            lives(s, name, f"behind allocation {n} of {total}:")
            check(got == expected, name, f"behind allocation {n} of {total}:", got, expected)
    end = time.monotonic() + 20
    while s.get("/health")[1].get("active") and time.monotonic() < end:
        time.sleep(0.02)
    check(ask(s, path, body, stream) == expected, name, "at the end")
    print(f"{name}{', streamed' if stream else ''}: {total} allocations, {seen}", flush=True)


def main():
    control = Control()
    with Server("-t", "1", "-c", "1024", "--sessions", "2", "-q", "--session-dir", os.path.join(WORK, "store"),
                env={"LD_PRELOAD": os.path.join(WORK, "fail_alloc.so"), "FAIL_CONTROL": CONTROL}) as s:
        for name, path, body in SHAPES:
            for stream in (False, True):
                try_shape(s, control, name, path, body, stream)
        body = {"input": "Define river.", "max_output_tokens": 4, "temperature": 0}
        kept = s.post(RESPONSES, body)[1]["output"]
        again = {**body, "input": [*user("Define river."), *({"type": "item_reference", "id": i["id"]} for i in kept), *user("And lake?")]}
        try_shape(s, control, "responses, references", RESPONSES, again, False)
        for name, path, body in OTHERS:
            try_shape(s, control, name, path, body, False)
        held = wait_gauge(s, "request_bytes", lambda held: held == 0)
        check(held == 0, "no request holds memory at the end", held)
    finish()


main()
