"""Text to ids and back: the bodies of /tokenize and /detokenize."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from infctl_daemon.engine.sim.model import render_chat
from infctl_daemon.engine.sim.schema import Malformed, wrong
from infctl_daemon.engine.sim.tools import refusal

_ROLES = ("system", "user", "assistant", "tool", "function", "developer")


class BadRequest(Exception):
    """A well-formed call that cannot be answered (HTTP 400 in OpenAI's shape)."""


def tokenize(body: Any, encode: Callable[[str], list[int]], context: int) -> dict[str, Any]:
    """Ids of a prompt, of several, or of a chat; raises `Malformed` or `BadRequest`."""
    prompt, messages = (body.get("prompt"), body.get("messages")) if isinstance(body, dict) else (None, None)
    if (prompt is None) == (messages is None):
        raise Malformed(
            "'type': 'value_error', 'loc': ('body',), "
            "'msg': \"Value error, Exactly one of 'prompt' or 'messages' must be provided.\""
        )
    tokens: list[Any]
    if messages is not None:
        tokens = _chat(body, encode)
    elif isinstance(prompt, str):
        tokens = encode(prompt)
    elif isinstance(prompt, list) and all(isinstance(p, str) for p in prompt):
        tokens = [encode(p) for p in prompt]
    else:
        raise Malformed(
            f"'type': 'string_type', 'loc': ('body', 'prompt', 'str'), "
            f"'msg': 'Input should be a valid string', 'input': {prompt!r}"
        )
    many = bool(tokens) and isinstance(tokens[0], list)
    count = list(map(len, tokens)) if many else len(tokens)
    return {"tokens": tokens, "count": count, "max_model_len": context}


def _chat(body: dict[str, Any], encode: Callable[[str], list[int]]) -> list[int]:
    """Ids of a conversation. A last word of the assistant becomes the user's unless the caller says what to do."""
    messages, tools = body["messages"], body.get("tools")
    for field, value in (("messages", messages), ("tools", tools or [])):
        if not isinstance(value, list):
            wrong(field, "list_type", "a valid list", value)
    for number, message in enumerate(messages):
        _check_message(number, message)
    if not messages:
        raise BadRequest("Messages cannot be empty.")
    if problem := refusal(tools or []):
        raise BadRequest(problem)
    given, going_on = body.get("add_generation_prompt"), bool(body.get("continue_final_message"))
    if going_on and given is False:
        raise BadRequest("continue_final_message needs add_generation_prompt to open the assistant turn.")
    prefix = ""
    last = messages[-1]
    if (given is None or going_on) and last["role"] == "assistant" and isinstance(last.get("content"), str):
        prefix = last["content"] if going_on else ""
        messages = messages[:-1] if going_on else [*messages[:-1], {**last, "role": "user"}]
    return encode(render_chat(messages, tools, given is not False)) + (encode(prefix) if prefix else [])


def _check_message(number: int, message: Any) -> None:
    role = message.get("role") if isinstance(message, dict) else None
    if role not in _ROLES:
        problem = f"\"Value error, 'role' must be one of {', '.join(map(repr, _ROLES))} (case-insensitive).\""
        raise Malformed(f"'type': 'value_error', 'loc': ('body', 'messages', {number}, 'role'), 'msg': {problem}")
    if role != "assistant" and message.get("content") is None:
        raise Malformed(f"'type': 'missing', 'loc': ('body', 'messages', {number}, 'content'), 'msg': 'Field required'")


def detokenize(body: Any, tokenizer: Any) -> dict[str, Any]:
    """Text of ids, or of several lists of them; raises `Malformed`."""
    tokens = body.get("tokens") if isinstance(body, dict) else None
    if not isinstance(tokens, list) or not all(isinstance(t, int | list) for t in tokens):
        raise Malformed(
            f"'type': 'list_type', 'loc': ('body', 'tokens', 'list[int]'), "
            f"'msg': 'Input should be a valid list', 'input': {tokens!r}"
        )
    skip = body.get("skip_special_tokens", True)
    if tokens and isinstance(tokens[0], list):
        return {"text": [tokenizer.decode(t, skip_special_tokens=skip) for t in tokens]}
    return {"text": tokenizer.decode(tokens, skip_special_tokens=skip)}
