"""The pool's known answer on a real etcd: two groups confirm it, two outvote one, and each turn is told once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from infctl.adapters.etcd import EtcdStore
from infctl.domain.errors import StoreUnavailable
from infctl.store.codec import decode
from infctl.store.keys import Keys
from infctl.store.records import KnownAnswer, PoolSpec
from infctl_daemon.engine import identity
from infctl_daemon.engine.canary import Canary, Wrong
from infctl_daemon.engine.identity import Identity
from infctl_daemon.engine.probe import Answer, Engine
from tests.support.etcd import BINARIES, LiveEtcd, live_etcd, store_on
from tests.support.noded import model

KEYS = Keys("default")
RIGHT, WRONG, ODD = ((n,) * 8 for n in (1, 2, 3))


class Says(Engine):
    """An engine that answers what it is told to."""

    def __init__(self, ids: tuple[int, ...]) -> None:
        self.ids = ids

    async def generate(self, input_ids: list[int], tokens: int, rid: str, timeout: float) -> Answer:
        return Answer(self.ids, "", "")


@dataclass
class World:
    etcd: LiveEtcd
    store: EtcdStore
    model: Identity
    pool: PoolSpec = field(default_factory=lambda: PoolSpec(name="p", model="tiny"))
    told: list[tuple[str, str]] = field(default_factory=list)

    def canary(self, group: str, ids: tuple[int, ...], **identity_: Any) -> Canary:
        def say(kind: str, subject: str, *, message: str = "", **fields: Any) -> None:
            assert subject == "pool/p"
            assert fields["group"] == group
            self.told.append((kind, message))

        one = msgspec.structs.replace(self.pool)
        found = Identity(**{**{n: getattr(self.model, n) for n in Identity.__slots__}, **identity_})
        return Canary(Says(ids), found, one, f"node-of-{group}", group=group, say=say)

    async def check(self, group: str, ids: tuple[int, ...], **identity_: Any) -> Wrong | None:
        return await self.canary(group, ids, **identity_).check(self.store, KEYS, 5.0)

    async def known(self) -> KnownAnswer:
        kv = await self.store.get(KEYS.pool_answer("p"))
        assert kv is not None
        return decode(KnownAnswer, kv.value)

    @property
    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.told]


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with live_etcd(BINARIES[0], tmp_path / "etcd") as etcd, store_on(etcd.endpoint) as store:
        yield World(etcd, store, identity.identify(str(model(tmp_path / "model"))))


async def test_the_first_answer_is_provisional_and_a_second_group_confirms_it(world: World) -> None:
    first = world.canary("a", RIGHT)
    assert await first.check(world.store, KEYS, 5.0) is None
    assert (first.expected, first.confirmed) == (RIGHT, False)
    alone = await world.known()
    assert (alone.confirmed, alone.recorded_by, [v.group for v in alone.voices]) == (False, "node/node-of-a", ["a"])
    assert await world.check("a", RIGHT) is None  # its next launch is no second group
    assert not (await world.known()).confirmed
    assert await world.check("b", RIGHT) is None
    both = await world.known()
    assert (both.confirmed, [v.group for v in both.voices], both.recorded_at) == (True, ["a", "b"], alone.recorded_at)
    assert await world.check("c", RIGHT) is None
    assert world.kinds == ["answer.recorded", "answer.confirmed"]


async def test_one_that_differs_is_refused_and_the_evidence_names_both(world: World) -> None:
    await world.check("a", RIGHT)
    for _ in range(2):
        wrong = await world.check("b", WRONG)
        assert wrong is not None
        assert wrong.why == (
            f"group/b answered {list(WRONG)}, the pool's known answer is {list(RIGHT)}, given only by group/a"
        )
    assert world.kinds == ["answer.recorded", "answer.differs"]
    assert world.told[1][1] == (
        f"group/b answered {list(WRONG)}, the known answer is {list(RIGHT)}, given only by group/a"
    )
    await world.check("c", RIGHT)
    wrong = await world.check("b", WRONG)
    assert wrong is not None
    assert wrong.why.endswith("agreed by group/a and group/c")


async def test_two_that_agree_outvote_a_wrong_first_whose_next_checked_canary_fails(world: World) -> None:
    first = world.canary("a", WRONG)
    assert await first.check(world.store, KEYS, 5.0) is None
    assert await world.check("b", RIGHT) is not None
    assert await first.still_right(5.0) is None  # not outvoted yet: it serves on
    third = world.canary("c", RIGHT)
    assert await third.check(world.store, KEYS, 5.0) is None
    assert third.confirmed
    running = await first.still_right(5.0)
    assert running is not None
    assert running.why == (
        f"group/a answered {list(WRONG)}, the pool's known answer is {list(RIGHT)}, agreed by group/b and group/c"
    )
    assert await world.check("a", WRONG) is not None
    assert await world.check("b", RIGHT) is None
    assert world.kinds == ["answer.recorded", "answer.differs", "answer.confirmed"]
    assert world.told[-1][1] == f"{list(RIGHT)}, agreed by group/b and group/c; refused: group/a"


async def test_groups_that_start_at_once_agree_with_one_recorded_and_one_confirmed(world: World) -> None:
    found = await asyncio.gather(*(world.check(group, RIGHT) for group in "abcdef"))
    assert found == [None] * 6
    assert world.kinds == ["answer.recorded", "answer.confirmed"]


async def test_of_two_that_differ_and_start_at_once_one_is_refused(world: World) -> None:
    found = await asyncio.gather(world.check("a", RIGHT), world.check("b", WRONG))
    assert sorted(wrong is None for wrong in found) == [False, True]
    assert world.kinds == ["answer.recorded", "answer.differs"]


async def test_the_operators_answer_needs_no_vote(world: World) -> None:
    await world.check("a", WRONG)
    await world.check("b", WRONG)
    world.pool = PoolSpec(name="p", model="tiny", canary_answer=list(RIGHT))
    wrong = await world.check("a", WRONG)
    assert wrong is not None
    assert wrong.why.endswith("given by the operator")
    one = world.canary("c", RIGHT)
    assert await one.check(world.store, KEYS, 5.0) is None
    assert one.confirmed
    known = await world.known()
    assert (known.by_operator, known.confirmed, known.recorded_by) == (True, True, "operator")
    # taken back: the groups begin anew
    world.pool = PoolSpec(name="p", model="tiny")
    assert await world.check("a", WRONG) is None
    assert not (await world.known()).confirmed


async def test_an_operators_answer_for_another_revision_says_nothing_about_this_one(world: World) -> None:
    world.pool = PoolSpec(name="p", model="tiny", canary_answer=list(RIGHT), canary_revision="another")
    assert await world.check("a", WRONG) is None
    head = world.model.revision[:12]
    world.pool = PoolSpec(name="p", model="tiny", canary_answer=list(RIGHT), canary_revision=head)
    assert await world.check("a", WRONG) is not None


async def test_a_changed_revision_or_prompt_starts_anew(world: World) -> None:
    await world.check("a", RIGHT)
    await world.check("b", RIGHT)
    assert await world.check("a", ODD, revision="newer") is None
    assert ((await world.known()).revision, (await world.known()).confirmed) == ("newer", False)
    world.pool = PoolSpec(name="p", model="tiny", canary_prompt="Another question")
    assert await world.check("a", WRONG, revision="newer") is None
    assert world.kinds.count("answer.recorded") == 3


async def test_fields_of_a_newer_version_survive_and_an_older_record_is_provisional(world: World) -> None:
    prompt = identity.encode(world.model.tokenizer, world.pool.canary_prompt)
    old = {"v": 1, "revision": world.model.revision, "input_ids": prompt, "output_ids": list(RIGHT),
           "recorded_by": "node/n1", "recorded_at": "then", "from_the_future": 7}  # fmt: skip
    await world.store.put(KEYS.pool_answer("p"), json.dumps(old).encode())
    assert await world.check("a", WRONG) is not None
    assert await world.check("b", RIGHT) is None
    assert not (await world.known()).confirmed
    assert await world.check("c", RIGHT) is None
    kv = await world.store.get(KEYS.pool_answer("p"))
    assert kv is not None
    found = json.loads(kv.value)
    assert (found["from_the_future"], found["recorded_at"], found["confirmed"]) == (7, "then", True)


async def test_a_store_that_does_not_answer_neither_passes_nor_fails_anyone(world: World) -> None:
    running = world.canary("a", RIGHT)
    await running.check(world.store, KEYS, 5.0)
    world.etcd.freeze()
    try:
        with pytest.raises(StoreUnavailable):
            await world.check("b", RIGHT)
        assert await running.still_right(5.0) is None
        assert await world.canary("a", WRONG).still_right(5.0) is None  # never checked: there is nothing to compare
    finally:
        world.etcd.thaw()
    assert await world.check("b", RIGHT) is None


async def test_a_short_answer_is_wrong_and_recorded_by_nobody(world: World) -> None:
    wrong = await world.check("a", RIGHT[:3])
    assert wrong is not None
    assert wrong.why == "answered 3 tokens, 8 were asked for"
    assert await world.store.get(KEYS.pool_answer("p")) is None
