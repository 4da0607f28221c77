# SPDX-License-Identifier: MIT
"""Other programs' ways to a server, each with its own library, unchanged: ollama, langchain-openai, instructor, pydantic-ai,
llm, litellm, aider. Those that are not installed in this Python are left out; a part of serve_clients.py."""
import importlib.util
import json
import os
import subprocess
import sys
import tempfile

from serve_lib import WEATHER, check, user

CITY_SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 20}, "rainy": {"type": "boolean"}},
               "required": ["city", "rainy"], "additionalProperties": False}
DEFINE = "Define river."
KNOWN = "river (noun)"
ASKS_WEATHER = "What is the weather in Paris?"


def has(module):
    return importlib.util.find_spec(module) is not None


def is_city(v):
    return isinstance(v, dict) and set(v) == {"city", "rainy"} and isinstance(v["city"], str) and isinstance(v["rainy"], bool)


def city_model(strict=True):
    """The schema as a pydantic class. Not strict: text only, for calls whose values are up to the (very small) model."""
    from pydantic import BaseModel, Field

    class Name(BaseModel):
        """Where the weather is asked for"""
        city: str

    class City(BaseModel):
        """Where the weather is asked for"""
        city: str = Field(max_length=20)
        rainy: bool

    return City if strict else Name


def client_openai(s):
    """Structured answers only; serve_clients.py has the rest."""
    import openai
    city = city_model()
    c = openai.OpenAI(base_url=s.url + "/v1", api_key="secret", max_retries=0)
    r = c.chat.completions.parse(model="gpt-4o", messages=user(ASKS_WEATHER), response_format=city, temperature=0)
    check(isinstance(r.choices[0].message.parsed, city), "openai: parse", r)
    r = c.responses.parse(model="gpt-5", input=ASKS_WEATHER, text_format=city, temperature=0)
    check(isinstance(r.output_parsed, city), "openai: responses.parse", r)
    r = c.chat.completions.create(model="gpt-4o", messages=user(ASKS_WEATHER), response_format={"type": "json_object"},
                                  temperature=0, max_tokens=200)
    check(r.choices[0].finish_reason == "length" or isinstance(json.loads(r.choices[0].message.content), dict),
          "openai: json_object", r)


def client_anthropic(s):
    """Structured answers only; serve_clients.py has the rest."""
    import anthropic
    a = anthropic.Anthropic(base_url=s.url, api_key="secret", max_retries=0)
    r = a.messages.create(model="claude-opus-9", max_tokens=200, messages=user(ASKS_WEATHER),
                          output_config={"format": {"type": "json_schema", "schema": CITY_SCHEMA}})
    check(is_city(json.loads(r.content[-1].text)), "anthropic: output_config.format", r)


def client_ollama(s):
    import ollama
    c = ollama.Client(host=s.url, headers={"Authorization": "Bearer secret"})
    r = c.chat(model="llama3", messages=user(DEFINE), options={"temperature": 0, "num_ctx": 8192})
    check(KNOWN in r.message.content and r.done and r.eval_count > 3, "ollama: chat", r)
    parts = list(c.chat(model="llama3", messages=user(DEFINE), stream=True, options={"temperature": 0}))
    check("".join(p.message.content for p in parts) == r.message.content and parts[-1].done, "ollama: stream", parts[-1])
    g = c.generate(model="llama3", prompt=DEFINE, think=False, options={"temperature": 0, "num_predict": 5})
    check(g.response and g.done_reason == "length", "ollama: generate", g)

    def get_weather(city: str) -> str:
        """Get the weather in a city

        Args:
          city: Name of the city
        """
        return f"rainy in {city}, 18 degrees"

    talk = user(ASKS_WEATHER)
    r = c.chat(model="llama3", messages=talk, tools=[get_weather], options={"temperature": 0})
    call = r.message.tool_calls[0].function
    check(call.name == "get_weather" and call.arguments == {"city": "Paris"}, "ollama: a call", r)
    talk += [r.message, {"role": "tool", "tool_name": call.name, "content": get_weather(**call.arguments)}]
    r = c.chat(model="llama3", messages=talk, tools=[get_weather], options={"temperature": 0})
    check("18" in r.message.content, "ollama: its result", r)
    r = c.chat(model="llama3", messages=user(ASKS_WEATHER), format=CITY_SCHEMA, options={"temperature": 0})
    check(is_city(json.loads(r.message.content)), "ollama: format", r)
    r = c.generate(model="llama3", prompt=ASKS_WEATHER, format=city_model().model_json_schema(), options={"temperature": 0})
    check(is_city(json.loads(r.response)), "ollama: generate with a format", r)
    check(c.list().models[0].model == "pocket" and c.ps().models[0].context_length == 4096 and
          "tools" in c.show("pocket").capabilities, "ollama: about the model")
    for call in (lambda: c.embed(model="x", input="y"), lambda: c.pull("x"), lambda: c.delete("x"),
                 lambda: c.chat(model="x", messages=[{"role": "user", "content": "x", "images": [b"a"]}])):
        try:
            check(False, "ollama: no error", call())
        except ollama.ResponseError as e:
            check(e.status_code == 400 and len(e.error) > 20, "ollama: a reason", e)


def client_langchain_openai(s):
    from langchain_core.messages import ToolMessage
    from langchain_openai import ChatOpenAI
    m = ChatOpenAI(model="gpt-4o", base_url=s.url + "/v1", api_key="secret", temperature=0, max_retries=0)
    r = m.invoke(DEFINE)
    check(KNOWN in r.content and r.usage_metadata["output_tokens"] > 3, "langchain: invoke", r)
    check("".join(p.content for p in m.stream(DEFINE)) == r.content, "langchain: stream")
    tools = m.bind_tools([WEATHER])
    r = tools.invoke(ASKS_WEATHER)
    check(r.tool_calls[0]["name"] == "get_weather" and r.tool_calls[0]["args"] == {"city": "Paris"}, "langchain: a call", r)
    streamed = None
    for part in tools.stream(ASKS_WEATHER):
        streamed = part if streamed is None else streamed + part
    check(streamed.tool_calls[0]["args"] == {"city": "Paris"}, "langchain: a streamed call", streamed)
    after = tools.invoke([("user", ASKS_WEATHER), r, ToolMessage("rainy, 18 degrees", tool_call_id=r.tool_calls[0]["id"])])
    check("18" in after.content, "langchain: its result", after)
    for how in ({}, {"method": "function_calling", "strict": True}):  # {}: the default, json_schema
        got = m.with_structured_output(city_model(), **how).invoke(ASKS_WEATHER)
        check(is_city(got.model_dump()), "langchain: with_structured_output", how, got)
    r = ChatOpenAI(model="gpt-4o", base_url=s.url + "/v1", api_key="secret", temperature=0, use_responses_api=True,
                   use_previous_response_id=True, max_retries=0)
    first = r.invoke(DEFINE)
    second = r.invoke([("user", DEFINE), first, ("user", "Define lake.")])
    check(KNOWN in str(first.content) and second.content, "langchain: responses, and what goes on", first, second)


def client_instructor(s):
    import instructor
    import openai
    c = openai.OpenAI(base_url=s.url + "/v1", api_key="secret", max_retries=0)
    for mode, strict in ((instructor.Mode.TOOLS, False), (instructor.Mode.TOOLS_STRICT, False),
                         (instructor.Mode.JSON_SCHEMA, True)):
        got = instructor.from_openai(c, mode=mode).chat.completions.create(
            model="gpt-4o", messages=user(ASKS_WEATHER), response_model=city_model(strict), temperature=0, max_retries=0)
        check(got.city, "instructor:", mode, got)


def client_pydantic_ai(s):
    from pydantic_ai import Agent, NativeOutput
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider
    model = OpenAIChatModel("gpt-4o", provider=OpenAIProvider(base_url=s.url + "/v1", api_key="secret"))
    settings = {"temperature": 0}
    check(KNOWN in Agent(model, model_settings=settings).run_sync(DEFINE).output, "pydantic-ai: text")

    for output in (city_model(strict=False), NativeOutput(city_model())):
        got = Agent(model, output_type=output, model_settings=settings).run_sync(ASKS_WEATHER).output
        check(got.city, "pydantic-ai: an output type", got)


def client_llm(s):
    with tempfile.TemporaryDirectory() as home:
        with open(os.path.join(home, "extra-openai-models.yaml"), "w", encoding="utf-8") as f:
            f.write(f"- model_id: here\n  model_name: gpt-4o\n  api_base: {s.url}/v1\n  api_key_name: here\n"
                    "  supports_tools: true\n  supports_schema: true\n")
        env = {**os.environ, "LLM_USER_PATH": home}
        ask = [sys.executable, "-m", "llm", "-m", "here", "--key", "secret", "-o", "temperature", "0"]
        for extra in ([], ["--no-stream"]):
            r = subprocess.run(ask + extra + [DEFINE], env=env, capture_output=True, text=True, timeout=120)
            check(r.returncode == 0 and KNOWN in r.stdout, "llm", extra, r.stdout, r.stderr[-400:])
        r = subprocess.run(ask + ["--schema", json.dumps(CITY_SCHEMA), ASKS_WEATHER], env=env, capture_output=True,
                           text=True, timeout=120)
        check(r.returncode == 0 and is_city(json.loads(r.stdout)), "llm --schema", r.stdout, r.stderr[-400:])
        r = subprocess.run(ask + ["-c", "Define lake."], env=env, capture_output=True, text=True, timeout=120)
        check(r.returncode == 0 and "lake" in r.stdout, "llm goes on", r.stdout, r.stderr[-400:])


def client_litellm(s):
    import litellm
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    litellm.suppress_debug_info = True
    want = None
    for model, base in (("openai/gpt-4o", s.url + "/v1"), ("hosted_vllm/glm", s.url + "/v1"), ("anthropic/claude-x", s.url),
                        ("ollama_chat/glm", s.url)):
        r = litellm.completion(model=model, api_base=base, api_key="secret", messages=user(DEFINE), temperature=0,
                               max_tokens=60, num_retries=0)
        text = r.choices[0].message.content
        check(KNOWN in text, "litellm:", model, r)
        want = want or text
        parts = litellm.completion(model=model, api_base=base, api_key="secret", messages=user(DEFINE), temperature=0,
                                   max_tokens=60, stream=True, num_retries=0)
        streamed = "".join(p.choices[0].delta.content or "" for p in parts)
        check(KNOWN in streamed, "litellm, stream:", model, streamed)
    r = litellm.completion(model="openai/gpt-4o", api_base=s.url + "/v1", api_key="secret", messages=user(ASKS_WEATHER),
                           tools=[WEATHER], temperature=0, num_retries=0)
    j = litellm.completion(model="openai/gpt-4o", api_base=s.url + "/v1", api_key="secret", messages=user(ASKS_WEATHER),
                           response_format=city_model(), temperature=0, num_retries=0)
    check(is_city(json.loads(j.choices[0].message.content)), "litellm: response_format", j)
    check(r.choices[0].message.tool_calls[0].function.name == "get_weather", "litellm: a call", r)


def client_aider(s):
    """It offers no tools: what the model answers must be text, or aider says that there was none."""
    with tempfile.TemporaryDirectory() as home:
        env = {**os.environ, "HOME": home, "OPENAI_API_BASE": s.url + "/v1", "OPENAI_API_KEY": "secret",
               "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
        for question in ("Count the letters in banana.", ASKS_WEATHER):
            r = subprocess.run([sys.executable, "-m", "aider", "--model", "openai/gpt-x", "--no-git", "--yes-always",
                                "--no-show-model-warnings", "--no-check-update", "--analytics-disable", "--no-pretty",
                                "--no-fancy-input", "--no-detect-urls", "--map-tokens", "0", "--edit-format", "ask",
                                "--message", question],
                               env=env, cwd=home, capture_output=True, text=True, timeout=170)
            said = r.stdout + r.stderr
            check(r.returncode == 0 and "Empty response" not in said and "ANSWER" in said,
                  "aider", question, said[-1200:])


def all_clients(s):
    """Runs every client that is installed; returns their names."""
    done = []
    for module, test in (("openai", client_openai), ("anthropic", client_anthropic), ("ollama", client_ollama), ("langchain_openai", client_langchain_openai),
                         ("instructor", client_instructor), ("pydantic_ai", client_pydantic_ai), ("llm", client_llm),
                         ("litellm", client_litellm), ("aider", client_aider)):
        if not has(module):
            continue
        try:
            test(s)
        except Exception as e:  # pylint: disable=broad-except
            check(False, module, type(e).__name__, e)
        done.append(module)
        print("tried", module, flush=True)
    return done
