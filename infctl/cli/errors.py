"""Exit codes, and how an error is shown. Codes are a contract: docs/exit-codes.md is made from this table."""

from __future__ import annotations

import json
import traceback
from typing import Final

from infctl.cli import io
from infctl.domain.errors import InfctlError

EXIT_CODES: Final = (
    (0, "done"),
    (1, "the operation failed, or what was waited for can no longer happen"),
    (2, "usage or configuration: the command line or a file is wrong, nothing was done"),
    (3, "control plane unreachable: no definite answer from etcd"),
    (4, "timed out; the operation goes on"),
    (5, "not found"),
    (6, "refused by a guard, or somebody else was faster; trying again is safe"),
    (7, "partly done"),
    (70, "a bug of infctl"),
    (77, "not permitted"),
    (130, "interrupted (Ctrl-C)"),
    (141, "the reader of the output is gone (broken pipe)"),
    (143, "terminated (SIGTERM)"),
)


def exit_code_table() -> str:
    return "\n".join(f"{code:>4}  {text}" for code, text in EXIT_CODES)


def show_error(error: InfctlError, *, as_json: bool) -> None:
    """The error form on stderr: one block for people, one line of JSON for programs."""
    show(error.message, error.reason, error.hint, error.exit_code, as_json=as_json)


def show(message: str, reason: str, hint: str, exit_code: int, *, as_json: bool) -> None:
    if as_json:
        body = {"reason": reason, "message": message, "hint": hint or None, "exitCode": exit_code}
        io.err(json.dumps({"error": body}))
        return
    io.err(f"error: {io.printable(message)}")
    if reason:
        io.err(f"  reason: {reason}")
    if hint:
        io.err(f"  hint: {io.printable(hint)}")


def show_bug(error: BaseException, *, as_json: bool) -> None:
    """An exception that nobody expected: the last frame for people, the traceback only when asked for."""
    import os

    if os.environ.get("INFCTL_TRACEBACK"):
        io.err("".join(traceback.format_exception(error)).rstrip())
    frames = traceback.extract_tb(error.__traceback__)
    where = f" at {frames[-1].filename.rsplit('/', 1)[-1]}:{frames[-1].lineno}" if frames else ""
    show(
        f"{type(error).__name__}: {error}",
        f"Bug{where}",
        "set INFCTL_TRACEBACK=1 and send us the traceback",
        70,
        as_json=as_json,
    )
