"""How a request ends, and what is shown of the token or string that ended it."""

from typing import Any

from tests.conformance.engines import CONTEXT, Engine
from tests.conformance.streams import Stream, body, call, stream


async def said(engine: Engine, n: int) -> dict[str, Any]:
    """The first n tokens of the prompt that all cases here use, with their text."""
    answer = await call(engine, body(max_new=n, stream=False))
    return dict(answer.json())


async def visible(engine: Engine, n: int) -> tuple[int, str, list[int]]:
    """A position ≥ 3 whose token has a printable text, not said before: position, text, all ids."""
    ids = (await said(engine, n))["output_ids"]
    async with engine.client() as client:
        for position in range(3, n):
            if ids[position] in ids[:position]:
                continue
            got = await client.post("/detokenize", json={"tokens": [ids[position]]})
            text = got.json()["text"].strip()
            earlier = (await client.post("/detokenize", json={"tokens": ids[:position]})).json()["text"]
            if len(text) >= 3 and text.isalpha() and text not in earlier:
                return position, text, ids
    raise AssertionError(f"no token with a text of its own among {ids}")


def reached(got: Stream, reason: dict[str, Any]) -> None:
    assert got.finish == reason
    assert list(got.finish) == list(reason)
    assert got.done
    assert all(f["meta_info"]["finish_reason"] is None for f in got.frames[:-1])


async def test_length(engine: Engine):
    reached(await stream(engine, body(max_new=7)), {"type": "length", "length": 7})


async def test_no_tokens_asked_for(engine: Engine):
    answer = await call(engine, body(max_new=0, stream=False))
    got = answer.json()
    assert (got["text"], got["output_ids"]) == ("", [])
    assert got["meta_info"]["finish_reason"] == {"type": "length", "length": 0}
    assert got["meta_info"]["completion_tokens"] == 0


async def test_default_is_128_tokens(engine: Engine):
    request = {"input_ids": [50, 51], "stream": False, "sampling_params": {"temperature": 0, "ignore_eos": True}}
    got = (await call(engine, request)).json()
    assert len(got["output_ids"]) == 128


async def test_stop_token_is_among_the_ids_and_not_in_the_text(engine: Engine):
    position, text, ids = await visible(engine, 40)
    request = body(max_new=40, stop_token_ids=[ids[position]], ignore_eos=False)
    got = await stream(engine, request)
    reached(got, {"type": "stop", "matched": ids[position]})
    assert got.ids == ids[: position + 1]
    assert not got.last["text"].endswith(text)


async def test_no_stop_trim_shows_the_stop_token(engine: Engine):
    position, text, ids = await visible(engine, 40)
    params = {"stop_token_ids": [ids[position]], "ignore_eos": False, "no_stop_trim": True}
    got = await stream(engine, body(max_new=40, **params))
    assert got.ids == ids[: position + 1]
    assert got.last["text"].endswith(text)


async def test_ignore_eos_ignores_stop_tokens_as_well(engine: Engine):
    position, _, ids = await visible(engine, 40)
    got = await stream(engine, body(max_new=position + 4, stop_token_ids=[ids[position]], ignore_eos=True))
    reached(got, {"type": "length", "length": position + 4})


async def test_stop_string_is_cut_out_of_the_text(engine: Engine):
    position, text, ids = await visible(engine, 40)
    stop = text[:3]
    got = await stream(engine, body(max_new=40, stop=[stop]))
    reached(got, {"type": "stop", "matched": stop})
    assert got.ids == ids[: len(got.ids)]
    assert len(got.ids) <= position + 1
    assert stop not in got.last["text"]
    shown = await call(engine, body(max_new=40, stop=stop, no_stop_trim=True, stream=False))
    assert stop in shown.json()["text"]


async def test_stop_string_wins_over_length_at_the_same_token(engine: Engine):
    _, text, _ = await visible(engine, 40)
    n = len((await stream(engine, body(max_new=40, stop=[text]))).ids)
    reached(await stream(engine, body(max_new=n, stop=[text])), {"type": "stop", "matched": text})


async def test_stop_token_wins_over_length_at_the_same_token(engine: Engine):
    position, _, ids = await visible(engine, 40)
    token = ids[position]
    got = await stream(engine, body(max_new=position + 1, stop_token_ids=[token], ignore_eos=False))
    reached(got, {"type": "stop", "matched": token})


async def test_what_may_become_a_stop_string_is_held_back(engine: Engine):
    """At no frame does the text end with the beginning of the stop string."""
    position, text, _ = await visible(engine, 40)
    stop = text + "\x00never"
    got = await stream(engine, body(max_new=position + 6, stop=[stop]))
    assert got.finish["type"] == "length"
    assert all(not f["text"].endswith(text) for f in got.frames[:-1])
    assert len(got.frames) < position + 6


async def test_min_new_tokens_keeps_the_stop_token_from_being_said(engine: Engine):
    position, _, ids = await visible(engine, 40)
    params = {"stop_token_ids": [ids[position]], "ignore_eos": False, "min_new_tokens": position + 3}
    got = await stream(engine, body(max_new=position + 3, **params))
    reached(got, {"type": "length", "length": position + 3})
    assert got.ids[:position] == ids[:position]
    assert ids[position] not in got.ids


async def test_answer_is_cut_short_two_places_before_the_context_ends(engine: Engine):
    """prompt + max_new_tokens may fill the context; what is given ends two tokens earlier, as `length`."""
    room = 12
    prompt = [(7 * i) % 200 + 20 for i in range(CONTEXT - room)]
    got = await stream(engine, body(max_new=room, ids=prompt))
    reached(got, {"type": "length", "length": room - 2})
    assert len(got.ids) == room - 2


async def test_null_max_new_tokens_means_up_to_the_context(engine: Engine):
    prompt = [(7 * i) % 200 + 20 for i in range(CONTEXT - 12)]
    got = await stream(engine, body(max_new=None, ids=prompt))
    reached(got, {"type": "length", "length": 10})
