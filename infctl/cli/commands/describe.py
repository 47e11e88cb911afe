"""`infctl describe`: one object on one page: what it is, how it is and why, what happened, what to look at next."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from infctl.cli.options import Cluster, ContextName, Endpoints
from infctl.cli.tree import leaf
from infctl.cli.words import wanted
from infctl.view.kinds import Kind

HELP = """Tell everything about an object: its state and why, what belongs to it, its last events, what to do next.

Times are local; events are kept for about ten minutes. Everything shown is of one moment.

\b
Examples:
  infctl describe group/llama-a
  infctl describe group llama-a llama-b
  infctl describe node/gpu-07 pool/llama
  infctl describe stream/r2al5f53qngelmatlhozgahjxy4
"""


def command() -> Any:
    return leaf("describe", describe, HELP)


def describe(
    what: Annotated[list[str], typer.Argument(metavar="KIND/NAME... | KIND [NAME...]", show_default=False)],
    endpoints: Endpoints = "",
    context: ContextName = "",
    cluster: Cluster = "",
) -> None:
    kinds = wanted(what)
    from infctl.cli.running import run_async

    run_async(_describe(kinds, endpoints, context, cluster))


async def _describe(kinds: dict[Kind, list[str]], endpoints: str, context: str, cluster: str) -> None:
    from datetime import datetime

    from infctl.cli import io
    from infctl.cli.output.page import print_page
    from infctl.client.connect import find_cluster, open_cluster
    from infctl.client.describe import describe as described

    place = find_cluster(endpoints, context, cluster)
    async with open_cluster(place) as (store, keys):
        found = await described(store, keys, kinds, datetime.now().astimezone())
    for key in found.unreadable:
        io.err(f"warning: {key} does not hold what its key promises; skipped")
    if not found.pages and not found.missing:
        io.err(f"no {' and no '.join(k.plural for k in kinds)} in cluster {place.cluster} ({place.origin})")
    for n, page in enumerate(found.pages):
        if n:
            io.out("\n")
        print_page(page)
    if found.missing:
        io.flush()
        raise found.missing
