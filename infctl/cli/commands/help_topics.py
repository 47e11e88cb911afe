"""`infctl help TOPIC`: pages that belong to no single command."""

from __future__ import annotations

from typing import Annotated

import typer

from infctl.domain.errors import UsageError
from infctl.view.kinds import Kind, nearest

HELP = "Explain a topic: exit-codes, contexts, kinds."

_CONTEXTS = """\
Which cluster a command speaks to, the first one that is given:

  --endpoints HOST:PORT[,HOST:PORT...]
  --context NAME
  INFCTL_CONTEXT, INFCTL_ENDPOINTS (and INFCTL_CLUSTER)
  `current` in $XDG_CONFIG_HOME/infctl/config.toml:

    current = "dev"
    [contexts.dev]
    endpoints = ["127.0.0.1:2379"]
    cluster = "default"

`infctl dev up` writes the context `dev`."""


def topic(name: Annotated[str, typer.Argument(metavar="[TOPIC]")] = "") -> None:
    from infctl.cli import io
    from infctl.cli.errors import exit_code_table

    if name == "exit-codes":
        io.out("Exit codes of infctl:\n")
        io.out(exit_code_table())
    elif name == "contexts":
        io.out(_CONTEXTS)
    elif name == "kinds":
        from infctl.view.kinds import WORDS

        for kind in Kind:
            io.out(f"{kind.plural:<12}{', '.join(sorted(w for w, k in WORDS.items() if k is kind))}")
    elif name == "":
        io.out("Topics: exit-codes, contexts, kinds. Commands: infctl --help.")
    else:
        near = nearest(name, ["exit-codes", "contexts", "kinds"])
        raise UsageError(f"no topic {name!r}", hint=f"did you mean {near}?" if near else "infctl help")
