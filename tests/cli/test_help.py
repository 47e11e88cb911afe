"""Help: what is shipped ready-made is what the command tree says, and asking for it loads nothing that takes long."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer._click import Context

from infctl.cli import complete, pages
from infctl.cli.app import build
from infctl.cli.tree import Tree
from infctl.cli.vocabulary import text_of, vocabulary
from tests.support.command import Run

FOLDER = Path(pages.__file__).parent / "help"


def commands(tree: Any, above: Context | None = None) -> Iterator[tuple[list[str], Any, Context]]:
    """Every command of the tree, with the words that lead to it."""
    context = Context(tree, parent=above, info_name=tree.name, terminal_width=pages.WIDTH, **tree.context_settings)
    words = context.command_path.split()[1:]
    yield words, tree, context
    if isinstance(tree, Tree):
        for word in tree.list_commands(context):
            yield from commands(tree.get_command(context, word), context)


def every() -> list[tuple[list[str], Any, Context]]:
    return list(commands(build()))


@pytest.mark.parametrize(("words", "command", "context"), every(), ids=lambda x: ".".join(x) if type(x) is list else "")
def test_each_page_is_what_the_tree_says(words: list[str], command: Any, context: Context) -> None:
    """After a change of a command or an option, INFCTL_UPDATE_GOLDEN=1 writes its page anew."""
    text = command.get_help(context) + "\n"
    path = Path(pages.file_of(words))
    if os.environ.get("INFCTL_UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()
    assert pages.page([*words, "--help"]) == pages.page([*words, "-h"]) == text
    assert max(map(len, text.splitlines())) <= 100


def test_there_is_no_page_of_a_command_that_is_gone() -> None:
    have = {p.name for p in FOLDER.iterdir()} - {Path(complete.WORDS).name}
    assert have == {Path(pages.file_of(words)).name for words, _, _ in every()}


def test_the_words_of_completion_are_those_of_the_tree() -> None:
    """INFCTL_UPDATE_GOLDEN=1 writes them anew."""
    text = text_of(vocabulary(build()))
    if os.environ.get("INFCTL_UPDATE_GOLDEN"):
        Path(complete.WORDS).write_text(text)
    assert text == Path(complete.WORDS).read_text()


def test_the_manual_holds_every_page() -> None:
    path = Path(__file__).parents[2] / "docs" / "cli.md"
    head, mark, _ = path.read_text().partition("INFCTL_UPDATE_GOLDEN=1. -->\n")
    sections = [
        f"\n## `{' '.join(['infctl', *words])}`\n\n```\n{Path(pages.file_of(words)).read_text()}```\n"
        for words, _, _ in every()
    ]
    text = head + mark + "".join(sections)
    if os.environ.get("INFCTL_UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


def test_groups_show_their_page_without_a_word(infctl: Run) -> None:
    assert {" ".join(words) for words, command, _ in every() if isinstance(command, Tree)} == set(pages.GROUPS)
    for group in pages.GROUPS:
        bare, asked = infctl(*group.split()), infctl(*group.split(), "--help")
        assert (bare.returncode, bare.stderr) == (0, "")
        assert bare.stdout == asked.stdout


def test_only_help_is_answered_with_a_page() -> None:
    for argv in (["get"], ["gte", "--help"], ["..", "--help"], ["get", "", "--help"], ["get", "-o", "json", "--help"]):
        assert pages.page(argv) is None


def test_the_tree_answers_where_a_page_does_not_fit(infctl: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("infctl.cli.io.width", lambda default=0: 60)
    assert pages.page(["--help"]) is None
    done = infctl("get", "-o", "json", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == Path(pages.file_of(["get"])).read_text()


def test_help_takes_a_command_or_a_topic(infctl: Run) -> None:
    assert infctl("help", "dev", "up").stdout == infctl("dev", "up", "--help").stdout
    assert infctl("help", "kinds").stdout.startswith("nodes ")


LATE = {
    *("typer", "rich", "textual", "grpc", "google", "pydantic", "msgspec", "yaml", "aiohttp", "httpx", "structlog"),
    *("psutil", "asyncio", "socket", "ssl", "typing", "dataclasses", "inspect", "json", "importlib.metadata"),
}


def loaded(*words: str) -> set[str]:
    """The modules that are there once the command is done."""
    code = (
        "import sys\nbefore = set(sys.modules)\nfrom infctl.cli.entry import run\n"
        f"run({list(words)!r})\n"
        "print(' '.join(set(sys.modules) - before), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    return set(done.stderr.splitlines()[-1].split())


@pytest.mark.parametrize(
    "words",
    [[], ["--help"], ["-h"], ["get", "--help"], ["dev"], ["dev", "up", "-h"], ["version"], ["version", "--short"]],
)
def test_help_and_version_load_next_to_nothing(words: list[str]) -> None:
    found = loaded(*words)
    assert found & LATE == set()
    assert {m for m in found if m.startswith("infctl")} <= {"infctl", "infctl.cli", "infctl.cli.entry", "infctl.cli.io",
                                                            "infctl.cli.pages"}  # fmt: skip


@pytest.mark.parametrize("words", [["help", "exit-codes"], ["gte"], ["completion", "bash"], ["version", "-o", "json"]])
def test_small_commands_load_no_client(words: list[str]) -> None:
    assert loaded(*words) & (LATE - {"typer", "typing", "dataclasses", "inspect", "json"}) == set()


def test_a_command_loads_no_other_command() -> None:
    found = {m for m in loaded("version", "-o", "json") if m.startswith("infctl.cli.commands.")}
    assert found == {"infctl.cli.commands.version"}
