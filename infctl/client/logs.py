"""What `infctl logs` shows: which launch is meant, how it ended, and what its engine printed.

Kept true: where the daemon cannot be asked, what etcd knows is still said: which launch it was, how it ended, and on
which host its output lies.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from infctl.client.daemon_api import DaemonApi, ToldLaunch
from infctl.domain.errors import InfctlError, NodeUnreachable, NotFound
from infctl.ports.store import Store
from infctl.store.codec import BadRecord, Record, decode
from infctl.store.keys import Keys
from infctl.store.records import Generation, GroupSpec, GroupStatus, LaunchPlan, LaunchRecord, NodeLease
from infctl.view.kinds import nearest

R = TypeVar("R", bound=Record)


@dataclass(frozen=True, slots=True)
class Source:
    """The node that is asked for a group's output, as far as etcd knows; `hosts` are the others that have some."""

    group: str
    node: str
    launch: str
    lease: NodeLease | None
    record: LaunchRecord | None
    hosts: tuple[str, ...] = ()

    def away(self) -> InfctlError:
        """The error of a node that is not heard, with what is known all the same."""
        if self.hosts and self.node not in self.hosts:
            return NotFound(f"group/{self.group} has no part on node/{self.node}", hint=self._hosts())
        ended = ""
        if self.record is not None and self.record.ended_at:
            ended = f"; {self.launch} ended {self.record.ended_at} by {self.record.ended_by}: {self.record.ended_why}"
        lies = f"logs/{self.launch}.log" if self.launch else "logs/"
        return NodeUnreachable(
            f"node/{self.node} is away: its daemon's lease is gone{ended}",
            reason="NodeAway",
            hint=f"the output lies on that host: {lies} below stateDir of infctl-noded",
        )

    def unknown_there(self) -> NotFound:
        return NotFound(f"group/{self.group} has had no launch on node/{self.node}", hint=self._hosts())

    def _hosts(self) -> str:
        if len(self.hosts) > 1:
            return f"its hosts are {', '.join(self.hosts)}"
        return f"infctl describe group/{self.group}"


async def find_source(store: Store, keys: Keys, group: str, host: str = "") -> Source:
    """Who started the group's newest launch, or one of its other hosts. Raises NotFound, StoreError."""
    generation = await _read(store, keys.group_generation(group), Generation)
    status = await _read(store, keys.group_status(group), GroupStatus)
    spec = await _read(store, keys.group_spec(group), GroupSpec)
    if generation is None and status is None and spec is None:
        listed = await store.range(keys.groups)
        near = nearest(group, sorted({keys.parts(kv.key)[1] for kv in listed.kvs}))
        raise NotFound(f"group/{group} not found", hint=f"did you mean group/{near}?" if near else "infctl get groups")
    owner = next(n for n in (generation and generation.owner, status and status.node, spec and spec.node, "?") if n)
    launch = generation.launch if generation else ""
    record = await _read(store, keys.group_launch(group, launch), LaunchRecord) if launch else None
    plan = await _read(store, keys.launch_plan(group, launch), LaunchPlan) if launch and host else None
    placed = plan.spec if plan else spec
    node, hosts = host or owner, tuple(h.node for h in placed.placement) if host and placed else ()
    return Source(group, node, launch, await _read(store, keys.node_lease(node), NodeLease), record, hosts)


async def choose(api: DaemonApi, source: Source, *, previous: bool = False, launch: str = "") -> ToldLaunch:
    """The launch meant: a named one, the newest that has ended, or the newest. Raises NotFound and the API's errors."""
    try:
        found = await api.launches(source.group)
    except NotFound:
        raise source.unknown_there() from None
    if launch:
        found = [told for told in found if told.launch == launch]
    elif previous:
        found = [told for told in found if told.state == "ended"][:1]
    if not found and launch:
        raise NotFound(
            f"group/{source.group} has no launch {launch} on node/{source.node}",
            hint="the last ten of a group are kept",
        )
    if not found and previous:
        raise NotFound(
            f"no launch of group/{source.group} has ended on node/{source.node}",
            hint=f"infctl describe group/{source.group}",
        )
    if not found:
        raise source.unknown_there()
    return found[0]


def sentence(told: ToldLaunch) -> str:
    """What became of a launch, in one line."""
    # the generation is known to the owner alone
    which = f"node-rank {told.node_rank}" if told.node_rank else f"generation {told.generation}"
    head = f"launch {told.launch}, {which}, "
    if told.state != "ended":
        return head + (told.state or "running") + (f" ({told.reason})" if told.reason else "")
    how = f"exit code {told.exit_code}" if told.exit_code is not None else ""
    how = f"signal {told.signal}" if told.signal is not None else how
    who = f"{told.process}: {how or 'ended'}" if told.process else how
    why = f"{told.reason}: {told.message}" if told.message and not told.process else told.reason
    parts = ", ".join(part for part in (who, "out of memory" if told.oom_kills else "", why) if part)
    return f"{head}ended {told.ended_at}" + (f": {parts}" if parts else "")


async def _read(store: Store, key: str, kind: type[R]) -> R | None:
    found = await store.get(key)
    try:
        return decode(kind, found.value) if found else None
    except BadRecord:
        return None
