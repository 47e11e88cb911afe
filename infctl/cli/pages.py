"""Help pages that were rendered beforehand: who asks for help waits for one file to be read, not for the command tree.

The files under `help/` are the tree's own words at 80 columns; tests/cli/test_help.py compares them and writes them.
"""

from __future__ import annotations

import os

from infctl.cli import io

WIDTH = 80
# commands that only hold others: without another word they show their page
GROUPS = ("", "dev", "config")
_FOLDER = os.path.join(os.path.dirname(__file__), "help")
_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyz-")


def file_of(words: list[str]) -> str:
    """Where the page of a command is, if there is such a command."""
    return os.path.join(_FOLDER, ".".join(["infctl", *words]) + ".txt")


def page(argv: list[str]) -> str | None:
    """The help that this line asks for. None: it does not, or the tree has to answer (a narrow terminal, a typo)."""
    if argv and argv[-1] in ("-h", "--help"):
        words = argv[:-1]
    elif " ".join(argv) in GROUPS:
        words = argv
    else:
        return None
    if io.width(WIDTH) < WIDTH or not all(word and _LETTERS.issuperset(word) for word in words):
        return None
    try:
        with open(file_of(words), encoding="utf-8") as file:
            return file.read()
    except OSError:
        return None
