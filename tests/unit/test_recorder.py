"""What is recorded can be read back and replayed: every event, effect and state of both machines."""

from __future__ import annotations

import dataclasses
import json
from enum import StrEnum
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec
import pytest

from infctl.domain import group as group_machine
from infctl.domain import group_events, request_events
from infctl.domain import request as request_machine
from infctl.domain.group import Group
from infctl.domain.ids import Epoch
from infctl.domain.request import Request
from infctl_daemon.runtime.recorder import Recorder, from_wire, to_wire

UNIONS: dict[str, tuple[type[Any], ...]] = {
    "group event": get_args(group_events.GroupEvent),
    "group effect": get_args(group_events.GroupEffect),
    "request event": get_args(request_events.RequestEvent),
    "request effect": get_args(request_events.RequestEffect),
}
EVERY = [(union, kind) for union, kinds in UNIONS.items() for kind in kinds]


def sample(kind: type[Any]) -> Any:
    """One value of a dataclass with nothing left at its default."""
    values: dict[str, Any] = {}
    hints = get_type_hints(kind)
    for number, field in enumerate(dataclasses.fields(kind), start=1):
        hint = hints[field.name]
        if isinstance(hint, type) and issubclass(hint, StrEnum):
            values[field.name] = list(hint)[-1]
        elif hint is Epoch:
            values[field.name] = Epoch(number, 7)
        else:
            simple = {str: f"text {number} é", int: number, float: number + 0.5, bool: True}
            values[field.name] = simple.get(hint, (f"l-{number}", "l-x"))
    return kind(**values)


def over_the_wire(value: Any) -> Any:
    return json.loads(msgspec.json.encode(to_wire(value)))


@pytest.mark.parametrize(("union", "kind"), EVERY, ids=[f"{u} {k.__name__}" for u, k in EVERY])
def test_every_event_and_effect_comes_back_equal(union: str, kind: type[Any]) -> None:
    value = sample(kind)
    back = from_wire(UNIONS[union], over_the_wire(value))
    assert back == value
    assert type(back) is kind and hash(back) == hash(value)
    for field in dataclasses.fields(kind):
        assert type(getattr(back, field.name)) is type(getattr(value, field.name))


@pytest.mark.parametrize("kinds", UNIONS.values(), ids=UNIONS.keys())
def test_no_kind_has_a_field_that_hides_its_name_and_no_two_share_one(kinds: tuple[type[Any], ...]) -> None:
    assert not [k for k in kinds if "type" in {f.name for f in dataclasses.fields(k)}]
    assert len({k.__name__ for k in kinds}) == len(kinds)


@pytest.mark.parametrize(
    ("kind", "state"),
    [
        (Request, Request("r", 9.5, epoch=Epoch(2, 3), excluded=("a-1",), phase=request_machine.Phase.MIGRATING)),
        (Group, Group("a", wanted="v1", failures=(1.0, 2.5), phase=group_machine.Phase.BACKOFF)),
    ],
)
def test_a_state_with_nested_parts_comes_back_equal(kind: type[Any], state: Any) -> None:
    assert from_wire((kind,), over_the_wire(state)) == state


def test_a_name_that_is_not_expected_is_refused() -> None:
    with pytest.raises(KeyError):
        from_wire((Request,), {"type": "Group", "name": "a"})


def test_without_a_folder_nothing_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("INFCTL_RECORD", raising=False)
    recorder = Recorder("gateway")
    assert not recorder.on
    recorder.initial("request", "r", Request("r", 1.0))
    recorder.close()


def test_the_folder_is_taken_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("INFCTL_RECORD", str(tmp_path / "deep" / "er"))
    recorder = Recorder("noded")
    assert recorder.on
    recorder.close()
    assert not recorder.on
    assert [f.name.startswith("noded-") for f in (tmp_path / "deep" / "er").iterdir()] == [True]


def test_a_recorded_run_replays_to_the_same_effects(tmp_path: Path) -> None:
    recorder = Recorder("gateway", str(tmp_path))
    state = start = Request("r", 600.0, grace=15.0)
    recorder.initial("request", "r", state)
    e1, e2 = Epoch(1, 1), Epoch(1, 2)
    events: tuple[request_events.RequestEvent, ...] = (
        request_events.Started(),
        request_events.WorkerChosen(e1, "a-1", 0),
        request_events.TokensArrived(e1, "a-1", 0, 3),
        request_events.LaunchLost("a-1", request_events.Break.FAULT, "rank died"),
        request_events.NoWorker(e2, request_events.ErrorType.UNAVAILABLE, "none"),
        request_events.TimerFired("retry", e2),
        request_events.WorkerChosen(e2, "b-1", 3),
        request_events.TokensArrived(e1, "a-1", 3, 1),
        request_events.ReaderLeft(),
        request_events.CancelRequested("client"),
    )
    for at, event in enumerate(events):
        state, effects = request_machine.step(state, event, at + 0.25)
        recorder.step("request", "r", at + 0.25, event, effects)
    recorder.close()

    (path,) = tmp_path.iterdir()
    first, *lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    replayed = from_wire((Request,), first["initial"])
    assert replayed == start and len(lines) == len(events)
    for line in lines:
        event = from_wire(UNIONS["request event"], line["event"])
        replayed, effects = request_machine.step(replayed, event, line["now"])
        assert effects == tuple(from_wire(UNIONS["request effect"], e) for e in line["effects"])
    assert replayed == state
