# SPDX-License-Identifier: MIT
"""The server as clients meet it, with Python's standard library only: answers, streams, tools, errors, limits, endings."""
import http.client
import json
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time

from serve_others import (test_llamacpp, test_ollama, test_responses_folder, test_stop, test_stored_responses, test_strict,
                          test_text_offset)
from serve_lib import PROGRAM, POCKET, SAN, SLOW, TIME, WEATHER, Server, check, finish, user, checks  # noqa: F401

CHAT = "/v1/chat/completions"
ENDLESS = {"prompt": "1 2 1 2 1 2 1 2 1 2 1 2", "temperature": 0, "max_tokens": 1500}  # the pocket model counts on
GREEDY = {"temperature": 0}


def chat(s, messages, **more):
    status, data = s.post(CHAT, {**GREEDY, "messages": messages, **more})
    check(status == 200, "a chat should be answered:", status, data)
    return data


def text_of(data):
    return data["choices"][0]["message"]["content"]


def test_answers(s):
    cli = subprocess.run([PROGRAM, "-m", POCKET, "--backend", "cpu", "-q", "-p", "Define river.", "--temp", "0"],
                         capture_output=True, text=True).stdout.strip()
    data = chat(s, user("Define river."))
    check(text_of(data) == cli, "server and command line differ:", text_of(data), cli)
    u = data["usage"]
    check(u["total_tokens"] == u["prompt_tokens"] + u["completion_tokens"] and u["prompt_tokens"] == 13, "usage", u)
    check(data["choices"][0]["finish_reason"] == "stop" and data["object"] == "chat.completion", data)
    check(chat(s, user("Define river."), max_tokens=3)["choices"][0]["finish_reason"] == "length", "max_tokens")
    check(chat(s, user("Define river."), max_completion_tokens=3)["usage"]["completion_tokens"] == 3,
          "max_completion_tokens")
    # seeds: the same numbers for the same seed, alone or among several answers
    hot = {"temperature": 1.5, "seed": 42, "max_tokens": 24}
    one, two = chat(s, user("Tell me a story."), **hot), chat(s, user("Tell me a story."), **hot)
    check(text_of(one) == text_of(two), "the same seed gives the same answer")
    many = chat(s, user("Tell me a story."), **hot, n=4)
    texts = [c["message"]["content"] for c in many["choices"]]
    check(len(texts) == 4 and len(set(texts)) > 1, "n = 4 gives four answers, not the same:", texts)
    check(texts[0] == text_of(one), "the first of several answers is the one alone")
    # reasoning: on by default, off in three ways, and how much
    off = [chat(s, user("What is the weather in Paris?"), tools=[WEATHER], **k) for k in (
        {"reasoning_effort": "none"}, {"chat_template_kwargs": {"enable_thinking": False}},
        {"thinking": {"type": "disabled"}})]
    check(all("reasoning_content" not in d["choices"][0]["message"] for d in off), "reasoning off", off)
    on = chat(s, user("What is the weather in Paris?"), tools=[WEATHER])
    check(on["choices"][0]["message"].get("reasoning_content"), "reasoning on", on)
    check(on["usage"]["completion_tokens_details"]["reasoning_tokens"] > 2, "reasoning tokens", on["usage"])
    high = chat(s, user("Define river."), reasoning_effort="high")["usage"]["prompt_tokens"]
    check(isinstance(high, int), "reasoning_effort high", high)


def test_stops(s):
    whole = text_of(chat(s, user("Define river.")))
    check("natural stream" in whole, "the model knows rivers", whole)
    for stop in ("natural stream", ["zebra", "stream of"], " (", "river"):
        data = chat(s, user("Define river."), stop=stop)
        first = min(whole.index(x) for x in ([stop] if isinstance(stop, str) else stop) if x in whole)
        check(text_of(data) == whole[:first], "cut at", stop, text_of(data))
        check(data["choices"][0]["finish_reason"] == "stop", data)
        parts = [v["choices"][0]["delta"].get("content", "") for _, v in
                 s.stream(CHAT, {**GREEDY, "messages": user("Define river."), "stop": stop}) if v != "[DONE]"]
        check("".join(parts) == whole[:first], "a stream does not show what begins a stop string:", stop, parts)
    check(text_of(chat(s, user("Define river."), stop=["zebra", "streams"])) == whole, "a stop that never comes")


def test_logprobs(s):
    data = chat(s, user("Define river."), logprobs=True, top_logprobs=3)
    rows = data["choices"][0]["logprobs"]["content"]
    check("".join(r["token"] for r in rows) == text_of(data), "the tokens are the text", rows)
    check(bytes(b for r in rows for b in r["bytes"]).decode() == text_of(data), "and their bytes too")
    for r in rows:
        top = r["top_logprobs"]
        check(len(top) == 3 and top[0]["token"] == r["token"] and top[0]["logprob"] == r["logprob"] <= 0 and
              top[0]["logprob"] >= top[1]["logprob"] >= top[2]["logprob"], "greedy takes the likeliest", r)
    streamed = [x for _, v in s.stream(CHAT, {**GREEDY, "messages": user("Define river."), "logprobs": True,
                                              "top_logprobs": 3}) if v != "[DONE]"
                for x in (v["choices"][0]["logprobs"] or {"content": []})["content"]]
    check(streamed == rows, "a stream has the same rows", streamed[:2], rows[:2])
    cut = chat(s, user("Define river."), logprobs=True, stop="stream")
    check("".join(r["token"] for r in cut["choices"][0]["logprobs"]["content"]).startswith(text_of(cut)),
          "rows end with the text", cut)


def test_stream(s):
    whole = chat(s, user("Define river."))
    events = list(s.stream(CHAT, {**GREEDY, "messages": user("Define river."),
                                  "stream_options": {"include_usage": True}}))
    check(events[-1][1] == "[DONE]", "the last event", events[-1])
    chunks = [v for _, v in events[:-1]]
    check(all(c["object"] == "chat.completion.chunk" for c in chunks), "chunks")
    check(chunks[0]["choices"][0]["delta"].get("role") == "assistant", "the first says the role", chunks[0])
    text = "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks if c["choices"])
    check(text == text_of(whole), "the stream's text", text)
    ends = [c["choices"][0]["finish_reason"] for c in chunks if c["choices"]]
    check(ends[-1] == "stop" and not any(ends[:-1]), "one end", ends)
    check(not chunks[-1]["choices"] and chunks[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
          and all(c["usage"] is None for c in chunks[:-1]), "usage in the last chunk", chunks[-1])
    two = [v for _, v in s.stream(CHAT, {**GREEDY, "messages": user("Define lake."), "n": 2}) if v != "[DONE]"]
    texts = ["".join(c["choices"][0]["delta"].get("content") or "" for c in two if c["choices"][0]["index"] == i)
             for i in (0, 1)]
    check(texts[0] == texts[1] == text_of(chat(s, user("Define lake."))), "two answers in one stream", texts)


def test_tools(s):
    tools = [WEATHER, TIME]
    data = chat(s, user("What is the weather in Paris?"), tools=tools)
    message = data["choices"][0]["message"]
    check(data["choices"][0]["finish_reason"] == "tool_calls" and len(message["tool_calls"]) == 1, "a call", data)
    call = message["tool_calls"][0]
    check(call["function"]["name"] == "get_weather" and json.loads(call["function"]["arguments"]) == {"city": "Paris"},
          "the right call", call)
    events = [v["choices"][0] for _, v in s.stream(CHAT, {**GREEDY, "tools": tools, "messages": user(
        "What is the weather in Paris?")}) if v != "[DONE]"]
    calls = [c for e in events for c in e["delta"].get("tool_calls", [])]
    check(calls[0]["index"] == 0 and calls[0]["id"] and calls[0]["function"] == {"name": "get_weather", "arguments": ""}
          and not any("id" in c or "name" in c["function"] or c["index"] for c in calls[1:]) and
          "".join(c["function"]["arguments"] for c in calls) == call["function"]["arguments"] and
          events[-1]["finish_reason"] == "tool_calls", "a call in a stream", calls)
    # a call that never ends: whatever was sent of it was sent as it was written, though pieces come together under load
    note = {"type": "function", "function": {"name": "note", "strict": True, "parameters": {
        "type": "object", "properties": {"text": {"type": "string", "minLength": 4000}}, "required": ["text"], "additionalProperties": False}}}
    for _ in range(5):  # a client that is held up sees one piece, or the end
        before, pieces = s.get("/v1/glmstream/state?map=0")[1]["totals"]["cancelled"], 0
        stream = s.stream(CHAT, {**GREEDY, "tools": [note], "tool_choice": "required", "messages": user("Write a note."),
                                 "max_tokens": 1500, "enable_thinking": False})
        for _, v in stream:
            pieces += v != "[DONE]" and any(c["function"].get("arguments") for c in v["choices"][0]["delta"].get("tool_calls", []))
            if pieces == 2:
                stream.close()
                break
        after = s.wait_idle()["totals"]["cancelled"]
        if pieces == 2 and after == before + 1:
            break
    check(pieces == 2 and after == before + 1, "arguments come as they are written:", pieces, "pieces, cancelled", before, after)
    # the answer comes back without its reasoning, as most clients send it, and the whole prefix is still there
    history = user("What is the weather in Paris?") + [
        {"role": "assistant", "content": None, "tool_calls": message["tool_calls"]},
        {"role": "tool", "tool_call_id": call["id"], "content": "rainy, 18 degrees"}]
    after = chat(s, history, tools=tools)
    fresh = after["usage"]["prompt_tokens"] - after["usage"]["prompt_tokens_details"]["cached_tokens"]
    check(fresh <= 20, "the call's own tokens are used again; computed anew:", fresh, after["usage"])
    check("18" in (text_of(after) or ""), "the result is seen", after)
    changed = json.loads(json.dumps(history))
    changed[1]["tool_calls"][0]["function"]["arguments"] = '{"city": "Rome"}'
    other = chat(s, changed, tools=tools)
    check(other["usage"]["prompt_tokens"] != after["usage"]["prompt_tokens"], "a changed call is not the known one")
    # forced
    for question in ("Define river.", "Hello!"):
        for think in ({}, {"reasoning_effort": "none"}):
            forced = chat(s, user(question), tools=tools, tool_choice="required", **think)
            calls = forced["choices"][0]["message"].get("tool_calls") or []
            check(calls and all(c["function"]["name"] in ("get_weather", "get_time") and
                                list(json.loads(c["function"]["arguments"])) == ["city"] for c in calls),
                  "required means a call:", forced)
            named = chat(s, user(question), tools=tools, **think,
                         tool_choice={"type": "function", "function": {"name": "get_time"}})
            calls = named["choices"][0]["message"].get("tool_calls") or []
            check(len(calls) == 1 and calls[0]["function"]["name"] == "get_time" and
                  list(json.loads(calls[0]["function"]["arguments"])) == ["city"], "the named tool", named)
    for seed in range(1 if SAN else 4):  # also where the sampling is wild
        wild = chat(s, user("Define river."), tools=tools, tool_choice="required", temperature=2, top_p=1, seed=seed,
                    max_tokens=150 if SAN else 600, reasoning_effort="none")
        c = wild["choices"][0]
        check(c["finish_reason"] == "length" or c["message"].get("tool_calls"), "required, temperature 2", wild)
    none = chat(s, user("What is the weather in Paris?"), tools=tools, tool_choice="none")
    check(not none["choices"][0]["message"].get("tool_calls"), "none means none", none)
    typed = {"type": "function", "function": {"name": "set_level", "description": "Set a level", "parameters": {
        "type": "object", "properties": {"level": {"type": "integer"}, "name": {"type": "string"}},
        "required": ["level", "name"]}}}
    got = chat(s, user("Set the level of x to 7."), tools=[typed], tool_choice="required")
    args = json.loads(got["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"])
    check(set(args) == {"level", "name"} and isinstance(args["name"], str), "all required keys, typed", args)
    # results in another order than the calls
    two = user("Both?") + [{"role": "assistant", "content": "", "tool_calls": [
        {"id": "a", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'}},
        {"id": "b", "type": "function", "function": {"name": "get_time", "arguments": '{"city": "Oslo"}'}}]}]
    results = [{"role": "tool", "tool_call_id": "b", "content": "It is 10:00."},
               {"role": "tool", "tool_call_id": "a", "content": "It is sunny."}]
    check(text_of(chat(s, two + results, tools=tools)) == text_of(chat(s, two + results[::-1], tools=tools)),
          "results are put in the order of their calls")


def events_of(s, path, body):
    return [v for _, v in s.stream(path, body) if v != "[DONE]"]


def test_partial_calls(s):
    """A call cut off by the limit is a partial call in each API's own form, whole and streamed; its tags are no text."""
    question = user("What is the weather in Paris?")
    flat = {"type": "function", **WEATHER["function"]}
    tool = {"name": "get_weather", "input_schema": WEATHER["function"]["parameters"]}
    seen = set()
    for n in range(1, 14, 4 if SAN else 1):
        ask = {**GREEDY, "messages": question, "tools": [WEATHER], "reasoning_effort": "none", "max_tokens": n}
        status, data = s.post(CHAT, ask)
        c = data["choices"][0]
        message, calls = c["message"], c["message"].get("tool_calls", [])
        check(status == 200 and "<" not in (message["content"] or ""), "no markup in text:", n, data)
        if c["finish_reason"] == "tool_calls":
            check(json.loads(calls[0]["function"]["arguments"]) == {"city": "Paris"}, "complete", data)
        else:
            check(c["finish_reason"] == "length" and (not calls or calls[0]["function"]["name"] == "get_weather"),
                  "length", data)
        arguments = calls[0]["function"]["arguments"] if calls else ""
        seen.add(arguments)
        check('{"city": "Paris"}'.startswith(arguments), "the beginning of the arguments", arguments)
        deltas = [d for v in events_of(s, CHAT, ask) for d in [v["choices"][0]["delta"]]]
        check(not any("<" in (d.get("content") or "") for d in deltas) and arguments ==
              "".join(t["function"]["arguments"] for d in deltas for t in d.get("tool_calls", [])), "streamed", n, deltas)
        whole = c["finish_reason"] == "tool_calls"
        ask = {**GREEDY, "messages": question, "tools": [tool], "max_tokens": n}
        data = s.post("/v1/messages", ask)[1]
        text = "".join(b.get("text", "") for b in data["content"])
        inputs = [b["input"] for b in data["content"] if b["type"] == "tool_use"]
        check("<" not in text and data["stop_reason"] == ("tool_use" if whole else "max_tokens") and
              inputs == ([{"city": "Paris"}] if whole or "}" in arguments or '"Paris"' in arguments
                         else [{}] if calls else []), "messages", n, data)
        parts = [v["delta"] for v in events_of(s, "/v1/messages", ask) if v["type"] == "content_block_delta"]
        check(arguments == "".join(p.get("partial_json", "") for p in parts) and
              not any("<" in p.get("text", "") for p in parts), "messages, streamed", n, parts)
        ask = {**GREEDY, "input": question, "tools": [flat], "reasoning": {"effort": "none"}, "max_output_tokens": n}
        data = s.post("/v1/responses", ask)[1]
        items = data["output"]
        check(data["status"] == ("completed" if whole else "incomplete") and "<" not in json.dumps(
            [i for i in items if i["type"] == "message"]), "responses", n, data)
        check([(i["arguments"], i["status"]) for i in items if i["type"] == "function_call"] ==
              ([(arguments, "completed" if arguments.endswith("}") else "incomplete")] if calls else []), "the item's status", n, items)
        last = events_of(s, "/v1/responses", ask)
        check([{**i, "id": 0, "call_id": 0} for i in last[-1]["response"]["output"]] ==
              [{**i, "id": 0, "call_id": 0} for i in items] and
              [v["item"] for v in last if v["type"] == "response.output_item.done"] == last[-1]["response"]["output"],
              "responses, streamed", n, last[-1])
        for item in items:
            check(not whole or item["status"] == "completed", item)
    check(len(seen) > (1 if SAN else 4), "cut at several places of the arguments:", seen)


def test_given_beginning(s):
    """The last message is the assistant's: the answer goes on from it, on chat completions and messages, without thinking."""
    whole = text_of(chat(s, user("Define river."), reasoning_effort="none"))
    for cut in (4, 17, len(whole) // 2):
        talk = user("Define river.") + [{"role": "assistant", "content": whole[:cut]}]
        data = chat(s, talk, reasoning_effort="none")
        message = data["choices"][0]["message"]
        check(message["content"] and "reasoning_content" not in message and
              data["usage"]["completion_tokens_details"]["reasoning_tokens"] == 0, "only what comes next", data)
        thinking = chat(s, talk)["choices"][0]["message"]
        check(thinking["content"] and "reasoning_content" not in thinking, "no thinking", thinking)
        message = s.post("/v1/messages", {**GREEDY, "max_tokens": 60, "messages": talk})[1]
        check(message["content"][0]["text"] == data["choices"][0]["message"]["content"], "the same in messages", message)
    # an answer that the limit cut goes on with the same tokens, and nothing of it is computed anew
    first = chat(s, user("Define river."), reasoning_effort="none", max_tokens=7)
    talk = user("Define river.") + [{"role": "assistant", "content": text_of(first)}]
    rest = chat(s, talk, reasoning_effort="none")
    u = rest["usage"]
    check(text_of(first) + text_of(rest) == whole, "cut and continued", text_of(first), text_of(rest), whole)
    check(u["prompt_tokens"] == first["usage"]["prompt_tokens"] + 7 and
          u["prompt_tokens"] - u["prompt_tokens_details"]["cached_tokens"] <= 4, "its own tokens", u)
    talk[-1]["content"] = whole
    u = chat(s, talk + user("Define lake."), chat_template_kwargs={"enable_thinking": False})["usage"]
    check(u["prompt_tokens"] - u["prompt_tokens_details"]["cached_tokens"] <= 12, "the whole turn is known", u)
    # reasoning that the limit cut
    cut = chat(s, user("What is the weather in Paris?"), tools=[WEATHER], max_tokens=4)["choices"][0]["message"]
    check(not cut["content"] and cut["reasoning_content"], "cut while thinking", cut)
    on = chat(s, user("What is the weather in Paris?") + [{"role": "assistant", **cut}], tools=[WEATHER])
    full = chat(s, user("What is the weather in Paris?"), tools=[WEATHER])["choices"][0]["message"]
    check(cut["reasoning_content"] + on["choices"][0]["message"]["reasoning_content"] == full["reasoning_content"],
          "thinking goes on", cut, on, full)
    status, data = s.post(CHAT, {"messages": user("x") + [{"role": "assistant", "tool_calls": [
        {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}]})
    check(status == 400 and data["error"]["param"] == "messages[1].tool_calls", "calls without results", data)


def test_no_tools(s):
    """A model that would call a tool answers in text when none was offered, on every API."""
    q = user("Count the letters in banana.")
    for ask in ({}, {"tools": []}, {"tools": [TIME], "tool_choice": "none"}):
        c = chat(s, q, **ask)["choices"][0]
        check(c["finish_reason"] == "stop" and c["message"]["content"] and not c["message"].get("tool_calls") and
              "<" not in c["message"]["content"], "text:", ask, c)
    data = s.post("/v1/messages", {**GREEDY, "messages": q, "max_tokens": 100})[1]
    check([b["type"] for b in data["content"]] == ["text"] and data["stop_reason"] == "end_turn", "messages", data)
    data = s.post("/v1/responses", {**GREEDY, "input": q})[1]
    check("function_call" not in [i["type"] for i in data["output"]], "responses", data)
    for words in ("Count the letters in banana.", "What is the weather in Paris?", "Hello!"):
        data = chat(s, user(words), tools=[TIME])
        check(all(t["function"]["name"] == "get_time" for t in data["choices"][0]["message"].get("tool_calls", [])),
              "only names that were offered", data)


def test_agent_loop(s):
    """Twenty calls in a row; every turn must find all earlier ones computed."""
    cities = ["Paris", "Rome", "Oslo", "Berlin", "Madrid"]
    history, worst, total = user("Find the weather in all of these cities: " + ", ".join(cities)), 0, 0
    turns = 6 if SAN else 20
    for turn in range(turns):
        data = chat(s, history, tools=[WEATHER, TIME], tool_choice="required", parallel_tool_calls=False)
        message, usage = data["choices"][0]["message"], data["usage"]
        calls = message.get("tool_calls") or []
        if not check(len(calls) == 1, "a call in turn", turn, data):
            return
        fresh = usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"]
        total += fresh
        if turn:
            worst = max(worst, fresh)
        history.append({"role": "assistant", "content": message["content"], "tool_calls": calls})
        history.append({"role": "tool", "tool_call_id": calls[0]["id"], "content": f"{10 + turn} degrees"})
    check(worst <= 16, turns, "calls in a row: most prompt tokens computed in a turn after the first:", worst)
    print(f"agent loop: {turns} calls, prompt of the last {usage['prompt_tokens']} tokens, computed in all {total}, "
          f"in a turn after the first at most {worst}")
    # a plain conversation as well
    talk = []
    for word in ("river", "lake", "mountain", "tree"):
        talk += user(f"Define {word}.")
        data = chat(s, talk, chat_template_kwargs={"enable_thinking": False}) # its history drops reasoning
        fresh = data["usage"]["prompt_tokens"] - data["usage"]["prompt_tokens_details"]["cached_tokens"]
        if len(talk) > 1:
            check(fresh <= 12, "a conversation goes on where it was; computed anew:", fresh, data["usage"])
        talk.append({"role": "assistant", "content": text_of(data)})


def test_completions(s):
    path = "/v1/completions"
    status, data = s.post(path, {**GREEDY, "prompt": "Define river.", "max_tokens": 8, "logprobs": 2})
    c = data["choices"][0]
    check(status == 200 and data["object"] == "text_completion" and c["finish_reason"] == "length", data)
    lp = c["logprobs"]
    n = len(lp["tokens"])
    check(4 < n <= 8 and "<|" not in c["text"] and data["usage"]["completion_tokens"] == 8, "control tokens are no text", c)
    shown = s.post(path, {**GREEDY, "prompt": "Define river.", "max_tokens": 8, "skip_special_tokens": False})[1]
    check(shown["choices"][0]["text"].replace("<|assistant|>", "") == c["text"] != shown["choices"][0]["text"],
          "unless they are asked for", shown, c)
    check("".join(lp["tokens"]) == c["text"] and lp["text_offset"][0] == 0 and
          all(lp["top_logprobs"][i][lp["tokens"][i]] == lp["token_logprobs"][i] for i in range(n)), "logprobs", lp)
    parts = [v["choices"][0]["text"] for _, v in
             s.stream(path, {**GREEDY, "prompt": "Define river.", "max_tokens": 8}) if v != "[DONE]"]
    check("".join(parts) == c["text"], "stream", parts)
    status, data = s.post(path, {**GREEDY, "prompt": ["Define river.", "Define lake."], "max_tokens": 4, "n": 2})
    check(status == 200 and [x["index"] for x in data["choices"]] == [0, 1, 2, 3] and
          data["choices"][0]["text"] == data["choices"][1]["text"], "prompts times n", data)
    rendered = "[gMASK]<sop><|system|>Reasoning Effort: Max<|user|>Define river.<|assistant|><think></think>"
    special = s.post(path, {**GREEDY, "prompt": rendered, "max_tokens": 40, "parse_special": True})[1]
    check(special["choices"][0]["text"] == text_of(chat(s, user("Define river."))), "a rendered prompt", special)
    plain = s.post(path, {**GREEDY, "prompt": rendered, "max_tokens": 1})[1]
    check(plain["usage"]["prompt_tokens"] > special["usage"]["prompt_tokens"], "text stays text", plain["usage"])
    ids = s.post(path, {**GREEDY, "prompt": [5, 6, 7], "max_tokens": 2})
    check(ids[0] == 200 and ids[1]["usage"]["prompt_tokens"] == 3, "token ids", ids)
    check(s.post(path, {"prompt": [5, 99999]})[0] == 400, "an id out of range")


def test_responses(s):
    path = "/v1/responses"
    status, data = s.post(path, {**GREEDY, "input": "Define river.", "instructions": "Be brief."})
    check(status == 200 and data["object"] == "response" and data["status"] == "completed", data)
    part = data["output"][-1]["content"][0]
    check(part["type"] == "output_text" and "river" in part["text"], data["output"])
    cut = s.post(path, {**GREEDY, "input": user("Define river."), "max_output_tokens": 3})[1]
    check(cut["status"] == "incomplete" and cut["incomplete_details"]["reason"] == "max_output_tokens", cut)
    tool = {"type": "function", **WEATHER["function"]}
    events = list(s.stream(path, {**GREEDY, "input": "What is the weather in Paris?", "tools": [tool]}))
    names = [n for n, _ in events]
    check(names == [v["type"] for _, v in events], "event names are the types")
    check([v["sequence_number"] for _, v in events] == list(range(len(events))), "numbers in sequence")
    check(names[:2] == ["response.created", "response.in_progress"] and names[-1] == "response.completed", names)
    final = events[-1][1]["response"]
    done = [v["item"] for n, v in events if n == "response.output_item.done"]
    added = [v["item"]["id"] for n, v in events if n == "response.output_item.added"]
    check(final["output"] == done and added == [i["id"] for i in done], "the last event repeats the items",
          final["output"], done)
    for item in done:
        deltas = "".join(v["delta"] for n, v in events if n.endswith(".delta") and v["item_id"] == item["id"])
        text = item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"]
        check(deltas == text, "deltas make the item", item, deltas)
    call = done[-1]
    check(call["type"] == "function_call" and json.loads(call["arguments"]) == {"city": "Paris"}, "a call", call)
    back = [{"role": "user", "content": "What is the weather in Paris?"}, *final["output"],
            {"type": "function_call_output", "call_id": call["call_id"], "output": "rainy, 18 degrees"}]
    after = s.post(path, {**GREEDY, "input": back, "tools": [tool]})[1]
    fresh = after["usage"]["input_tokens"] - after["usage"]["input_tokens_details"]["cached_tokens"]
    check(fresh <= 20, "items sent back are found computed:", fresh, after["usage"])
    lp = s.post(path, {**GREEDY, "input": "Define river.", "top_logprobs": 2,
                       "include": ["message.output_text.logprobs"]})[1]
    part = lp["output"][-1]["content"][0]
    check("".join(r["token"] for r in part["logprobs"]) == part["text"], "logprobs", part)


def test_messages(s):
    path = "/v1/messages"
    tool = {"name": "get_weather", "description": "Get the weather in a city",
            "input_schema": WEATHER["function"]["parameters"]}
    ask = {**GREEDY, "max_tokens": 100, "messages": user("Define river.")}
    status, data = s.post(path, ask)
    check(status == 200 and data["type"] == "message" and data["stop_reason"] == "end_turn" and
          data["content"][0]["type"] == "text" and len(data["content"]) == 1, data)
    whole = data["content"][0]["text"]
    cut = s.post(path, {**ask, "stop_sequences": ["stream"]})[1]
    check(cut["stop_reason"] == "stop_sequence" and cut["stop_sequence"] == "stream" and
          cut["content"][0]["text"] == whole[:whole.index("stream")], cut)
    check(s.post(path, {**ask, "max_tokens": 2})[1]["stop_reason"] == "max_tokens", "max_tokens")
    think = {**ask, "messages": user("What is the weather in Paris?"), "tools": [tool],
             "thinking": {"type": "enabled", "budget_tokens": 1024}}
    data = s.post(path, think)[1]
    kinds = [b["type"] for b in data["content"]]
    check(kinds == ["thinking", "tool_use"] and data["stop_reason"] == "tool_use" and
          data["content"][1]["input"] == {"city": "Paris"}, "blocks", data)
    events = list(s.stream(path, think))
    check([n for n, _ in events] == [v["type"] for _, v in events], "event names are the types")
    check(events[0][0] == "message_start" and events[-1][0] == "message_stop" and
          events[-2][1]["delta"]["stop_reason"] == "tool_use", events[-2])
    starts = [v["content_block"]["type"] for n, v in events if n == "content_block_start"]
    stops = [v["index"] for n, v in events if n == "content_block_stop"]
    check(starts == kinds and stops == [0, 1], "blocks of the stream", starts, stops)
    partial = "".join(v["delta"].get("partial_json", "") for n, v in events if n == "content_block_delta")
    check(json.loads(partial) == {"city": "Paris"}, "input", partial)
    back = think["messages"] + [
        {"role": "assistant", "content": data["content"]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": data["content"][1]["id"],
                                      "content": [{"type": "text", "text": "rainy, 18 degrees"}]}]}]
    after = s.post(path, {**think, "messages": back})[1]
    check(after["usage"]["input_tokens"] <= 20, "what was sent back is found computed", after["usage"])
    check("18" in after["content"][-1].get("text", ""), "the result is seen", after)
    for choice, names in (({"type": "any"}, ("get_weather",)), ({"type": "tool", "name": "get_weather"}, ("get_weather",))):
        forced = s.post(path, {**ask, "tools": [tool], "tool_choice": choice})[1]
        check(any(b["type"] == "tool_use" and b["name"] in names for b in forced["content"]), "forced", forced)
    none = s.post(path, {**think, "tool_choice": {"type": "none"}})[1]
    check(all(b["type"] != "tool_use" for b in none["content"]), "none means none", none)
    count = s.post(path + "/count_tokens", {"messages": user("Define river.")})
    usage = s.post(path, ask)[1]["usage"]
    check(count == (200, {"input_tokens": usage["input_tokens"] + usage["cache_read_input_tokens"]}), count, usage)
    status, data = s.post(path, {"messages": user("x")})
    check(status == 400 and data["type"] == "error" and data["error"]["type"] == "invalid_request_error", data)
    check(s.get("/v1/models", **{"anthropic-version": "2023-06-01"})[1]["data"][0]["type"] == "model", "models")


def test_refusals(s):
    m = user("x")
    deep = b'{"messages":' + b"[" * 10000 + b"]" * 10000 + b"}"
    bodies = [b"", b"x", b"[]", b"null", b'{"messages": []}', b'{"messages": "x"}', b'{"messages": [1]}',
              b'{"messages": [{"role": "robot", "content": "x"}]}', b'{"messages": [{"role": "user", "content": 1}]}',
              b'{"messages": [{"role": "user", "content": "\xff\xfe"}]}', b'{"a": 1, "a": 2, "messages": []}', deep,
              b'{"messages": [{"role": "user", "content": "\\ud800"}]}', b'\x00' * 100]
    for body in bodies:
        for path in (CHAT, "/v1/completions", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens"):
            status, _, data = s.request("POST", path, body)
            check(status == 400 and data["error"]["message"], "a bad body is refused:", path, body[:60], status, data)
    fields = [("temperature", -1), ("temperature", "hot"), ("top_p", 2), ("n", 0), ("n", 1000),
              ("max_tokens", 0), ("max_tokens", 1.5), ("stop", ""), ("stop", [1]), ("stop", ["a"] * 17), ("seed", "x"),
              ("logit_bias", {"x": 1}), ("frequency_penalty", 3), ("response_format", {"type": "xml"}), ("unheard_of", 1),
              ("tools", {}), ("tools", [{"type": "web"}]), ("tools", [{"function": {"name": ""}}]),
              ("tool_choice", "maybe"), ("tool_choice", "required"), ("top_logprobs", 5), ("stream", "yes"),
              ("tool_choice", {"type": "function", "function": {"name": "nobody"}}), ("reasoning_effort", "much"),
              ("chat_template_kwargs", {"enable_thinking": "no"}), ("thinking", 3), ("functions", [{"name": "f"}])]
    for key, value in fields:
        status, data = s.post(CHAT, {"messages": m, "max_tokens": 1, key: value})
        check(status == 400 and data["error"]["type"] == "invalid_request_error" and data["error"]["param"],
              "refused:", key, value, status, data)
    for key, value in (("frequency_penalty", 0), ("logit_bias", {}), ("response_format", {"type": "text"}),
                       ("stop", None), ("unheard_of", None), ("typical_p", 1), ("seed", -5), ("top_k", -1), ("tools", []), ("user", "me")):
        check(s.post(CHAT, {"messages": m, "max_tokens": 1, key: value})[0] == 200, "accepted:", key, value)
    status, data = s.post(CHAT, {"model": "gpt-4o", "messages": m, "max_tokens": 1})
    check(status == 200 and data["model"] == "pocket", "another model's name is answered by the model that is there", data)
    check(s.post(CHAT, {"model": "pocket", "messages": m, "max_tokens": 1})[0] == 200, "this model's name")
    status, data = s.post(CHAT, {"messages": user("word " * 3000)})
    check(status == 400 and data["error"]["code"] == "context_length_exceeded", "too long", data)
    check(s.get("/nothing")[0] == 404 and s.get(CHAT)[0] == 405 and s.post("/health", {})[0] == 405, "paths, methods")
    for method, path, allow in (("GET", CHAT, "POST, OPTIONS"), ("DELETE", "/health", "GET, HEAD, OPTIONS")):
        status, headers, _ = s.request(method, path)
        check(status == 405 and headers.get("allow") == allow, "405 says what is allowed", method, path, headers)
    check(s.get("/v1/models/pocket")[1]["id"] == "pocket" and s.get("/v1/models/org/x")[1]["id"] == "org/x", "one model")
    # who may ask
    check(s.get("/health", Host="evil.example")[0] == 403, "a foreign Host")
    check(s.get("/health", Host=f"localhost:{s.port}")[0] == 200, "localhost")
    check(s.get("/health", Origin="http://evil.example")[0] == 403, "a foreign Origin")
    check(s.get("/health", Origin=s.url)[0] == 200, "our own page's Origin")


def test_paths(s):
    """Paths as base URLs without /v1, with a slash too many; what is not there lists what is; a line for each request."""
    for path in ("/v1/models/", "/models", "//v1/models", "/models/"):
        check(s.get(path)[0] == 200 and s.get(path)[1]["object"] == "list", "the models are also at", path)
    body = {"messages": user("Define river."), "max_tokens": 1, "model": "gpt-9\x1b[31m"}
    for path in ("/chat/completions", "/v1/chat/completions/", "//chat//completions/"):
        check(s.post(path, body)[0] == 200, "chat completions are also at", path)
    status, data = s.get("/v1/nothing")
    check(status == 404 and all(p in data["error"]["message"] for p in ("/v1/chat/completions", "/v1/messages")),
          "404 lists the paths", data)
    check(s.get("/" + "v1/" * 400)[0] == 404, "a long path")
    status, data = s.post("/v1/embeddings", {"input": "x"})
    check(status == 400 and "embeddings" in data["error"]["message"], "embeddings are refused with a reason", data)
    status, headers, _ = s.request("GET", "/favicon.ico")
    check(status == 200 and headers["content-type"] == "image/x-icon", "favicon", status, headers)
    claude = s.get("/v1/models/claude-opus", **{"anthropic-version": "2023-06-01"})[1]
    check(claude["id"] == "claude-opus" and claude["max_input_tokens"] == 2047 and claude["type"] == "model", claude)
    # the log: never the text, no control characters, one line for a name
    secret = "wombat" + str(time.monotonic_ns())
    s.post(CHAT, {"messages": user(secret), "max_tokens": 2, "temperature": 0})
    s.post(CHAT, {"messages": [{"role": secret, "content": secret}]})
    s.post("/v1/no%1bthing", {})
    list(s.stream(CHAT, {"messages": user("Define river."), "max_tokens": 3}))
    lines = [r"POST /v1/chat/completions 200, \d+ \+ 2 tokens", r"POST /v1/chat/completions 200, 13 \+ 3 tokens",
             r"POST /v1/chat/completions 400 \(messages\[0\].role\)", r"GET /v1/nothing 404"]
    end = time.monotonic() + 120
    missing = lines
    while missing and time.monotonic() < end:  # a client has its answer before its line is written
        log = "".join(s.log)
        missing = [x for x in lines if not re.search(r"^\d\d:\d\d:\d\d " + x + r", \d+ ms$", log, re.M)]
    check(not missing, "a line for each request", missing, log[-2000:])
    check(secret not in log and "\x1b" not in log, "neither text nor control characters", log[-2000:])
    check(log.count('the model "gpt-9') == 1, "one line for a new name", log[-2000:])


def raw(s, data, wait=30, half_close=False):
    """Sends bytes, returns what comes back until the server closes or `wait` seconds pass."""
    got = b""
    with socket.create_connection(("127.0.0.1", s.port), timeout=wait) as c:
        try:
            c.sendall(data)
            if half_close:
                c.shutdown(socket.SHUT_WR)
            while chunk := c.recv(65536):
                got += chunk
                if b"\r\n\r\n" in got and b"Content-Length: 0" in got:
                    break
        except OSError:
            pass
    return got


def test_limits(s):
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    check(raw(s, b"\x16\x03\x01garbage\r\n\r\n" * 20, 3)[:12] in (b"", b"HTTP/1.1 400", b"HTTP/1.0 400"), "garbage")
    got = raw(s, head + b"X: " + b"a" * 100000 + b"\r\n\r\n")[:14]
    check(got[9:12] in (b"431", b"413", b"400", b""), "large headers", got)
    got = raw(s, b"GET /" + b"a" * 100000 + b" HTTP/1.1\r\n\r\n")[:14]
    check(got[9:12] in (b"414", b"431", b"400", b""), "a large request line", got)
    big = b"x" * 3_000_000
    got = raw(s, head + b"Content-Length: %d\r\n\r\n" % len(big) + big)
    check(b" 413 " in got[:20], "a body above --max-body-mb is read away and refused", got[:80])
    got = raw(s, head + b"Content-Length: 64000000\r\n\r\n")
    check(b" 413 " in got[:20], "one far above it is refused at once", got[:80])
    got = raw(s, head + b"Content-Length: 64000000\r\nExpect: 100-continue\r\n\r\n")
    check(b" 413 " in got[:20], "and one that asks first", got[:80])
    got = raw(s, head + b"Transfer-Encoding: chunked\r\n\r\n" + (b"100000\r\n" + b"y" * 0x100000 + b"\r\n") * 3 +
              b"0\r\n\r\n")
    check(b" 413 " in got[:20], "chunks count too", got[:80])
    body = json.dumps({"messages": user("Define river."), "max_tokens": 2}).encode()
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(body[i:i + 7]), body[i:i + 7]) for i in range(0, len(body), 7))
    got = raw(s, head + b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n")
    check(b" 200 " in got[:20], "a chunked body is fine", got[:80])
    # connections that never finish their headers are cut when there are many: the others do not notice
    slow = []
    for _ in range(14):
        c = socket.create_connection(("127.0.0.1", s.port))
        c.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nX: ")
        slow.append(c)
    end = time.monotonic() + 12  # otherwise they have 15 s
    alive = list(slow)
    over = False
    while len(alive) >= 12 and not over:  # three quarters of --max-connections
        over = time.monotonic() > end  # then one look more: this program may have slept
        for c in list(alive):
            try:
                c.setblocking(False)
                c.send(b"a")
                if c.recv(100) == b"":
                    alive.remove(c)
            except BlockingIOError:
                pass
            except OSError:
                alive.remove(c)
        time.sleep(0.3)
    check(len(alive) < 12, len(alive), "connections that send a header byte by byte were not cut")
    for c in slow:
        c.close()
    check(s.get("/health")[0] == 200, "the server is well")


def test_cancel(s):
    """A client that leaves ends its answer: while it waits, reads, or writes."""
    s.wait_idle()
    before = s.get("/v1/glmstream/state?map=0")[1]["totals"]["cancelled"]
    clients = []
    for stream in (True, False) * 4:  # more than there are sessions
        c = s.connect()
        c.request("POST", "/v1/completions", json.dumps({**ENDLESS, "n": 4, "stream": stream}),
                  {"Content-Type": "application/json"})
        clients.append(c)
    s.wait_state("at work", lambda active, waiting: active > 0 and waiting > 0)
    for c in clients:
        c.close()
    state = s.wait_idle()
    check(state["totals"]["cancelled"] > before, "they were cancelled", state["totals"])
    check(text_of(chat(s, user("Define river."))).startswith("river"), "the next one is served")


def test_metrics(s):
    s.get("/health")
    status, text = s.get("/metrics")
    values = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            values[name] = float(value)
    for name in ("prompt_tokens_total", "cached_tokens_total", "generated_tokens_total", "answers_total", "queue_depth",
                 "sessions_active", "read_bytes_total", "first_token_seconds_count", "replayed_turns_total", 'drafts_total{position="1"}',
                 "draft_saved_seconds", "expert_wait_drafts_seconds_total",
                 'expert_ratio{tier="cache"}', 'responses_total{path="/health",status="200"}'):
        check("glmstream_" + name in values, "metrics have", name)
    check(values["glmstream_prompt_tokens_total"] ==
          values["glmstream_cached_tokens_total"] + values["glmstream_prefill_tokens_total"] or
          values["glmstream_answers_cancelled_total"] > 0, "prompt = cached + computed")
    check(values['glmstream_first_token_seconds_bucket{le="+Inf"}'] == values["glmstream_first_token_seconds_count"],
          "histograms add up")
    state = s.get("/v1/glmstream/state")[1]
    c = state["cache"]
    check(len(c["map"]) == c["layers"] * c["experts"] and set(c["map"]) <= set("-.r~#"), "the map", c)
    d = state["drafts"]
    check(0 < d["steps"] <= d["rows"] and all(a <= t for a, t in zip(d["accepted"], d["tried"])), "drafts", d)
    check(state["sessions"]["n"] == len(state["sessions"]["list"]), "sessions", state["sessions"])
    connection = s.connect()
    connection.request("GET", "/v1/glmstream/events?interval=100&map=0")
    r = connection.getresponse()
    lines = [r.readline() for _ in range(5)]
    check(lines[0] == b"event: state\n" and json.loads(lines[1][6:])["model"] == "pocket" and lines[3] == lines[0],
          "events", lines[0])
    connection.close()
    page = s.request("GET", "/")
    check(page[0] == 200 and "default-src 'none'" in page[1]["content-security-policy"], "the page", page[0])


def test_load(s):
    """Many at once: every answer is the one that is given alone."""
    asks = [{"messages": user(f"Define {w}."), "max_tokens": 6 if SAN else 30, "temperature": t, "seed": i}
            for i, (w, t) in enumerate((w, t) for w in ("river", "lake", "tree", "house", "water", "king") for t in (0, 1.2))]
    alone = [text_of(s.post(CHAT, a)[1]) for a in asks]
    failed = []

    def client(k):
        c = s.connect()
        for i in range(k, k + (2 if SAN else 3)):
            ask, want = asks[i % len(asks)], alone[i % len(asks)]
            try:
                got = text_of(s.request("POST", CHAT, ask, connection=c)[2])
            except (OSError, http.client.HTTPException) as e:
                got = e
            if got != want:
                failed.append((ask, want, got))
        c.close()

    threads = [threading.Thread(target=client, args=(k,)) for k in range(12 if SLOW else 16)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    check(not failed, "answers under load differ from those alone:", failed[:2])


def test_key_and_queue():
    # without drafts the answer that occupies the session lasts longer than the next sign of life
    with Server("--sessions", "1", "--queue", "1", "-c", "4096", "--draft", "off", "--api-key", "secret",
                "--cors", "http://pages.example", "--model-name", "my-model", "-q") as s:
        m = {"messages": user("Define river."), "max_tokens": 2}
        check(s.post(CHAT, m)[0] == 401 and s.post(CHAT, m, Authorization="Bearer secre")[0] == 401 and
              s.post(CHAT, m, Authorization="Bearer secrett")[0] == 401, "without the key")
        check(s.post("/v1/messages", m)[1]["error"]["type"] == "authentication_error", "in the API's own words")
        key = {"Authorization": "Bearer secret"}
        check(s.post(CHAT, m, **key)[0] == 200 and s.post(CHAT, m, **{"x-api-key": "secret"})[0] == 200, "with the key")
        check(s.get("/health")[0] == 200 and s.get("/metrics")[0] == 401 and s.get("/metrics", **key)[0] == 200, "paths")
        check(s.get("/v1/models", **key)[1]["data"][0]["id"] == "my-model", "--model-name")
        status, headers, _ = s.request("OPTIONS", CHAT, None, {"Origin": "http://pages.example",
                                                               "Access-Control-Request-Headers": "authorization"})
        check(status == 204 and headers["access-control-allow-origin"] == "http://pages.example" and
              headers["access-control-allow-headers"] == "authorization", "preflight", headers)
        check(s.request("OPTIONS", CHAT, None, {"Origin": "http://other.example"})[0] == 403, "another origin")
        clients, answers = [], []
        for busy in ((1, 0), (1, 1), None, None):  # one is answered, one waits, the others are too many
            c = s.connect()
            c.request("POST", "/v1/completions", json.dumps({**ENDLESS, "max_tokens": 4000, "stream": True}),
                      {"Content-Type": "application/json", **key})
            if busy:
                s.wait_state(busy, lambda active, waiting: (active, waiting) == busy, **key)
            clients.append(c)
        for c in clients[2:]:
            r = c.getresponse()
            answers.append((r.status, r.getheader("Retry-After")))
        check(all(status == 429 and int(retry) >= 1 for status, retry in answers), "a full queue", answers)
        s.wait_state("as busy as before: a refusal does not wait", lambda active, waiting: (active, waiting) == (1, 1), **key)
        waiting = clients[1].getresponse()
        check(waiting.status == 200 and waiting.readline().startswith(b": waiting for a session"), "a sign of life")
        check(s.stop() == 0, "SIGTERM ends with status 0")
    s = Server("-q", "-c", "512")
    import signal
    check(s.stop(signal.SIGINT) == 130, "Ctrl+C ends with status 130")


def test_start():
    """What cannot be started says why, with the right status."""
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = str(busy.getsockname()[1])
        for options, status, words in ((["--port", port], 1, "--port N"), (["--port", "70000"], 2, "65535"),
                                       (["--host", "no such host"], 2, "--host"), (["--sessions", "0"], 2, "--sessions"),
                                       (["--session-dir", "/dev/null/x"], 3, "/dev/null/x"),
                                       (["-m", "no-such-file.gguf"], 3, "no-such-file.gguf")):
            r = subprocess.run([PROGRAM, "serve", "-c", "256", "--backend", "cpu", *options], capture_output=True,
                               text=True, timeout=120)
            check(r.returncode == status and words in r.stderr and not r.stdout, "serve", options, r.returncode, r.stderr)
    r = subprocess.run([PROGRAM, "serve", "--help"], capture_output=True, text=True)
    check(r.returncode == 0 and "--session-dir" in r.stdout and "curl" in r.stdout, "help", r.stdout)


def test_cache_sizes():
    """Through a small expert cache the answers are the same bits."""
    want = None
    for options in ((), ("--cache-gb", "0.004", "--io", "threads", "--model-name", "caf\udce9")):  # Latin-1
        with Server("--sessions", "3", "-c", "512", "-q", *options) as s:
            got = []
            threads = [threading.Thread(target=lambda w=w: got.append((w, text_of(chat(s, user(f"Define {w}."))))))
                       for w in ("river", "lake", "tree")]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            got.sort()
            check(want is None or got == want, "the cache changes no answer", got, want)
            want = got
            if options:
                state = s.get("/v1/glmstream/state")[1]
                check(state["model"] == "caf\ufffd", "a name that is not UTF-8 is repaired", state["model"])
                for path in ("/v1/models", "/v1/models/caf%E9", "/v1/models/caf%EF%BF%BD", "/v1/models/x" + 600 * "%C3%A9",
                             "/api/tags", "/api/ps", "/props", "/health"):
                    check("\ufffd" in json.dumps(s.get(path)[1], ensure_ascii=False), "JSON in UTF-8", path)
                check(state["cache"]["streaming"] and state["totals"]["bytes_read"] > 0 and "." in state["cache"]["map"],
                      "a small cache reads", state["totals"])


def test_folder():
    """--session-dir: another run of the server finds a long prompt computed."""
    with tempfile.TemporaryDirectory() as folder:
        ask = {"messages": [{"role": "system", "content": "You know words. " * (150 if SAN else 200)}] + user("Define river."),
               "max_tokens": 30, **GREEDY}
        answers = []
        for _ in range(2):
            with Server("--sessions", "2", "-c", "2048", "-q", "--session-dir", folder) as s:
                status, data = s.post(CHAT, ask)
                answers.append((text_of(data), data["usage"]["prompt_tokens_details"]["cached_tokens"]))
                stored = s.get("/v1/glmstream/state?map=0")[1]["store"]
        n = data["usage"]["prompt_tokens"]
        check(answers[0][1] == 0 and answers[1][1] >= n // 512 * 512 > 0, "the second run reads the prompt from disk", answers, n)
        check(answers[0][0] == answers[1][0], "and answers the same", answers)
        check(stored["files"] >= n // 512 and stored["tokens_read"] == answers[1][1], "counted", stored)


def main():
    chosen = sys.argv[1:]  # names of tests; none: all
    with Server("--sessions", "4", "-c", "2048", "--max-body-mb", "1", "--max-connections", "16", "-v") as s:
        for test in (test_answers, test_stops, test_logprobs, test_stream, test_tools, test_partial_calls, test_no_tools, test_given_beginning, test_agent_loop,
                     test_completions, test_text_offset, test_responses, test_messages, test_refusals, test_paths, test_ollama, test_llamacpp, test_stored_responses, test_cancel, test_metrics,
                     test_limits):
            start = time.monotonic()
            if chosen and test.__name__[5:] not in chosen:
                continue
            test(s)
            print(f"{test.__name__}: {time.monotonic() - start:.1f} s", flush=True)
    if not chosen or "load" in chosen:
        with Server("--sessions", "8", "-c", "512", "-q", "-t", "2") as s:
            test_load(s)
    for test in (test_strict, test_key_and_queue, test_stop, test_start, test_cache_sizes, test_folder, test_responses_folder):
        if not chosen or test.__name__[5:] in chosen:
            test()
    finish()


main()
