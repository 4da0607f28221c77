# SPDX-License-Identifier: MIT
"""The official Python clients of OpenAI and Anthropic against the server: chat, streams, tools, stops, probabilities, errors,
an agent loop, and README's example word for word; and other programs (serve_clients_more.py). What is not installed is left
out; skips when nothing is (pip install openai anthropic)."""
import importlib.metadata
import json
import os
import re
import sys

from serve_clients_more import all_clients, has
from serve_lib import ROOT, TIME, WEATHER, Server, check, finish, skip, user

if has("openai"):
    import openai
if has("anthropic"):
    import anthropic

GREEDY = {"temperature": 0}
ANTHROPIC_WEATHER = {"name": "get_weather", "description": "Get the weather in a city",
                     "input_schema": WEATHER["function"]["parameters"]}


def openai_chat(c):
    r = c.chat.completions.create(model="pocket", messages=user("Define river."), **GREEDY)
    text = r.choices[0].message.content
    check(text.startswith("river (noun)") and r.choices[0].finish_reason == "stop", "chat", r)
    check(r.usage.total_tokens == r.usage.prompt_tokens + r.usage.completion_tokens, "usage", r.usage)
    stream = c.chat.completions.create(model="pocket", messages=user("Define river."), stream=True,
                                       stream_options={"include_usage": True}, **GREEDY)
    parts, usage = [], None
    for chunk in stream:
        if chunk.choices:
            parts.append(chunk.choices[0].delta.content or "")
        usage = chunk.usage or usage
    check("".join(parts) == text and usage.completion_tokens == r.usage.completion_tokens, "stream", parts)
    r = c.chat.completions.create(model="pocket", messages=user("Define river."), stop=["stream"], **GREEDY)
    check(r.choices[0].message.content == text[:text.index("stream")], "stop", r)
    r = c.chat.completions.create(model="pocket", messages=user("Define river."), logprobs=True, top_logprobs=2, **GREEDY)
    rows = r.choices[0].logprobs.content
    check("".join(x.token for x in rows) == text and len(rows[0].top_logprobs) == 2, "logprobs", rows[:2])
    r = c.chat.completions.create(model="pocket", messages=user("What is the weather in Paris?"), tools=[WEATHER],
                                  reasoning_effort="none", n=2, seed=1, max_completion_tokens=40)
    check(len(r.choices) == 2, "n", r)
    check(c.models.list().data[0].id == "pocket" and c.models.retrieve("pocket").id == "pocket", "models")
    r = c.completions.create(model="pocket", prompt="Define river.", max_tokens=5, logprobs=1, **GREEDY)
    check("".join(r.choices[0].logprobs.tokens) == r.choices[0].text, "completions", r)
    parts = [x.choices[0].text for x in c.completions.create(model="pocket", prompt="Define river.", max_tokens=5,
                                                             stream=True, **GREEDY)]
    check("".join(parts) == r.choices[0].text, "completions, stream", parts)


def openai_tools(c):
    messages = user("What is the weather in Paris?")
    r = c.chat.completions.create(model="pocket", messages=messages, tools=[WEATHER, TIME], **GREEDY)
    message = r.choices[0].message
    call = message.tool_calls[0]
    check(r.choices[0].finish_reason == "tool_calls" and call.function.name == "get_weather" and
          json.loads(call.function.arguments) == {"city": "Paris"}, "a call", r)
    messages += [message, {"role": "tool", "tool_call_id": call.id, "content": "rainy, 18 degrees"}]
    r = c.chat.completions.create(model="pocket", messages=messages, tools=[WEATHER, TIME], **GREEDY)
    check("18" in r.choices[0].message.content, "the result comes back", r)
    with c.chat.completions.stream(model="pocket", messages=user("What is the weather in Rome?"), tools=[WEATHER],
                                   **GREEDY) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion()
    check(json.loads(final.choices[0].message.tool_calls[0].function.arguments) == {"city": "Rome"}, "stream", final)


def openai_agent(c):
    """Twenty calls in a row. The client sends back what it got, without reasoning; nearly all is found computed."""
    messages, fresh = user("Find the weather in Paris, Rome, Oslo, Berlin and Madrid."), []
    for turn in range(20):
        r = c.chat.completions.create(model="pocket", messages=messages, tools=[WEATHER, TIME], tool_choice="required",
                                      parallel_tool_calls=False, **GREEDY)
        fresh.append(r.usage.prompt_tokens - r.usage.prompt_tokens_details.cached_tokens)
        message = r.choices[0].message
        if not check(message.tool_calls and len(message.tool_calls) == 1, "a call in turn", turn, r):
            return
        messages.append({"role": "assistant", "tool_calls": [t.model_dump() for t in message.tool_calls]})
        messages.append({"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": f"{turn} degrees"})
    check(max(fresh[1:]) <= 16, "prompt tokens computed in each turn:", fresh)
    print(f"agent loop of 20 calls: last prompt {r.usage.prompt_tokens} tokens; computed per turn: {fresh}")


def openai_responses(c):
    r = c.responses.create(model="pocket", input="Define river.", **GREEDY)
    check(r.status == "completed" and r.output_text.startswith("river (noun)"), "responses", r)
    types, text = [], ""
    for event in c.responses.create(model="pocket", input="Define river.", stream=True, **GREEDY):
        types.append(event.type)
        if event.type == "response.output_text.delta":
            text += event.delta
    check(text == r.output_text and types[0] == "response.created" and types[-1] == "response.completed", "events", types)
    tool = {"type": "function", **WEATHER["function"]}
    items = user("What is the weather in Paris?")
    with c.responses.stream(model="pocket", input=items, tools=[tool], **GREEDY) as stream:
        for _ in stream:
            pass
        first = stream.get_final_response()
    call = [i for i in first.output if i.type == "function_call"][0]
    check(call.name == "get_weather" and json.loads(call.arguments) == {"city": "Paris"}, "a call", first.output)
    items = items + [{k: v for k, v in i.model_dump(exclude_none=True).items() if k != "parsed_arguments"}
                     for i in first.output]
    items.append({"type": "function_call_output", "call_id": call.call_id, "output": "rainy, 18 degrees"})
    r = c.responses.create(model="pocket", input=items, tools=[tool], **GREEDY)
    check("18" in r.output_text, "the result comes back", r.output)
    fresh = r.usage.input_tokens - r.usage.input_tokens_details.cached_tokens
    check(fresh <= 20, "items sent back are found computed:", fresh)
    first = c.responses.create(model="gpt-5", input="Define river.", **GREEDY)
    check(c.responses.retrieve(first.id).output_text == first.output_text, "retrieve", first)
    r = c.responses.create(model="gpt-5", input="Define lake.", previous_response_id=first.id, **GREEDY)
    check(r.previous_response_id == first.id and [i.content[0].text for i in c.responses.input_items.list(r.id) if
          i.type == "message" and i.role == "user"] == ["Define lake.", "Define river."], "goes on", r)
    n = c.responses.input_tokens.count(model="gpt-5", input="Define lake.", previous_response_id=first.id).input_tokens
    check(n == r.usage.input_tokens, "input_tokens", n, r.usage)
    c.responses.delete(first.id)
    r = c.responses.create(model="pocket", input="Define river.", max_output_tokens=2, **GREEDY)
    check(r.status == "incomplete" and r.incomplete_details.reason == "max_output_tokens", "incomplete", r)


def openai_errors(s, c):
    for error, call in (
            (openai.NotFoundError, lambda: c.responses.retrieve("resp_1")),
            (openai.BadRequestError, lambda: c.embeddings.create(model="x", input="y")),
            (openai.BadRequestError, lambda: c.chat.completions.create(model="pocket", messages=[])),
            (openai.BadRequestError, lambda: c.chat.completions.create(model="pocket", messages=user("x"), temperature=9)),
            (openai.BadRequestError, lambda: c.chat.completions.create(
                model="pocket", messages=user("x"), response_format={"type": "json_schema", "json_schema": {
                    "name": "x", "schema": {"not": {}}}})),
            (openai.BadRequestError, lambda: c.chat.completions.create(model="pocket", messages=user("w " * 5000))),
            (openai.BadRequestError, lambda: c.responses.create(model="pocket", input="x", previous_response_id="r")),
            (openai.AuthenticationError, lambda: openai.OpenAI(
                base_url=s.url + "/v1", api_key="wrong", max_retries=0).models.list())):
        try:
            check(False, "no error:", error.__name__, call())
        except error as e:
            check(isinstance(e.body, dict) and e.body.get("message"), "the error's body", e.body)
        except Exception as e:  # pylint: disable=broad-except
            check(False, "expected", error.__name__, "found", type(e).__name__, e)


def anthropic_all(s):
    a = anthropic.Anthropic(base_url=s.url, api_key="secret", max_retries=0)
    hot = {"extra_body": GREEDY}
    m = a.messages.create(model="pocket", max_tokens=60, messages=user("Define river."), **hot)
    text = m.content[0].text
    check(text.startswith("river (noun)") and m.stop_reason == "end_turn" and len(m.content) == 1, "messages", m)
    with a.messages.stream(model="pocket", max_tokens=60, messages=user("Define river."), **hot) as stream:
        check("".join(stream.text_stream) == text, "stream")
        check(stream.get_final_message().usage.output_tokens == m.usage.output_tokens, "usage of a stream")
    m = a.messages.create(model="pocket", max_tokens=60, messages=user("Define river."), stop_sequences=["stream"], **hot)
    check(m.stop_reason == "stop_sequence" and m.content[0].text == text[:text.index("stream")], "stop", m)
    think = {"thinking": {"type": "enabled", "budget_tokens": 1024}, **hot}
    messages = user("What is the weather in Paris?")
    with a.messages.stream(model="pocket", max_tokens=2000, messages=messages, tools=[ANTHROPIC_WEATHER], **think) as stream:
        for _ in stream:
            pass
        m = stream.get_final_message()
    check([b.type for b in m.content] == ["thinking", "tool_use"] and m.stop_reason == "tool_use" and
          m.content[1].input == {"city": "Paris"}, "blocks", m)
    messages += [{"role": "assistant", "content": [b.model_dump(exclude_none=True) for b in m.content]},
                 {"role": "user", "content": [{"type": "tool_result", "tool_use_id": m.content[1].id,
                                               "content": "rainy, 18 degrees"}]}]
    m = a.messages.create(model="pocket", max_tokens=2000, messages=messages, tools=[ANTHROPIC_WEATHER], **think)
    check("18" in m.content[-1].text and m.usage.input_tokens <= 20, "the result comes back", m)
    m = a.messages.create(model="pocket", max_tokens=90, messages=user("Hello!"), tools=[ANTHROPIC_WEATHER],
                          tool_choice={"type": "any"}, **hot)
    check(m.content[-1].type == "tool_use", "any", m)
    plain = a.messages.create(model="pocket", max_tokens=1, messages=user("Define river."), **hot).usage
    check(a.messages.count_tokens(model="pocket", messages=user("Define river.")).input_tokens ==
          plain.input_tokens + plain.cache_read_input_tokens, "count_tokens", plain)
    check(a.models.list().data[0].id == "pocket", "models")
    info = a.models.retrieve("claude-opus-9")
    check(info.id == "claude-opus-9" and info.max_input_tokens == 4095 and info.max_tokens == 4096, "retrieve", info)
    m = a.messages.create(model="claude-opus-9", max_tokens=60, **hot, messages=user("Define river.") + [
        {"role": "assistant", "content": text[:12]}])
    check(m.content[0].text and m.stop_reason == "end_turn", "a given beginning", m)
    for error, call in (
            (anthropic.BadRequestError, lambda: a.messages.create(model="pocket", max_tokens=5, messages=[])),
            (anthropic.AuthenticationError, lambda: anthropic.Anthropic(
                base_url=s.url, api_key="wrong", max_retries=0).models.list())):
        try:
            check(False, "no error:", error.__name__, call())
        except error as e:
            check(e.body["type"] == "error" and e.body["error"]["message"], "the error's body", e.body)
        except Exception as e:  # pylint: disable=broad-except
            check(False, "expected", error.__name__, "found", type(e).__name__, e)


def readme_example():
    """The python block of README that uses the client, with nothing changed but the port."""
    with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as f:
        blocks = re.findall(r"((?:^    .*\n|^\n)+)", f.read(), re.M)
    code = [b for b in blocks if "from openai import" in b]
    if not check(len(code) == 1, "README has one example with the openai client, found", len(code)):
        return
    lines = "\n".join(line[4:] for line in code[0].splitlines())
    with Server("-q", "-c", "1024") as s:
        said = []
        check("127.0.0.1:8080" in lines, "the example uses the default port")
        names = {"print": lambda *a, **k: said.append(" ".join(map(str, a)))}
        exec(compile(lines.replace("127.0.0.1:8080", f"127.0.0.1:{s.port}"), "README", "exec"), names)  # pylint: disable=exec-used
        check("river (noun)" in "".join(said), "README's example prints a definition", said)


def main():
    done = []
    with Server("--sessions", "4", "-c", "4096", "--api-key", "secret", "-q") as s:
        if has("openai") and has("anthropic"):
            c = openai.OpenAI(base_url=s.url + "/v1", api_key="secret", max_retries=0)
            openai_chat(c)
            openai_tools(c)
            openai_agent(c)
            openai_responses(c)
            openai_errors(s, c)
            anthropic_all(s)
            done += ["openai", "anthropic"]
        done += all_clients(s)
    if not done:
        skip("no client is installed; pip install openai anthropic")
    if "anthropic" in done:
        readme_example()
    for name in done:
        try:
            print(name, importlib.metadata.version({"aider": "aider-chat", "pydantic_ai": "pydantic-ai-slim"}.get(name, name)))
        except importlib.metadata.PackageNotFoundError:
            print(name)
    print("python", sys.version.split()[0])
    finish()


main()
