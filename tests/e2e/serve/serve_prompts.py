# SPDX-License-Identifier: MIT
"""Long prompts at the server: progress on the streams, who leaves stops the work, what was known costs nothing; how soon a
short prompt is answered while a long one is read. FIGURES=1 also prints what a long prompt and running answers cost each
other."""
import http.client
import json
import os
import socket
import threading
import time

from serve_lib import SLOW, Server, check, counter, finish, leave, user

WORDS = 60 if SLOW else 900
FILLER = "the river and the mountain and a small bird "


def text(name, words=WORDS):
    return f"Tell me about {name}, " + FILLER * (words // 3)


def progress_events(server):
    """return_progress: events of llama.cpp's form on its own API and the two of OpenAI's that take it; none unasked."""
    several = 0
    for i, (path, body) in enumerate((("/v1/chat/completions", {"messages": user(text("apples", WORDS // 2))}),
                                      ("/v1/completions", {"prompt": text("pears", WORDS // 2)}),
                                      ("/completion", {"prompt": text("plums", WORDS // 2)}))):
        body = {**body, "max_tokens": 2, "temperature": 0}
        if path == "/v1/chat/completions":
            body["reasoning_effort"] = "none"
        for known in (False, True):
            events = [d for _, d in server.stream(path, {**body, "return_progress": True}) if d != "[DONE]"]
            seen = [d["prompt_progress"] for d in events if "prompt_progress" in d]
            check(seen and all(set(p) == {"total", "cache", "processed", "time_ms"} for p in seen), path, seen[:3])
            if not seen:
                continue
            first, last = seen[0], seen[-1]
            check(all(p["total"] == first["total"] and p["cache"] == first["cache"] for p in seen), path, seen)
            for key in ("processed", "time_ms"):
                check([p[key] for p in seen] == sorted(p[key] for p in seen), path, key, seen)
            # a thread that wakes up late passes on the latest state, not every one
            check(first["cache"] <= first["processed"] and last["processed"] == last["total"], path, first, last)
            several += not known and len(seen) > 1
            check(bool(first["cache"]) == known, path, "what is known counts as cached", first)
            if known:
                check(first["cache"] == first["total"] - 1, path, first)
            behind = [d for d in events[[("prompt_progress" in d) for d in events].index(True):] if "prompt_progress" not in d]
            check(behind and events.index(behind[0]) > events.index(events[-1]) - len(behind), path, "text comes behind")
        quiet = [d for _, d in server.stream(path, {**body, "return_progress": False})]
        check(not any("prompt_progress" in d for d in quiet if d != "[DONE]"), path, "none unless asked for")
        answer = "".join(d["choices"][0].get("text", "") or d["choices"][0].get("delta", {}).get("content") or ""
                         if "choices" in d else d.get("content", "") for d in quiet if d != "[DONE]")
        again = "".join(d["choices"][0].get("text", "") or d["choices"][0].get("delta", {}).get("content") or ""
                        if "choices" in d else d.get("content", "") for d in events)
        check(answer == again, path, "the text is the same", answer, again)
    check(several, "several on the way")
    status, _ = server.post("/v1/chat/completions", {"messages": user("x"), "return_progress": 3})
    check(status == 400, "return_progress is a boolean", status)


def leaving(server):
    """Streams and whole answers: the prompt stops, and the same prompt computes the rest only."""
    for stream in (False, True):
        for path, key in (("/v1/chat/completions", "messages"), ("/v1/messages", "messages"), ("/api/chat", "messages")):
            for attempt in range(5):  # a machine that does other things
                long = text(f"{path} {stream} {attempt}")
                body = {key: user(long), "model": "default", "max_tokens": 2}
                if path == "/api/chat":
                    body = {key: user(long), "model": "default", "options": {"num_predict": 2}}
                took, n = leave(server, path, body, stream, 1)
                total = server.post("/v1/messages/count_tokens", {"messages": user(long)})[1]["input_tokens"]
                if 0 < n < total and took < 2:
                    break
            print(f"{path}, {'stream' if stream else 'whole'}: stopped after {1000 * took:.0f} ms, {n} of {total} tokens computed")
            check(0 < n < total, path, stream, "the prompt was stopped in its middle", n, total)
            check(took < 2, path, stream, "at once", took)
            # the APIs put different tokens before the text: what they share is the conversation's opening
            if path == "/v1/messages":
                usage = server.post(path, {"messages": user(long), "max_tokens": 1})[1]["usage"]
                check(usage["input_tokens"] + usage["cache_read_input_tokens"] == total, path, "counted", usage, total)
                check(usage["cache_read_input_tokens"] >= n, path, stream, "and goes on where it was", usage, n)


def computed(server):
    """(tokens written, processor seconds of the compute thread) so far: other programs do not change these seconds."""
    return counter(server, "generated_tokens"), counter(server, "step_cpu_seconds") + counter(server, "host_cpu_seconds")


def read_prompt(server, name):
    """Reads a prompt that is new to the server: (seconds to its first token, tokens that others got meanwhile)."""
    tokens, start = computed(server)
    for _ in server.stream("/v1/completions", {"prompt": text(name), "max_tokens": 1, "temperature": 0}):
        break
    tokens_then, end = computed(server)
    return end - start, tokens_then - tokens - 1


def beside_running_answers(server, n_answers=4, repeats=3):
    """Medians: speed of running answers alone and while a long prompt is read, its first token alone and beside them, by
    processor time."""
    def write(i):
        body = {"prompt": f"Define river {i}.", "max_tokens": 3600, "ignore_eos": True, "temperature": 1, "seed": i}
        connection = server.connect()
        connections.append(connection)
        try:
            connection.request("POST", "/v1/completions", json.dumps({**body, "stream": True}), {"Content-Type": "application/json"})
            connection.getresponse().read()
        except (OSError, http.client.HTTPException):
            pass  # closed below

    first_alone, first_beside, speed_alone, speed_beside = [], [], [], []
    for i in range(repeats):
        first_alone.append(read_prompt(server, f"stones {i}")[0])
        connections = []
        threads = [threading.Thread(target=write, args=(k,)) for k in range(n_answers)]
        for t in threads:
            t.start()
        time.sleep(0.5)
        tokens, start = computed(server)
        time.sleep(1)
        tokens_then, end = computed(server)
        speed_alone.append((tokens_then - tokens) / (end - start))
        took, written = read_prompt(server, f"clouds {i}")
        first_beside.append(took)
        speed_beside.append(written / took)
        for connection in connections:
            connection.sock.shutdown(socket.SHUT_RDWR)
        for t in threads:
            t.join()
    alone, beside, first, later = (
        sorted(v)[repeats // 2] for v in (speed_alone, speed_beside, first_alone, first_beside))
    print(f"{n_answers} running answers: {alone:.0f} tok/s, {beside:.0f} beside a prompt of {len(text('x').split())} words "
          f"({100 * beside / alone:.0f} %); its first token after {first:.2f} s alone, {later:.2f} s beside them "
          f"({100 * (later / first - 1):.0f} % later); processor time, medians of {repeats}")


def main():
    with Server("--sessions", "3", "--chunk", "128", "-c", "4096", "-t", "1", "--draft", "off") as server:
        progress_events(server)
        leaving(server)
    if os.environ.get("FIGURES"):
        with Server("--sessions", "5", "-c", "4096", "-t", "1", "--draft", "off") as server:
            beside_running_answers(server)


main()
finish()
