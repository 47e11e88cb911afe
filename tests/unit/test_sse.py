"""Frames as clients get them: the official shapes, ids that can be checked, comments where they do no harm."""

import json
import struct
import zlib

import pytest

from infctl.domain.request_events import ErrorType
from infctl_daemon.gateway.errors import error_body
from infctl_daemon.gateway.sse import CompletionSurface, GenerateSurface, crc_of, error_frame


def completion(**change):
    given = {"token_ids": True, "usage": True, "prompt": 3}
    return CompletionSurface("r1", 'mo"del', 17, **{**given, **change})


def blocks(data: bytes) -> list[list[str]]:
    assert data.endswith(b"\n\n")
    return [block.split("\n") for block in data.decode().rstrip("\n").split("\n\n")]


def body_of(block: list[str]) -> dict:
    (line,) = [one for one in block if one.startswith("data: ")]
    return json.loads(line[6:])


def test_crc_goes_on_where_it_stopped():
    ids = [1, 70_000, 3]
    whole = zlib.crc32(struct.pack("<3I", *ids))
    assert crc_of(ids) == whole == crc_of(ids[1:], crc_of(ids[:1]))


def test_a_token_frame_carries_its_position_and_ids():
    (block,) = blocks(completion().tokens([5, 6], 'a"\n', 2, 0xAB, ""))
    assert block[-1] == "id: 2-000000ab"
    frame = body_of(block)
    assert frame["id"] == "cmpl-r1" and frame["model"] == 'mo"del' and frame["object"] == "text_completion"
    (choice,) = frame["choices"]
    assert choice == {"index": 0, "text": 'a"\n', "token_ids": [5, 6], "logprobs": None, "finish_reason": None}


def test_ids_are_shown_only_when_asked_for():
    (block,) = blocks(completion(token_ids=False).tokens([5], "x", 1, 0, ""))
    assert "token_ids" not in body_of(block)["choices"][0]


def test_a_comment_stands_inside_the_data_block_before_the_id():
    (block,) = blocks(completion().tokens([5], "x", 1, 0, "infctl migrated"))
    assert [line.split(" ")[0] for line in block] == ["data:", ":", "id:"]


def test_finish_usage_and_done_have_no_id_line():
    surface = completion()
    surface.tokens([5, 6], "ab", 2, 0, "")
    finish, usage, done = blocks(surface.finish("stop", "END", "c"))
    assert not any(line.startswith("id:") for block in (finish, usage, done) for line in block)
    assert body_of(finish)["choices"][0] | {"text": "c", "finish_reason": "stop"} == body_of(finish)["choices"][0]
    assert body_of(usage)["usage"] == {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    assert body_of(usage)["choices"] == []
    assert done == ["data: [DONE]"]


def test_the_whole_answer_has_everything_once():
    surface = completion()
    surface.tokens([5], "a", 1, 0, "")
    surface.tokens([6], "b", 2, 0, "")
    surface.finish("length", None, "c")
    whole = surface.whole("length", None)
    assert whole["choices"][0]["text"] == "abc" and whole["choices"][0]["token_ids"] == [5, 6]
    assert whole["usage"].total_tokens == 5


def test_native_frames_are_cumulative_and_carry_the_streams_id():
    surface = GenerateSurface("r1", 3, "rev")
    surface.tokens([5], "a", 1, 0, "")
    (block,) = blocks(surface.tokens([6], "b", 2, 9, ""))
    frame = body_of(block)
    assert frame["text"] == "ab" and frame["output_ids"] == [5, 6]
    meta = frame["meta_info"]
    assert (meta["id"], meta["prompt_tokens"], meta["completion_tokens"]) == ("r1", 3, 2)
    assert meta["finish_reason"] is None
    finish, done = blocks(surface.finish("length", None, ""))
    assert body_of(finish)["meta_info"]["finish_reason"] == {"type": "length", "length": 2}
    assert done == ["data: [DONE]"]


def test_what_the_engine_adds_is_shown_but_never_its_request_id():
    surface = GenerateSurface("r1", 3, "rev")
    surface.absorb({"id": "secret-rid", "prompt_tokens": 99, "output_token_logprobs": [[-0.5, 5, None]]})
    (block,) = blocks(surface.tokens([5], "a", 1, 0, ""))
    meta = body_of(block)["meta_info"]
    assert meta["id"] == "r1" and meta["prompt_tokens"] == 3
    assert meta["output_token_logprobs"] == [[-0.5, 5, None]]


@pytest.mark.parametrize("kind", list(ErrorType))
def test_every_error_says_whether_trying_again_helps(kind):
    (block,) = blocks(error_frame(error_body(kind, "why")))
    error = body_of(block)["error"]
    assert error["type"] == kind.value and error["message"] == "why"
    assert error["retryable"] is (kind in {ErrorType.OVERLOADED, ErrorType.UNAVAILABLE, ErrorType.NOT_RECOVERABLE})
