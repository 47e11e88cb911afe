"""`infctl-noded --once`: look at the store, our own records and /proc, say what a daemon would do, do nothing.

The plan is that of the daemon: `domain.group.step` is asked with what was found. Nothing is locked, written, started or
ended, so it may run beside a daemon. Exit 0: there is nothing to do; 1: there is; 3: the store gave no answer.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from infctl.adapters.etcd import EtcdStore
from infctl.domain import group_events as ev
from infctl.domain.errors import InfctlError
from infctl.domain.group import Group, step
from infctl.ports.store import Store
from infctl.store.codec import BadRecord, decode
from infctl.store.keys import Keys
from infctl.store.records import Generation, GroupSpec, PoolSpec
from infctl_daemon.node.adopt import Lost, check_living
from infctl_daemon.node.agent import Settings
from infctl_daemon.node.group_loop import policy
from infctl_daemon.node.launch import digest
from infctl_daemon.node.once_parts import Finding, Parts
from infctl_daemon.node.unsupported import unsupported
from infctl_daemon.proc import procfs
from infctl_daemon.proc.state_file import GroupState, StateFile
from infctl_daemon.runtime import log
from infctl_daemon.runtime.console import columns, complain, say

STORE_DEADLINE = 10.0


@dataclass(slots=True)
class Seen:
    """What one look found. `specs` are those of this node, `parts` what it has of groups that others own."""

    parts: Parts
    specs: dict[str, GroupSpec] = field(default_factory=dict)
    pools: set[str] = field(default_factory=set)
    registered: dict[str, Generation] = field(default_factory=dict)
    unreadable: list[str] = field(default_factory=list)
    recorded: dict[str, GroupState] = field(default_factory=dict)
    alive: dict[str, int] = field(default_factory=dict)
    lost: dict[str, Lost] = field(default_factory=dict)
    lease: int = 0  # the node's, while the store knows it
    supervised: bool = False


def main(args: argparse.Namespace) -> int:
    from infctl_daemon.node.main import settings

    log.configure(args.log_level or "warning")
    try:
        chosen = settings(args)
        seen = asyncio.run(_look(chosen))
    except InfctlError as error:
        return complain(error)
    groups, parts = plan(seen), seen.parts.findings(supervised=seen.supervised)
    findings = [*groups, *parts]
    running = "a daemon supervises them" if seen.supervised else "no daemon runs"
    others = f" and {len(parts)} parts of others'" if parts else ""
    say(f"node {chosen.node}, cluster {chosen.cluster}: {len(groups)} groups{others}, {running}")
    if findings:
        say(columns((f"group/{one.group}", one.state, one.todo or "nothing to do") for one in findings))
    for key in seen.unreadable:
        say(f"{key}: cannot be read, left as it is")
    return int(any(one.todo for one in findings) or bool(seen.unreadable))


async def _look(chosen: Settings) -> Seen:
    store = EtcdStore(chosen.etcd.endpoints, tls=chosen.etcd.tls)
    try:
        seen = await observe(store, Keys(chosen.cluster), chosen.node)
    finally:
        await store.close()
    records(seen, StateFile(chosen.state_dir))
    seen.parts.look(StateFile(chosen.state_dir / "parts"))
    seen.supervised = _held(chosen.state_dir / "lock")
    return seen


async def observe(store: Store, keys: Keys, node: str) -> Seen:
    """The store's side, at one revision. Raises StoreError."""
    seen = Seen(Parts(node))
    groups = await store.range(keys.groups, timeout=STORE_DEADLINE)
    pools = await store.range(keys.pools, revision=groups.revision, timeout=STORE_DEADLINE)
    faults = await store.range(keys.faults, revision=groups.revision, timeout=STORE_DEADLINE)
    own = await store.get(keys.node_lease(node), timeout=STORE_DEADLINE)
    seen.lease = own.lease if own else 0
    for kv in (*groups.kvs, *pools.kvs, *faults.kvs):
        try:
            seen.parts.take(keys.parts(kv.key), kv.value)
            match keys.parts(kv.key):
                case ("groups", group, "spec") if (spec := decode(GroupSpec, kv.value)).node == node:
                    seen.specs[group] = spec
                case ("groups", group, "generation"):
                    seen.registered[group] = decode(Generation, kv.value)
                case ("pools", pool, "spec"):
                    decode(PoolSpec, kv.value)
                    seen.pools.add(pool)
        except BadRecord:
            seen.unreadable.append(kv.key)
    return seen


def records(seen: Seen, state: StateFile) -> None:
    """This host's side: what an earlier or running daemon recorded, and what of it lives."""
    for group in state.groups():
        known = state.read(group)
        if not known.unfinished:
            continue
        seen.recorded[group] = known
        seen.alive[group] = sum(procfs.is_alive(p.ident) for p in state.leftovers(group))
        try:
            check_living(known)
        except Lost as lost:
            seen.lost[group] = lost


def plan(seen: Seen) -> list[Finding]:
    """For every group of ours by specification or by record. Pure."""
    names = sorted({*seen.specs, *seen.recorded})
    return [_finding(name, seen) for name in names]


def _finding(name: str, seen: Seen) -> Finding:
    spec, record, alive = seen.specs.get(name), seen.recorded.get(name), seen.alive.get(name, 0)
    if record is None:
        state = "nothing runs"
    else:
        state = f"launch {record.launch}, generation {record.generation}, {alive} of {len(record.processes)} processes"
    if spec is None:
        return Finding(name, state, "stop it: its specification is gone" if alive else "forget it")
    if why := unsupported(spec):
        return Finding(name, state, f"not start it: {why}")
    if spec.pool not in seen.pools:
        return Finding(name, state, f"wait: pool {spec.pool} does not exist")
    registered = seen.registered.get(name)
    if record and name not in seen.lost and seen.supervised and registered and registered.launch == record.launch:
        return Finding(name, state, "")
    return Finding(name, state, _words(_effects(name, spec, record, seen)))


def _effects(name: str, spec: GroupSpec, record: GroupState | None, seen: Seen) -> Iterable[ev.GroupEffect]:
    """What the daemon's own machine asks for when it starts and finds this."""
    group = Group(name, policy(spec), generation=record.generation if record else 0)
    events: list[ev.GroupEvent] = []
    then: list[ev.GroupEvent] = []
    if record and (lost := seen.lost.get(name)):
        events = [ev.LaunchFound(record.launch, record.generation, lost.reason, lost.evidence)]
        # and what follows when that went well
        then = [ev.FaultWritten(record.launch), ev.LaunchGone(record.launch), ev.TimerFired("relaunch", "")]
    elif record:
        checked = record.stage == "checked"
        events = [ev.LaunchAdopted(record.launch, record.generation, checked, record.lease, digest(spec))]
    effects: list[ev.GroupEffect] = []
    for event in (*events, ev.LeaseHeld(seen.lease), ev.SpecApplied(digest(spec)), *then):
        group, more = step(group, event, time.monotonic())
        effects += more
    return effects


_TODO = {
    ev.KillLaunch: "end what is left of {launch}",
    ev.StopLaunch: "stop {launch}",
    ev.WriteFault: "write its fault notice",
    ev.ClaimLaunch: "claim and start a launch",
    ev.ClaimGeneration: "register {launch} again",
    ev.PublishEndpoint: "publish {launch}",
    ev.AwaitLoad: "wait until it has loaded",
    ev.RunCanary: "check {launch} by its canary",
}


def _words(effects: Iterable[ev.GroupEffect]) -> str:
    """The effects as a person says them; one that has no words is named."""
    said = []
    for effect in effects:
        if isinstance(effect, ev.Announce) and effect.kind == "launch.adopted":
            said.append(f"take over {effect.launch}")
        if isinstance(effect, (ev.Announce, ev.SetTimer)):
            continue
        text = _TODO.get(type(effect), type(effect).__name__)
        said.append(text.format(launch=getattr(effect, "launch", "")))
    return ", ".join(said)


def _held(path: Path) -> bool:
    """Does a daemon hold the lock of this state folder? The kernel's list is read: trying would be in a start's way."""
    with contextlib.suppress(OSError):
        inode = f":{path.stat().st_ino}"
        locks = (line.split() for line in Path("/proc/locks").read_text().splitlines())
        return any("FLOCK" in lock and any(word.endswith(inode) for word in lock) for lock in locks)
    return False
