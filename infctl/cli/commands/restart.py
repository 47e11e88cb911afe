"""`infctl restart`: a new launch of a group, after its streams have finished."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from infctl.cli.options import Cluster, ContextName, Endpoints
from infctl.cli.tree import leaf

HELP = """Start a group anew: its streams finish as in a drain, then it stops and starts. Also clears `failed`.

With --now its processes are killed at once and no rule is waited for; streams move to other groups of the pool.

\b
Examples:
  infctl restart group/llama-a
  infctl restart group/llama-a --deadline 2m --yes
  infctl restart group/llama-a --now --yes
"""


def command() -> Any:
    return leaf("restart", restart, HELP)


def restart(
    target: Annotated[str, typer.Argument(metavar="group/NAME", show_default=False)],
    deadline: Annotated[
        str, typer.Option("--deadline", metavar="TIME", help="Until it is stopped, like 90s or 15m; else as it says.")
    ] = "",
    reason: Annotated[str, typer.Option("-m", "--reason", metavar="TEXT", help="Why; shown to everybody.")] = "",
    now: Annotated[bool, typer.Option("--now", help="Kill it at once.")] = False,
    below_min: Annotated[
        bool, typer.Option("--allow-below-min", help="Even if fewer groups than minReady are left.")
    ] = False,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Follow it until it serves.")] = True,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    endpoints: Endpoints = "",
    context: ContextName = "",
    cluster: Cluster = "",
) -> None:
    from infctl.cli.follow import seconds_of, target_of
    from infctl.cli.running import run_async

    address, seconds = target_of(target, "group"), seconds_of(deadline) if deadline else 0.0
    run_async(_restart(address, seconds, reason, now, below_min, wait, yes, endpoints, context, cluster))


async def _restart(
    target: str,
    deadline: float,
    reason: str,
    now: bool,
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
    from infctl.store.codec import decode
    from infctl.store.records import GroupSpec

    async with open_cluster(find_cluster(endpoints, context, cluster)) as (store, keys):
        plan = await make_plan(store, keys, target, deadline, below_min=below_min)
        show_plan(plan, "restart", at_once=now)
        deadline = plan.instants.kill
        confirm(f"Restart {target}{' by a kill' if now else ''}?", yes)
        parameters = {"deadline_s": deadline, "below_min": below_min, "now": now}
        written = await write_intent(store, keys, IntentKind.RESTART, target, reason=reason, parameters=parameters)
        if not wait:
            io.out(f"{target} to be restarted (intent {written.intent.intent})")
            return
        kv = await store.get(keys.group_spec(target.partition("/")[2]))
        start = decode(GroupSpec, kv.value).restart if kv else None
        load = start.load_deadline + start.canary_deadline if start else 0.0
        await watch_it(store, keys, written, deadline + load, "restart", f"infctl undrain {target}")
