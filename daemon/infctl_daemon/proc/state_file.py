"""What the daemon must know after its own death: each group's highest generation, its launch and that one's processes.

One file for a group, replaced whole (write, fsync, rename, fsync of the folder): a reader sees the old one or the new
one. The generation in it never falls. Processes count only within the boot that started them.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec

from infctl.config.host_address import LOOPBACK
from infctl.domain.ids import check_name
from infctl_daemon.proc import procfs
from infctl_daemon.proc.procfs import Ident


class Process(msgspec.Struct, frozen=True):
    pid: int
    start: int
    title: str = ""
    parent: str = ""

    @property
    def ident(self) -> Ident:
        return Ident(self.pid, self.start)


class GroupState(msgspec.Struct, frozen=True, kw_only=True):
    """`processes[0]` is the main one; an empty list means that nothing runs.

    `stage` says how far the launch came: "claimed" (it may have been started, unseen), "started", "checked" (its
    canary passed), or "" once it has ended. `lease` is the node's lease that its generation was taken under; `spec`,
    `pool`, `model` and `answer` are what it was started with, so that it can be taken over while the store is away;
    `plan` and `node_rank` say so of a launch over several hosts. `address` and `port` are where its engine listens.
    `container` is the name of what holds its processes together (`proc.container`), `shm` what they had mapped of
    /dev/shm, for when all of them have died.
    """

    v: int = 1
    group: str
    generation: int = 0
    launch: str = ""
    boot_id: str = ""
    port: int = 0
    address: str = LOOPBACK
    count: int = 0  # launches ever, for the rendezvous port
    processes: list[Process] = msgspec.field(default_factory=list)
    stage: str = ""
    lease: int = 0
    started: float = 0.0  # epoch seconds
    spec: dict[str, Any] | None = None
    pool: dict[str, Any] | None = None
    model: dict[str, Any] | None = None
    plan: dict[str, Any] | None = None
    node_rank: int = 0
    answer: list[int] = msgspec.field(default_factory=list)
    container: str = ""
    shm: list[str] = msgspec.field(default_factory=list)

    def begun(self, launch: str, *, lease: int, generation: int = 0, node_rank: int = 0) -> GroupState:
        """What follows when the next launch is begun: a later life looks for what may have been started."""
        return GroupState(
            group=self.group,
            generation=generation,
            launch=launch,
            boot_id=procfs.boot_id(),
            port=self.port,
            count=self.count + 1,
            stage="claimed",
            lease=lease,
            node_rank=node_rank,
        )

    @property
    def unfinished(self) -> bool:
        """A launch was begun, and its end is not recorded."""
        return bool(self.launch and (self.stage or self.processes))


class NodeState(msgspec.Struct, frozen=True, kw_only=True):
    """`node.json`: the lease that the node holds, for the next life of its daemon."""

    v: int = 1
    lease: int = 0


def write_durably(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Replace `path` by `data` so that a crash leaves the old content or the new, never a mixture."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        os.fchmod(fd, mode)
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        os.fsync(fd)
    finally:
        os.close(fd)
    os.replace(temporary, path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


class StateFile:
    """The state of all groups of one daemon, in `<folder>/groups/`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "groups"
        self._node = folder / "node.json"

    def _path(self, group: str) -> Path:
        return self._folder / f"{check_name(group, 'group')}.json"

    def groups(self) -> list[str]:
        """Every group that has a file."""
        if not self._folder.is_dir():
            return []
        return sorted(p.stem for p in self._folder.glob("*.json") if not p.name.startswith("."))

    def read(self, group: str) -> GroupState:
        """What is known of the group; a file that does not decode counts as none (etcd still has the generation)."""
        try:
            return msgspec.json.decode(self._path(group).read_bytes(), type=GroupState)
        except (OSError, msgspec.MsgspecError):
            return GroupState(group=group)

    def write(self, state: GroupState) -> None:
        """Keep `state`; its generation is raised to the one already there if it is lower."""
        known = self.read(state.group)
        if known.generation > state.generation:
            state = msgspec.structs.replace(state, generation=known.generation)
        write_durably(self._path(state.group), msgspec.json.encode(state))

    @property
    def lease(self) -> int:
        """The node's lease of an earlier life; 0 where none is known."""
        try:
            return msgspec.json.decode(self._node.read_bytes(), type=NodeState).lease
        except (OSError, msgspec.MsgspecError):
            return 0

    def keep_lease(self, lease: int) -> None:
        write_durably(self._node, msgspec.json.encode(NodeState(lease=lease)))

    def leftovers(self, group: str) -> tuple[Process, ...]:
        """Processes recorded by an earlier daemon in this boot, main first, dead or alive."""
        state = self.read(group)
        return tuple(state.processes) if state.boot_id == procfs.boot_id() else ()
