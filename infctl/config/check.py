"""From pydantic's findings to our problems: every error of a document at once, each with its line.

An unknown key names the nearest known one. Names of keys are the ones in the file (camelCase), never Python's.
"""

from __future__ import annotations

import difflib
from typing import Any, TypeVar, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel

from infctl.config.source import Document, Path_, Problem
from infctl.domain.errors import InfctlError
from infctl.domain.ids import check_name


class Part(BaseModel):
    """Base of every piece of a file: strict types, no unknown keys, camelCase in the file."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        frozen=True,
        alias_generator=to_camel,
        validate_by_alias=True,
        validate_by_name=False,
    )


M = TypeVar("M", bound=Part)


def legal_name(text: str) -> str:
    """For use as a validator. Raises ValueError, as pydantic wants it."""
    try:
        return check_name(text)
    except InfctlError as error:
        raise ValueError(f"{error.message}: {error.hint}") from None


def check(model: type[M], document: Document) -> tuple[M | None, list[Problem]]:
    """The model, or None and everything that is wrong with the document."""
    problems = list(document.problems)
    if not isinstance(document.data, dict):
        problems.append(document.problem((), "expected a mapping of keys to values"))
        return None, problems
    try:
        made = model.model_validate(document.data)
    except ValidationError as error:
        problems.extend(_problem(model, document, dict(e)) for e in error.errors(include_url=False))
        return None, problems
    return (None if problems else made), problems


def _problem(model: type[Part], document: Document, error: dict[str, Any]) -> Problem:
    path: Path_ = tuple(error["loc"])
    kind = error["type"]
    if kind == "extra_forbidden":
        near = nearest(str(path[-1]), known_keys(model, path[:-1]))
        return document.problem(path, "unknown key", f"did you mean {near}?" if near else "")
    if kind == "missing":
        return document.problem(path, "required, but missing")
    message = str(error["msg"]).removeprefix("Value error, ")
    value = error.get("input")
    if kind != "value_error" and isinstance(value, (str, int, float, bool)):
        message = f"{message}, not {value!r}"
    return document.problem(path, message[:1].lower() + message[1:])


def known_keys(model: type[BaseModel], path: Path_) -> list[str]:
    """The keys that are legal at `path` below `model`, as they are written in a file."""
    here: type[BaseModel] = model
    for part in path:
        if isinstance(part, int):
            continue
        for name, info in here.model_fields.items():
            inner = info.annotation
            inner = next(iter(get_args(inner)), inner) if get_origin(inner) is list else inner
            if (info.alias or name) == part and isinstance(inner, type) and issubclass(inner, BaseModel):
                here = inner
                break
        else:
            return []
    return [info.alias or name for name, info in here.model_fields.items()]


def nearest(word: str, known: list[str]) -> str:
    """The known word that `word` was probably meant to be, or ""."""
    lower = {k.lower(): k for k in known}
    found = difflib.get_close_matches(word.lower().replace("_", "").replace("-", ""), list(lower), n=1, cutoff=0.6)
    return lower[found[0]] if found else ""
