"""Groups of commands that are loaded when they are named: a command line pays for its own command only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperGroup

from infctl.cli import io

SETTINGS: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 100}

# how each command is introduced in a list, and what makes it
Entry = tuple[str, Callable[[], Any]]


class Tree(TyperGroup):
    """A group of commands under headings, in the order given; without a word it shows its help.

    `synonyms` are words of other tools, and what they are called here.
    """

    def __init__(
        self, name: str, *, help: str, sections: dict[str, dict[str, Entry]], synonyms: dict[str, str], epilog: str = ""
    ) -> None:
        super().__init__(name=name, help=help, epilog=epilog, rich_markup_mode=None, context_settings=dict(SETTINGS))
        self.sections = sections
        self._entries = {word: entry for section in sections.values() for word, entry in section.items()}
        self._synonyms = synonyms

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self._entries)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.commands and cmd_name in self._entries:
            self.commands[cmd_name] = self._entries[cmd_name][1]()
        return self.commands.get(cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        from infctl.view.kinds import nearest

        word = args[0]
        if word not in self._entries and not word.startswith("-"):
            near = self._synonyms.get(word) or nearest(word, list(self._entries))
            ctx.fail(f"No such command '{word}'." + (f" Did you mean '{near}'?" if near else ""))
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:
            io.out(ctx.get_help())
            ctx.exit()
        return super().parse_args(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        longest = max(map(len, self._entries))
        for title, section in self.sections.items():
            with formatter.section(title):
                # padded by hand: every section has the same second column
                formatter.write_dl([(word.ljust(longest), entry[0]) for word, entry in section.items()])


def leaf(name: str, callback: Callable[..., None], help: str) -> Any:
    """One command."""
    app = typer.Typer(
        add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False, context_settings=dict(SETTINGS)
    )
    app.command(name, help=help)(callback)
    return typer.main.get_command(app)
