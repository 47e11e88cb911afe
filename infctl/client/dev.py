"""`infctl dev`: the cluster that stays. Up is idempotent; down stops only what up started, then forgets the context."""

from __future__ import annotations

from dataclasses import dataclass

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


async def up(engine: Engine, say: Say) -> Running:
    """Start the cluster, or what is missing of it, and make `dev` the current context."""
    layout = dev_layout()
    cluster = LocalCluster(layout, say, listen=free_or_any(8080))
    before = read_facts(layout).get("engine")
    if before not in (None, engine.value) and cluster.book.alive(NODED) is not None:
        raise Conflict(
            f"a dev cluster with engine {before} runs already", reason="OtherEngine", hint="infctl dev down, then up"
        )
    layout.root.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_facts(layout, {"engine": engine.value})
    running = await cluster.start(engine)
    write_facts(
        layout,
        {
            "engine": engine.value,
            "endpoint": running.endpoint,
            "gateway": running.gateway,
            "admin": running.admin,
        },
    )
    save_context(Context(CONTEXT, (running.endpoint,), cluster.keys.cluster), make_current=True)
    return running


def status() -> list[Part]:
    """Every process of the dev cluster, whether it runs, and where it can be reached."""
    layout = dev_layout()
    cluster = LocalCluster(layout, lambda _: None)
    facts = read_facts(layout)
    etcd = cluster.etcd.running if layout.etcd.exists() else None
    parts = [Part("etcd", etcd.pid if etcd else None, etcd.endpoint if etcd else "")]
    for name in (NODED, GATEWAYD):
        record = cluster.book.alive(name)
        where = str(facts.get("gateway", "")) if name == GATEWAYD and record else ""
        parts.append(Part(name, record.pid if record else None, where))
    return parts


async def down(say: Say) -> list[str]:
    """Stop the cluster; returns what was stopped. Its data stays for the next up."""
    cluster = LocalCluster(dev_layout(), say)
    stopped = await cluster.stop()
    remove_context(CONTEXT)
    return stopped
