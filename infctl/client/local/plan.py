"""What a cluster on one machine is made of: its folders, its model, and the documents that are applied to it."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from infctl.config.context import cache_home
from infctl.domain.errors import ConfigError

POOL = "demo"
MODEL = "demo"
NODE = "local"
GATEWAY = "local"
GROUPS = ("a", "b")
RANKS = 2

# the real engine without a GPU; --sleep-on-idle: two idle groups would burn both cores of a small machine
_CPU_ARGS = (
    *("--device", "cpu", "--attention-backend", "torch_native", "--sampling-backend", "pytorch"),
    *("--mem-fraction-static", "0.1", "--max-total-tokens", "20000", "--dist-timeout", "30", "--sleep-on-idle"),
)


class Engine(StrEnum):
    SIM = "sim"
    SGLANG = "sglang"


@dataclass(frozen=True, slots=True)
class Layout:
    """Every path below one root, so that all of it can be removed at once."""

    root: Path

    def etcd(self, members: int) -> Path:
        """One member and three are different clusters with data of their own."""
        return self.root / ("etcd" if members == 1 else f"etcd{members}")

    @property
    def node_state(self) -> Path:
        return self.root / "node"

    @property
    def node_run(self) -> Path:
        return self.root / "run"

    @property
    def gateway_state(self) -> Path:
        return self.root / "gateway"

    @property
    def sim_model(self) -> Path:
        return self.root / "model"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def book(self) -> Path:
        return self.root / "processes.json"

    @property
    def facts(self) -> Path:
        return self.root / "cluster.json"


@dataclass(frozen=True, slots=True)
class Profile:
    """How the two groups run: interpreter, model, flags, patience."""

    engine: Engine
    python: str
    model_path: str
    args: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    start_deadline: float = 60.0
    max_running: int = 64
    max_queued: int = 128


def profile(engine: Engine, layout: Layout, *, streams: int = 1) -> Profile:
    """The profile of an engine. Raises ConfigError when the real one is not installed."""
    if engine is Engine.SIM:
        return Profile(
            engine=engine,
            python=sys.executable,
            model_path=str(layout.sim_model),
            # a survivor carries its own streams and those of the dead group
            max_running=max(64, 2 * streams + 16),
        )
    python = Path(os.environ.get("INFCTL_SGLANG_ENV") or cache_home() / "sglang") / "bin" / "python"
    model = cache_home() / "models" / "tiny-llama"
    missing = [str(p) for p in (python, model / "config.json") if not p.exists()]
    if missing:
        raise ConfigError(
            f"the real engine is not installed: {', '.join(missing)} not found",
            reason="EngineNotInstalled",
            hint="make sglang builds SGLang's environment and a tiny model (minutes, about 7 GB)",
        )
    return Profile(
        engine=engine,
        python=str(python),
        model_path=str(model),
        args=_CPU_ARGS,
        env={
            "SGLANG_USE_CPU_ENGINE": "1",
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
            # each rank on a core of its own; there is no NCCL to look for
            "SGLANG_NCCL_SO_PATH": "/nonexistent",
            "SGLANG_CPU_OMP_THREADS_BIND": "0|1",
        },
        start_deadline=600.0,
        max_running=8 + streams,
        max_queued=32,
    )


def documents(profile: Profile) -> list[dict[str, Any]]:
    """The pool and its two groups, as `infctl apply` reads them."""
    pool = {
        "apiVersion": "infctl/v1",
        "kind": "Pool",
        "metadata": {"name": POOL},
        "spec": {"model": MODEL, "minReady": 1},
    }
    groups = [
        {
            "apiVersion": "infctl/v1",
            "kind": "Group",
            "metadata": {"name": name},
            "spec": {
                "pool": POOL,
                "node": NODE,
                "engine": profile.engine.value,
                "python": profile.python,
                "modelPath": profile.model_path,
                "tokenizer": f"{profile.model_path}/tokenizer.json",
                "tensorParallel": RANKS,
                "maxRunning": profile.max_running,
                "maxQueued": profile.max_queued,
                "engineArgs": list(profile.args),
                "env": profile.env,
            },
        }
        for name in GROUPS
    ]
    return [pool, *groups]


def write_facts(layout: Layout, facts: dict[str, Any]) -> None:
    fresh = layout.facts.with_name(f".{layout.facts.name}.{os.getpid()}")
    fresh.write_text(json.dumps(facts, indent=1), encoding="utf-8")
    os.replace(fresh, layout.facts)


def read_facts(layout: Layout) -> dict[str, Any]:
    try:
        found = json.loads(layout.facts.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
