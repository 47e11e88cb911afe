"""`infctl config`: the clusters this command line knows, and which one it speaks to. It never asks a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from infctl.cli.tree import Tree, leaf
from infctl.domain.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from infctl.config.context import Contexts
    from infctl.ports.tls import TlsFiles

HELP = "Show and choose contexts: the clusters this command line knows."

GET_CONTEXTS = """List the contexts of the file; `*` marks the current one.

\b
Examples:
  infctl config get-contexts
  infctl config get-contexts -o name
"""

USE_CONTEXT = """Make a context the current one.

\b
Examples:
  infctl config use-context dev
"""

VIEW = """Show the contexts file, and which cluster a command would speak to now.

\b
Examples:
  infctl config view
  infctl config view -o json
"""

CURRENT = """Print the name of the current context; it asks no cluster, so a shell prompt can call it.

INFCTL_CONTEXT counts; INFCTL_ENDPOINTS, which wins over both, has no name. Exit code 5 when no context is chosen.
"""

SYNONYMS = {"list": "get-contexts", "ls": "get-contexts", "use": "use-context", "switch": "use-context",
            "show": "view", "current": "current-context"}  # fmt: skip


def command() -> Any:
    return Tree(
        "config",
        help=HELP,
        synonyms=SYNONYMS,
        sections={
            "Commands": {
                "get-contexts": ("List the contexts.", lambda: leaf("get-contexts", get_contexts, GET_CONTEXTS)),
                "current-context": ("Print the current one.", lambda: leaf("current-context", current, CURRENT)),
                "use-context": ("Make a context the current one.", lambda: leaf("use-context", use, USE_CONTEXT)),
                "view": ("Show the file, and what counts now.", lambda: leaf("view", view, VIEW)),
            }
        },
    )


def get_contexts(
    output: Annotated[
        str, typer.Option("-o", "--output", metavar="table|json|yaml|name", help="How to print.")
    ] = "table",
    no_headers: Annotated[bool, typer.Option("--no-headers", help="Rows only.")] = False,
) -> None:
    from infctl.cli import io
    from infctl.config.context import load_contexts

    found = load_contexts()
    if _printed(output, {"apiVersion": "infctl/v1", "kind": "ContextList", "metadata": {"revision": None},
                         "items": _documents(found)}, ("table", "name")):  # fmt: skip
        return
    if output == "name":
        for name in sorted(found.contexts):
            io.out(name)
        return
    if not found.contexts:
        io.err(f"no contexts in {found.path}; infctl dev up makes one")
        return
    from infctl.cli.output.table import print_cells

    rows = [["*" if name == found.current else "", name, context.cluster, ",".join(context.endpoints) or "-"]
            for name, context in sorted(found.contexts.items())]  # fmt: skip
    print_cells(["CURRENT", "NAME", "CLUSTER", "ENDPOINTS"], rows, headers=not no_headers)
    _overruled(found)


def current() -> None:
    import os

    from infctl.cli import io
    from infctl.config.context import load_contexts, unknown_context
    from infctl.domain.errors import NotFound

    found = load_contexts()
    chosen = os.environ.get("INFCTL_CONTEXT", "") or found.current
    if not chosen:
        raise NotFound(
            f"no context is chosen in {found.path}", reason="NoContext", hint="infctl config use-context NAME"
        )
    if chosen not in found.contexts:
        raise unknown_context(chosen, found)
    io.out(chosen)


def use(name: Annotated[str, typer.Argument(metavar="NAME", show_default=False)]) -> None:
    from infctl.cli import io
    from infctl.config.context import load_contexts, use_context

    changed = use_context(name)
    found = load_contexts()
    context = found.contexts[name]
    where = f"cluster {context.cluster} at {','.join(context.endpoints)}"
    io.out(f"context {name} {'is now the current one' if changed else 'was the current one already'} ({where})")
    _overruled(found)


def view(
    output: Annotated[str, typer.Option("-o", "--output", metavar="toml|json|yaml", help="How to print.")] = "toml",
) -> None:
    from infctl.cli import io
    from infctl.client.connect import find_cluster
    from infctl.config.context import load_contexts, text_of

    found = load_contexts()
    try:
        place = find_cluster()
    except UsageError as error:
        if error.reason != "NoCluster":
            raise
        place = None
    effective = place and {
        "endpoints": list(place.endpoints),
        "cluster": place.cluster,
        "origin": place.origin,
        "etcdTls": _tls(place.tls),
        "readTokenFile": _path(place.read_token_file),
    }
    document = {
        "apiVersion": "infctl/v1",
        "kind": "Config",
        "path": str(found.path),
        "currentContext": found.current or None,
        "contexts": _documents(found),
        "effective": effective,
    }
    if _printed(output, document, ("toml", "table")):
        return
    io.out(f"# {found.path}{'' if found.path.exists() else ' (not there yet)'}")
    io.out(text_of(found), end="")
    io.out()
    if place is None:
        io.out("# commands speak to no cluster: infctl config use-context NAME, or infctl dev up")
    else:
        identity = f", as {place.tls.cert}" if place.tls and place.tls.cert else ""
        io.out(f"# commands speak to cluster {place.cluster} at {','.join(place.endpoints)}{identity} ({place.origin})")


def _documents(found: Contexts) -> list[dict[str, Any]]:
    return [
        {
            "apiVersion": "infctl/v1",
            "kind": "Context",
            "metadata": {"name": name, "createdAt": None},
            "spec": {
                "endpoints": list(context.endpoints),
                "cluster": context.cluster,
                "etcdTls": _tls(context.tls),
                "readTokenFile": _path(context.read_token_file),
            },
            "status": {"current": name == found.current},
        }
        for name, context in sorted(found.contexts.items())
    ]


def _tls(files: TlsFiles | None) -> dict[str, str | None] | None:
    """Where the files are; what is in them is never read here."""
    if files is None:
        return None
    named = {"ca": files.ca, "cert": files.cert, "key": files.key, "serverName": files.server_name}
    return {name: str(value) if value else None for name, value in named.items()}


def _path(file: Path | None) -> str | None:
    return str(file) if file else None


def _printed(output: str, document: dict[str, Any], texts: tuple[str, ...]) -> bool:
    """Whether `output` asked for the document, which is then printed. Raises UsageError for a form nobody knows."""
    if output in ("json", "yaml"):
        from infctl.cli.output.data import print_json, print_yaml

        (print_json if output == "json" else print_yaml)(document)
        return True
    if output not in texts:
        raise UsageError(f"no output {output!r}", hint=f"one of: {', '.join((*texts, 'json', 'yaml'))}")
    return False


def _overruled(found: Contexts) -> None:
    """What is current in the file may not be what commands use."""
    import os

    from infctl.cli import io

    if (name := os.environ.get("INFCTL_CONTEXT", "")) and name != found.current:
        io.err(f"note: INFCTL_CONTEXT={name} wins over the file")
    elif not name and (endpoints := os.environ.get("INFCTL_ENDPOINTS", "")):
        io.err(f"note: INFCTL_ENDPOINTS={endpoints} wins over the file")
