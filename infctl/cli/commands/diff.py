"""`infctl diff`: what `infctl apply` would change, and nothing is written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from infctl.cli.options import Cluster, ContextName, Endpoints
from infctl.cli.tree import leaf
from infctl.domain.errors import UsageError

if TYPE_CHECKING:
    from infctl.client.apply import Applied

HELP = """Show what applying YAML files would change. Nothing is written.

Each object is compared in its canonical form, with every default spelled out. Exit code 0: nothing would
change; 1: something would; more than 1: an error.

\b
Examples:
  infctl diff -f pool.yaml -f group.yaml
  infctl diff -f ./cluster/ -o json | jq '.items[].changes'
"""

_STYLES = {"-": "red", "+": "green", "@": "cyan"}


def command() -> Any:
    return leaf("diff", diff, HELP)


def diff(
    files: Annotated[
        list[str],
        typer.Option("-f", "--filename", metavar="FILE", help="A file, a folder, or - for stdin. May be repeated."),
    ],
    output: Annotated[str, typer.Option("-o", "--output", metavar="diff|json|yaml", help="How to print.")] = "diff",
    endpoints: Endpoints = "",
    context: ContextName = "",
    cluster: Cluster = "",
) -> None:
    if output not in ("diff", "json", "yaml"):
        raise UsageError(f"no output {output!r}", hint="one of: diff, json, yaml")
    from infctl.cli.running import run_async

    if run_async(_diff(files, output, endpoints, context, cluster)):
        raise typer.Exit(1)


async def _diff(files: list[str], output: str, endpoints: str, context: str, cluster: str) -> bool:
    """Whether something would change."""
    from infctl.cli.sources import read_specs
    from infctl.client.apply import Outcome, apply_specs
    from infctl.client.connect import find_cluster, open_cluster
    from infctl.domain.errors import PartialFailure
    from infctl.store.codec import BadRecord

    specs = read_specs(files)
    async with open_cluster(find_cluster(endpoints, context, cluster)) as (store, keys):
        try:
            found = [applied async for applied in apply_specs(store, keys, specs, dry_run=True)]
        except BadRecord as error:
            # not 1, which says "it differs"
            raise PartialFailure(error.message, reason=error.reason, hint="what is stored cannot be read") from None
    if output == "diff":
        _print(found)
    else:
        from infctl.cli.output.data import print_json, print_yaml

        (print_json if output == "json" else print_yaml)(document(found))
    return any(applied.outcome is not Outcome.UNCHANGED for applied in found)


def _print(found: list[Applied]) -> None:
    from infctl.cli import io

    for applied in found:
        for line in applied.lines:
            bold = line.startswith(("--- ", "+++ "))
            style = "bold" if bold else _STYLES.get(line[:1], "")
            text = io.printable(line)
            io.out(io.paint(text, style) if style else text)


def document(found: list[Applied]) -> dict[str, Any]:
    import msgspec

    from infctl.view import models as m

    items = [
        m.DiffView(
            api_version=m.API_VERSION,
            address=applied.address,
            outcome=str(applied.outcome),
            changes=[
                m.ChangeView(field=c.field, before=c.before, after=c.after, takes_effect=str(c.takes_effect))
                for c in applied.changes
            ],
        )
        for applied in found
    ]
    plain: list[dict[str, Any]] = msgspec.to_builtins(items)
    return {
        "apiVersion": m.API_VERSION,
        "kind": "DiffList",
        "metadata": {"revision": None},
        "items": [{"apiVersion": item.pop("apiVersion"), **item} for item in plain],
    }
