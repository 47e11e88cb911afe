"""Text to ids and back: the bodies of /tokenize and /detokenize."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from infctl_daemon.engine.sim.model import render_chat
from infctl_daemon.engine.sim.schema import Malformed


def tokenize(body: Any, encode: Callable[[str], list[int]], context: int) -> dict[str, Any]:
    """Ids of a prompt, of several, or of a chat; raises `Malformed`."""
    prompt, messages = (body.get("prompt"), body.get("messages")) if isinstance(body, dict) else (None, None)
    if (prompt is None) == (messages is None):
        raise Malformed(
            "'type': 'value_error', 'loc': ('body',), "
            "'msg': \"Value error, Exactly one of 'prompt' or 'messages' must be provided.\""
        )
    tokens: list[Any]
    if isinstance(messages, list):
        tokens = encode(render_chat(messages, body.get("tools"), body.get("add_generation_prompt", True)))
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
