"""One launch of a group at a time on a host."""

from __future__ import annotations

import asyncio

from infctl_daemon.node.turns import Turns


def never() -> bool:
    return False


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_launch_waits_until_the_one_that_is_there_has_left() -> None:
    turns = Turns()
    assert await turns.enter("g", "g-1", never)
    second = asyncio.ensure_future(turns.enter("g", "g-2", never))
    await settle()
    assert not second.done() and turns.before("g", "g-2") == "g-1"
    turns.leave("g", "g-1")
    assert await second and turns.before("g", "g-2") == ""


async def test_of_two_that_wait_one_enters() -> None:
    turns = Turns()
    turns.found("g", "g-1")
    waiting = [asyncio.ensure_future(turns.enter("g", name, never)) for name in ("g-2", "g-3")]
    await settle()
    turns.leave("g", "g-1")
    await settle()
    assert [one.done() for one in waiting] == [True, False]
    turns.leave("g", "g-2")
    assert await waiting[1]


async def test_one_that_is_given_up_does_not_enter() -> None:
    turns, ending = Turns(), False
    turns.found("g", "g-1")
    waiting = asyncio.ensure_future(turns.enter("g", "g-2", lambda: ending))
    await settle()
    ending = True
    turns.look("g")
    assert await waiting is False
    turns.leave("g", "g-2")
    assert turns.before("g", "g-3") == "g-1"


async def test_everything_that_an_earlier_life_left_has_to_leave() -> None:
    turns = Turns()
    turns.found("g", "g-1")
    turns.found("g", "g-2")
    waiting = asyncio.ensure_future(turns.enter("g", "g-3", never))
    for name in ("g-1", "g-2"):
        await settle()
        assert not waiting.done()
        turns.leave("g", name)
    assert await waiting


async def test_groups_do_not_wait_for_each_other() -> None:
    turns = Turns()
    assert await turns.enter("g", "g-1", never) and await turns.enter("h", "h-1", never)
