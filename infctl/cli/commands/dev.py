"""`infctl dev`: a cluster on this machine."""

from __future__ import annotations

from typing import Annotated

import typer

HELP = "Run a cluster on this machine: etcd, one daemon, one gateway, two groups of two ranks."


def app() -> typer.Typer:
    group = typer.Typer(help=HELP, no_args_is_help=True, rich_markup_mode=None, add_completion=False)
    group.command("up", help=UP)(up)
    group.command("status", help="Show what runs, and where.")(status)
    group.command("down", help="Stop everything that `dev up` started, and nothing else.")(down)
    return group


UP = """Start the cluster, or what is missing of it, and write the context `dev`.

\b
Examples:
  infctl dev up
  infctl dev up --engine sglang
  curl -s localhost:8080/v1/completions -d '{"model":"demo","prompt":"The","max_tokens":16}'
"""

Engine = Annotated[str, typer.Option("--engine", metavar="sim|sglang", help="The simulated engine, or real SGLang.")]


def up(engine: Engine = "sim") -> None:
    pass


def status() -> None:
    pass


def down() -> None:
    pass
