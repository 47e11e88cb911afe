"""`infctl uncordon`: let a node start launches again."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from infctl.cli.options import Cluster, ContextName, Endpoints
from infctl.cli.tree import leaf

HELP = """Let a node start launches again.

Groups that a drain of the node has stopped stay so: `infctl undrain` brings back both.

\b
Examples:
  infctl uncordon node/gpu-07
"""


def command() -> Any:
    return leaf("uncordon", uncordon, HELP)


def uncordon(
    target: Annotated[str, typer.Argument(metavar="node/NAME", show_default=False)],
    reason: Annotated[str, typer.Option("-m", "--reason", metavar="TEXT", help="Why; shown to everybody.")] = "",
    endpoints: Endpoints = "",
    context: ContextName = "",
    cluster: Cluster = "",
) -> None:
    from infctl.cli.follow import target_of
    from infctl.cli.running import run_async

    run_async(_uncordon(target_of(target, "node"), reason, endpoints, context, cluster))


async def _uncordon(target: str, reason: str, endpoints: str, context: str, cluster: str) -> None:
    from infctl.cli import io
    from infctl.client.connect import find_cluster, open_cluster
    from infctl.client.intents import set_cordon

    async with open_cluster(find_cluster(endpoints, context, cluster)) as (store, keys):
        done = await set_cordon(store, keys, target.partition("/")[2], cordoned=False, reason=reason)
        io.out(f"{target} {'uncordoned' if done.changed else 'was not cordoned'}")
        if done.drained:
            io.err(f"its groups stay drained: infctl undrain {target}")
