"""What an engine does with a body it cannot serve: three kinds of answer, and nothing that lingers."""

import pytest

from tests.conformance.engines import CONTEXT, Engine
from tests.conformance.streams import PROMPT, body, call, stream

JSON = {"Content-Type": "application/json"}


async def post(engine: Engine, content: bytes):
    async with engine.client() as client:
        return await client.post("/generate", content=content, headers=JSON)


@pytest.mark.parametrize(
    "content",
    [
        b'{"text": "a", "stream": tru',
        b"",
        b"[1]",
        b'{"text": 5, "stream": true}',
        b'{"input_ids": "abc", "stream": true}',
        b'{"input_ids": ["a"], "stream": true}',
        b'{"text": "a", "rid": 5}',
        b'{"text": "a", "sampling_params": {"temperature": NaN}}',
        b'{"text": "a", "sampling_params": {"temperature": Infinity}, "stream": true}',
    ],
    ids=["cut", "empty", "list", "text-int", "ids-str", "ids-of-str", "rid-int", "nan", "infinity"],
)
async def test_body_that_does_not_fit_the_schema_is_400_even_for_a_stream(engine: Engine, content: bytes):
    answer = await post(engine, content)
    assert answer.status_code == 400
    got = answer.json()
    assert list(got) == ["object", "message", "type", "param", "code"]
    assert (got["object"], got["type"], got["param"], got["code"]) == ("error", "Bad Request", None, 400)
    assert "validation error" in got["message"]


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({"max_new_tokens": "x"}, 'invalid type: string "x", expected i64'),
        ({"max_new_tokens": 1.5}, "invalid type: floating point `1.5`, expected i64"),
        ({"stop": 5}, "invalid type: integer `5`, expected a value or an array of values for StringOrList"),
        ({"stop_token_ids": "x"}, 'invalid type: string "x", expected a sequence'),
        ({"no_such_parameter": 1}, "unknown field `no_such_parameter`, expected one of `max_new_tokens`, `stop`"),
    ],
)
@pytest.mark.parametrize("streaming", [True, False])
async def test_sampling_parameters_that_break_the_contract_are_400_even_for_a_stream(
    engine: Engine, params: dict, says: str, streaming: bool
):
    answer = await call(engine, {"text": "a", "stream": streaming, "sampling_params": params})
    assert answer.status_code == 400
    assert list(answer.json()) == ["error"]
    assert answer.json()["error"].startswith(says)


REFUSED = [
    ({}, {}, "Either text, input_ids or input_embeds should be provided."),
    ({"input_ids": []}, {}, "input_ids cannot be empty."),
    ({"text": "a"}, {"max_new_tokens": -3}, "max_new_tokens must be at least 0, got -3."),
    ({"text": "a"}, {"temperature": -1}, "temperature must be a non-negative finite number, got -1."),
    ({"text": "a"}, {"top_p": 2}, "top_p must be in (0, 1], got 2."),
    ({"text": "a"}, {"top_k": 0}, "top_k must be -1 (disable) or at least 1, got 0."),
    (
        {"text": "a"},
        {"max_new_tokens": 2, "min_new_tokens": 5},
        "min_new_tokens must be in [0, max_new_tokens(2)], got 5.",
    ),
    (
        {"input_ids": [50] * CONTEXT},
        {"max_new_tokens": 1},
        f"The input ({CONTEXT} tokens) is longer than the model's context length ({CONTEXT} tokens).",
    ),
    (
        {"input_ids": [50] * 4000},
        {"max_new_tokens": 97},
        f"Requested token count exceeds the model's maximum context length of {CONTEXT} tokens. You requested a "
        "total of 4097 tokens: 4000 tokens from the input messages and 97 tokens for the completion. Please reduce "
        "the number of tokens in the input messages or the completion to fit within the limit.",
    ),
]


@pytest.mark.parametrize(("prompt", "params", "message"), REFUSED, ids=[r[2][:28] for r in REFUSED])
async def test_refused_request_is_an_error_frame_in_a_stream_and_400_otherwise(
    engine: Engine, prompt: dict, params: dict, message: str
):
    got = await stream(engine, {**prompt, "stream": True, "sampling_params": params})
    assert got.status == 200
    error = {"message": message, "type": "invalid_request_error", "code": 400, "retryable": False}
    assert got.frames == [{"error": error}]
    assert list(got.frames[0]["error"]) == ["message", "type", "code", "retryable"]
    assert got.done
    answer = await call(engine, {**prompt, "stream": False, "sampling_params": params})
    assert answer.status_code == 400
    assert answer.json() == {"error": {"message": message}}


async def test_prompt_in_the_last_six_places_is_refused_by_the_scheduler(engine: Engine):
    """It fits the context and is refused later: HTTP 200 and an abort frame with a status code."""
    message = (
        f"Input length ({CONTEXT - 6} tokens) exceeds the maximum allowed length ({CONTEXT - 6} tokens). "
        "Use a shorter input or enable --allow-auto-truncate."
    )
    prompt = [50] * (CONTEXT - 6)
    got = await stream(engine, body(max_new=1, ids=prompt))
    assert got.status == 200
    finish = {"type": "abort", "message": message, "status_code": 400, "err_type": "BadRequestError"}
    assert got.finish == finish
    assert got.last["meta_info"]["prompt_tokens"] == 1
    assert got.done
    answer = await call(engine, body(max_new=1, ids=prompt, stream=False))
    assert answer.status_code == 400
    assert answer.json() == {"error": {"message": message}}


async def test_unknown_keys_of_the_body_are_ignored(engine: Engine):
    answer = await call(engine, {**body(max_new=1, stream=False), "no_such_key": 3})
    assert answer.status_code == 200


async def test_ids_win_over_text(engine: Engine):
    both = await call(engine, {**body(max_new=3, stream=False, ids=[45, 46]), "text": PROMPT})
    ids = await call(engine, body(max_new=3, stream=False, ids=[45, 46]))
    assert both.json()["meta_info"]["prompt_tokens"] in (2, len(PROMPT))
    assert both.status_code == ids.status_code == 200


async def test_ids_outside_the_vocabulary_are_taken(engine: Engine):
    """A gateway has to check them: the engine does not."""
    for token in (100_000, -1):
        answer = await call(engine, body(max_new=1, stream=False, ids=[token]))
        assert answer.status_code == 200
