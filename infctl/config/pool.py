"""A pool as an operator writes it: the name clients ask for, how much of it may be missing, what its canary must say.

Kept true: an answer that the operator gives has exactly as many tokens as the canary asks for.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from infctl.config.check import Part
from infctl.config.source import Document, Problem
from infctl.config.values import Metadata, PlainText, ServedModel

_TOKENS = 8
_CANARY = ("spec", "canary")


class CanaryPart(Part):
    """The question whose answer every new launch must know; `answer` is the operator's own word on it, token ids."""

    prompt: Annotated[PlainText, Field(min_length=1)] = "The quick brown fox jumps over"
    tokens: int | None = Field(default=None, ge=1, le=64)
    answer: list[Annotated[int, Field(ge=0)]] = Field(default_factory=list, max_length=64)
    revision: str = ""

    @property
    def asked(self) -> int:
        return self.tokens or len(self.answer) or _TOKENS


class BudgetsPart(Part):
    """How much may go wrong, or be taken away, at once."""

    disruptions: int = Field(default=1, ge=0)
    recovery_tokens: int = Field(default=0, ge=0)


class PoolPart(Part):
    model: ServedModel
    min_ready: int = Field(default=1, ge=0)
    budgets: BudgetsPart = Field(default_factory=BudgetsPart)
    canary: CanaryPart = Field(default_factory=CanaryPart)


class PoolDocument(Part):
    api_version: Literal["infctl/v1"]
    kind: Literal["Pool"]
    metadata: Metadata
    spec: PoolPart


def pool_problems(document: Document) -> list[Problem]:
    """What is wrong between the keys of a pool, found even where other keys are wrong."""
    data: Any = document.data
    for key in _CANARY:
        data = data.get(key) if isinstance(data, dict) else None
    if not isinstance(data, dict):
        return []
    answer, tokens = data.get("answer"), data.get("tokens")
    found = []
    if isinstance(answer, list) and answer and isinstance(tokens, int) and len(answer) != tokens:
        message = f"has {len(answer)} token ids, but the canary asks for {tokens}"
        found.append(document.problem((*_CANARY, "answer"), message, "leave tokens out, or make them agree"))
    if data.get("revision") and not answer:
        found.append(document.problem((*_CANARY, "revision"), "says to which revision an answer belongs",
                                      "give canary.answer too, or take it out"))  # fmt: skip
    return found
