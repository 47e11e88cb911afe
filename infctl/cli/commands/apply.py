"""`infctl apply`: make pools and groups as the files say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from infctl.cli.options import Cluster, ContextName, Endpoints
from infctl.cli.tree import leaf

if TYPE_CHECKING:
    from infctl.client.apply import Applied

HELP = """Create or change pools and groups from YAML files.

All files are checked before anything is written; a second run changes nothing. Each line says which
fields changed and when that takes effect: an engine that runs keeps its arguments until its next launch.

\b
Examples:
  infctl apply -f pool.yaml -f group.yaml
  infctl apply -f ./cluster/ --dry-run
  cat group.yaml | infctl apply -f -
"""


def command() -> Any:
    return leaf("apply", apply, HELP)


def apply(
    files: Annotated[
        list[str],
        typer.Option("-f", "--filename", metavar="FILE", help="A file, a folder, or - for stdin. May be repeated."),
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would change, write nothing.")] = False,
    endpoints: Endpoints = "",
    context: ContextName = "",
    cluster: Cluster = "",
) -> None:
    from infctl.cli.running import run_async

    run_async(_apply(files, dry_run, endpoints, context, cluster))


async def _apply(files: list[str], dry_run: bool, endpoints: str, context: str, cluster: str) -> None:
    from infctl.cli import io
    from infctl.cli.sources import read_specs
    from infctl.client.apply import apply_specs
    from infctl.client.connect import find_cluster, open_cluster

    specs = read_specs(files)
    async with open_cluster(find_cluster(endpoints, context, cluster)) as (store, keys):
        async for applied in apply_specs(store, keys, specs, dry_run=dry_run):
            what = _what(applied)
            io.out(f"{applied.address} {applied.outcome}{what}{' (dry run)' if dry_run else ''}")


def _what(applied: Applied) -> str:
    """Which fields changed, by when the change takes effect."""
    from infctl.client.diff import TakesEffect

    words = {
        TakesEffect.NOW: "now",
        TakesEffect.MOVES: "the group moves",
        TakesEffect.NEXT_LAUNCH: "at the next launch",
    }
    parts = []
    for when, word in words.items():
        fields = [change.field for change in applied.changes if change.takes_effect is when]
        if fields:
            parts.append(f"{word}: {', '.join(fields)}")
    return f" ({'; '.join(parts)})" if parts else ""
