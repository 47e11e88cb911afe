"""Penalties and biases: they see output tokens only, so moving tokens into the prompt changes what follows."""

from typing import Any

import pytest

from tests.conformance.engines import Engine
from tests.conformance.streams import body, call

PENALTIES = [{"frequency_penalty": 2.0}, {"presence_penalty": 2.0}, {"repetition_penalty": 2.0}]
N = 60


async def say(engine: Engine, ids: list[int], n: int = N, **params: Any) -> list[int]:
    answer = await call(engine, body(max_new=n, ids=ids, stream=False, **params))
    assert answer.status_code == 200, answer.text
    return list(answer.json()["output_ids"])


async def repeating(engine: Engine, n: int = N) -> tuple[list[int], int]:
    """A prompt whose greedy output of n tokens says one a second time, and the place where it does."""
    for first in range(40, 140):
        prompt = [first, first + 1, first + 2]
        out = await say(engine, prompt, n)
        for place, token in enumerate(out):
            if place > 4 and token in out[: place - 3]:
                return prompt, place
    raise AssertionError("no output repeats a token")


@pytest.mark.parametrize("penalty", PENALTIES)
async def test_penalty_changes_what_follows_and_is_lost_by_a_replay(engine: Engine, penalty: dict[str, float]):
    prompt, place = await repeating(engine)
    plain = await say(engine, prompt)
    whole = await say(engine, prompt, **penalty)
    assert await say(engine, prompt, **penalty) == whole
    changed = next(i for i, (a, b) in enumerate(zip(plain, whole, strict=True)) if a != b)
    assert changed >= place
    naive = await say(engine, prompt + whole[:changed], N - changed, **penalty)
    assert naive[0] == plain[changed]
    assert naive != whole[changed:]


async def test_bias_of_the_penalty_times_the_count_restores_a_frequency_penalty(engine: Engine):
    prompt, _ = await repeating(engine)
    plain = await say(engine, prompt)
    whole = await say(engine, prompt, frequency_penalty=2.0)
    changed = next(i for i, (a, b) in enumerate(zip(plain, whole, strict=True)) if a != b)
    bias: dict[str, float] = {}
    for token in whole[:changed]:
        bias[str(token)] = bias.get(str(token), 0.0) - 2.0
    replay = await say(engine, prompt + whole[:changed], 8, frequency_penalty=2.0, logit_bias=bias)
    assert replay == whole[changed : changed + 8]


async def test_bias_is_added(engine: Engine):
    prompt = [70, 71, 72]
    first = (await say(engine, prompt, 1))[0]
    assert (await say(engine, prompt, 1, logit_bias={str(first): -100.0}))[0] != first
    assert await say(engine, prompt, 5, logit_bias={"45": 100.0}) == [45] * 5


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"frequency_penalty": 2.5}, "frequency_penalty must be in [-2, 2], got 2.5."),
        ({"presence_penalty": -3}, "presence_penalty must be in [-2, 2], got -3."),
        ({"repetition_penalty": 0}, "repetition_penalty must be in (0, 2] (1.0 = no penalty), got 0."),
        ({"repetition_penalty": 2.5}, "repetition_penalty must be in (0, 2] (1.0 = no penalty), got 2.5."),
        ({"min_p": 2}, "min_p must be in [0, 1], got 2."),
        ({"logit_bias": {"x": 1}}, "invalid literal for int() with base 10: 'x'"),
    ],
)
async def test_values_out_of_range_are_refused(engine: Engine, params: dict[str, Any], message: str):
    answer = await call(engine, body(stream=False, **params))
    assert (answer.status_code, answer.json()) == (400, {"error": {"message": message}})


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"frequency_penalty": "a"}, 'invalid type: string "a", expected f64'),
        ({"presence_penalty": True}, "invalid type: boolean `true`, expected f64"),
        ({"logit_bias": [1]}, "invalid type: sequence, expected a map"),
    ],
)
async def test_types_of_the_contract(engine: Engine, params: dict[str, Any], said: str):
    answer = await call(engine, body(**params))
    assert (answer.status_code, answer.json()) == (400, {"error": said})


async def test_null_means_the_default(engine: Engine):
    names = ("frequency_penalty", "presence_penalty", "repetition_penalty", "logit_bias")
    assert await say(engine, [70], 4, **dict.fromkeys(names)) == await say(engine, [70], 4)
