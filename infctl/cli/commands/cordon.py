"""`infctl cordon`: start no new launch on a node."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from infctl.cli.options import Cluster, ContextName, Endpoints
from infctl.cli.tree import leaf

HELP = """Start no new launch on a node. What runs there goes on, and is started again after a fault.

A group that comes to the node, or whose launch was stopped on purpose, waits until the node is uncordoned. The streams
of a node are let finish by `infctl drain`, which cordons it, too.

\b
Examples:
  infctl cordon node/gpu-07 -m "fan noise"
"""


def command() -> Any:
    return leaf("cordon", cordon, HELP)


def cordon(
    target: Annotated[str, typer.Argument(metavar="node/NAME", show_default=False)],
    reason: Annotated[str, typer.Option("-m", "--reason", metavar="TEXT", help="Why; shown to everybody.")] = "",
    endpoints: Endpoints = "",
    context: ContextName = "",
    cluster: Cluster = "",
) -> None:
    from infctl.cli.follow import target_of
    from infctl.cli.running import run_async

    run_async(_cordon(target_of(target, "node"), reason, endpoints, context, cluster))


async def _cordon(target: str, reason: str, endpoints: str, context: str, cluster: str) -> None:
    from infctl.cli import io
    from infctl.client.connect import find_cluster, open_cluster
    from infctl.client.intents import set_cordon

    async with open_cluster(find_cluster(endpoints, context, cluster)) as (store, keys):
        done = await set_cordon(store, keys, target.partition("/")[2], cordoned=True, reason=reason)
        io.out(f"{target} {'' if done.changed else 'already '}cordoned")
