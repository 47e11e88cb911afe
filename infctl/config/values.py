"""Kinds of values that several documents have, each with its own complaint."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from infctl.config.check import Part
from infctl.config.node import Name
from infctl.domain.engine_flags import refusal

PORT_STEP = 300  # what one engine derives from its port lies within; the next one begins after it

_INDEX = re.compile(r"0|[1-9][0-9]{0,2}")
_UUID = re.compile(r"(GPU|MIG)-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def _plain(text: str) -> str:
    if "\0" in text:
        raise ValueError("holds a NUL character")
    return text


def _absolute(text: str) -> str:
    if text and not text.startswith("/"):
        raise ValueError(f"must be an absolute path on the node, not {text!r}")
    return _plain(text)


def _engine_arg(text: str) -> str:
    if why := refusal(text):
        raise ValueError(why)
    return _plain(text)


def _gpu(value: Any) -> Any:
    """An index may be written as a number."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _gpu_name(text: str) -> str:
    if not (_INDEX.fullmatch(text) or _UUID.fullmatch(text)):
        raise ValueError(f"{text!r} is neither an index nor a whole UUID (GPU-… or MIG-…, as nvidia-smi -L prints it)")
    return text


def _port(port: int) -> int:
    if port and not 1024 <= port <= 65535 - PORT_STEP:
        raise ValueError(f"must be 0 (chosen by the daemon) or from 1024 to {65535 - PORT_STEP}, not {port}: "
                         f"the {PORT_STEP} ports from it on are the group's")  # fmt: skip
    return port


def _served(model: str) -> str:
    if ":" in model:
        raise ValueError(f"{model!r} must not hold ':', which the engine reads as base:adapter")
    return model


def is_index(gpu: str) -> bool:
    return _INDEX.fullmatch(gpu) is not None


AbsolutePath = Annotated[str, AfterValidator(_absolute)]
EngineArg = Annotated[str, AfterValidator(_engine_arg)]
PlainText = Annotated[str, AfterValidator(_plain)]
Gpu = Annotated[str, BeforeValidator(_gpu), AfterValidator(_gpu_name)]
Port = Annotated[int, AfterValidator(_port)]
ServedModel = Annotated[str, Field(min_length=1), AfterValidator(_served)]
Seconds = Annotated[float, Field(ge=0)]
SomeSeconds = Annotated[float, Field(gt=0)]
Size = Annotated[int, Field(ge=1, le=1024)]


class Metadata(Part):
    name: Name
