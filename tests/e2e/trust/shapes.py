# SPDX-License-Identifier: MIT
"""Every shape of request that once cost too much, and every saved input of the fuzzer of requests, against a server with 1 GB of
addresses. Each gets an answer or a refusal; it takes at most 2 s of the compute thread between the model's steps; and the
answer of another client goes on at 80 % of its speed or more.

Speed is tokens for each second of the compute thread's processor time, which other programs on the machine do not change. It is
held against the same client's speed beside a plain request that fills the context.

An argument chooses the shapes whose names have it."""
import glob
import http.client
import json
import os
import sys
import threading
import time

from serve_lib import PROGRAM, ROOT, Server, check, finish, skip, user

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
# the first byte of an input chooses one, as in fuzz_serve_requests.c
PATHS = [CHAT, COMPLETIONS, "/v1/responses", "/v1/messages", "/api/chat", "/api/generate", "/completion", "/v1/messages"]
VICTIM = {"prompt": "The river", "max_tokens": 240, "ignore_eos": True, "temperature": 0, "seed": 1}
FILLS = {"prompt": " ".join(f"river {i}" for i in range(120)), "max_tokens": 500, "ignore_eos": True}
HOST_SECONDS, LEAST_SPEED = 2.0, 0.8


def function(name, **members):
    return {"type": "function", "function": {"name": name, **members}}


def plain(messages, **more):
    return {"messages": messages, "enable_thinking": False, "max_tokens": 40, "temperature": 1, "seed": 3, **more}


def schema(value, **more):
    return CHAT, plain(user("x"), response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": value}}, **more)


def strict(tools, arguments, s):
    return CHAT, plain(user("x"), tool_choice="required", tools=[function(
        f"f{i}", strict=True, defer_loading=True, parameters={
            "type": "object", "properties": {f"a{k}": s for k in range(arguments)}}) for i in range(tools)])


def hard_pattern(n):
    return {"type": ["string", "null"], "pattern": f"^(a|b)*a(a|b){{{n}}}$", "maxLength": n}


def shapes():
    tool = function("f", defer_loading=True, description="x" * (1000 << 10))
    reference = [{"type": "tool_reference", "name": "f"}]
    yield "20,000 references to a tool", CHAT, plain([{"role": "tool", "content": reference * 20000}, *user("x")], tools=[tool])
    yield "the same as text", "/apply-template", plain([{"role": "tool", "content": reference * 20000}, *user("x")], tools=[tool])
    for kilobytes in (0, 100):
        properties = {f"{i:03d}" + "k" * (kilobytes << 10): {"type": "string"} for i in range(256)}
        yield f"names of {kilobytes} kB", CHAT, plain(user("x"), tool_choice="required", tools=[function(
            "f", defer_loading=True, parameters={"type": "object", "properties": properties,
                                                 "required": [next(iter(properties))]})])
    yield "150,000 values, 16 answers", CHAT, plain(user("x"), n=16, max_tokens=2, tools=[function(
        "f", defer_loading=True, parameters={"x": [{}] * 149000})])
    turns = [m for i in range(8000) for m in ({"role": "user", "content": "a"}, {"role": "assistant", "content": "b"})]
    yield "16,000 turns", CHAT, plain(turns + user("x"))
    yield "16,000 turns, counted", "/v1/messages/count_tokens", {"messages": turns + user("x")}
    yield ("many places", *schema({"type": "string", "pattern": "^.*[a-m].{900}$"}))
    yield ("many sets", *schema({"type": "string", "pattern": "^[a-z ]*[aeiou ][a-z ]{400}$"}))
    yield ("many alternatives", *schema({"anyOf": [{"type": "string", "pattern": f"^[a-z]*{c}[a-z ]{{30,300}}$"}
                                                   for c in "abcdefghijklmnopqrstuvwxyz"]}))
    yield ("long enum", *schema({"enum": ["a" * 60 + str(i) for i in range(5000)]}))
    yield ("references", *schema({"$ref": "#/$defs/d0", "$defs": {"d60": {"type": "integer"}, **{f"d{i}": {"anyOf": [
        {"$ref": f"#/$defs/d{i + 1}"}, {"type": "array", "items": {"$ref": f"#/$defs/d{i + 1}"}}]} for i in range(60)}}}))
    yield ("a schema that takes long to compile", *schema({"type": "object", "properties": {
        f"p{i}": hard_pattern(110) for i in range(2000)}}))
    yield ("schemas that take long together", *strict(7, 256, hard_pattern(110)))
    yield "many stops", CHAT, plain(user("x"), stop=["a" * 1000 + str(i) for i in range(16)])
    yield "a prompt of one word", COMPLETIONS, {"prompt": "a" * 2000000, "max_tokens": 1}
    yield "blanks", COMPLETIONS, {"prompt": " " * 2000000, "max_tokens": 1}
    yield "deep", CHAT, ("[" * 100000).encode()
    for path in sorted(glob.glob(os.path.join(ROOT, "tests/fuzz/corpus/serve_requests/*"))):
        with open(path, "rb") as f:
            data = f.read()
        if data:
            yield "fuzz: " + os.path.basename(path), PATHS[data[0] % len(PATHS)], data[1:]


def counters(s):
    text = s.get("/metrics")[1]
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    host = float(values["glmstream_host_cpu_seconds_total"])
    return host + float(values["glmstream_step_cpu_seconds_total"]), host


def send(s, path, body, timeout=60):
    """The status; the client leaves after so many seconds."""
    c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=timeout)
    try:
        c.request("POST", path, body if isinstance(body, bytes) else json.dumps(body), {"Content-Type": "application/json"})
        r = c.getresponse()
        return r.status, r.read(2000).decode("utf-8", "replace")
    except TimeoutError:
        return 499, "left"
    except (OSError, http.client.HTTPException) as e:
        return 0, str(e)
    finally:
        c.close()


def beside(s, path, body, expected=None):
    """(status and answer of the neighbour, processor time of the compute thread while the victim's answer was made, what it
    took of that and behind it between steps)."""
    s.wait_idle()
    start, host = counters(s)
    got = []
    neighbour = threading.Thread(target=lambda: got.append(send(s, path, body)))
    neighbour.start()
    time.sleep(0.03)
    status, data = s.post(COMPLETIONS, VICTIM)
    cost = counters(s)[0] - start
    text = data["choices"][0]["text"] if status == 200 else data
    check(status == 200 and expected in (None, text), "another client's answer", status, text, expected)
    neighbour.join()
    s.wait_idle(60)
    return got[0], cost, counters(s)[1] - host, text


def test_outputs_count():
    """Answers count as they grow: what would need more memory than there is ends with a refusal."""
    body = {"prompt": "The river", "max_tokens": 400, "ignore_eos": True, "n": 16, "logprobs": 5}
    with Server("-t", "1", "-c", "1024", "--sessions", "8", "-q", "--max-body-mb", "1") as s:
        status, text = send(s, CHAT, plain(user("x"), min_tokens=290, max_tokens=300, n=12, logprobs=True, top_logprobs=20),
                            200)
        check(status in (413, 429) and "memory" in text, "12 answers with 20 rivals for each token", status, text)
        events = list(s.stream(COMPLETIONS, {**body, "max_tokens": 20}))
        check(events[-1][1] == "[DONE]", "few tokens are no matter", events[-1])
        until = time.monotonic() + 20
        while "glmstream_request_bytes 0\n" not in s.get("/metrics")[1] and time.monotonic() < until:
            time.sleep(0.1)
        check("glmstream_request_bytes 0\n" in s.get("/metrics")[1], "nothing is held behind it")


def main():
    if "san-" in PROGRAM:
        skip("a sanitizer needs more than 1 GB of addresses, and other times")
    slowest = (0, "")
    with Server("-t", "1", "-c", "1024", "--sessions", "2", "-q", address_bytes=1 << 30) as s:
        alone = [beside(s, "/tokenize", {"content": "x"}) for _ in range(2)][1]
        runs = [beside(s, COMPLETIONS, FILLS, alone[3]) for _ in range(3)]
        check(all(r[0][0] == 200 for r in runs), "a plain neighbour", runs[0][0])
        benign = sorted(r[1] for r in runs)[1]
        print(f"another client's answer: {alone[1]:.3f} s alone, {benign:.3f} s beside a plain request")
        for name, path, body in shapes():
            if len(sys.argv) > 1 and sys.argv[1] not in name:
                continue
            (status, text), cost, host, _ = beside(s, path, body, alone[3])
            if cost > benign / LEAST_SPEED:  # once more: a page of memory may have come from far
                (status, text), cost, host, _ = beside(s, path, body, alone[3])
            check(s.process.poll() is None, name, "the server has ended")
            check(status in (200, 400, 404, 413, 429, 499), name, status, text)
            check(host <= HOST_SECONDS, name, "took", host, "s of the compute thread between steps")
            check(cost <= benign / LEAST_SPEED, name, "another client's answer took", cost, "s, beside a plain request", benign)
            slowest = max(slowest, (cost, name))
            if not name.startswith("fuzz"):
                print(f"{name}: {status} {text[:70] if status != 200 else ''}; {host:.3f} s between steps, {cost:.3f} s", flush=True)
            if name.startswith("schemas that") or name.startswith("a schema that"):
                check(status == 400 and "too long to compile" in text, name, status, text)
        check(s.post(COMPLETIONS, VICTIM)[1]["choices"][0]["text"] == alone[3], "the server answers afterwards")
    print(f"the dearest: {slowest[1]}, {slowest[0]:.3f} s")
    test_outputs_count()
    finish()


main()
