"""`infctl drain`: let a group or a node finish its streams, then stop it."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from infctl.cli.options import Cluster, ContextName, Endpoints
from infctl.cli.tree import leaf

HELP = """Let a group, or every group with a part on a node, finish its streams, then stop it until undrained.

Gateways send no new requests there; running streams go on until SIGTERM, 30 seconds before the deadline. What then
still runs moves to another group of the pool, or ends with an error that says so. The deadline is the whole time, also
for what the drain has to wait for: minReady and disruptions of the pool. A node is cordoned by its drain.

\b
Examples:
  infctl drain group/llama-a --reason "new driver"
  infctl drain node/gpu-07 -m "fan noise" --deadline 5m --yes
  infctl drain group/llama-a --no-wait --yes
"""


def command() -> Any:
    return leaf("drain", drain, HELP)


def drain(
    target: Annotated[str, typer.Argument(metavar="group/NAME|node/NAME", show_default=False)],
    deadline: Annotated[
        str, typer.Option("--deadline", metavar="TIME", help="The whole time, like 90s or 15m; else as the group says.")
    ] = "",
    reason: Annotated[str, typer.Option("-m", "--reason", metavar="TEXT", help="Why; shown to everybody.")] = "",
    below_min: Annotated[
        bool, typer.Option("--allow-below-min", help="Even if fewer groups than minReady are left.")
    ] = False,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Follow it to its end.")] = True,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    endpoints: Endpoints = "",
    context: ContextName = "",
    cluster: Cluster = "",
) -> None:
    from infctl.cli.follow import seconds_of, target_of
    from infctl.cli.running import run_async

    address, seconds = target_of(target, "group", "node"), seconds_of(deadline) if deadline else 0.0
    run_async(_drain(address, seconds, reason, below_min, wait, yes, endpoints, context, cluster))


async def _drain(
    target: str,
    deadline: float,
    reason: str,
    below_min: bool,
    wait: bool,
    yes: bool,
    endpoints: str,
    context: str,
    cluster: str,
) -> None:
    from infctl.cli import io
    from infctl.cli.follow import confirm, show_plan, watch_it
    from infctl.client.connect import find_cluster, open_cluster
    from infctl.client.drain_plan import make_plan
    from infctl.client.intents import write_intent
    from infctl.domain.intents import IntentKind

    async with open_cluster(find_cluster(endpoints, context, cluster)) as (store, keys):
        plan = await make_plan(store, keys, target, deadline, below_min=below_min)
        show_plan(plan, "drain")
        deadline = plan.instants.kill
        confirm(f"Drain {target}?", yes)
        parameters = {"deadline_s": deadline, "below_min": below_min}
        written = await write_intent(store, keys, IntentKind.DRAIN, target, reason=reason, parameters=parameters)
        if not wait:
            io.out(f"{target} to be drained (intent {written.intent.intent})")
            return
        await watch_it(store, keys, written, deadline, "drain", f"infctl undrain {target}")
