"""`infctl version -o json`; the plain form is answered in `cli.entry` before the tree is built."""

from __future__ import annotations

from typing import Annotated

import typer

HELP = "Print the version."


def version(
    output: Annotated[str, typer.Option("-o", "--output", help="table or json.")] = "table",
) -> None:
    if output == "json":
        import platform

        from infctl import __version__
        from infctl.cli.output.data import print_json

        print_json({"apiVersion": "infctl/v1", "kind": "Version", "version": __version__,
                    "python": platform.python_version()})  # fmt: skip
        return
    if output != "table":
        from infctl.domain.errors import UsageError

        raise UsageError(f"no output {output!r}", hint="one of: table, json")
    from infctl import __version__
    from infctl.cli import io

    io.out(f"infctl {__version__}")
