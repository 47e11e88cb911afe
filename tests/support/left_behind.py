"""What a launch has in the world, noted while it lives, and the check that nothing of it is left after its end.

Left behind are processes (by identity, by descent and by the mark in their environment), keys that name the launch
(endpoint, secret, rank keys), its key file, what held its processes together, and names in /dev/shm that it had
mapped or that carry a pid of its own. Its record and its fault notice stay on purpose, and are no leftovers.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from infctl.ports.store import Store
from infctl.store.keys import Keys
from infctl_daemon.engine.argv import MARK
from infctl_daemon.proc import kill, procfs
from infctl_daemon.proc.procfs import Ident
from infctl_daemon.proc.state_file import StateFile
from tests.support.witness import until

SHM = Path("/dev/shm")


@dataclass(frozen=True)
class Footprint:
    """A launch, everything that was seen of it, and where its daemon keeps key files."""

    group: str
    launch: str
    keys_dir: Path
    idents: frozenset[Ident]
    shm: frozenset[str]
    container: str = ""
    started: float = 0.0  # epoch seconds: pids come again, and names of an older one are not its own

    @property
    def living(self) -> set[int]:
        """Its processes that run, those that were born after the look included."""
        return {ident.pid for ident in (*self.idents, *procfs.marked(MARK, self.launch)) if procfs.is_alive(ident)}

    @property
    def in_shm(self) -> set[str]:
        ours = {ident.pid for ident in self.idents}
        return {n for n in os.listdir(SHM) if n in self.shm or (_pid_in(n) in ours and _born(n) >= self.started - 1.0)}


def sweep(state_dir: Path) -> None:
    """What the recorded launches left in /dev/shm, where a test, and no daemon, ended them."""
    state = StateFile(state_dir)
    for group in state.groups():
        known = state.read(group)
        kill.remove_from_shm(kill.left_in_shm(known.shm, frozenset(p.pid for p in known.processes), known.started))


def footprint(state_dir: Path, run_dir: Path, group: str) -> Footprint:
    """That of the launch which runs now."""
    state = StateFile(state_dir).read(group)
    assert state.launch and state.processes, f"nothing of {group} runs"
    recorded = frozenset(p.ident for p in state.processes) | frozenset(procfs.marked(MARK, state.launch))
    idents = recorded | {s.ident for s in procfs.members(procfs.snapshot(), state.processes[0].ident, recorded)}
    mapped = frozenset(name for ident in idents for name in procfs.shared_memory(ident.pid))
    return Footprint(state.group, state.launch, run_dir / "keys", idents, mapped, state.container, state.started)


async def left_of(store: Store, keys: Keys, seen: Footprint) -> list[str]:
    """Everything that is still there, in words."""
    found = [f"process {pid} ({procfs.title(pid)})" for pid in sorted(seen.living)]
    for key in (keys.endpoint(seen.group), keys.secret(seen.group)):
        kv = await store.get(key)
        if kv is not None and f'"{seen.launch}"'.encode() in kv.value:
            found.append(f"key {key}")
    ranks = await store.range(f"{keys.group(seen.group)}ranks/{seen.launch}/")
    found += [f"key {kv.key}" for kv in ranks.kvs]
    if (file := seen.keys_dir / f"{seen.launch}.yaml").exists():
        found.append(f"file {file}")
    kind, _, where = seen.container.partition(":")
    if kind == "cgroup" and Path(where).exists():
        found.append(f"cgroup {where}")
    return found + [f"/dev/shm/{name}" for name in sorted(seen.in_shm)]


async def nothing_left(store: Store, keys: Keys, seen: Footprint, seconds: float = 5.0) -> None:
    """Fails with what is left when that is anything after `seconds`."""
    left: list[str] = []

    async def gone() -> bool:
        left[:] = await left_of(store, keys, seen)
        return not left

    try:
        await until(gone, seconds, "", every=0.05)
    except AssertionError:
        raise AssertionError(f"{seen.launch} left behind after {seconds:g} s: {'; '.join(left)}") from None


def _born(name: str) -> float:
    """When the name was last written; 0 where it is gone by now."""
    try:
        return (SHM / name).stat().st_mtime
    except OSError:
        return 0.0


def _pid_in(name: str) -> int:
    match = re.fullmatch(r"(?:sgl_shm_.*?|multi_tokenizer_args|sglang_loads(?:_.*?)?)_(\d+)(?:_.*)?", name)
    return int(match[1]) if match else -1
