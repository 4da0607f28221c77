# SPDX-License-Identifier: MIT
"""About 300 JSON schemas, written for it and made by pydantic if it is there, each answered at temperature 1.5: every answer
that was not cut off parses and validates with PyPI's jsonschema. Then the same through all APIs, streams, n, strict tools."""
import itertools
import json
import random

import jsonschema

from serve_lib import PROGRAM, Server, check, finish, user

CHAT = "/v1/chat/completions"
STRINGS = [{}, {"maxLength": 8}, {"minLength": 3, "maxLength": 5}, {"pattern": "^[A-Z]{2}-[0-9]{1,4}$"}, {"pattern": "^a.*z$", "maxLength": 12},
           {"pattern": "(foo|bar)[0-9]?$", "maxLength": 20}, {"pattern": "^\\w+( \\w+){0,2}$", "maxLength": 16}, {"pattern": "^[^\"\\\\]{4}$"},
           {"pattern": "^(\\+49|0)[1-9]\\d{3,8}$"}, {"pattern": "^\\S{1,6}$"}, {"enum": ["red", "green", "b\"l\\ue", "\u00e9t\u00e9"]},
           *({"format": f} for f in ("date", "time", "date-time", "uuid", "email", "ipv4", "ipv6", "hostname", "uri", "duration"))]
NUMBERS = [{}, {"minimum": 0, "maximum": 150}, {"minimum": -7, "exclusiveMaximum": 3}, {"exclusiveMinimum": 0}, {"maximum": -1},
           {"minimum": 1990, "maximum": 2030}, {"minimum": 99999, "maximum": 1000001}, {"multipleOf": 5, "minimum": 10}]
REALS = [{"minimum": 0, "maximum": 1}, {"minimum": -273.15}, {"exclusiveMinimum": 0, "exclusiveMaximum": 0.25}, {"minimum": 1.5, "maximum": 1.75}]
SCALARS = ([{"type": "string", **s} for s in STRINGS] + [{"type": "integer", **n} for n in NUMBERS] +
           [{"type": "number", **n} for n in NUMBERS + REALS] + [{"type": "boolean"}, {"type": "null"}, {"const": {"a": [1, None]}},
           {"enum": [1, "x", None, True, 2.5]}, {"type": ["string", "null"], "maxLength": 5}, {"type": ["integer", "boolean"]}])
NODE = {"$defs": {"node": {"type": "object", "properties": {"v": {"type": "integer", "minimum": 0, "maximum": 9}, "next": {
    "anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}}, "required": ["v", "next"], "additionalProperties": False}}, "$ref": "#/$defs/node"}


def closed(properties, required=None, **more):
    return {"type": "object", "properties": properties, "required": list(properties) if required is None else required,
            "additionalProperties": False, **more}


def written():
    rng = random.Random(5)
    yield from SCALARS
    for s in SCALARS:
        yield {"type": "array", "items": s, "minItems": 1, "maxItems": 3}
        yield closed({"value": s, "more": rng.choice(SCALARS)}, ["value"])
    for i in range(90):
        members = {f"k{j}": rng.choice(SCALARS) for j in range(rng.randint(0, 6))}
        members["list"] = {"type": "array", "prefixItems": [rng.choice(SCALARS), rng.choice(SCALARS)], "items": i % 3 == 0, "maxItems": 3}
        yield closed(members, [k for k in members if rng.random() < .6])
    for a, b in itertools.islice(itertools.combinations(SCALARS, 2), 0, 400, 10):
        yield {"anyOf": [a, closed({"in": b})]}
        yield closed({"x": {"anyOf": [a, b, {"type": "null"}]}})
    yield NODE
    yield {"oneOf": [closed({"kind": {"const": "a"}, "n": {"type": "integer"}}), closed({"kind": {"const": "b"}, "s": {"type": "string", "maxLength": 4}})]}
    yield {"allOf": [closed({"a": {"type": "integer", "minimum": 2}}), {"properties": {"a": {"maximum": 9}}}]}
    yield {"type": "object", "additionalProperties": {"type": "integer", "minimum": 1, "maximum": 3}, "properties": {"a": {"type": "null"}}}
    yield {"type": "object", "patternProperties": {"^x[0-9]{1,2}$": {"type": "boolean"}}, "additionalProperties": False}
    yield {"type": "object", "propertyNames": {"enum": ["u", "v"]}, "additionalProperties": {"type": "boolean"}}


def by_pydantic():
    try:
        from pydantic import BaseModel, Field, conint, constr
    except ImportError:
        print("no pydantic: its schemas are left out")
        return
    import datetime
    import enum
    import typing
    import uuid

    class Colour(enum.Enum):
        RED = "red"
        BLUE = "blue"

    class Address(BaseModel):
        """Where somebody lives."""
        street: constr(min_length=1, max_length=10)
        zip: constr(pattern=r"^\d{5}$")
        country: typing.Literal["DE", "FR"] = "DE"

    class Cat(BaseModel):
        kind: typing.Literal["cat"]
        lives: conint(ge=1, le=9)

    class Dog(BaseModel):
        kind: typing.Literal["dog"] = "dog"
        name: constr(max_length=6)

    class Person(BaseModel):
        name: str = Field(max_length=12, description="full name")
        age: typing.Optional[conint(ge=0, lt=130)] = None
        address: Address
        colours: list[Colour] = Field(max_length=2)

    class Event(BaseModel):
        id: uuid.UUID
        day: datetime.date
        at: datetime.datetime
        score: float = Field(ge=0, le=1)
        point: tuple[int, float]
        labels: dict[str, conint(ge=0, le=5)]

    class Tree(BaseModel):
        v: conint(ge=0, le=3)
        children: list["Tree"] = Field(max_length=2)

    class Zoo(BaseModel):
        pets: list[typing.Annotated[typing.Union[Cat, Dog], Field(discriminator="kind")]] = Field(max_length=2)
        owner: typing.Union[Person, str, None]

    for model in (Address, Cat, Dog, Person, Event, Tree, Zoo):
        yield model.model_json_schema()


def valid(schema, text, *what):
    try:
        value = json.loads(text)
        jsonschema.Draft202012Validator(schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER).validate(value)
    except (ValueError, jsonschema.ValidationError) as e:
        return check(False, "an answer is not valid:", str(e)[:200], text[:300], json.dumps(schema)[:300], *what)
    return check(True)


def form(schema):
    return {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}}


def test_all(s):
    ended = cut = 0
    step = 20 if "san-" in PROGRAM else 1  # sanitizers are ten times slower
    for i, schema in enumerate([*written(), *by_pydantic()][::step]):
        status, data = s.post(CHAT, {"messages": user("Define river."), "temperature": 1.5, "top_p": 1, "seed": i, "max_tokens": 200,
                                     "n": 2, "enable_thinking": False, "response_format": form(schema)})
        if not check(status == 200, "a schema is taken:", status, data, json.dumps(schema)[:300]):
            continue
        for choice in data["choices"]:
            if choice["finish_reason"] == "length":
                cut += 1
            elif check(choice["finish_reason"] == "stop", "ends by itself:", choice):
                ended += 1
                valid(schema, choice["message"]["content"], "seed", i)
    print(f"{i + 1} schemas, {ended} answers ended, {cut} were cut by max_tokens")
    check(ended > 3 * cut, "most answers end", ended, cut)


def test_ways(s):
    schema = closed({"name": {"type": "string", "maxLength": 12}, "n": {"type": "integer", "minimum": 0, "maximum": 99}})
    body = {"messages": user("Define river."), "temperature": 1.5, "seed": 3, "response_format": form(schema)}
    status, whole = s.post(CHAT, {**body, "logprobs": True, "top_logprobs": 2})
    message = whole["choices"][0]["message"]
    check(status == 200 and message["reasoning_content"], "the reasoning is free", whole)
    valid(schema, message["content"])
    check("".join(t["token"] for t in whole["choices"][0]["logprobs"]["content"]) == message["content"], "logprobs are of the text", whole)
    pieces = [d["choices"][0]["delta"].get("content", "") for _, d in s.stream(CHAT, body) if d != "[DONE]" and d["choices"]]
    check("".join(pieces) == message["content"], "a stream is the same answer", pieces, message)
    status, data = s.post(CHAT, {**body, "response_format": {"type": "json_object"}, "max_tokens": 400})
    if data["choices"][0]["finish_reason"] == "stop":
        valid({"type": "object"}, data["choices"][0]["message"]["content"])
    flat = {"type": "json_schema", "name": "x", "schema": schema}
    data = s.post("/v1/responses", {"input": "Define river.", "text": {"format": flat}})[1]
    valid(schema, data["output"][-1]["content"][0]["text"], "responses")
    for extra in ({"output_config": {"format": flat}}, {"output_format": flat}):
        data = s.post("/v1/messages", {"messages": user("Define river."), "max_tokens": 300, **extra})[1]
        valid(schema, data["content"][-1]["text"], "messages")
    status, data = s.post(CHAT, {**body, "max_tokens": 3, "enable_thinking": False})
    check(data["choices"][0]["finish_reason"] == "length", "cut is cut", data)


def test_strict_tools(s):
    parameters = closed({"a": {"type": "integer", "minimum": -5, "maximum": 5}, "unit": {"type": "string", "enum": ["C", "F"]},
                         "day": {"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}]}, "tags": {"$ref": "#/$defs/tags"},
                         "code": {"type": "string", "pattern": "^[0-9]{3}$"}},
                        **{"$defs": {"tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2}}})
    tool = {"type": "function", "function": {"name": "add", "strict": True, "parameters": parameters}}
    anthropic = {"name": "add", "strict": True, "input_schema": parameters}
    for seed in range(20):
        body = {"messages": user("Weather in Paris?"), "temperature": 1.5, "seed": seed, "max_tokens": 300}
        data = s.post(CHAT, {**body, "tools": [tool], "tool_choice": "required"})[1]
        if data["choices"][0]["finish_reason"] == "tool_calls":
            valid(parameters, data["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"], "strict", seed)
        data = s.post("/v1/messages", {**body, "tools": [anthropic], "tool_choice": {"type": "any"}})[1]
        if data["stop_reason"] == "tool_use":
            valid(parameters, json.dumps(data["content"][-1]["input"]), "strict, messages", seed)


def test_sampling(s):
    body = {"messages": user("Define river."), "temperature": 0, "enable_thinking": False, "max_tokens": 40}
    plain = s.post(CHAT, body)[1]["choices"][0]
    tokens = s.post("/tokenize", {"content": plain["message"]["content"]})[1]["tokens"]
    first = s.post(CHAT, {**body, "logit_bias": {str(tokens[0]): -100}})[1]["choices"][0]["message"]["content"]
    check(not first.startswith(plain["message"]["content"][:3]), "a bias of -100 bans a token", first)
    forced = s.post(CHAT, {**body, "logit_bias": {str(tokens[2]): 100}, "max_tokens": 5})[1]["choices"][0]
    again = s.post("/tokenize", {"content": forced["message"]["content"]})[1]["tokens"]
    check(again == [tokens[2]] * 5, "a bias of 100 forces one", forced, again)
    stopped = s.post(CHAT, {**body, "stop_token_ids": [tokens[3]]})[1]
    check(stopped["choices"][0]["finish_reason"] == "stop" and stopped["usage"]["completion_tokens"] == 3, "stop_token_ids", stopped)
    for more in ({"ignore_eos": True}, {"min_tokens": 40}):
        data = s.post(CHAT, {**body, **more})[1]
        check(data["usage"]["completion_tokens"] == 40 and data["choices"][0]["finish_reason"] == "length", "goes on:", more, data)
        check("<|" not in data["choices"][0]["message"]["content"], "control tokens are no text:", data)
    for more in ({"frequency_penalty": 2}, {"presence_penalty": 2}, {"repetition_penalty": 5}, {"repeat_penalty": 5}):
        base = s.post(CHAT, {**body, "logit_bias": {str(tokens[2]): 20}, "max_tokens": 30})[1]["choices"][0]["message"]["content"]
        data = s.post(CHAT, {**body, "logit_bias": {str(tokens[2]): 20}, "max_tokens": 30, **more})[1]["choices"][0]["message"]["content"]
        check(len(set(data)) >= len(set(base)) and (data != base or "presence_penalty" in more), "a penalty changes the answer:", more, data, base)


with Server() as server:
    for test in (test_ways, test_strict_tools, test_sampling, test_all):
        test(server)
finish()
