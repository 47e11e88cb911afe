"""Command line of the simulated engine: SGLang's own flags where we use them, and `--sim-*` knobs.

What stays true: the daemon's argv builder needs no special case for this engine; a flag of SGLang that means nothing
here is accepted with a warning, never refused.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from infctl_daemon.engine.sim.lora import parse_paths

log = logging.getLogger("sim")


@dataclass(frozen=True)
class Options:
    """What the processes of one simulated engine need to know. Times are seconds."""

    model_path: str
    host: str = "127.0.0.1"
    port: int = 30000
    world: int = 1
    nnodes: int = 1
    node_rank: int = 0
    dist_init_addr: str | None = None
    join_seconds: float = 300.0
    api_key: str | None = None
    admin_api_key: str | None = None
    served_model_name: str | None = None
    weight_version: str = "default"
    random_seed: int = 0
    context_length: int | None = None
    max_running_requests: int = 256
    max_queued_requests: int | None = None
    max_total_tokens: int = 200_000
    chunked_prefill_size: int = 8192
    stream_interval: int = 1
    watchdog_timeout: float = 300.0
    deterministic: bool = False
    radix_cache: bool = True
    lora: bool = False
    lora_paths: dict[str, str] = field(default_factory=dict)
    max_loaded_loras: int | None = None
    load_seconds: float = 0.3
    prefill_rate: float = 8000.0
    decode_seconds: float = 0.05
    decode_seconds_each: float = 0.0
    first_token_seconds: float = 0.02
    steps_per_turn: int = 1
    eos_every: int = 0
    idle_seconds: float = 0.25
    crash_delay: float = 0.2
    diagnostics_seconds: float = 5.0
    coredump_seconds: float = 60.0
    drain_poll: float = 0.5
    named_memory: bool = False
    admin_port: int | None = None
    faults: tuple[str, ...] = field(default=())

    @property
    def ranks(self) -> range:
        """The ranks that run on this node."""
        share = self.world // self.nnodes
        return range(self.node_rank * share, (self.node_rank + 1) * share)


def _parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="infctl_daemon.engine.sim", allow_abbrev=False, description=__doc__)
    engine = p.add_argument_group("as SGLang does")
    engine.add_argument("--config", type=Path, help="YAML file with flags; the command line wins")
    engine.add_argument("--model-path", "--model")
    engine.add_argument("--host", default="127.0.0.1")
    engine.add_argument("--port", type=int, default=30000)
    engine.add_argument("--tp", "--tp-size", "--tensor-parallel-size", dest="tp", type=int, default=1)
    engine.add_argument("--pp", "--pp-size", "--pipeline-parallel-size", dest="pp", type=int, default=1)
    engine.add_argument("--nnodes", type=int, default=1)
    engine.add_argument("--node-rank", type=int, default=0)
    engine.add_argument("--dist-init-addr", "--nccl-init-addr")
    engine.add_argument("--dist-timeout", type=float, help="of the rendezvous; the watchdog's where it is not given")
    engine.add_argument("--api-key")
    engine.add_argument("--admin-api-key")
    engine.add_argument("--served-model-name")
    engine.add_argument("--weight-version", default="default")
    engine.add_argument("--random-seed", type=int, default=0)
    engine.add_argument("--context-length", type=int)
    engine.add_argument("--max-running-requests", type=int, default=256)
    engine.add_argument("--max-queued-requests", type=int)
    engine.add_argument("--max-total-tokens", type=int, default=200_000)
    engine.add_argument("--chunked-prefill-size", type=int, default=8192)
    engine.add_argument("--stream-interval", type=int, default=1)
    engine.add_argument("--watchdog-timeout", type=float, default=300.0)
    engine.add_argument("--sleep-on-idle", action="store_true")
    engine.add_argument("--enable-deterministic-inference", action="store_true")
    engine.add_argument("--disable-radix-cache", action="store_true")
    engine.add_argument("--enable-lora", action="store_true")
    engine.add_argument("--lora-paths", nargs="*", default=[], help="NAME=FOLDER …")
    engine.add_argument("--max-loaded-loras", type=int)
    sim = p.add_argument_group("simulation (times in seconds)")
    sim.add_argument("--sim-load-seconds", type=float, default=0.3, help="before the port is bound")
    sim.add_argument("--sim-prefill-rate", type=float, default=8000.0, help="prompt tokens a second")
    sim.add_argument("--sim-decode-seconds", type=float, default=0.05, help="one decode step of the batch")
    sim.add_argument("--sim-decode-seconds-each", type=float, default=0.0, help="more of it for each running request")
    sim.add_argument("--sim-first-token-seconds", type=float, default=0.02, help="fixed cost of a prefill")
    sim.add_argument("--sim-steps-per-turn", type=int, default=1, help="tokens of each request that leave in one write")
    sim.add_argument("--sim-seed", type=int, help="same as --random-seed, and wins over it")
    sim.add_argument("--sim-eos-every", type=int, default=0, help="end about every N tokens; 0: never")
    sim.add_argument("--sim-idle-seconds", type=float, default=0.25, help="turn of an idle scheduler")
    sim.add_argument("--sim-crash-delay", type=float, default=0.2, help="from a rank's death to the end of all")
    sim.add_argument("--sim-diagnostics-seconds", type=float, default=5.0, help="HTTP freeze of a crash")
    sim.add_argument("--sim-coredump-seconds", type=float, default=60.0, help="more of it while a rank lives")
    sim.add_argument("--sim-drain-poll", type=float, default=0.5, help="how often a drain looks (SGLang: 5)")
    sim.add_argument(
        "--sim-named-memory", action="store_true", help="leave names in /dev/shm when killed, as SGLang does"
    )
    sim.add_argument("--sim-admin-port", type=int, help="loopback port for POST /fault")
    sim.add_argument("--sim-fault", action="append", default=[], help="kind[:key=value,…], may be repeated")
    return p


def _from_file(path: Path) -> list[str]:
    """Flags of a YAML file, as SGLang reads them: keys are long flag names, true means a bare flag."""
    import yaml  # a tenth of a second that most starts need not pay

    loaded = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    if not isinstance(loaded, dict):
        raise SystemExit(f"{path}: expected a mapping of flags")
    out: list[str] = []
    for key, value in loaded.items():
        flag = "--" + str(key).replace("_", "-")
        if value is True:
            out.append(flag)
        elif value is not False and value is not None:
            out += [flag, str(value)]
    return out


def _wrong_nodes(world: int, nnodes: int, node_rank: int, address: str | None) -> str:
    """Why ranks cannot be spread so; "" where they can."""
    if nnodes < 1 or world % nnodes:
        return f"--nnodes {nnodes}: {world} ranks do not spread evenly over so many nodes"
    if not 0 <= node_rank < nnodes:
        return f"--node-rank {node_rank} is not one of 0 to {nnodes - 1} (--nnodes {nnodes})"
    if nnodes > 1 and not (address or "").rpartition(":")[2].isdigit():
        return f"--nnodes {nnodes} needs --dist-init-addr HOST:PORT, not {address!r}"
    return ""


def parse(argv: Sequence[str]) -> Options:
    """Options of a command line; raises SystemExit on one that cannot be meant."""
    parser = _parser()
    first, _ = parser.parse_known_args(argv)
    words = [*_from_file(first.config), *argv] if first.config else list(argv)
    args, unknown = parser.parse_known_args(words)
    if unknown:
        log.warning("flags without meaning here: %s", " ".join(unknown))
    if not args.model_path:
        parser.error("--model-path is required")
    world = args.tp * args.pp
    wrong = _wrong_nodes(world, args.nnodes, args.node_rank, args.dist_init_addr)
    if wrong:
        parser.error(wrong)
    return Options(
        model_path=args.model_path,
        host=args.host,
        port=args.port,
        world=world,
        nnodes=args.nnodes,
        node_rank=args.node_rank,
        dist_init_addr=args.dist_init_addr,
        join_seconds=args.dist_timeout or args.watchdog_timeout,
        api_key=args.api_key,
        admin_api_key=args.admin_api_key,
        served_model_name=args.served_model_name,
        weight_version=args.weight_version,
        random_seed=args.random_seed if args.sim_seed is None else args.sim_seed,
        context_length=args.context_length,
        max_running_requests=args.max_running_requests,
        max_queued_requests=args.max_queued_requests,
        max_total_tokens=args.max_total_tokens,
        chunked_prefill_size=args.chunked_prefill_size,
        stream_interval=max(1, args.stream_interval),
        watchdog_timeout=args.watchdog_timeout,
        deterministic=args.enable_deterministic_inference,
        radix_cache=not args.disable_radix_cache,
        lora=args.enable_lora or bool(args.lora_paths),
        lora_paths=parse_paths(args.lora_paths),
        max_loaded_loras=args.max_loaded_loras,
        load_seconds=args.sim_load_seconds,
        prefill_rate=args.sim_prefill_rate,
        decode_seconds=args.sim_decode_seconds,
        decode_seconds_each=args.sim_decode_seconds_each,
        first_token_seconds=args.sim_first_token_seconds,
        steps_per_turn=max(1, args.sim_steps_per_turn),
        eos_every=args.sim_eos_every,
        idle_seconds=args.sim_idle_seconds,
        crash_delay=args.sim_crash_delay,
        diagnostics_seconds=args.sim_diagnostics_seconds,
        coredump_seconds=args.sim_coredump_seconds,
        drain_poll=args.sim_drain_poll,
        named_memory=args.sim_named_memory,
        admin_port=args.sim_admin_port,
        faults=tuple(args.sim_fault),
    )
