# SPDX-License-Identifier: MIT
"""ollama's and llama.cpp's own paths: answers, streams, what is refused and how. A part of serve.py's tests."""
import codecs
import http.client
import json
import os
import stat
import tempfile
import threading
import time

from serve_lib import SAN, TIME, WEATHER, Server, check, counter, user

GREEDY = {"temperature": 0}
CHAT = "/v1/chat/completions"


def test_ollama(s):
    whole = s.post(CHAT, {**GREEDY, "messages": user("Define river.")})[1]
    text, thinking = (whole["choices"][0]["message"].get(k) for k in ("content", "reasoning_content"))
    ask = {"model": "llama3", "messages": user("Define river."), "options": {**GREEDY, "num_ctx": 32768, "num_thread": 4}}
    status, data = s.post("/api/chat", {**ask, "stream": False})
    check(status == 200 and data["message"] == {"role": "assistant", "content": text,
                                                **({"thinking": thinking} if thinking else {})}, "chat", data)
    check(data["done"] and data["done_reason"] == "stop" and data["prompt_eval_count"] == 13 and
          data["eval_count"] == whole["usage"]["completion_tokens"] and
          data["total_duration"] >= data["eval_duration"] > 0, "figures", data)
    for _ in range(5):  # pieces that wait are joined: a client that is held up sees fewer
        lines = s.lines("/api/chat", ask)
        if len(lines) > 3:
            break
    check("".join(v["message"]["content"] for v in lines) == text and len(lines) > 3 and
          "".join(v["message"].get("thinking", "") for v in lines) == (thinking or ""), "stream", lines)
    check([v["done"] for v in lines] == [False] * (len(lines) - 1) + [True] and
          lines[-1]["eval_count"] == data["eval_count"], "the last line", lines[-1])
    check(s.post("/api/chat", {**ask, "stream": False, "think": False})[1]["message"].keys() == {"role", "content"}, "think")
    cut = s.post("/api/chat", {**ask, "stream": False, "options": {**GREEDY, "num_predict": 3}})[1]
    check(cut["done_reason"] == "length" and cut["eval_count"] == 3, "num_predict", cut)
    data = s.post("/api/chat", {**ask, "stream": False, "options": {**GREEDY, "num_predict": 0}})[1]
    check(data.get("eval_count") == whole["usage"]["completion_tokens"], "num_predict 0 is no limit, as in ollama", data)
    stop = s.post("/api/chat", {**ask, "stream": False, "think": False, "options": {**GREEDY, "stop": ["stream"]}})[1]
    check("river" in stop["message"]["content"] and "stream" not in stop["message"]["content"], "stop", stop)
    lp = s.post("/api/chat", {**ask, "stream": False, "logprobs": True, "top_logprobs": 2})[1]
    check("".join(r["token"] for r in lp["logprobs"]) == text and len(lp["logprobs"][0]["top_logprobs"]) == 2, "logprobs", lp)
    # tools: whole calls, in the stream too; the result goes back without an id
    q = user("What is the weather in Paris?")
    for lines in (s.lines("/api/chat", {**ask, "messages": q, "tools": [WEATHER, TIME]}),
                  [s.post("/api/chat", {**ask, "messages": q, "tools": [WEATHER, TIME], "stream": False})[1]]):
        calls = [c for v in lines for c in v["message"].get("tool_calls", [])]
        check(calls == [{"function": {"name": "get_weather", "arguments": {"city": "Paris"}}}], "a call", lines)
    replayed = counter(s, "replayed_turns")
    called = q + [s.post("/api/chat", {**ask, "messages": q, "tools": [WEATHER, TIME], "stream": False})[1]["message"]]
    result = {"role": "tool", "tool_name": "get_weather", "content": "rainy, 18 degrees"}
    s.post("/api/chat", {**ask, "messages": called + [result], "tools": [WEATHER, TIME], "stream": False})
    check(counter(s, "replayed_turns") == replayed + 1, "a turn with a call is recognised")
    s.post("/api/chat", {**ask, "messages": user("Hello.") + called + [result], "tools": [WEATHER, TIME], "stream": False})
    check(counter(s, "replayed_turns") == replayed + 1, "behind another beginning it is not")
    back = q + [{"role": "assistant", "content": "", "thinking": "hm", "tool_calls": calls},
                {"role": "tool", "tool_name": "get_weather", "content": "rainy, 18 degrees"}]
    data = s.post("/api/chat", {**ask, "messages": back, "tools": [WEATHER, TIME], "stream": False})[1]
    check("18" in data["message"]["content"], "the result comes back", data)
    for n in range(1, 12, 4 if SAN else 1):  # cut anywhere: no markup
        lines = s.lines("/api/chat", {**ask, "messages": q, "tools": [WEATHER], "think": False,
                                      "options": {**GREEDY, "num_predict": n}})
        check(not any("<" in v["message"]["content"] for v in lines) and
              all(c["function"]["name"] == "get_weather" for v in lines for c in v["message"].get("tool_calls", [])),
              "cut after", n, lines)
    # answers that follow a schema; options that mean nothing here, and those that would
    schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99}, "yes": {"type": "boolean"}},
              "required": ["n", "yes"], "additionalProperties": False}
    for path, more, said in (("/api/chat", {}, lambda d: d["message"]["content"]),
                             ("/api/generate", {"prompt": "Define river.", "messages": None}, lambda d: d["response"])):
        data = s.post(path, {**ask, **more, "stream": False, "format": schema})[1]
        got = json.loads(said(data))
        check(set(got) == {"n", "yes"} and 0 <= got["n"] <= 99 and isinstance(got["yes"], bool), "format", path, data)
        lines = s.lines(path, {**ask, **more, "format": schema})
        check(json.loads("".join(said(v) for v in lines)) == got, "format, streamed", path, lines)
    check(s.post("/api/chat", {**ask, "stream": False, "options": {**GREEDY, "typical_p": 1, "mirostat": 0, "repeat_last_n": 64, "mirostat_tau": 3,
                                                                  "num_gpu": 99, "penalize_newline": True}})[0] == 200, "idle options")
    check(s.post("/api/chat", {**ask, "stream": False, "options": {**GREEDY, "num_predict": 3, "repeat_penalty": 1.1, "repeat_last_n": -1,
                                                                  "penalize_newline": True}})[0] == 200, "what the penalty counts here")
    for options in ({"typical_p": 0.5}, {"mirostat": 2}, {"repeat_last_n": 64, "repeat_penalty": 1.1}, {"unheard_of": 1}, {"n": 2},
                    {"repeat_last_n": 0, "repeat_penalty": 1.1}, {"penalize_newline": False, "repeat_penalty": 1.1},
                    {"stream": True}, {"logprobs": True}, {"tools": [WEATHER]}, {"response_format": {"type": "json_object"}}):
        status, data = s.post("/api/chat", {**ask, "options": options})
        check(status == 400 and list(options)[0] in data["error"], "refused:", options, data)
    check(s.post("/api/chat", {**ask, "stream": False, "options": {**GREEDY, "num_predict": 3, "stream": False, "n": None}})[0] == 200,
          "members that are off")
    for path, more in (("/api/chat", {}), ("/api/generate", {"prompt": "x", "messages": None})):
        for member in ({"temperature": 0}, {"min_p": 0.1}, {"unheard_of": 1}):
            status, data = s.post(path, {**ask, **more, **member})
            check(status == 400 and list(member)[0] in data["error"] and "options" in data["error"], "outside of options:", member, data)
    hot = {"temperature": 2, "top_p": 1, "num_predict": 40}
    drawn = [s.post("/api/chat", {**ask, "stream": False, "options": {**hot, "seed": seed}})[1]["message"] for seed in (-1, -1, 7, 7)]
    check(drawn[0] != drawn[1] and drawn[2] == drawn[3], "seed -1 is a random one", drawn)
    # generate
    g = s.post("/api/generate", {**ask, "messages": None, "prompt": "Define river.", "stream": False})[1]
    check(g["response"] == text and g.get("thinking") == thinking, "generate", g)
    lines = s.lines("/api/generate", {"prompt": "Define river.", "system": "Be brief.", "options": GREEDY})
    check(all("response" in v and "message" not in v for v in lines) and lines[-1]["done"], "generate, stream", lines)
    raw = s.post("/api/generate", {"prompt": "[gMASK]<sop><|system|>Reasoning Effort: Max<|user|>Define river.<|assistant|>"
                                   "<think></think>", "raw": True, "stream": False, "options": GREEDY})[1]
    check(raw["response"] == s.post(CHAT, {**GREEDY, "messages": user("Define river.") + [
        {"role": "assistant", "content": "river"}]})[1]["choices"][0]["message"]["content"].join(["river", ""]) or
          raw["response"].startswith("river (noun)"), "raw", raw)
    ask_raw = {"prompt": "[gMASK]<sop><|user|>Define river.<|assistant|><think></think>", "raw": True, "options": {**GREEDY, "num_predict": 8}}
    for more, rivals in (({}, 0), ({"top_logprobs": 0}, 0), ({"top_logprobs": 2}, 2)):
        data = s.post("/api/generate", {**ask_raw, "stream": False, "logprobs": True, **more})[1]
        rows = data.get("logprobs", [])
        check(len(rows) == data["eval_count"] == 8 and "".join(r["token"] for r in rows) == data["response"] and
              all(r["logprob"] <= 0 and len(r["top_logprobs"]) == rivals for r in rows), "raw, logprobs", more, data)
        lines = s.lines("/api/generate", {**ask_raw, "logprobs": True, **more})
        check(sum((v.get("logprobs", []) for v in lines), []) == rows, "raw, logprobs, streamed", more, lines)
    for path, body in (("/api/generate", ask_raw), ("/api/chat", ask)):
        for more in ({"top_logprobs": 3}, {"logprobs": False, "top_logprobs": 3}):
            status, data = s.post(path, {**body, "stream": False, **more})
            check(status == 200 and "logprobs" not in data, "top_logprobs means nothing without logprobs", path, more, data)
    for more, words in (({"system": "S"}, "system"), ({"format": "json"}, "format"), ({"template": "T"}, "template"),
                        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"), ({"logprobs": 1}, "logprobs")):
        status, data = s.post("/api/generate", {**ask_raw, **more})
        check(status == 400 and words in data["error"], "raw, refused:", more, data)
    for path, key in (("/api/generate", "response"), ("/api/chat", "message")):
        status, data = s.post(path, {"model": "x"})
        check(status == 200 and data["done_reason"] == "load" and key in data, "nothing is asked: load", data)
    # about the model
    entry = s.get("/api/tags")[1]["models"][0]
    check(entry["name"] == "pocket" and entry["size"] > 1e6 and entry["details"]["family"] == "glm-dsa" and
          entry["details"]["parameter_size"].endswith("M"), "tags", entry)
    entry = s.get("/api/ps")[1]["models"][0]
    check(entry["size_vram"] == 0 and entry["context_length"] == 2048, "ps", entry)
    show = s.post("/api/show", {"model": "pocket"})[1]
    check("tools" in show["capabilities"] and show["model_info"]["glm-dsa.context_length"] == 2048, "show", show)
    check(s.get("/api/version")[1]["version"], "version")
    # refused, each with a reason in ollama's form
    for path, body, words in (
            ("/api/embed", {"input": "x"}, "embeddings"), ("/api/embeddings", {"prompt": "x"}, "embeddings"),
            ("/api/pull", {"model": "x"}, "one model"), ("/api/push", {}, "one model"), ("/api/create", {}, "one model"),
            ("/api/show", {}, "model"), ("/api/show", {"model": "pocket", "x": [1] * 3000}, "more than"),
            ("/api/chat", {"messages": "x"}, "messages"), ("/api/chat", {"messages": [1]}, "["),
            ("/api/chat", {**ask, "messages": [{"role": "user", "content": "x", "images": ["aGk="]}]}, "text only"),
            ("/api/generate", {"prompt": "x", "images": ["aGk="]}, "text only"),
            ("/api/generate", {"prompt": "x", "suffix": "y"}, "suffix"), ("/api/generate", {"prompt": 1}, "prompt"),
            ("/api/generate", {"prompt": "x", "context": [1, 2]}, "context"),
            ("/api/chat", {**ask, "options": {"temperature": -1}}, "temperature"),
            ("/api/chat", {**ask, "options": {"num_predict": "x"}}, "num_predict: "),
            ("/api/chat", {**ask, "options": {"num_predict": -3}}, "num_predict: "),
            ("/api/chat", {**ask, "options": {"repeat_penalty": 0}}, "repeat_penalty: "),
            ("/api/generate", {"prompt": "x", "raw": True, "options": {"repeat_penalty": 0}}, "repeat_penalty: "),
            ("/api/chat", {**ask, "think": "deep"}, "think: "),
            ("/api/chat", {**ask, "options": 3}, "options"), ("/api/chat", {**ask, "think": 3}, "think"),
            ("/api/chat", {**ask, "format": "xml"}, "format: "),
            ("/api/chat", {**ask, "format": {"not": {}}}, 'format: the keyword "not"')):
        status, data = s.post(path, body)
        check(status == 400 and words in data["error"] and "response_format" not in data["error"], "refused:", path, body, status, data)
    status, _, data = s.request("DELETE", "/api/delete", {"model": "x"})
    check(status == 400 and "one model" in data["error"], "delete", data)
    check("error" in s.get("/api/nothing")[1] and s.get("/api/nothing")[0] == 404, "404 in ollama's form")


def test_llamacpp(s):
    ask = {**GREEDY, "prompt": "Define river.", "n_predict": 8}
    oai = s.post("/v1/completions", {**GREEDY, "prompt": "Define river.", "max_tokens": 8})[1]["choices"][0]["text"]
    for path in ("/completion", "/completions"):
        status, data = s.post(path, ask)
        check(status == 200 and data["content"] == oai and data["stop"] and data["stop_type"] == "limit" and
              data["tokens_predicted"] == 8 and data["timings"]["predicted_n"] == 8, path, data)
    hot = {"prompt": "Define river.", "n_predict": 40, "temperature": 2, "top_p": 1}
    drawn = [s.post("/completion", {**hot, "seed": seed})[1]["content"] for seed in (-1, -1, 7, 7)]
    check(drawn[0] != drawn[1] and drawn[2] == drawn[3], "seed -1 is a random one", drawn)
    events = [v for _, v in s.stream("/completion", ask)]
    defaults = {"dynatemp_range": 0, "dynatemp_exponent": 1, "n_keep": 0, "typical_p": 1, "repeat_penalty": 1, "repeat_last_n": 64,
                "presence_penalty": 0, "frequency_penalty": 0, "dry_multiplier": 0, "dry_base": 1.75, "dry_allowed_length": 2,
                "dry_penalty_last_n": 64, "dry_sequence_breakers": ["\n", ":", "\"", "*"], "xtc_probability": 0, "xtc_threshold": 0.1,
                "mirostat": 0, "mirostat_tau": 5, "mirostat_eta": 0.1, "ignore_eos": False, "logit_bias": [], "n_probs": 0, "min_keep": 0,
                "t_max_predict_ms": 0, "id_slot": -1, "cache_prompt": True, "return_tokens": False, "timings_per_token": False}
    for more in ({}, {"dry_penalty_last_n": -1, "xtc_threshold": 0.3, "dry_base": 2}):
        status, data = s.post("/completion", {**ask, **defaults, **more})
        check(status == 200 and data["content"] == oai, "llama.cpp's defaults", more, data)
    data = s.post("/completion", {**ask, "n_predict": 0})[1]
    check(data.get("content") == "" and data["tokens_predicted"] == 0 and data["stop_type"] == "limit" and data["tokens_evaluated"] > 1,
          "n_predict 0", data)
    check([(v["content"], v["stop"]) for _, v in s.stream("/completion", {**ask, "n_predict": 0})] == [("", True)], "n_predict 0, streamed")
    data = s.post("/completion", {**ask, "n_probs": 2, "return_tokens": True})[1]
    rows = data["completion_probabilities"]
    check(len(rows) > 3 and [r["id"] for r in rows] == data["tokens"][-len(rows):] and  # a control token comes first
          all(r["top_logprobs"][0]["id"] == r["id"] for r in rows), "ids of probabilities", data)
    for more in ({"typical_p": 0.5}, {"samplers": ["top_k"]}, {"grammar": "root ::= x"}, {"unheard_of": 1}, {"dry_multiplier": 0.8},
                 {"xtc_probability": 0.1}, {"repeat_last_n": 64, "repeat_penalty": 1.1}):
        status, data = s.post("/completion", {**ask, **more})
        check(status == 400 and list(more)[0] in data["error"]["message"], "refused:", more, data)
    check("".join(v["content"] for v in events) == oai and [v["stop"] for v in events][-2:] == [False, True] and
          events[-1]["timings"]["predicted_per_second"] > 0, "stream", events)
    rendered = s.post("/apply-template", {"messages": user("Define river."), "reasoning_effort": "none"})[1]["prompt"]
    check(rendered == "[gMASK]<sop><|user|>Define river.<|assistant|><think></think>", "apply-template", rendered)
    data = s.post("/completion", {**GREEDY, "prompt": rendered})[1]
    check(data["stop_type"] == "eos" and data["content"].startswith("river (noun)"), "a rendered prompt", data)
    check(data["tokens"] == [], "tokens that were not asked for", data)
    ids = s.post("/completion", {**GREEDY, "prompt": rendered, "return_tokens": True})[1]["tokens"]
    check(len(ids) == data["tokens_predicted"] and s.post("/detokenize", {"tokens": ids})[1]["content"] == data["content"],
          "return_tokens", ids, data)
    streamed = [v for _, v in s.stream("/completion", {**GREEDY, "prompt": rendered})]
    check(sum((v["tokens"] for v in streamed), []) == ids and streamed[0]["tokens"], "a stream has tokens", streamed, ids)
    stopped = {**GREEDY, "prompt": rendered, "stop": ["stream"], "return_tokens": True}
    ids = s.post("/completion", stopped)[1]["tokens"]
    check(sum((v["tokens"] for _, v in s.stream("/completion", stopped)), []) == ids and
          "stream" in s.post("/detokenize", {"tokens": ids})[1]["content"], "the tokens of a stop string", ids)
    data = s.post("/completion", {**GREEDY, "prompt": rendered, "stop": ["stream"], "n_probs": 2})[1]
    check(data["stop_type"] == "word" and data["stopping_word"] == "stream" and
          len(data["completion_probabilities"][0]["top_logprobs"]) == 2, "stop, n_probs", data)
    check([v["content"] for v in s.post("/completion", {**ask, "prompt": ["Define river.", "Define river."]})[1]] ==
          [oai, oai], "several prompts")
    tokens = s.post("/tokenize", {"content": "Define é<|user|>"})[1]["tokens"]
    check(s.post("/detokenize", {"tokens": tokens})[1] == {"content": "Define é<|user|>"}, "there and back", tokens)
    plain = s.post("/tokenize", {"content": "<|user|>", "parse_special": False})[1]["tokens"]
    check(len(plain) > 1 == len(s.post("/tokenize", {"content": "<|user|>"})[1]["tokens"]), "parse_special", plain)
    pieces = s.post("/tokenize", {"content": "a b", "with_pieces": True})[1]["tokens"]
    check("".join(t["piece"] for t in pieces) == "a b", "pieces", pieces)
    check(s.post("/tokenize", {"content": "a b", "with_pieces": True, "add_special": True})[1]["tokens"] == pieces, "add_special")
    props = s.get("/props")[1]
    check(props["default_generation_settings"]["n_ctx"] == 2048 and props["total_slots"] == 4 and
          props["modalities"] == {"vision": False, "audio": False}, "props", props)
    end = time.monotonic() + 60  # an answer has come before its slot is shown as free
    while (slots := s.get("/slots")[1])[0]["is_processing"] and time.monotonic() < end:
        time.sleep(0.05)
    check(len(slots) == 4 and not slots[0]["is_processing"] and slots[0]["n_ctx"] == 2048, "slots", slots)
    for path, body, words in (("/infill", {}, "fill"), ("/embedding", {}, "embeddings"), ("/rerank", {}, "scores"),
                              ("/tokenize", {}, "content"), ("/detokenize", {"tokens": [-1]}, "item 0"),
                              ("/tokenize", {"content": "x", "return_ids": 1}, "return_ids"),
                              ("/detokenize", {"tokens": [1], "special": 1}, "special"),
                              ("/detokenize", {"tokens": "x"}, "array"), ("/completion", {"n_predict": 3}, "prompt"),
                              ("/completion", {**ask, "n_predict": "x"}, "n_predict: "),
                              ("/completion", {**ask, "repeat_penalty": 0}, "repeat_penalty: "), ("/apply-template", {}, "messages")):
        status, data = s.post(path, body)
        check(status == 400 and words in data["error"]["message"], "refused:", path, body, status, data)
    for path in ("/tokenize", "/detokenize", "/apply-template", "/completion", "/api/chat", "/api/generate", "/api/show"):
        for body in (b"", b"[", b"\xff", b"[]", json.dumps({"a": [[]]}).encode()):
            status, _, data = s.request("POST", path, body)
            check(status in (200, 400) and (status == 400 or path.startswith("/api/")), "a bad body", path, body, data)


def test_text_offset(s):
    path = "/v1/completions"
    halves = s.post("/tokenize", {"content": "é", "with_pieces": True})[1]["tokens"]  # two tokens of one byte each
    ask = {"prompt": "Define river.", "max_tokens": 24, "logprobs": 0, "temperature": 2, "top_p": 1, "seed": 5, "ignore_eos": True,
           "logit_bias": {t["id"]: 100 for t in halves}}
    whole = s.post(path, ask)[1]["choices"][0]
    written = [b for r in s.post("/completion", {**ask, "n_predict": 24, "n_probs": 1})[1]["completion_probabilities"] for b in r["bytes"]]
    decoder, before, offsets = codecs.getincrementaldecoder("utf-8")("replace"), 0, []
    for b in written:
        offsets.append(before)
        before += len(decoder.decode(bytes([b])))
    check(len(offsets) == 24 and 0 < whole["text"].count("é") < 12, "parts of characters", halves, whole)
    check(whole["logprobs"]["text_offset"] == offsets, "text_offset", whole, offsets)
    parts = [v["choices"][0]["logprobs"] for _, v in s.stream(path, ask) if v != "[DONE]"]
    check(sum((p["text_offset"] for p in parts), []) == offsets, "text_offset, streamed", parts, offsets)


def outputs(data):
    return "".join(p["text"] for i in data["output"] if i["type"] == "message" for p in i["content"])


def test_stored_responses(s):
    path = "/v1/responses"
    first = s.post(path, {**GREEDY, "input": "The code is 7294. Remember it.", "instructions": "Be brief."})[1]
    check(first["store"] is True and first["previous_response_id"] is None, "stored by default", first)
    check(s.get(f"{path}/{first['id']}") == (200, first), "it can be read again")
    talk = [{"role": "user", "content": "The code is 7294. Remember it."}, *first["output"],
            {"role": "user", "content": "Define river."}]
    want = s.post(path, {**GREEDY, "input": talk, "store": False})[1]
    second = s.post(path, {**GREEDY, "input": "Define river.", "previous_response_id": first["id"]})[1]
    check(outputs(second) == outputs(want) and second["usage"]["input_tokens"] == want["usage"]["input_tokens"] and
          second["previous_response_id"] == first["id"], "goes on as if it were sent whole", second, want)
    fresh = second["usage"]["input_tokens"] - second["usage"]["input_tokens_details"]["cached_tokens"]
    check(fresh <= 40, "found computed:", fresh)
    events = [v for _, v in s.stream(path, {**GREEDY, "input": [{"role": "user", "content": "Define lake."}],
                                            "previous_response_id": second["id"]})]
    third = events[-1]["response"]
    check(s.get(f"{path}/{third['id']}") == (200, third), "a streamed one is kept before its end is seen")
    items = s.get(f"{path}/{third['id']}/input_items?order=asc")[1]
    said = [i["content"][0]["text"] for i in items["data"] if i["type"] == "message" and i["role"] == "user"]
    check(said == ["The code is 7294. Remember it.", "Define river.", "Define lake."] and not items["has_more"] and
          all(i["id"] for i in items["data"]), "input_items", items)
    one = s.get(f"{path}/{third['id']}/input_items?limit=1")[1]
    check(one["data"] == items["data"][-1:] and one["has_more"] and one["last_id"] == items["data"][-1]["id"], "newest first", one)
    rest = s.get(f"{path}/{third['id']}/input_items?after={one['last_id']}")[1]
    check(rest["data"] == items["data"][-2::-1], "after", rest)
    # calls
    tool = {"type": "function", **WEATHER["function"]}
    ask = s.post(path, {**GREEDY, "input": "What is the weather in Paris?", "tools": [tool]})[1]
    call = ask["output"][-1]
    after = s.post(path, {**GREEDY, "previous_response_id": ask["id"], "tools": [tool], "input": [
        {"type": "function_call_output", "call_id": call["call_id"], "output": "rainy, 18 degrees"}]})[1]
    check("18" in outputs(after), "the result of a call", after)
    # references instead of items
    asked = {"role": "user", "content": "What is the weather in Paris?"}
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "rainy, 18 degrees"}
    want = s.post(path, {**GREEDY, "tools": [tool], "input": [asked, *ask["output"], result]})[1]
    replayed = counter(s, "replayed_turns")
    for kind in ({"type": "item_reference"}, {"type": None}, {}):
        got = s.post(path, {**GREEDY, "tools": [tool], "input": [asked, *({**kind, "id": i["id"]} for i in ask["output"]), result]})[1]
        check(len(ask["output"]) > 1 and got["status"] == "completed" and outputs(got) == outputs(want) and
              got["usage"]["input_tokens"] == want["usage"]["input_tokens"], "references are the items", kind, got, want)
    check(counter(s, "replayed_turns") == replayed + 3, "and the turn is recognised")
    items = s.get(f"{path}/{got['id']}/input_items?order=asc")[1]["data"]
    check(items[1:-1] == ask["output"], "the items are kept, not the references", items)
    for wrong in ("msg_" + "a" * 24 + "_0", ask["output"][0]["id"] + "9", ask["id"], "x", "", "msg__0", "_" * 40, 3, None):
        status, data = s.post(path, {"input": [asked, {"type": "item_reference", "id": wrong}]})
        check(status == 400 and "input[1]: item_reference" in data["error"]["message"] and data["error"]["param"] == "input",
              "no such item", wrong, data)
    many = [{"type": "item_reference", "id": i["id"]} for i in ask["output"]] * 5000
    status, data = s.post(path, {"input": [asked, *many]})
    check(status in (400, 413, 429), "more than the context holds", status, data)
    # not kept, forgotten, unknown, damaged ids
    unkept = s.post(path, {**GREEDY, "input": "x", "store": False, "max_output_tokens": 2})[1]
    check(unkept["store"] is False and s.get(f"{path}/{unkept['id']}")[0] == 404, "store false", unkept)
    check(s.request("DELETE", f"{path}/{first['id']}")[2] == {"id": first["id"], "object": "response", "deleted": True}, "deleted")
    for wrong in (first["id"], "resp_1", "resp_" + "a" * 24, "..%2f..%2fetc", "x" * 400):
        check(s.get(f"{path}/{wrong}")[0] == 404 and s.request("DELETE", f"{path}/{wrong}")[0] == 404, "not there", wrong)
        status, data = s.post(path, {"input": "x", "previous_response_id": wrong})
        check(status == 400 and data["error"]["param"] == "previous_response_id", "not there", wrong, data)
    again = s.post(path, {**GREEDY, "input": "Define lake.", "previous_response_id": second["id"]})[1]
    check(outputs(again) == outputs(third), "an earlier one may go: each keeps the whole conversation")
    for query in ("limit=0", "limit=x", "order=up"):
        check(s.get(f"{path}/{third['id']}/input_items?{query}")[0] == 400, "refused", query)
    check(s.get(f"{path}/{third['id']}?stream=true")[0] == 400 and s.get(f"{path}/{third['id']}/x")[0] == 404 and
          s.post(f"{path}/{third['id']}/cancel", {})[0] == 400, "what there is not")
    check(s.post(path, {"input": "x", "store": 3})[0] == 400 and s.post(path, {"input": "x", "previous_response_id": 3})[0] == 400,
          "types")
    count = s.post(path + "/input_tokens", {"input": "Define lake.", "previous_response_id": second["id"]})
    check(count == (200, {"object": "response.input_tokens", "input_tokens": third["usage"]["input_tokens"]}), count)
    metrics = s.get("/metrics")[1]
    check("\nglmstream_kept_responses " in metrics and "at most 1000" in metrics, "metrics")
    check("\nglmstream_ram_refused_bytes 0\n" in metrics, "nothing of the second tier was refused")


def test_responses_folder():
    """--session-dir: another run of the server knows the responses; other files stay as they are."""
    path = "/v1/responses"
    with tempfile.TemporaryDirectory() as folder:
        foreign = os.path.join(folder, "resp_" + "f" * 24 + ".response")
        with open(foreign, "w", encoding="utf-8") as f:
            f.write("mine")
        with Server("-q", "-c", "1024", "--session-dir", folder) as s:
            first = s.post(path, {**GREEDY, "input": "Define river."})[1]
            gone = s.post(path, {**GREEDY, "input": "Define lake."})[1]
            file = os.path.join(folder, first["id"] + ".response")
            check(stat.S_IMODE(os.stat(file).st_mode) == 0o600, "its owner's only")
            check(os.path.exists(os.path.join(folder, gone["id"] + ".response")), "a file for each")
            s.request("DELETE", f"{path}/{gone['id']}")
            check(not os.path.exists(os.path.join(folder, gone["id"] + ".response")), "deleted")
        with Server("-q", "-c", "1024", "--session-dir", folder) as s:
            check(s.get(f"{path}/{first['id']}") == (200, first), "another run knows it")
            second = s.post(path, {**GREEDY, "input": "Define lake.", "previous_response_id": first["id"]})[1]
            check(second["status"] == "completed", "and goes on", second)
            check(s.get(f"{path}/resp_{'f' * 24}")[0] == 404 and s.request("DELETE", f"{path}/resp_{'f' * 24}")[0] == 404,
                  "a file of somebody else is none")
        for damage in (b"glmstream response 1\n99999\n{}", b"glmstream response 1\nx", b"glmstream response 1\n2\n{}[", b""):
            with open(file, "wb") as f:
                f.write(damage)
            with Server("-q", "-c", "512", "--session-dir", folder) as s:
                status, data = s.post(path, {"input": "x", "previous_response_id": first["id"]})
                check(status == 400 and data["error"]["message"], "a damaged file", damage, data)
        with open(foreign, encoding="utf-8") as f:
            check(f.read() == "mine", "somebody else's file stays")


def test_strict():
    with Server("--strict-model", "-q", "-c", "512") as s:
        m = user("x")
        status, data = s.post(CHAT, {"model": "gpt-4o", "messages": m})
        check(status == 404 and data["error"]["code"] == "model_not_found", "another model's name", data)
        check(s.get("/v1/models/x")[0] == 404 and s.get("/v1/models/pocket")[0] == 200, "one model")
        for path in ("/api/chat", "/api/generate"):
            status, data = s.post(path, {"model": "gpt-4o"})
            check(status == 404 and "gpt-4o" in data["error"], "another model is loaded", path, status, data)
            check(s.post(path, {"model": "pocket"})[1].get("done_reason") == "load", "this one is", path)
        for name in ("pocket", "pocket:latest"):
            check(s.post(CHAT, {"model": name, "messages": m, "max_tokens": 1})[0] == 200, "the right name", name)
    check(not "".join(s.log), "-q writes no lines", s.log)


def stopped_while_answering():
    """Seconds that SIGTERM takes during an answer that does not end by itself so soon, and what its client got."""
    with Server("--sessions", "1", "-c", "4096", "--draft", "off", "-q") as s:
        c, got = s.connect(), []
        c.request("POST", "/v1/completions", json.dumps(
            {"prompt": "1 2 1 2 1 2 1 2 1 2 1 2", "temperature": 0, "max_tokens": 4000, "stream": True}))
        response = c.getresponse()

        def read():
            try:
                got.extend(response)
            except (OSError, http.client.HTTPException):
                pass  # cut

        reader = threading.Thread(target=read)
        reader.start()
        start = time.monotonic()
        s.stop()
        took = time.monotonic() - start
        reader.join()
    return took, b"".join(got)


def test_stop():
    """The end of a server: what runs is finished or cut, all within 5 s."""
    seen = []
    for _ in range(5):  # a machine that does other things
        took, text = stopped_while_answering()
        seen.append((took, text[-200:]))
        soon, said = took < (60 if SAN else 5), b"[DONE]" in text or b"shutting down" in text
        if soon and said:
            break
    check(soon and said, "SIGTERM ends within 5 s, and the stream says how it ended", seen)
