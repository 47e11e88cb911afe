"""What the groups of one daemon share: the store and its writers, folders, ports, the lease and what was watched.

Data and small questions only; every decision is elsewhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from infctl.domain.model import Limits
from infctl.ports.store import Store
from infctl.store.keys import Keys
from infctl_daemon.engine.kept import KeptGets
from infctl_daemon.node.claims import Claims
from infctl_daemon.node.events import EventWriter
from infctl_daemon.node.rank_keys import RankKeys
from infctl_daemon.node.status import StatusWriter
from infctl_daemon.node.turns import Turns
from infctl_daemon.node.world import World
from infctl_daemon.proc.choose import Chosen
from infctl_daemon.proc.ports import Reserved
from infctl_daemon.proc.session import SessionDriver
from infctl_daemon.proc.state_file import StateFile
from infctl_daemon.runtime.log import Logger
from infctl_daemon.runtime.recorder import Recorder


@dataclass(slots=True)
class Context:
    """Made once by the agent."""

    node: str
    address: str  # our engines listen there
    store: Store
    keys: Keys
    limits: Limits
    claims: Claims
    events: EventWriter
    status: StatusWriter
    rank_keys: RankKeys
    state: StateFile
    state_dir: Path
    run_dir: Path
    http: aiohttp.ClientSession  # a new connection for each question
    kept: KeptGets
    recorder: Recorder
    log: Logger
    lease: Callable[[], int]
    world: World = field(default_factory=World)
    containers: Chosen = field(default_factory=lambda: Chosen(SessionDriver(), {}))
    ports: dict[str, int] = field(default_factory=dict)
    reserved: Reserved = field(default_factory=Reserved)
    turns: Turns = field(default_factory=Turns)
    stalled: dict[str, bool] = field(default_factory=dict)
    read_api: str = ""  # the URL that others reach our read-only API by; "" while it does not listen
    _writes: set[asyncio.Task[None]] = field(default_factory=set)

    def record_soon(self, work: Coroutine[Any, Any, None]) -> None:
        """Write something down beside what goes on."""
        task = asyncio.get_running_loop().create_task(work)
        self._writes.add(task)
        task.add_done_callback(self._writes.discard)

    def log_of(self, group: str, launch: str = "", generation: int = 0) -> Logger:
        """Lines about one group: of which pool, launch and generation, as far as that is known."""
        spec = self.world.specs.get(group)
        words = {"pool": spec[0].pool if spec else "", "group": group, "launch": launch, "generation": generation}
        return self.log.bind(**{word: value for word, value in words.items() if value})

    def hold(self) -> bool:
        """At least half of four or more groups look bad at once: it is the probe or the machine, not they (R6)."""
        return len(self.stalled) >= 4 and 2 * sum(self.stalled.values()) >= len(self.stalled)
