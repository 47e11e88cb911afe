"""`infctl dev`: the cluster that stays. Up is idempotent; down stops only what up started, then forgets the context."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from infctl.adapters.etcd_cluster import SIZES, EmbeddedCluster
from infctl.client.local.cluster import GATEWAYD, NODED, LocalCluster, Running, Say, free_or_any
from infctl.client.local.plan import Engine, Layout, read_facts, write_facts
from infctl.config.context import Context, remove_context, save_context, state_home
from infctl.domain.errors import Conflict

CONTEXT = "dev"


@dataclass(frozen=True, slots=True)
class Part:
    """One process of the dev cluster; `pid` is None while it does not run."""

    name: str
    pid: int | None
    where: str = ""


def dev_layout() -> Layout:
    return Layout(state_home() / "dev")


def _members(facts: dict[str, Any]) -> int:
    """How many etcd members the dev cluster has, or had when it was last up."""
    found = facts.get("etcd_members")
    return found if found in SIZES else 1


async def up(engine: Engine, say: Say, etcd_members: int | None = None) -> Running:
    """Start the cluster, or what is missing of it, and make `dev` the current context.

    Without `etcd_members` there are as many as last time, and one at first.
    """
    layout = dev_layout()
    facts = read_facts(layout)
    had = _members(facts)
    members = etcd_members or had
    cluster = LocalCluster(layout, say, listen=free_or_any(8080), etcd_members=members)
    if members != had and (LocalCluster(layout, say, etcd_members=had).etcd.running or cluster.book.alive(NODED)):
        raise Conflict(
            f"a dev cluster on {had} etcd member{'s' if had > 1 else ''} runs already",
            reason="OtherEtcd",
            hint="infctl dev down, then up",
        )
    before = facts.get("engine")
    if before not in (None, engine.value) and cluster.book.alive(NODED) is not None:
        raise Conflict(
            f"a dev cluster with engine {before} runs already", reason="OtherEngine", hint="infctl dev down, then up"
        )
    layout.root.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_facts(layout, {"engine": engine.value, "etcd_members": members})
    running = await cluster.start(engine)
    write_facts(
        layout,
        {
            "engine": engine.value,
            "etcd_members": members,
            "endpoints": running.endpoints,
            "gateway": running.gateway,
            "admin": running.admin,
        },
    )
    save_context(Context(CONTEXT, running.endpoints, cluster.keys.cluster), make_current=True)
    return running


def status() -> list[Part]:
    """Every process of the dev cluster, whether it runs, and where it can be reached."""
    layout = dev_layout()
    facts = read_facts(layout)
    cluster = LocalCluster(layout, lambda _: None, etcd_members=_members(facts))
    etcds = cluster.etcd.running
    parts = []
    for name in cluster.etcd.members or ("etcd",):
        member = etcds.get(name)
        parts.append(Part(name, member.pid if member else None, member.endpoint if member else ""))
    for name in (NODED, GATEWAYD):
        record = cluster.book.alive(name)
        where = str(facts.get("gateway", "")) if name == GATEWAYD and record else ""
        parts.append(Part(name, record.pid if record else None, where))
    return parts


async def down(say: Say) -> list[str]:
    """Stop the cluster; returns what was stopped. Its data stays for the next up."""
    layout = dev_layout()
    cluster = LocalCluster(layout, say, etcd_members=_members(read_facts(layout)))
    stopped = await cluster.stop()
    for size in SIZES:  # whatever the facts say, if they could be read at all
        stopped += await EmbeddedCluster(layout.etcd(size), size).stop()
    remove_context(CONTEXT)
    return stopped
