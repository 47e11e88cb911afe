"""`infctl get`: objects of one or more kinds, from one snapshot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from infctl.cli.options import Cluster, ContextName, Endpoints, Output
from infctl.cli.tree import leaf
from infctl.cli.words import wanted
from infctl.domain.errors import UsageError
from infctl.view.kinds import Kind

if TYPE_CHECKING:
    from infctl.view.documents import Doc

HELP = """Show objects: nodes, pools, groups, endpoints, streams, gateways, events.

\b
Examples:
  infctl get groups
  infctl get groups,nodes
  infctl get group/llama-a node/gpu-07 -o wide
  infctl get streams -o json | jq '.items[].status.committedTokens'
  infctl get events --for group/llama-a --no-headers
"""


def command() -> Any:
    return leaf("get", get, HELP)


def get(
    what: Annotated[
        list[str], typer.Argument(metavar="KIND[,KIND...] | KIND NAME... | KIND/NAME...", show_default=False)
    ],
    output: Annotated[Output, typer.Option("-o", "--output", help="How to print.")] = Output.TABLE,
    no_headers: Annotated[bool, typer.Option("--no-headers", help="Rows only.")] = False,
    subject: Annotated[str, typer.Option("--for", metavar="KIND/NAME", help="Only events about this.")] = "",
    endpoints: Endpoints = "",
    context: ContextName = "",
    cluster: Cluster = "",
) -> None:
    kinds = wanted(what)
    about = ""
    if subject:
        if list(kinds) != [Kind.EVENT]:
            raise UsageError("--for goes with events only", hint=f"infctl get events --for {subject}")
        ((kind, names),) = wanted([subject]).items()
        if not names:
            raise UsageError(f"{subject!r} is not an address", hint=f"write {kind.value}/NAME")
        about = f"{kind.value}/{names[0]}"
    from infctl.cli.running import run_async

    run_async(_get(kinds, output, no_headers, about, endpoints, context, cluster))


async def _get(
    kinds: dict[Kind, list[str]],
    output: Output,
    no_headers: bool,
    about: str,
    endpoints: str,
    context: str,
    cluster: str,
) -> None:
    from infctl.cli import io
    from infctl.client.connect import find_cluster, open_cluster
    from infctl.client.listing import first_of, pick, read_snapshot
    from infctl.view.documents import as_list, documents

    place = find_cluster(endpoints, context, cluster)
    async with open_cluster(place) as (store, keys):
        snapshot = await read_snapshot(store, keys, kinds)
    picked = {kind: pick(documents(snapshot, kind), kind, names) for kind, names in kinds.items()}
    found = {kind: there for kind, (there, _) in picked.items()}
    missing = first_of(error for _, error in picked.values())
    if about:
        found[Kind.EVENT] = [e for e in found[Kind.EVENT] if e["status"]["subject"] == about]
    for key in snapshot.unreadable:
        io.err(f"warning: {key} does not hold what its key promises; skipped")
    if missing and not any(found.values()):
        raise missing
    if output is Output.JSON or output is Output.YAML:
        from infctl.cli.output.data import print_json, print_yaml

        items = [document for of_kind in found.values() for document in of_kind]
        document = as_list(next(iter(kinds)) if len(kinds) == 1 else None, items, snapshot.revision)
        (print_json if output is Output.JSON else print_yaml)(document)
    elif output is Output.NAME:
        from infctl.cli.output.data import print_names

        for kind, of_kind in found.items():
            print_names(kind, of_kind)
    else:
        nothing = [kind.plural for kind, of_kind in found.items() if not of_kind]
        _tables({k: d for k, d in found.items() if d}, headers=not no_headers, wide=output is Output.WIDE)
        if nothing and not missing:
            io.err(f"no {' and no '.join(nothing)} in cluster {place.cluster} ({place.origin})")
    if missing:
        io.flush()
        raise missing


def _tables(found: dict[Kind, list[Doc]], *, headers: bool, wide: bool) -> None:
    """One table for each kind; where there are several, names say of which kind they are."""
    from datetime import datetime

    from infctl.cli import io
    from infctl.cli.output.table import print_table
    from infctl.view.columns import rows

    now = datetime.now().astimezone()
    for n, (kind, documents) in enumerate(found.items()):
        columns, cells = rows(kind, documents, now, wide=wide)
        if len(found) > 1:
            cells = [[f"{kind.value}/{d['metadata']['name']}", *row[1:]] if kind is not Kind.EVENT else row
                     for d, row in zip(documents, cells, strict=True)]  # fmt: skip
        if n and headers:
            io.out()
        print_table(columns, cells, headers=headers)
