"""The only module of the command line that writes to stdout and stderr.

Data goes to stdout, talk to stderr. Colour needs a terminal that wants it (NO_COLOR, FORCE_COLOR, TERM=dumb are
obeyed), and nothing is ever said by colour alone.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # as typing has it, which would cost 4 ms of every start
if TYPE_CHECKING:
    from typing import TextIO

_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}


class ReaderGone(BaseException):
    """Who read our stdout closed it. No Exception: nothing in between may take it for an error."""


def out(text: str = "", *, end: str = "\n") -> None:
    try:
        sys.stdout.write(text + end)
    except BrokenPipeError:
        raise ReaderGone from None


def flush() -> None:
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise ReaderGone from None


def err(text: str = "", *, end: str = "\n") -> None:
    """One line of talk; a terminal that is gone is not an error of ours."""
    try:
        sys.stderr.write(text + end)
        sys.stderr.flush()
    except (BrokenPipeError, ValueError):
        return


def is_tty(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except ValueError:
        return False


def wants_colour(stream: TextIO) -> bool:
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return is_tty(stream) and os.environ.get("TERM", "") not in ("", "dumb")


def paint(text: str, style: str, stream: TextIO | None = None) -> str:
    """`text` in a style where the stream shows colour, else as it is."""
    stream = stream or sys.stdout
    return f"\x1b[{_CODES[style]}m{text}\x1b[0m" if wants_colour(stream) else text


def printable(text: str) -> str:
    """Control characters made visible: what a model or a log says must not drive the terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else f"\\x{ord(c):02x}" for c in text)


def width(default: int = 0) -> int:
    """Columns of the terminal; `default` off-TTY (0: without end)."""
    if not is_tty(sys.stdout):
        return default
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns
    except (OSError, ValueError):
        return default


def close_quietly() -> None:
    """After a broken pipe: give the interpreter a place to flush to, so that it does not complain at exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (BrokenPipeError, ValueError):
            os.dup2(null, stream.fileno())


def stderr() -> TextIO:
    """For asking whether talk is coloured."""
    return sys.stderr
