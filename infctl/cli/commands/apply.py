"""`infctl apply`: make pools and groups as the files say."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from infctl.cli.options import Cluster, ContextName, Endpoints
from infctl.cli.tree import leaf
from infctl.domain.errors import UsageError

HELP = """Create or change pools and groups from YAML files.

All files are checked before anything is written; a second run changes nothing.

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


def read_sources(files: list[str]) -> list[tuple[str, str]]:
    """(name, text) of every file meant; folders give their *.yaml and *.yml. Raises ConfigError and UsageError."""
    import sys
    from pathlib import Path

    from infctl.config.source import read_file

    sources: list[tuple[str, str]] = []
    for name in files:
        if name == "-":
            sources.append(("<stdin>", sys.stdin.read()))
            continue
        path = Path(name)
        if path.is_dir():
            inside = sorted(p for p in path.iterdir() if p.suffix in (".yaml", ".yml"))
            if not inside:
                raise UsageError(f"{path} holds no *.yaml file")
            sources.extend((str(p), read_file(p)) for p in inside)
        else:
            sources.append((name, read_file(path)))
    return sources


async def _apply(files: list[str], dry_run: bool, endpoints: str, context: str, cluster: str) -> None:
    from infctl.cli import io
    from infctl.client.apply import apply_specs, to_specs
    from infctl.client.connect import find_cluster, open_cluster
    from infctl.config.load import load_documents

    specs = to_specs(load_documents(read_sources(files)))
    if not specs:
        raise UsageError("the files hold no document")
    async with open_cluster(find_cluster(endpoints, context, cluster)) as (store, keys):
        async for applied in apply_specs(store, keys, specs, dry_run=dry_run):
            what = f" ({', '.join(applied.changed)})" if applied.changed else ""
            io.out(f"{applied.address} {applied.outcome}{what}{' (dry run)' if dry_run else ''}")
