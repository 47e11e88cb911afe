"""`infctl help TOPIC`: pages that belong to no single command."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from infctl.cli.tree import leaf
from infctl.domain.errors import UsageError
from infctl.view.kinds import Kind, nearest

HELP = """Explain a topic (exit-codes, contexts, kinds), or show the help of a command.

\b
Examples:
  infctl help exit-codes
  infctl help dev up
"""
TOPICS = ("exit-codes", "contexts", "kinds")

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
    # TLS: ca, cert, key (PEM files; relative paths start here), server_name
    # read_token_file: for the read-only APIs of daemons, where they ask for a token

A context has its own certificates; for endpoints of a flag or of the environment they come from INFCTL_ETCD_CA,
INFCTL_ETCD_CERT, INFCTL_ETCD_KEY and INFCTL_ETCD_SERVER_NAME. docs/etcd.md has more. INFCTL_READ_TOKEN_FILE wins over
the context's read_token_file.

`infctl dev up` writes the context `dev`."""


def command() -> Any:
    return leaf("help", topic, HELP)


def topic(
    words: Annotated[list[str] | None, typer.Argument(metavar="[TOPIC | COMMAND...]", show_default=False)] = None,
) -> None:
    from infctl.cli import io
    from infctl.cli.errors import exit_code_table
    from infctl.cli.pages import page

    name = " ".join(words or [])
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
        io.out(f"Topics: {', '.join(TOPICS)}. Commands: infctl --help.")
    elif (text := page([*(words or []), "--help"])) is not None:
        io.out(text, end="")
    else:
        near = nearest(name, list(TOPICS))
        raise UsageError(f"no topic or command {name!r}", hint=f"did you mean {near}?" if near else "infctl help")
