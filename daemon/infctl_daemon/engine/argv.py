"""Builds the command line, environment and key file of one launch, for the real engine and for the simulated one.

Kept true: keys are only in the 0600 file that `--config` names, never in arguments or environment (both are world
readable or inherited); flags that we set cannot be set a second time and flags that break recovery are refused with the
reason, before anything is started (`domain.engine_flags` is the table of both); an engine sees its group's GPUs only.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from infctl.config.host_address import LOOPBACK
from infctl.domain.engine_flags import flag_name, refused
from infctl.domain.errors import ConfigError
from infctl.domain.model import Role
from infctl.store.records import GroupSpec

MARK = "INFCTL_LAUNCH"  # in the environment of what a launch starts: its processes can be told from all others
# where in a group's range of 300 ports: SGLang itself derives base + 13 and base + 233 and the dozen after it
BOOTSTRAP_OFFSET = 140
RENDEZVOUS_OFFSET = 260
RENDEZVOUS_PORTS = 40
PORT_STEP = 300
# SGLang derives ports up to 13 above the address at which several hosts meet (0.5.23): they must be within, too
RENDEZVOUS_PORTS_OF_HOSTS = PORT_STEP - RENDEZVOUS_OFFSET - 13 - 1
RANDOM_SEED = 42

_MODULE = {"sglang": "sglang.launch_server", "sim": "infctl_daemon.engine.sim"}


@dataclass(frozen=True, slots=True)
class Command:
    """What is started: `env` holds only what comes on top of the inherited names."""

    argv: tuple[str, ...]
    env: Mapping[str, str]


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


def _parallel(spec: GroupSpec, rendezvous: int, host: int, leader: str) -> list[str]:
    """Sizes, where the ranks meet, and which part of them this host starts."""
    words = ["--tp-size", str(spec.tp)]
    for flag, size in (("--pp-size", spec.pp), ("--dp-size", spec.dp), ("--ep-size", spec.ep)):
        if size > 1:
            words += [flag, str(size)]
    hosts = len(spec.placement)
    if hosts > 1:
        words += ["--nnodes", str(hosts), "--node-rank", str(host), "--dist-init-addr", f"{leader}:{rendezvous}"]
    elif spec.ranks > 1 and spec.dp == 1:
        # replicas need a port each: SGLang binds one after the other, and a given port twice (0.5.23)
        words += ["--nccl-port", str(rendezvous)]
    return words


def _caps(spec: GroupSpec, rendezvous: int) -> list[str]:
    """The caps of the group: each replica has its own, so each gets its share (SGLang 0.5.23)."""
    words = ["--max-running-requests", str(max(1, spec.max_running // spec.dp))]
    if spec.role == Role.UNIFIED:
        return [*words, "--max-queued-requests", str(spec.max_queued // spec.dp)]
    # the cap on the queue is ignored in these modes (SGLang 0.5.23), so it is not pretended
    words += ["--disaggregation-mode", spec.role]
    if spec.role == Role.PREFILL:
        # as new as the rendezvous: a decode worker that still knows the last launch must not reach this one
        words += ["--disaggregation-bootstrap-port", str(rendezvous - RENDEZVOUS_OFFSET + BOOTSTRAP_OFFSET)]
    return words


def visible_gpus(spec: GroupSpec, host: int = 0) -> dict[str, str]:
    """What lets an engine see its own GPUs only, the first rank's first; empty where none are named."""
    gpus = spec.placement[host].gpus
    if not gpus:
        return {}
    # without the order CUDA counts the fastest GPU as 0, and nvidia-smi the first on the bus
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(gpus)}


def build(
    spec: GroupSpec,
    *,
    served_model: str,
    revision: str,
    launch: str,
    port: int,
    rendezvous: int,
    config: Path,
    address: str = LOOPBACK,
    host: int = 0,
    leader: str = "",
) -> Command:
    """The command of one launch on the `host`-th of its hosts, which is at `address`; `leader` is the address of the
    first where there are several. Raises ConfigError for arguments that are refused or an engine that is unknown.
    """
    problems = [why for _, why in refused(spec.engine_args)]
    if spec.engine not in _MODULE:
        problems.append(f"engine {spec.engine!r} is not one of {', '.join(sorted(_MODULE))}")
    if ":" in served_model:
        problems.append(f"model name {served_model!r}: the engine reads ':' as base:adapter")
    if len(spec.placement) > 1 and not leader:
        problems.append("several hosts need the address of the first")
    if problems:
        raise ConfigError("; ".join(problems))
    argv = [spec.python or sys.executable, "-m", _MODULE[spec.engine]]
    argv += ["--model-path", spec.model_path, "--served-model-name", served_model, "--weight-version", revision]
    argv += ["--host", address, "--port", str(port)]
    argv += _parallel(spec, rendezvous, host, leader)
    argv += _caps(spec, rendezvous)
    if spec.deterministic:
        argv.append("--enable-deterministic-inference")
    argv += _defaults(spec)
    argv += ["--config", str(config)]
    argv += spec.engine_args
    env = {
        **spec.env,
        **visible_gpus(spec, host),
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


def rendezvous_port(base: int, count: int, hosts: int = 1) -> int:
    """Another port at each launch, so that the last one's sockets in TIME_WAIT are nobody's problem, and no process
    of an earlier launch can join this one (R2)."""
    return base + RENDEZVOUS_OFFSET + count % (RENDEZVOUS_PORTS if hosts == 1 else RENDEZVOUS_PORTS_OF_HOSTS)
