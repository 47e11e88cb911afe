"""The hosts of a group over several on its page: what each says, which one is waited for, where to look."""

from __future__ import annotations

from infctl.view.describe.look import Look
from infctl.view.describe.page import Page
from infctl.view.hosts import HostPart

HEADS = ("HOST", "NODE-RANK", "STATE", "RANKS", "PID", "GPUS", "SINCE")
RIGHT = "NODE-RANK RANKS PID"


def table(look: Look, page: Page, parts: list[HostPart]) -> None:
    """Ranks are those seen of those wanted; notes have a column where there is one."""
    noted = any(one.part and one.part.message for one in parts)
    rows = [(*_row(look, one), *((_note(one),) if noted else ())) for one in parts]
    page.table("Hosts", (*HEADS, "NOTE") if noted else HEADS, rows, right=RIGHT)


def _row(look: Look, one: HostPart) -> tuple[str, ...]:
    part = one.part
    return (
        one.node,
        str(one.node_rank),
        one.state,
        f"{part.ranks if part else '-'}/{one.wanted}",
        str(part.pid) if part and part.pid else "-",
        ", ".join(one.gpus) or "any",
        (look.ago(part.at) if part else "") or "-",
    )


def _note(one: HostPart) -> str:
    return (one.part.message if one.part else "") or "-"


def advise(page: Page, group: str, parts: list[HostPart]) -> None:
    """One step for each other host that the launch waits for, or whose part it has lost sight of."""
    for one in parts[1:]:
        if not one.heard:
            page.step(f"It waits for {one.node}, whose daemon is not heard. A lost lease alone kills nothing there.",
                      "infctl describe", f"node/{one.node}")  # fmt: skip
        elif one.part is None:
            page.step(f"It waits for {one.node}, whose daemon has not begun its part, or has ended it.",
                      "infctl describe", f"node/{one.node}")  # fmt: skip
        elif one.state == "stuck":
            page.step(f"Processes on {one.node} outlived SIGKILL; nothing is started there before they are gone.",
                      "infctl describe", f"node/{one.node}")  # fmt: skip
        elif not one.loaded:
            page.step(f"It waits for {one.node}, where it is {one.state}. What its engine says:",
                      f"infctl logs group/{group} --host", one.node)  # fmt: skip
