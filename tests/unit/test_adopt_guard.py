"""Taking over never ends in silence: whatever goes wrong is tried again, then told as a launch that is lost."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from infctl_daemon.node import adopt
from infctl_daemon.runtime import log


@pytest.fixture
def context(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(adopt, "BETWEEN", 0.0)
    return SimpleNamespace(log_of=lambda group: log.get("test"))


async def test_what_fails_once_is_tried_again(context: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tries = []

    async def now_and_then(*_: Any) -> None:
        tries.append(1)
        if len(tries) == 1:
            raise OSError("too many open files")

    monkeypatch.setattr(adopt, "_adopt", now_and_then)
    assert await adopt.adopt(context, "a", lambda launch, one: None) is None
    assert len(tries) == 2


async def test_what_fails_each_time_is_a_lost_launch(context: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(*_: Any) -> None:
        raise ValueError("a bug")

    monkeypatch.setattr(adopt, "_adopt", never)
    with pytest.raises(adopt.Lost):
        await adopt.adopt(context, "a", lambda launch, one: None)
