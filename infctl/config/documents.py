"""Pools and groups as an operator writes them: one YAML document is one spec, `apiVersion: infctl/v1`.

Caps on running and queued requests are required: an engine without them queues without end. Flags that infctl owns
are refused here, before a launch fails on them.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from infctl.config.check import Part
from infctl.config.node import Name

# what the daemon sets itself; given twice, the engine would take the later one
OWNED_FLAGS = {
    "--api-key": "a fresh key is made for each launch and never put in the argument list",
    "--admin-api-key": "a fresh key is made for each launch and never put in the argument list",
    "--host": "the daemon binds the address that it publishes",
    "--port": "use spec.port",
    "--nccl-port": "the daemon derives it from the launch",
    "--dist-init-addr": "the daemon derives it from the launch",
    "--model-path": "use spec.modelPath",
    "--model": "use spec.modelPath",
    "--served-model-name": "clients ask for the pool's model",
    "--tp": "use spec.tensorParallel",
    "--tp-size": "use spec.tensorParallel",
    "--tensor-parallel-size": "use spec.tensorParallel",
    "--max-running-requests": "use spec.maxRunning",
    "--max-queued-requests": "use spec.maxQueued",
    "--context-length": "use spec.contextLength",
    "--weight-version": "use spec.revision",
    "--config": "the daemon writes its own, with the key in it",
}


def _absolute(text: str) -> str:
    if text and not text.startswith("/"):
        raise ValueError(f"must be an absolute path on the node, not {text!r}")
    return text


def _engine_arg(text: str) -> str:
    flag = text.split("=", 1)[0]
    if flag in OWNED_FLAGS:
        raise ValueError(f"{flag} is set by infctl: {OWNED_FLAGS[flag]}")
    return text


AbsolutePath = Annotated[str, AfterValidator(_absolute)]
EngineArg = Annotated[str, AfterValidator(_engine_arg)]
Seconds = Annotated[float, Field(ge=0)]


class Metadata(Part):
    name: Name


class CanaryPart(Part):
    """The question whose answer every new launch must know."""

    prompt: str = Field(default="The quick brown fox jumps over", min_length=1)
    tokens: int = Field(default=8, ge=1, le=64)


class PoolPart(Part):
    model: str = Field(min_length=1)
    min_ready: int = Field(default=1, ge=0)
    canary: CanaryPart = Field(default_factory=CanaryPart)


class RestartPart(Part):
    first_delay_seconds: Seconds = 2.0
    max_delay_seconds: Seconds = 60.0
    attempts: int = Field(default=5, ge=0)
    interval_seconds: Seconds = 600.0
    load_deadline_seconds: Seconds = 900.0
    canary_deadline_seconds: Seconds = 60.0

    @model_validator(mode="after")
    def _ordered(self) -> RestartPart:
        if self.first_delay_seconds > self.max_delay_seconds:
            raise ValueError(
                f"firstDelaySeconds ({self.first_delay_seconds:g}) must not exceed "
                f"maxDelaySeconds ({self.max_delay_seconds:g})"
            )
        return self


class GroupPart(Part):
    """One worker group: one engine instance with all its ranks."""

    pool: Name
    node: Name
    engine: Literal["sglang", "sim"] = "sglang"
    python: AbsolutePath = ""
    model_path: Annotated[AbsolutePath, Field(min_length=1)]
    tokenizer: AbsolutePath = ""
    revision: str = ""
    tensor_parallel: int = Field(default=1, ge=1, le=64)
    max_running: int = Field(ge=1)
    max_queued: int = Field(ge=0)
    context_length: int = Field(default=0, ge=0)
    deterministic: bool = False
    port: int = Field(default=0, ge=0, le=65535)
    engine_args: list[EngineArg] = Field(default_factory=list)
    env: dict[str, str] = Field(default_factory=dict)
    restart: RestartPart = Field(default_factory=RestartPart)

    @model_validator(mode="after")
    def _interpreter(self) -> GroupPart:
        if self.engine == "sglang" and not self.python:
            raise ValueError("python is required with engine sglang: the interpreter of its own environment")
        return self


class PoolDocument(Part):
    api_version: Literal["infctl/v1"]
    kind: Literal["Pool"]
    metadata: Metadata
    spec: PoolPart


class GroupDocument(Part):
    api_version: Literal["infctl/v1"]
    kind: Literal["Group"]
    metadata: Metadata
    spec: GroupPart


DOCUMENTS: dict[str, type[PoolDocument] | type[GroupDocument]] = {"Pool": PoolDocument, "Group": GroupDocument}
