"""The command tree. Commands import what they need when they run: building the tree must stay cheap."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

from infctl.cli.commands import apply, completion, demo, dev, get, help_topics, version

# words from other tools, and what they are called here
SYNONYMS = {
    "list": "get",
    "ls": "get",
    "show": "get",
    "describe": "get",
    "ps": "get",
    "create": "apply",
    "up": "dev up",
    "down": "dev down",
    "start": "dev up",
    "stop": "dev down",
    "status": "dev status",
}


class Commands(TyperGroup):
    """Keeps the order of definition, and knows the words of other tools."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.commands)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] in SYNONYMS and args[0] not in self.commands:
            ctx.fail(f"No such command '{args[0]}'. Did you mean '{SYNONYMS[args[0]]}'?")
        return super().resolve_command(ctx, args)


def build() -> Any:
    """The click command for the whole tree."""
    app = typer.Typer(
        cls=Commands,
        add_completion=False,
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
        help="Cluster manager for fleets of SGLang inference workers.",
        epilog="Exit codes: infctl help exit-codes.  Where the cluster is: infctl help contexts.",
    )
    app.command("get", help=get.HELP)(get.get)
    app.command("apply", help=apply.HELP)(apply.apply)
    app.command("demo", help=demo.HELP)(demo.demo)
    app.add_typer(dev.app(), name="dev")
    app.command("completion", help=completion.HELP)(completion.completion)
    app.command("version", help=version.HELP)(version.version)
    app.command("help", help=help_topics.HELP)(help_topics.topic)
    return typer.main.get_command(app)
