"""Log probabilities: their shapes, their place in a frame, what is refused, and what a replay gives."""

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from tests.conformance.engines import Engine
from tests.conformance.streams import Stream, body, call, fresh_rid, loads, stream, until
from tests.conformance.test_engine_abort import ABORTED, CUT, abort, after
from tests.conformance.test_engine_frames import HEAD, TAIL

TOLERANCE = {"sim": 0.0, "sglang": 0.2}  # prefill and decode do not round alike in the real one
LISTS = ["input_token_logprobs", "output_token_logprobs", "output_token_logprobs_length"]
TOPS = ["input_top_logprobs", "output_top_logprobs"]
IDS = ["input_token_ids_logprobs", "output_token_ids_logprobs"]
AT = HEAD.index("reasoning_tokens")
PROMPT = [60, 61, 62, 63]


def asking(max_new: int = 4, *, rid: str | None = None, ids: Any = PROMPT, stream: bool = True, **more: Any) -> Any:
    """A greedy request for log probabilities; keywords are fields of the body."""
    return {**body(rid, max_new=max_new, ids=list(ids), stream=stream), "return_logprob": True, **more}


def meta(got: Stream) -> dict[str, Any]:
    return dict(got.last["meta_info"])


async def whole(engine: Engine, request: dict[str, Any]) -> dict[str, Any]:
    answer = await call(engine, {**request, "stream": False})
    assert answer.status_code == 200, answer.text
    return dict(answer.json()["meta_info"])


def checked(entries: list[Any], text: bool) -> list[int]:
    """The ids of a list of entries, after a look at each entry."""
    for value, token, shown in entries:
        assert isinstance(value, float)
        assert value <= 0
        assert isinstance(token, int)
        assert isinstance(shown, str) if text else shown is None
    return [entry[1] for entry in entries]


async def test_output_lists_grow_with_the_ids(engine: Engine):
    got = await stream(engine, asking(6))
    for frame in got.frames:
        m = frame["meta_info"]
        assert m["input_token_logprobs"] == []
        assert checked(m["output_token_logprobs"], text=False) == frame["output_ids"]
        assert m["output_token_logprobs_length"] == len(frame["output_ids"])
    for earlier, later in pairwise(got.frames):
        so_far = earlier["meta_info"]["output_token_logprobs"]
        assert later["meta_info"]["output_token_logprobs"][: len(so_far)] == so_far


@pytest.mark.parametrize(
    ("fields", "keys"),
    [
        ({}, LISTS),
        ({"top_logprobs_num": 0, "token_ids_logprob": []}, LISTS),
        ({"top_logprobs_num": -1}, LISTS),
        ({"top_logprobs_num": 2}, LISTS + TOPS),
        ({"token_ids_logprob": [40, 41]}, LISTS + IDS),
        ({"top_logprobs_num": 1, "token_ids_logprob": [40]}, LISTS + TOPS + IDS),
    ],
)
async def test_keys_and_their_place(engine: Engine, fields: dict[str, Any], keys: list[str]):
    head = HEAD[:AT] + keys + HEAD[AT:]
    got = await stream(engine, asking(5, **fields))
    assert list(got.frames[1]["meta_info"]) == head + TAIL
    assert list(meta(got)) == [*head, "weight_versions", *TAIL, "e2e_latency"]


async def test_without_return_logprob_the_other_fields_mean_nothing(engine: Engine):
    fields = {"return_logprob": False, "top_logprobs_num": 2, "token_ids_logprob": [40], "logprob_start_len": 0}
    assert list(meta(await stream(engine, asking(5, **fields)))) == [*HEAD, "weight_versions", *TAIL, "e2e_latency"]


async def test_greedy_choice_leads_the_top_list(engine: Engine):
    got = await stream(engine, asking(8, top_logprobs_num=3, return_text_in_logprobs=True))
    m = meta(got)
    assert m["input_top_logprobs"] == []
    assert len(m["output_top_logprobs"]) == 8
    for said, top in zip(m["output_token_logprobs"], m["output_top_logprobs"], strict=True):
        assert len(set(checked(top, text=True))) == 3
        assert top[0] == said
        assert [e[0] for e in top] == sorted((e[0] for e in top), reverse=True)
    async with engine.client() as client:
        for _, token, text in m["output_token_logprobs"]:
            body_ = {"tokens": [token], "skip_special_tokens": False}
            assert (await client.post("/detokenize", json=body_)).json()["text"] == text


async def test_ids_asked_for_keep_their_order(engine: Engine):
    m = meta(await stream(engine, asking(3, token_ids_logprob=[44, 40, 42])))
    assert m["input_token_ids_logprobs"] == []
    assert [checked(row, text=False) for row in m["output_token_ids_logprobs"]] == [[44, 40, 42]] * 3


@pytest.mark.parametrize("start", [0, 1, 3, 4])
async def test_prompt_entries_from_a_start_on(engine: Engine, start: int):
    fields = {"logprob_start_len": start, "top_logprobs_num": 2, "token_ids_logprob": [40]}
    await whole(engine, asking(1))
    got = await stream(engine, asking(3, **fields))
    for frame in got.frames:
        m = frame["meta_info"]
        tail = PROMPT[start:]
        assert [e[1] for e in m["input_token_logprobs"]] == tail
        assert m["cached_tokens"] <= start
        for name in ("input_token_logprobs", "input_top_logprobs", "input_token_ids_logprobs"):
            assert len(m[name]) == len(tail)
        if tail:
            assert m["input_token_logprobs"][0] == [None, tail[0], None]
            assert m["input_top_logprobs"][0] is m["input_token_ids_logprobs"][0] is None
        checked(m["input_token_logprobs"][1:], text=False)
        assert all(len(checked(row, text=False)) == 2 for row in m["input_top_logprobs"][1:])
        assert all(checked(row, text=False) == [40] for row in m["input_token_ids_logprobs"][1:])
        assert len(m["output_token_logprobs"]) == len(frame["output_ids"])


async def test_prompt_can_be_scored_without_saying_anything(engine: Engine):
    got = await stream(engine, asking(0, logprob_start_len=0))
    assert len(got.frames) == 1
    assert got.ids == []
    assert got.finish == {"type": "length", "length": 0}
    m = meta(got)
    assert (m["output_token_logprobs"], m["output_token_logprobs_length"]) == ([], 0)
    assert [e[1] for e in m["input_token_logprobs"]] == PROMPT


async def test_replay_gives_the_same_tokens_at_nearly_the_same_values(engine: Engine):
    full = meta(await stream(engine, asking(40)))["output_token_logprobs"]
    for cut in (1, 17, 39):
        said = [e[1] for e in full[:cut]]
        again = meta(await stream(engine, asking(40 - cut, ids=PROMPT + said)))["output_token_logprobs"]
        assert [e[1] for e in again] == [e[1] for e in full[cut:]]
        for old, new in zip(full[cut:], again, strict=True):
            assert abs(old[0] - new[0]) <= TOLERANCE[engine.kind]
    scored = await whole(engine, asking(0, ids=PROMPT + [e[1] for e in full], logprob_start_len=len(PROMPT) - 1))
    for old, new in zip(full, scored["input_token_logprobs"][1:], strict=True):
        assert old[1] == new[1]
        assert abs(old[0] - new[0]) <= TOLERANCE[engine.kind]


async def test_temperature_changes_no_value(engine: Engine):
    greedy = asking(4, top_logprobs_num=2)
    warm = asking(4, top_logprobs_num=2)
    warm["sampling_params"] |= {"temperature": 2.0, "top_k": 1}
    one, other = await whole(engine, greedy), await whole(engine, warm)
    for top, same in zip(one["output_top_logprobs"], other["output_top_logprobs"], strict=True):
        assert [e[1] for e in top] == [e[1] for e in same]
        for (value, *_), (again, *_) in zip(top, same, strict=True):
            assert abs(value - again) <= TOLERANCE[engine.kind]


async def test_a_strong_bias_makes_a_token_certain(engine: Engine):
    request = asking(3, top_logprobs_num=1, stream=False)
    request["sampling_params"]["logit_bias"] = {"100": 60.0}
    m = await whole(engine, request)
    assert m["output_token_logprobs"] == [[0.0, 100, None]] * 3
    assert m["output_top_logprobs"] == [[[0.0, 100, None]]] * 3


async def test_entries_are_held_back_with_their_tokens(engine: Engine):
    plain = await stream(engine, body(max_new=20, ids=PROMPT))
    async with engine.client() as client:
        texts = [(await client.post("/detokenize", json={"tokens": [t]})).json()["text"] for t in plain.ids[3:15]]
    text = next(t for t in texts if len(t.strip()) >= 2 and t.isprintable() and "\ufffd" not in t)
    request = asking(20)
    request["sampling_params"]["stop"] = [text + "\x00never"]
    got = await stream(engine, request)
    assert got.ids == plain.ids
    assert len(got.frames) < 20
    for frame in got.frames:
        assert [e[1] for e in frame["meta_info"]["output_token_logprobs"]] == frame["output_ids"]


async def test_abort_while_running_keeps_the_lists(engine: Engine):
    rid = fresh_rid("lpa")
    got = await stream(engine, asking(1500, rid=rid, logprob_start_len=0), on_frame=after(3, engine, rid))
    assert got.finish == ABORTED
    assert len(meta(got)["output_token_logprobs"]) == len(got.ids)
    assert len(meta(got)["input_token_logprobs"]) == len(PROMPT)


async def test_abort_while_waiting_has_empty_lists(engine: Engine):
    running = [asyncio.create_task(stream(engine, body(max_new=1500))) for _ in range(4)]

    async def busy() -> bool:
        return (await loads(engine))["num_running_reqs"] == 4

    await until(busy, 20, "the batch is full")
    rid = fresh_rid("lpw")
    waiting = asyncio.create_task(stream(engine, asking(2, rid=rid, top_logprobs_num=1)))

    async def queued() -> bool:
        return (await loads(engine))["num_waiting_reqs"] == 1

    await until(queued, 20, "it waits")
    await abort(engine, rid=rid)
    got = await waiting
    await abort(engine, abort_all=True)
    await asyncio.gather(*running)
    at = CUT.index("completion_tokens")
    assert list(meta(got)) == CUT[:at] + LISTS + TOPS + CUT[at:]
    assert [meta(got)[k] for k in LISTS + TOPS] == [[], [], 0, [], []]


async def test_start_behind_the_prompt_is_refused_by_the_scheduler(engine: Engine):
    message = (
        "req.logprob_start_len=5 is higher than the number of input tokens len(req.origin_input_ids)=4. "
        "Please use a smaller logprob_start_len."
    )
    got = await stream(engine, asking(logprob_start_len=5))
    assert got.status == 200
    assert got.finish == {"type": "abort", "message": message, "status_code": 400, "err_type": "BadRequestError"}
    assert got.ids == [0]
    assert [meta(got)[k] for k in LISTS] == [[], [], 0]
    answer = await call(engine, asking(logprob_start_len=5, stream=False))
    assert (answer.status_code, answer.json()) == (400, {"error": {"message": message}})


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([[40]], "token_ids_logprob must be a flat list of integers."),
        ([-1], "token_ids_logprob contains out-of-vocabulary token id -1; valid range is [0, {size})."),
        ([10**6], "token_ids_logprob contains out-of-vocabulary token id 1000000; valid range is [0, {size})."),
    ],
)
async def test_ids_that_mean_nothing_are_refused(engine: Engine, ids: list[Any], message: str):
    answer = await call(engine, asking(token_ids_logprob=ids, stream=False))
    assert answer.status_code == 400
    size = message.format(size=answer.text.rpartition("[0, ")[2].partition(")")[0])
    assert answer.json() == {"error": {"message": size}}


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("return_logprob", "yes", 'invalid type: string "yes", expected a value or an array of values for BoolOrList'),
        ("return_logprob", 1, "invalid type: integer `1`, expected a value or an array of values for BoolOrList"),
        ("top_logprobs_num", "2", 'invalid type: string "2", expected a value or an array of values for Int64OrList'),
        (
            "top_logprobs_num", 2.0,
            "invalid type: floating point `2.0`, expected a value or an array of values for Int64OrList",
        ),
    ],
)  # fmt: skip
async def test_strict_schema(engine: Engine, field: str, value: Any, said: str):
    answer = await call(engine, asking(**{field: value}))
    assert (answer.status_code, answer.json()) == (400, {"error": said})


@pytest.mark.parametrize(
    ("field", "value", "errors"),
    [
        ("return_logprob", "maybe", 2),
        ("top_logprobs_num", "x", 2),
        ("top_logprobs_num", 2.5, 2),
        ("logprob_start_len", "x", 2),
        ("token_ids_logprob", 40, 2),
        ("return_text_in_logprobs", "perhaps", 1),
        ("return_text_in_logprobs", None, 1),
    ],
)
async def test_lax_schema(engine: Engine, field: str, value: Any, errors: int):
    answer = await call(engine, asking(**{field: value}))
    assert answer.status_code == 400
    said = answer.json()["message"]
    assert said.startswith(f"{errors} validation error{'s' if errors > 1 else ''}:\n  {{'type': '")
    assert f"('body', '{field}'" in said
    assert repr(value) in said
