"""`infctl version`; the plain forms are answered in `cli.entry` before anything else is loaded."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from infctl.cli.tree import leaf
from infctl.domain.errors import UsageError

HELP = """Print the version of this program.

\b
Examples:
  infctl version
  infctl version --short
  infctl version -o json
"""


def command() -> Any:
    return leaf("version", version, HELP)


def version(
    output: Annotated[str, typer.Option("-o", "--output", metavar="text|json|yaml", help="How to print.")] = "text",
    short: Annotated[bool, typer.Option("--short", help="The number only.")] = False,
) -> None:
    from infctl import __version__
    from infctl.cli import io

    if output in ("json", "yaml"):
        from infctl.cli.output.data import print_json, print_yaml

        (print_json if output == "json" else print_yaml)(document())
    elif output in ("text", "table"):
        io.out(__version__ if short else f"infctl {__version__}")
    else:
        raise UsageError(f"no output {output!r}", hint="one of: text, json, yaml")


def document() -> dict[str, Any]:
    import platform

    from infctl import __version__

    return {
        "apiVersion": "infctl/v1",
        "kind": "Version",
        "version": __version__,
        "python": platform.python_version(),
        "platform": f"{platform.system().lower()}/{platform.machine()}",
    }
