"""`infctl undrain`: take a drain back, or bring what was drained into service again."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from infctl.cli.options import Cluster, ContextName, Endpoints
from infctl.cli.tree import leaf

HELP = """Take a drain back, or start again what was drained. A node is uncordoned with it.

Before the engine got its SIGTERM nothing is lost: new requests come again. After that the group is started anew.

\b
Examples:
  infctl undrain group/llama-a
  infctl undrain node/gpu-07 -m "fan changed"
"""


def command() -> Any:
    return leaf("undrain", undrain, HELP)


def undrain(
    target: Annotated[str, typer.Argument(metavar="group/NAME|node/NAME", show_default=False)],
    reason: Annotated[str, typer.Option("-m", "--reason", metavar="TEXT", help="Why; shown to everybody.")] = "",
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Follow it to its end.")] = True,
    yes: Annotated[bool, typer.Option("--yes", help="Accepted as by drain; nobody is asked.")] = False,
    endpoints: Endpoints = "",
    context: ContextName = "",
    cluster: Cluster = "",
) -> None:
    from infctl.cli.follow import target_of
    from infctl.cli.running import run_async

    run_async(_undrain(target_of(target, "group", "node"), reason, wait, endpoints, context, cluster))


async def _undrain(target: str, reason: str, wait: bool, endpoints: str, context: str, cluster: str) -> None:
    from infctl.cli import io
    from infctl.cli.follow import warn_unheard, watch_it
    from infctl.client.connect import find_cluster, open_cluster
    from infctl.client.intents import unheard, write_intent
    from infctl.domain.intents import IntentKind
    from infctl.domain.model import Limits

    async with open_cluster(find_cluster(endpoints, context, cluster)) as (store, keys):
        written = await write_intent(store, keys, IntentKind.UNDRAIN, target, reason=reason, parameters={})
        warn_unheard(await unheard(store, keys, written.executors), written.executors)
        if not wait:
            io.out(f"{target} to be undrained (intent {written.intent.intent})")
            return
        # an engine that already got its SIGTERM has to end first
        limits = Limits()
        await watch_it(store, keys, written, limits.drain_deadline, "undrain", "")
