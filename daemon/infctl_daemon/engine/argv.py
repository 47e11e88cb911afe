"""Builds the command line, environment and key file of one launch, for the real engine and for the simulated one.

Kept true: keys are only in the 0600 file that `--config` names, never in arguments or environment (both are world
readable or inherited); flags that we set cannot be set a second time; flags that break recovery are refused with the
reason, before anything is started.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from infctl.domain.errors import ConfigError
from infctl.store.records import GroupSpec

MARK = "INFCTL_LAUNCH"  # in the environment of what a launch starts: its processes can be told from all others
RENDEZVOUS_OFFSET = 260
RENDEZVOUS_PORTS = 40
PORT_STEP = 300
RANDOM_SEED = 42

# ours to set: a second value would win or lose silently
_OURS = {
    "--model-path": "modelPath",
    "--model": "modelPath",
    "--host": "nothing: engines listen on the loopback only",
    "--port": "port",
    "--tp-size": "tp",
    "--tensor-parallel-size": "tp",
    "--weight-version": "revision",
    "--max-running-requests": "maxRunning",
    "--max-queued-requests": "maxQueued",
    "--served-model-name": "the pool's model",
    "--nccl-port": "nothing: it comes from the group's port range",
    "--config": "nothing: it carries the keys",
}
# these take away what recovery stands on
_BREAKS = {
    "--api-key": "keys are made for each launch and never appear in arguments",
    "--admin-api-key": "keys are made for each launch and never appear in arguments",
    "--incremental-streaming-output": "frames must be cumulative: the committed prefix is checked in each",
    "--enable-custom-logit-processor": "it runs code that a client sends",
    "--skip-tokenizer-init": "frames would carry no text and stop strings would not work",
    "--tokenizer-worker-num": "with more than one, keys are not checked and aborts get lost",
    "--allow-auto-truncate": "it silently shortens a replayed prompt",
    "--enable-streaming-session": "its state lives in one worker and cannot be replayed",
    "--smg-grpc-mode": "the HTTP API is what gateways speak",
    "--grpc-mode": "the HTTP API is what gateways speak",
    "--use-ray": "ranks must be children of the launch so that their death is seen",
    "--ssl-keyfile": "engines listen on the loopback only, without TLS",
    "--ssl-certfile": "engines listen on the loopback only, without TLS",
}
_MODULE = {"sglang": "sglang.launch_server", "sim": "infctl_daemon.engine.sim"}


@dataclass(frozen=True, slots=True)
class Command:
    """What is started: `env` holds only what comes on top of the inherited names."""

    argv: tuple[str, ...]
    env: Mapping[str, str]


def flag_name(argument: str) -> str:
    """`--Some_flag=3` as `--Some-flag`; empty for what is not a long flag."""
    return argument.split("=", 1)[0].replace("_", "-") if argument.startswith("--") else ""


def refused(engine_args: Sequence[str]) -> list[str]:
    """One sentence for each argument that the group's specification must not hold.

    An abbreviation counts as the flag it stands for: the engine's parser accepts any unambiguous prefix.
    """
    found = []
    for argument in engine_args:
        name = flag_name(argument)
        if len(name) < 4:
            if argument.startswith("--tp") or argument == "--":
                found.append(f"{argument}: not allowed here")
            continue
        if name == "--tp":
            found.append("--tp is set by tp")
            continue
        if (hit := next((f for f in _BREAKS if f.startswith(name)), "")) != "":
            found.append(f"{argument} breaks recovery: {_BREAKS[hit]}")
        elif (hit := next((f for f in _OURS if f.startswith(name)), "")) != "":
            found.append(f"{argument} is set by {_OURS[hit]}")
    return found


def _defaults(spec: GroupSpec) -> list[str]:
    """Flags that the specification may override."""
    wanted: list[tuple[str, ...]] = [
        ("--random-seed", str(RANDOM_SEED)),
        ("--stream-interval", "1"),
        ("--load-snapshot-publish-interval", "1"),  # a heartbeat at each decode batch, not at each fifteenth
        ("--watchdog-timeout", "120"),
    ]
    if spec.engine == "sglang":
        # our own polls would be most of its log
        wanted.append(("--uvicorn-access-log-exclude-prefixes", "/v1/loads", "/ready", "/model_info"))
    if spec.context_length:
        wanted.append(("--context-length", str(spec.context_length)))
    given = {flag_name(a) for a in spec.engine_args}
    return [word for words in wanted if words[0] not in given for word in words]


def build(
    spec: GroupSpec, *, served_model: str, revision: str, launch: str, port: int, rendezvous: int, config: Path
) -> Command:
    """The command of one launch. Raises ConfigError for arguments that are refused or an engine that is unknown."""
    problems = refused(spec.engine_args)
    if spec.engine not in _MODULE:
        problems.append(f"engine {spec.engine!r} is not one of {', '.join(sorted(_MODULE))}")
    if ":" in served_model:
        problems.append(f"model name {served_model!r}: the engine reads ':' as base:adapter")
    if problems:
        raise ConfigError("; ".join(problems))
    argv = [spec.python or sys.executable, "-m", _MODULE[spec.engine]]
    argv += ["--model-path", spec.model_path, "--served-model-name", served_model, "--weight-version", revision]
    argv += ["--host", "127.0.0.1", "--port", str(port), "--tp-size", str(spec.tp)]
    argv += ["--max-running-requests", str(spec.max_running), "--max-queued-requests", str(spec.max_queued)]
    if spec.tp > 1:
        argv += ["--nccl-port", str(rendezvous)]
    if spec.deterministic:
        argv.append("--enable-deterministic-inference")
    argv += _defaults(spec)
    argv += ["--config", str(config)]
    argv += spec.engine_args
    env = {
        **spec.env,
        # with either at its default a dying engine holds its sockets open for 5 to 100 s
        "SGLANG_PYSPY_DUMP_BEFORE_CRASH": "0",
        "SGLANG_CUDA_COREDUMP_BEFORE_CRASH": "0",
        "PYTHONUNBUFFERED": "1",
        MARK: launch,
    }
    return Command(tuple(argv), env)


def key_file(api_key: str) -> bytes:
    """The content of the `--config` file. One key for both: with another admin key an abort would need that one."""
    return yaml.safe_dump({"api-key": api_key, "admin-api-key": api_key}).encode()


def rendezvous_port(base: int, count: int) -> int:
    """Another port at each launch, so that the last one's sockets in TIME_WAIT are nobody's problem."""
    return base + RENDEZVOUS_OFFSET + count % RENDEZVOUS_PORTS
