"""What a gateway relies on when it moves a stream: prompt + k ids is continued exactly."""

import asyncio

import pytest

from tests.conformance.engines import Engine
from tests.conformance.streams import body, call, stream

TOKENS = 144


_WHOLE: dict[str, tuple[list[int], list[int]]] = {}


@pytest.fixture
async def whole(engine: Engine) -> tuple[list[int], list[int]]:
    """Prompt ids and the uninterrupted output, the same for every start of one kind of engine."""
    if engine.kind in _WHOLE:
        return _WHOLE[engine.kind]
    async with engine.client() as client:
        prompt = (await client.post("/tokenize", json={"prompt": "one rank of the group is lost"})).json()["tokens"]
    got = await stream(engine, body(max_new=TOKENS, ids=prompt))
    assert len(got.ids) == TOKENS
    return _WHOLE.setdefault(engine.kind, (prompt, got.ids))


async def test_greedy_replay_is_exact_at_every_cut(engine: Engine, whole: tuple[list[int], list[int]]):
    prompt, ids = whole
    cuts = (1, 7, 64, 127, TOKENS - 1)
    replies = await asyncio.gather(
        *(call(engine, body(max_new=TOKENS - k, ids=prompt + ids[:k], stream=False)) for k in cuts)
    )
    for k, reply in zip(cuts, replies, strict=True):
        assert reply.json()["output_ids"] == ids[k:], f"cut at {k}"
        assert reply.json()["meta_info"]["prompt_tokens"] == len(prompt) + k


async def test_output_has_no_short_period(whole: tuple[list[int], list[int]]):
    """Otherwise a wrong continuation could look right."""
    _, ids = whole
    for period in range(1, 17):
        tail = ids[-4 * period :]
        assert any(a != b for a, b in zip(tail, tail[period:], strict=False)), f"repeats every {period}"
    assert len(set(ids)) > 40


async def test_other_streams_beside_it_change_nothing(engine: Engine, whole: tuple[list[int], list[int]]):
    prompt, ids = whole
    got = await asyncio.gather(
        stream(engine, body(max_new=24, ids=prompt)),
        stream(engine, body(max_new=24, text="another prompt beside it")),
        stream(engine, body(max_new=24, ids=prompt)),
    )
    assert got[0].ids == got[2].ids == ids[:24]


async def test_a_warm_seed_is_not_kept_without_deterministic_mode(engine: Engine):
    """sampling_seed is accepted and means nothing: two runs of 24 tokens at temperature 1 differ."""
    request = {"temperature": 1.0, "sampling_seed": 7, "max_new": 24}
    one, two = [(await stream(engine, body(**request))).ids for _ in range(2)]
    assert one != two
