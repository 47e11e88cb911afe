"""`infctl get`: objects of one kind, from one snapshot."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from infctl.cli.options import Cluster, ContextName, Endpoints, Output
from infctl.cli.tree import leaf
from infctl.domain.errors import UsageError
from infctl.view.kinds import WORDS, Kind, nearest

HELP = """Show objects: nodes, pools, groups, endpoints, streams, gateways, events.

\b
Examples:
  infctl get groups
  infctl get group/llama-a -o wide
  infctl get streams -o json | jq '.items[].status.committedTokens'
  infctl get events --no-headers
"""


def command() -> Any:
    return leaf("get", get, HELP)


def get(
    what: Annotated[list[str], typer.Argument(metavar="KIND [NAME...] | KIND/NAME...", show_default=False)],
    output: Annotated[Output, typer.Option("-o", "--output", help="How to print.")] = Output.TABLE,
    no_headers: Annotated[bool, typer.Option("--no-headers", help="Rows only.")] = False,
    endpoints: Endpoints = "",
    context: ContextName = "",
    cluster: Cluster = "",
) -> None:
    kind, names = parse(what)
    from infctl.cli.running import run_async

    run_async(_get(kind, names, output, no_headers, endpoints, context, cluster))


def parse(words: list[str]) -> tuple[Kind, list[str]]:
    """`groups a b`, `group/a group/b` → the kind and the names. Raises UsageError."""
    names: list[str] = []
    kinds: set[Kind] = set()
    for i, word in enumerate(words):
        head, slash, name = word.partition("/")
        if i and not slash:
            names.append(word)
            continue
        if head not in WORDS:
            near = nearest(head, sorted(WORDS))
            raise UsageError(
                f"no kind {head!r}",
                reason="UnknownKind",
                hint=f"did you mean {near}?" if near else f"one of: {', '.join(k.plural for k in Kind)}",
            )
        kinds.add(WORDS[head])
        if slash:
            names.append(name)
    if len(kinds) > 1:
        raise UsageError("one kind at a time", hint="give names of the same kind, or run the command twice")
    return kinds.pop(), names


async def _get(
    kind: Kind, names: list[str], output: Output, no_headers: bool, endpoints: str, context: str, cluster: str
) -> None:
    from infctl.cli import io
    from infctl.client.connect import find_cluster, open_cluster
    from infctl.client.listing import pick, read_snapshot
    from infctl.view.snapshot import as_list, documents

    place = find_cluster(endpoints, context, cluster)
    async with open_cluster(place) as (store, keys):
        snapshot = await read_snapshot(store, keys, kind)
    found = pick(documents(snapshot, kind), kind, names)
    for key in snapshot.unreadable:
        io.err(f"warning: {key} does not hold what its key promises; skipped")
    if output is Output.JSON or output is Output.YAML:
        from infctl.cli.output.data import print_json, print_yaml

        (print_json if output is Output.JSON else print_yaml)(as_list(kind, found, snapshot.revision))
    elif output is Output.NAME:
        from infctl.cli.output.data import print_names

        print_names(kind, found)
    else:
        from datetime import UTC, datetime

        from infctl.cli.output.table import print_table
        from infctl.view.columns import rows

        if not found:
            io.err(f"no {kind.plural} in cluster {place.cluster} ({place.origin})")
            return
        columns, cells = rows(kind, found, datetime.now(UTC), wide=output is Output.WIDE)
        print_table(columns, cells, headers=not no_headers)
