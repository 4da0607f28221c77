# SPDX-License-Identifier: MIT
"""Every shape of request that once cost too much, and every saved input of the fuzzer of requests, against a server with 1 GB of
addresses. Each gets an answer or a refusal; it takes at most 2 s of the compute thread between the model's steps; and another
answer goes on at 80 % or more of the speed that it has beside a plain request.

What a token of an answer costs is counted by the server, so that other programs on the machine do not change it: rows of the
model's steps while it is made, and the compute thread's processor time between steps in units of the time that it takes for a
row. One row is an answer alone, two rows are an answer beside a plain request. Prompts and steps of many rows take less time for
a row: but for schemas, the processor time of a token counts too, in units of a token of the answer alone.

What the fuzzer found itself (serve_requests.pack) comes in batches: one that costs too much is halved until it is known which
request does.

The answer is one of the same client (only the rule of long draws protects it), but for requests of many answers: one of another.

An argument chooses the shapes whose names have it."""
import glob
import http.client
import json
import os
import struct
import sys
import threading
import time

from serve_lib import PROGRAM, ROOT, Server, cannot_test, check, finish, skip, user, wait_gauge

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
# the first byte of an input chooses one, as in fuzz_serve_requests.c
PATHS = [CHAT, COMPLETIONS, "/v1/responses", "/v1/messages", "/api/chat", "/api/generate", "/completion", "/v1/messages"]
VICTIM = {"prompt": " ".join(["The river"] * 23), "max_tokens": 120, "ignore_eos": True, "temperature": 0, "seed": 1}
PLAIN = {"prompt": "The stone", "max_tokens": 180, "ignore_eos": True, "temperature": 1, "seed": 2}
MANY = {**PLAIN, "n": 16, "logprobs": 5, "max_tokens": 60}
HOST_SECONDS, MOST_ROWS = 2.0, 2 / 0.8
BATCH = 20
GOOD = (200, 400, 404, 413, 429, 499)
SESSIONS = 17  # one more than answers of a request


def function(name, **members):
    return {"type": "function", "function": {"name": name, **members}}


def plain(messages, **more):
    return {"messages": messages, "enable_thinking": False, "max_tokens": 160, "temperature": 1, "seed": 3, **more}


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
    yield "sixteen answers with rivals", COMPLETIONS, MANY
    yield "deep", CHAT, ("[" * 100000).encode()
    for path in sorted(glob.glob(os.path.join(ROOT, "tests/fuzz/corpus/serve_requests/*"))):
        with open(path, "rb") as f:
            data = f.read()
        if data:
            yield ("fuzz: " + os.path.basename(path), *fuzzed(data))


def fuzzed(data):
    return PATHS[data[0] % len(PATHS)], data[1:]


def pack():
    """(number, path, body) of each input of the fuzzer's pack."""
    with open(os.path.join(ROOT, "tests/fuzz/corpus/serve_requests.pack"), "rb") as f:
        data = f.read()
    at = number = 0
    while at < len(data):
        size, = struct.unpack_from("<I", data, at)
        if size:
            yield (number, *fuzzed(data[at + 4:at + 4 + size]))
        at += 4 + size
        number += 1


def host_seconds(s):
    return s.get("/v1/glmstream/state")[1]["totals"]["host_cpu_ms"] / 1000


def send(s, path, body, timeout=60, address="127.0.0.1"):
    """The status; the client leaves after so many seconds."""
    c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=timeout, source_address=(address, 0))
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


def send_all(s, requests):
    """One after the other: what the first got that the server should not have answered so, else what the last got."""
    for number, path, body in requests:
        status, text = send(s, path, body)
        if status not in GOOD:
            break
    return status, f"input {number}: {text}"


def watch(s, prompt, done):
    """What each token of the answer to a prompt of so many tokens cost from its beginning to the last look at it: rows, ms; or
    None."""
    first = last = None
    while not done.is_set():
        state = s.get("/v1/glmstream/state")[1]
        for x in state["sessions"]["list"]:
            if x["prompt"] == prompt and x["state"] != "idle":
                t = state["totals"]
                last = [x["new"], t["step_rows"], t["step_cpu_ms"], t["host_cpu_ms"]]
                first = first or last
        done.wait(0.025)
    tokens, rows, step, host = (b - a for a, b in zip(first or [0] * 4, last or [0] * 4))
    return (rows * (step + host) / step / tokens, (step + host) / tokens) if tokens >= VICTIM["max_tokens"] / 3 and step else None


def beside(s, prompt, path, body, alone=None, address="127.0.0.1"):
    """prompt: tokens of the victim's. path None: the neighbour sends all requests of body. (status and answer of the neighbour,
    what a token of the victim cost, processor time that the neighbour took between steps, the victim's text)."""
    s.wait_idle()
    start, got, rows, done = host_seconds(s), [], [], threading.Event()
    neighbour = threading.Thread(target=lambda: got.append(
        send_all(s, body) if path is None else send(s, path, body, address=address)))
    watcher = threading.Thread(target=lambda: rows.append(watch(s, prompt, done)))
    neighbour.start()
    if body is MANY or body is PLAIN:  # until it writes
        until = time.monotonic() + 30
        while s.get("/health")[1]["active"] < body.get("n", 1) and time.monotonic() < until:
            time.sleep(0.01)
    else:
        time.sleep(0.03)
    watcher.start()
    status, data = s.post(COMPLETIONS, VICTIM)
    done.set()
    watcher.join()
    text = data["choices"][0]["text"] if status == 200 else data
    check(status == 200 and (alone is None or alone == text), "another answer", status, text, alone)
    neighbour.join()
    s.wait_idle(60)
    return got[0], rows[0], host_seconds(s) - start, text


def seen_beside(*args):
    """Once more if the answer was not looked at for long enough: this machine does other things."""
    for _ in range(50):
        result = beside(*args)
        if result[1] is not None:
            return result
    cannot_test("the server's state is not answered while it computes")


def test_outputs_count():
    """Answers count as they grow: what would need more memory than there is ends with a refusal."""
    body = {"prompt": "The river", "max_tokens": 400, "ignore_eos": True, "n": 16, "logprobs": 5}
    with Server("-t", "1", "-c", "1024", "--sessions", "8", "-q", "--max-body-mb", "1") as s:
        status, text = send(s, CHAT, plain(user("x"), min_tokens=290, max_tokens=300, n=12, logprobs=True, top_logprobs=20),
                            200)
        check(status in (413, 429) and "memory" in text, "12 answers with 20 rivals for each token", status, text)
        events = list(s.stream(COMPLETIONS, {**body, "max_tokens": 20}))
        check(events[-1][1] == "[DONE]", "few tokens are no matter", events[-1])
        held = wait_gauge(s, "request_bytes", lambda held: held == 0)
        check(held == 0, "nothing is held behind it", held)


def try_batch(s, prompt, requests, alone):
    """Returns what a token of another answer cost, in rows."""
    (status, text), (rows, ms), host, _ = seen_beside(s, prompt, None, requests, alone[3])
    cost = min(rows, ms / alone[1][1])
    if len(requests) > 1 and (cost > MOST_ROWS or host > HOST_SECONDS):
        half = len(requests) // 2
        return max(try_batch(s, prompt, requests[:half], alone), try_batch(s, prompt, requests[half:], alone))
    name = f"inputs {requests[0][0]} to {requests[-1][0]} of serve_requests.pack"
    check(s.process.poll() is None, name, "the server has ended")
    check(status in GOOD, name, status, text)
    check(host <= HOST_SECONDS, name, "took", host, "s of the compute thread between steps")
    check(cost <= MOST_ROWS, name, "a token of another answer cost", cost, "rows, at most", MOST_ROWS)
    return cost


def test_pack(s, prompt, alone):
    requests, costs, began = list(pack()), [], time.monotonic()
    for at in range(0, len(requests), BATCH):
        costs.append(try_batch(s, prompt, requests[at:at + BATCH], alone))
    print(f"{len(requests)} inputs of the fuzzer's pack: {max(costs):.2f} rows, {time.monotonic() - began:.0f} s")


def main():
    if "san-" in PROGRAM:
        skip("a sanitizer needs more than 1 GB of addresses, and other times")
    slowest = (0, "")
    with Server("-t", "1", "-c", "1024", "--sessions", str(SESSIONS), "-q", address_bytes=1 << 30) as s:
        prompt = s.post(COMPLETIONS, {**VICTIM, "max_tokens": 1})[1]["usage"]["prompt_tokens"]
        alone = seen_beside(s, prompt, "/tokenize", {"content": "x"})
        plain_neighbour = seen_beside(s, prompt, COMPLETIONS, PLAIN, alone[3])
        check(plain_neighbour[0][0] == 200, "a plain neighbour", plain_neighbour[0])
        check(plain_neighbour[1][0] <= MOST_ROWS, "beside a plain request a token cost", plain_neighbour[1], "rows, ms")
        print("a token of another answer:", alone[1], "rows and ms alone,", plain_neighbour[1], "beside a plain request")
        for name, path, body in shapes():
            if len(sys.argv) > 1 and sys.argv[1] not in name:
                continue
            for _ in range(3):  # a page of memory may have come from far
                (status, text), (rows, ms), host, _ = seen_beside(s, prompt, path, body, alone[3],
                                                                  "127.0.0.2" if body is MANY else "127.0.0.1")
                is_schema = isinstance(body, dict) and "response_format" in body
                cost = rows if is_schema else min(rows, ms / alone[1][1])
                if cost <= MOST_ROWS:
                    break
            check(s.process.poll() is None, name, "the server has ended")
            check(status in GOOD, name, status, text)
            check(host <= HOST_SECONDS, name, "took", host, "s of the compute thread between steps")
            check(cost <= MOST_ROWS, name, "a token of another answer cost", cost, "rows, at most", MOST_ROWS)
            slowest = max(slowest, (cost, name))
            if not name.startswith("fuzz"):
                print(f"{name}: {status} {text[:70] if status != 200 else ''}; {host:.3f} s between steps, {cost:.2f} rows", flush=True)
            if name.startswith("schemas that") or name.startswith("a schema that"):
                check(status == 400 and "too long to compile" in text, name, status, text)
        if len(sys.argv) < 2 or "fuzz" in sys.argv[1]:
            test_pack(s, prompt, alone)
        check(s.post(COMPLETIONS, VICTIM)[1]["choices"][0]["text"] == alone[3], "the server answers afterwards")
    print(f"the dearest: {slowest[1]}, {slowest[0]:.2f} rows")
    test_outputs_count()
    finish()


main()
