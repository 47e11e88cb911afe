"""Messages to ids by /tokenize: what a gateway gets that lets the engine render its chat template."""

from typing import Any

import pytest

from tests.conformance.engines import Engine

USER = {"role": "user", "content": "the worker"}
SAID = {"role": "assistant", "content": "sends"}
TOOL = {"type": "function", "function": {"name": "look", "description": "d", "parameters": {"type": "object"}}}


async def tokenize(engine: Engine, **content: Any) -> tuple[int, dict[str, Any]]:
    async with engine.client() as client:
        answer = await client.post("/tokenize", json=content)
    return answer.status_code, answer.json()


async def text(engine: Engine, **content: Any) -> str:
    """What the ids of these messages say. Both templates write <|role|>, a line, <|end|>."""
    status, body = await tokenize(engine, **content)
    assert status == 200, body
    assert body["count"] == len(body["tokens"])
    async with engine.client() as client:
        answer = await client.post("/detokenize", json={"tokens": body["tokens"], "skip_special_tokens": False})
    return str(answer.json()["text"])


def line(role: str, content: str) -> str:
    return f"<|{role}|>\n{content}<|end|>\n"


OPEN = "<|assistant|>\n"


async def test_a_conversation_ends_with_an_open_turn(engine: Engine):
    assert await text(engine, messages=[USER]) == line("user", "the worker") + OPEN
    conversation = [{"role": "system", "content": "be"}, USER, SAID, {"role": "user", "content": "on"}]
    expected = line("system", "be") + line("user", "the worker") + line("assistant", "sends") + line("user", "on")
    assert await text(engine, messages=conversation) == expected + OPEN


async def test_last_word_of_an_assistant_counts_as_the_users(engine: Engine):
    assert await text(engine, messages=[USER, SAID]) == line("user", "the worker") + line("user", "sends") + OPEN


async def test_unless_the_generation_prompt_is_spelled_out(engine: Engine):
    both = line("user", "the worker") + line("assistant", "sends")
    assert await text(engine, messages=[USER, SAID], add_generation_prompt=False) == both
    assert await text(engine, messages=[USER, SAID], add_generation_prompt=True) == both + OPEN


async def test_last_message_can_be_continued(engine: Engine):
    expected = line("user", "the worker") + OPEN + "sends"
    assert await text(engine, messages=[USER, SAID], continue_final_message=True) == expected


async def test_parts_of_a_message_are_joined_by_a_space(engine: Engine):
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert await text(engine, messages=[{"role": "user", "content": parts}]) == line("user", "a b") + OPEN


async def test_calls_and_results_of_tools(engine: Engine):
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    messages = [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "seen", "tool_call_id": "c"},
    ]
    expected = line("user", "the worker") + line("assistant", "") + line("tool", "seen") + OPEN
    assert (await text(engine, messages=messages)).endswith(expected)


async def test_tools_are_taken(engine: Engine):
    """Whether they show is the template's business: the real engine's tiny model leaves them out."""
    plain = await text(engine, messages=[USER])
    assert (await text(engine, messages=[USER], tools=[TOOL])).endswith(plain)
    if engine.kind == "sim":
        assert '"look"' in await text(engine, messages=[USER], tools=[TOOL])


async def test_the_models_name_does_not_matter(engine: Engine):
    assert await text(engine, model="other", messages=[USER]) == await text(engine, messages=[USER])


async def test_no_messages(engine: Engine):
    status, body = await tokenize(engine, messages=[])
    error = {"message": "Messages cannot be empty.", "type": "BadRequestError", "param": None, "code": 400}
    assert (status, body) == (400, {"object": "error", **error})


async def test_a_turn_cannot_be_continued_that_is_not_opened(engine: Engine):
    status, body = await tokenize(
        engine, messages=[USER, SAID], continue_final_message=True, add_generation_prompt=False
    )
    assert status == 400
    assert body["message"] == "continue_final_message needs add_generation_prompt to open the assistant turn."


@pytest.mark.parametrize(
    ("content", "field"),
    [
        ({"messages": "x"}, "messages"),
        ({"messages": [USER], "tools": "x"}, "tools"),
        ({"messages": [{"role": "bad", "content": "x"}]}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages"),
    ],
)
async def test_what_does_not_fit_the_schema(engine: Engine, content: dict[str, Any], field: str):
    status, body = await tokenize(engine, **content)
    assert status == 400
    assert body["type"] == "Bad Request"
    assert f"'loc': ('body', '{field}'" in body["message"]


def tool(**parameters: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "look", "parameters": parameters}}


@pytest.mark.parametrize(
    ("parameters", "problem"),
    [
        ({"type": "magic"}, "'magic' is not valid under any of the given schemas"),
        ({"type": ["string", "magic"]}, "['string', 'magic'] is not valid under any of the given schemas"),
        ({"type": 5}, "5 is not valid under any of the given schemas"),
        ({"type": "object", "properties": {"a": {"type": "magic"}}}, "'magic' is not valid under any"),
        ({"type": "object", "properties": []}, "[] is not of type 'object'"),
        ({"type": "object", "properties": {"a": 5}}, "5 is not of type 'object', 'boolean'"),
        ({"type": "object", "required": "a"}, "'a' is not of type 'array'"),
        ({"type": "object", "required": [5]}, "5 is not of type 'string'"),
        ({"anyOf": [{"items": {"type": "internal"}}]}, "'internal' is not valid under any"),
    ],
)
async def test_parameters_of_a_tool_that_are_no_schema(engine: Engine, parameters: dict[str, Any], problem: str):
    status, body = await tokenize(engine, messages=[USER], tools=[TOOL, tool(**parameters)])
    assert status == 400
    assert body["message"].startswith(f"Tool 1 function has invalid 'parameters' schema: {problem}")


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"type": "object", "properties": {"a": {"type": ["string", "null"]}, "b": True}, "required": ["a"]},
        {
            "type": "object",
            "properties": {"a": {"type": "varchar(255)"}, "b": {"type": "Int32"}, "c": {"type": "list[str]"}},
        },
        {"type": "object", "additionalProperties": {"type": "UUID"}},
    ],
)
async def test_parameters_of_a_tool_that_pass(engine: Engine, parameters: dict[str, Any]):
    status, body = await tokenize(engine, messages=[USER], tools=[tool(**parameters)])
    assert status == 200, body
