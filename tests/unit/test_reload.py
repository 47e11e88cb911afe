"""What SIGHUP does with changed settings: taken over, named, or refused as a whole."""

from __future__ import annotations

from typing import Any

import structlog

from infctl.config.effective import Value
from infctl.config.node import NodeConfig
from infctl.domain.errors import ConfigError
from infctl_daemon.runtime.reload import Reloader
from infctl_daemon.runtime.sdnotify import Notifier
from infctl_daemon.runtime.settings import Checked


def checked(problems: tuple[str, ...] = (), **values: object) -> Checked[NodeConfig]:
    listed = [Value(key.replace("_", "."), value, "x") for key, value in values.items()]
    return Checked("node.yaml", NodeConfig(), listed, list(problems))


class Trial:
    """A reloader with rules for `a`, `a.fixed` (needs a restart) and `b`, which refuses."""

    def __init__(self, used: Checked[NodeConfig]) -> None:
        self.now = used
        self.taken: list[str] = []
        self.lines: list[dict[str, Any]] = []
        rules = {"a": lambda _: self.taken.append("a"), "a.fixed": None, "b": self._refuse}
        log = structlog.wrap_logger(None, processors=[self._line])
        self.reloader = Reloader(lambda: self.now, used, rules, log, Notifier(), "supervising")

    def _refuse(self, _: NodeConfig) -> None:
        raise ConfigError("does not fit")

    def _line(self, _logger: Any, method: str, event: Any) -> Any:
        self.lines.append({**event, "level": method})
        raise structlog.DropEvent

    async def to(self, new: Checked[NodeConfig]) -> str:
        self.now = new
        return await self.reloader.reload()


async def test_a_change_under_a_rule_is_taken_over_once() -> None:
    trial = Trial(checked(a_x=1, c=1))
    assert await trial.to(checked(a_x=2, c=1)) == ""
    assert trial.taken == ["a"]
    assert trial.lines[-1]["applied"] == {"a.x": 2}
    assert await trial.to(checked(a_x=2, c=1)) == ""
    assert trial.taken == ["a"]


async def test_what_needs_a_restart_is_said_until_it_is_done() -> None:
    trial = Trial(checked(a_x=1, a_fixed=1, c=1))
    for _ in range(2):
        assert await trial.to(checked(a_x=1, a_fixed=2, c=2)) == "needs a restart: a.fixed, c"
    assert trial.taken == []
    assert await trial.to(checked(a_x=1, a_fixed=1, c=1)) == ""


async def test_a_broken_file_changes_nothing() -> None:
    trial = Trial(checked(a_x=1))
    assert await trial.to(checked(("node.yaml:1: a: wrong",), a_x=2)) == "reload refused, see the log"
    assert (trial.taken, trial.lines[-1]["level"]) == ([], "error")
    assert trial.lines[-1]["problems"] == ["node.yaml:1: a: wrong"]
    assert await trial.to(checked(a_x=2)) == ""
    assert trial.taken == ["a"]


async def test_a_rule_that_refuses_needs_a_restart_and_the_others_are_taken_over() -> None:
    trial = Trial(checked(a_x=1, b=1))
    assert await trial.to(checked(a_x=2, b=2)) == "needs a restart: b"
    assert trial.taken == ["a"]
    assert any(line.get("why") == "does not fit" for line in trial.lines)
