"""A worker group as an operator writes it: one engine instance with all its ranks, on one host or several.

Caps on running and queued requests are required: an engine without them queues without end. What must hold between
keys is in `group_rules`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from infctl.config.check import Part
from infctl.config.node import Name
from infctl.config.values import (
    AbsolutePath,
    EngineArg,
    Gpu,
    Metadata,
    PlainText,
    Port,
    Seconds,
    Size,
    SomeSeconds,
)


class HostPart(Part):
    """`gpus`: by index or UUID, in the order of the ranks; none named: the engine takes what it sees."""

    node: Name
    gpus: list[Gpu] = Field(default_factory=list)


class RestartPart(Part):
    first_delay_seconds: Seconds = 2.0
    max_delay_seconds: Seconds = 60.0
    attempts: int = Field(default=5, ge=0)
    interval_seconds: SomeSeconds = 600.0
    load_deadline_seconds: SomeSeconds = 900.0
    canary_deadline_seconds: SomeSeconds = 60.0


class DrainPart(Part):
    """Instants from the start of a drain; SIGTERM comes `killGraceSeconds` before the deadline, SIGKILL at it."""

    hand_over_seconds: Seconds = 120.0
    deadline_seconds: SomeSeconds = 900.0
    kill_grace_seconds: SomeSeconds = 30.0


class GroupPart(Part):
    """One worker group. `node` is the short form of `hosts` for one host whose GPUs are not named."""

    pool: Name
    node: Name | None = None
    hosts: list[HostPart] = Field(default_factory=list, max_length=64)
    role: Literal["unified", "prefill", "decode"] = "unified"
    engine: Literal["sglang", "sim"] = "sglang"
    python: AbsolutePath = ""
    model_path: Annotated[AbsolutePath, Field(min_length=1)]
    tokenizer: AbsolutePath = ""
    revision: PlainText = ""
    tensor_parallel: Size = 1
    pipeline_parallel: Size = 1
    data_parallel: Size = 1
    expert_parallel: Size = 1
    max_running: int = Field(ge=1)
    max_queued: int = Field(ge=0)
    context_length: int = Field(default=0, ge=0)
    deterministic: bool = False
    port: Port = 0
    engine_args: list[EngineArg] = Field(default_factory=list)
    env: dict[str, PlainText] = Field(default_factory=dict)
    restart: RestartPart = Field(default_factory=RestartPart)
    drain: DrainPart = Field(default_factory=DrainPart)


class GroupDocument(Part):
    api_version: Literal["infctl/v1"]
    kind: Literal["Group"]
    metadata: Metadata
    spec: GroupPart
