"""The body of `POST /v1/chat/completions`: what a worker renders to ids, and what is then generated from them.

Messages are checked as far as the gateway can name what is wrong; the template has the last word (`render`).
Parts that would be lost on the way to ids (images, audio) and wishes that change an answer but are not served
(a forced tool choice) are refused, never left out in silence.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import msgspec

from infctl_daemon.gateway.asked import Asked, Bundle, check_count, check_total, multiply
from infctl_daemon.gateway.body_json import decode
from infctl_daemon.gateway.body_sampling import SamplingBody, extra_of, sampling_of
from infctl_daemon.gateway.errors import invalid

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
MAX_TOP_LOGPROBS = 20


class ChatBody(SamplingBody, kw_only=True):
    """What a chat has beside the fields it shares with completions."""

    messages: list[dict[str, Any]]
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    functions: msgspec.Raw = msgspec.Raw(b"")
    function_call: msgspec.Raw = msgspec.Raw(b"")
    modalities: list[str] | None = None
    reasoning_effort: str | float | None = None
    thinking: Any = None
    continue_final_message: bool = False
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


@dataclass(slots=True)
class ChatAsked:
    """A chat before its prompt is known. `rendering` goes to a worker's `/tokenize` as it is."""

    rendering: dict[str, Any]
    answer: Asked
    n: int
    top_logprobs: int | None
    stream: bool
    include_usage: bool
    token_ids: bool

    @property
    def model(self) -> str:
        return self.answer.model

    def bundle(self, prompt_ids: list[int], defaults: dict[str, Any]) -> Bundle:
        """`defaults` are the model's own sampling parameters, for what the client left open."""
        sampling = {**defaults, **self.answer.sampling}
        answers = multiply(replace(self.answer, prompt=prompt_ids, sampling=sampling), self.n)
        return Bundle(
            answers,
            stream=self.stream,
            per_prompt=self.n,
            keep=self.n,
            token_ids=self.token_ids,
            include_usage=self.include_usage,
            top_logprobs=self.top_logprobs,
        )


_decoder = msgspec.json.Decoder(ChatBody)
_RENDERING = ("tools", "reasoning_effort", "thinking", "continue_final_message", "add_generation_prompt",
              "chat_template_kwargs")  # fmt: skip


def read_chat(body: bytes) -> ChatAsked:
    """Raises ClientError with the field at fault."""
    asked: ChatBody = decode(_decoder, body)
    _check_unserved(asked)
    _check_messages(asked.messages)
    n = check_count(asked.n)
    check_total(1, n)
    top = _top_logprobs(asked)
    rendering = {name: value for name in _RENDERING if (value := getattr(asked, name)) not in (None, False)}
    if asked.tools and asked.tool_choice == "none":
        rendering["tool_choice"] = "none"
    extra = extra_of(asked)
    if top is not None:
        extra |= {"return_logprob": True, "top_logprobs_num": top}
    return ChatAsked(
        rendering={"messages": asked.messages, **rendering},
        answer=Asked(model=asked.model, prompt=[], sampling=sampling_of(asked), max_new=_limit(asked), extra=extra),
        n=n,
        top_logprobs=top,
        stream=asked.stream,
        include_usage=asked.include_usage,
        token_ids=asked.return_token_ids,
    )


def _check_unserved(asked: ChatBody) -> None:
    for name in ("functions", "function_call"):
        if bytes(getattr(asked, name)) not in (b"", b"null", b"[]"):
            raise invalid(f"{name} was replaced by tools, which are served", name)
    if asked.modalities and asked.modalities != ["text"]:
        raise invalid("only text is served", "modalities")
    if asked.tool_choice not in (None, "auto", "none"):
        raise invalid("tool_choice is auto or none: a forced call is not served yet", "tool_choice")
    for number, tool in enumerate(asked.tools or ()):
        function = tool.get("function")
        if (
            tool.get("type") != "function"
            or not isinstance(function, dict)
            or not isinstance(function.get("name"), str)
        ):
            raise invalid("a tool is {type: function, function: {name, parameters}}", f"tools[{number}]")


def _check_messages(messages: list[dict[str, Any]]) -> None:
    if not messages:
        raise invalid("messages is empty", "messages")
    for number, message in enumerate(messages):
        where = f"messages[{number}]"
        role = message.get("role")
        if role not in ROLES:
            raise invalid(f"{where}: role is one of {', '.join(ROLES)}, not {str(role)[:40]!r}", f"{where}.role")
        content = message.get("content")
        if content is None:
            if role != "assistant" or not message.get("tool_calls"):
                raise invalid(f"{where}: content is missing", f"{where}.content")
        elif isinstance(content, list):
            for part in content:
                if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
                    kind = part.get("type") if isinstance(part, dict) else type(part).__name__
                    raise invalid(f"{where}: only text parts are served, not {str(kind)[:40]!r}", f"{where}.content")
        elif not isinstance(content, str):
            raise invalid(f"{where}: content is text, or a list of text parts", f"{where}.content")


def _top_logprobs(asked: ChatBody) -> int | None:
    if not asked.logprobs:
        if asked.top_logprobs:
            raise invalid("top_logprobs needs logprobs: true", "top_logprobs")
        return None
    top = asked.top_logprobs or 0
    if not 0 <= top <= MAX_TOP_LOGPROBS:
        raise invalid(f"top_logprobs must be between 0 and {MAX_TOP_LOGPROBS}", "top_logprobs")
    return top


def _limit(asked: ChatBody) -> int | None:
    old, new = asked.max_tokens, asked.max_completion_tokens
    if old is not None and new is not None and old != new:
        raise invalid(
            f"max_tokens ({old}) and max_completion_tokens ({new}) contradict each other", "max_completion_tokens"
        )
    return new if new is not None else old
