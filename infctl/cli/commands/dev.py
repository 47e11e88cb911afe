"""`infctl dev`: a cluster on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from infctl.cli.tree import Tree, leaf
from infctl.domain.errors import UsageError

if TYPE_CHECKING:
    from infctl.client.local.plan import Engine as EngineKind

HELP = "Run a cluster on this machine: etcd, one daemon, one gateway, two groups of two ranks."


SYNONYMS = {"start": "up", "stop": "down", "ps": "status", "delete": "down"}


def command() -> Any:
    return Tree(
        "dev",
        help=HELP,
        synonyms=SYNONYMS,
        sections={
            "Commands": {
                "up": ("Start the cluster, or what is missing of it.", lambda: leaf("up", up, UP)),
                "status": ("Show what runs, and where.", lambda: leaf("status", status, STATUS)),
                "down": ("Stop what `dev up` started, and nothing else.", lambda: leaf("down", down, DOWN)),
            }
        },
    )


UP = """Start the cluster, or what is missing of it, and write the context `dev`.

\b
Examples:
  infctl dev up
  infctl dev up --engine sglang
  infctl dev up --etcd 3
  curl -s localhost:8080/v1/completions -d '{"model":"demo","prompt":"The","max_tokens":16}'
"""

STATUS = "Show what runs, and where. Exit code 1 when a part of it does not run."
DOWN = "Stop everything that `dev up` started, and nothing else. Its data stays for the next up."

Engine = Annotated[str, typer.Option("--engine", metavar="sim|sglang", help="The simulated engine, or real SGLang.")]

Etcd = Annotated[
    int | None, typer.Option("--etcd", metavar="1|3", help="Members of etcd; without it as last time, one at first.")
]


def parse_engine(text: str) -> EngineKind:
    """Raises UsageError."""
    from infctl.client.local.plan import Engine as EngineKind

    try:
        return EngineKind(text)
    except ValueError:
        raise UsageError(f"no engine {text!r}", hint="one of: sim, sglang") from None


def up(engine: Engine = "sim", etcd: Etcd = None) -> None:
    from infctl.cli import io
    from infctl.cli.running import run_async
    from infctl.client import dev

    chosen = parse_engine(engine)
    if etcd not in (None, 1, 3):
        raise UsageError(f"{etcd} etcd members", hint="one of: 1, 3")
    if chosen.value == "sim":
        io.err("engine: simulated (infctl dev up --engine sglang runs the real one)")
    running = run_async(dev.up(chosen, io.err, etcd))
    io.out(f"gateway  {running.gateway}")
    io.out(f"admin    {running.admin}")
    io.out(f"etcd     {','.join(running.endpoints)}  (context {dev.CONTEXT})")
    io.err("next: infctl get groups, and infctl dev down to stop it")


def status() -> None:
    from infctl.cli import io
    from infctl.client import dev

    parts = dev.status()
    for part in parts:
        io.out(f"{part.name:<8} {f'pid {part.pid}' if part.pid else 'not running':<12} {part.where}".rstrip())
    if any(part.pid is None for part in parts):
        raise typer.Exit(1)


def down() -> None:
    from infctl.cli import io
    from infctl.cli.running import run_async
    from infctl.client import dev

    stopped = run_async(dev.down(io.err))
    io.out(f"stopped: {', '.join(stopped)}" if stopped else "nothing was running")
