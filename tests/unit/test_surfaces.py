"""Frames as clients get them: the official shapes, ids that can be checked, comments where they do no harm."""

import json
import struct
import zlib

import pytest

from infctl.domain.replay import Sampling
from infctl.domain.request_events import ErrorType
from infctl_daemon.gateway.asked import Asked, Bundle, Job
from infctl_daemon.gateway.errors import error_body
from infctl_daemon.gateway.sse import Usage, crc_of, error_frame
from infctl_daemon.gateway.surface_completion import CompletionForm
from infctl_daemon.gateway.surface_generate import GenerateForm


def form(**change):
    given = {"token_ids": True, "include_usage": True, "stream": True, **change}
    return CompletionForm(Bundle([asked()], **given), 17, None, "r1")


def asked():
    return Asked(model='mo"del', prompt=[1, 2, 3], sampling={}, max_new=9)


def job(**change):
    return Job(asked(), [1, 2, 3], Sampling(9), (), **change)


def completion(**change):
    return form(**change).surface(0, "r1", job())


def native_form(**change):
    return GenerateForm(Bundle([asked()], stream=True, **change), "rev")


def native(**change):
    return native_form().surface(0, "r1", job(**change))


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
    (block,) = blocks(completion().tokens([5, 6], 'a"\n', b"2-000000ab", ""))
    assert block[-1] == "id: 2-000000ab"
    frame = body_of(block)
    assert frame["id"] == "cmpl-r1" and frame["model"] == 'mo"del' and frame["object"] == "text_completion"
    (choice,) = frame["choices"]
    assert choice == {"index": 0, "text": 'a"\n', "token_ids": [5, 6], "logprobs": None, "finish_reason": None}


def test_ids_are_shown_only_when_asked_for():
    (block,) = blocks(completion(token_ids=False).tokens([5], "x", b"1-0", ""))
    assert "token_ids" not in body_of(block)["choices"][0]


def test_a_comment_stands_inside_the_data_block_before_the_id():
    (block,) = blocks(completion().tokens([5], "x", b"1-0", "infctl migrated"))
    assert [line.split(" ")[0] for line in block] == ["data:", ":", "id:"]


def test_finish_usage_and_done_have_no_id_line():
    whole = form()
    surface = whole.surface(0, "r1", job())
    surface.tokens([5, 6], "ab", b"2-0", "")
    finish, usage, done = blocks(surface.finish("stop", "END", "c") + whole.closing(Usage(3, 2, 5)))
    assert not any(line.startswith("id:") for block in (finish, usage, done) for line in block)
    assert body_of(finish)["choices"][0] | {"text": "c", "finish_reason": "stop"} == body_of(finish)["choices"][0]
    assert body_of(usage)["usage"] == {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    assert body_of(usage)["choices"] == []
    assert done == ["data: [DONE]"]


def test_the_whole_answer_has_everything_once():
    whole = form().whole([completion().choice([5, 6], "abc", "length", None)], Usage(3, 2, 5))
    assert whole["choices"][0]["text"] == "abc" and whole["choices"][0]["token_ids"] == [5, 6]
    assert whole["usage"].total_tokens == 5


def test_an_echoed_prompt_comes_once_and_first():
    surface = form(echo=True).surface(0, "r1", job(text="said "))
    frames = surface.tokens([5], "a", b"1-0", "") + surface.tokens([6], "b", b"2-0", "")
    assert [body_of(b)["choices"][0]["text"] for b in blocks(frames + surface.finish("stop", None, ""))] == [
        "said a",
        "b",
        "",
    ]
    assert form(echo=True).surface(0, "r1", job(text="said ")).choice([5], "a", "stop", None)["text"] == "said a"


def test_native_frames_are_cumulative_and_carry_the_streams_id():
    surface = native()
    surface.tokens([5], "a", b"1-0", "")
    (block,) = blocks(surface.tokens([6], "b", b"2-9", ""))
    frame = body_of(block)
    assert frame["text"] == "ab" and frame["output_ids"] == [5, 6]
    meta = frame["meta_info"]
    assert (meta["id"], meta["prompt_tokens"], meta["completion_tokens"]) == ("r1", 3, 2)
    assert meta["finish_reason"] is None
    finish, done = blocks(surface.finish("length", None, "") + native_form().closing(Usage(3, 2, 5)))
    assert body_of(finish)["meta_info"]["finish_reason"] == {"type": "length", "length": 2}
    assert done == ["data: [DONE]"]


def test_what_the_engine_adds_is_shown_but_never_its_request_id():
    surface = native()
    surface.absorb({"id": "secret-rid", "prompt_tokens": 99, "hidden_states": [0.5]})
    (block,) = blocks(surface.tokens([5], "a", b"1-0", ""))
    meta = body_of(block)["meta_info"]
    assert meta["id"] == "r1" and meta["prompt_tokens"] == 3
    assert meta["hidden_states"] == [0.5] and "index" not in body_of(block)


def test_answers_of_a_native_list_are_numbered():
    frame = body_of(blocks(native_form(listed=True).surface(3, "r1", job()).tokens([5], "a", b"1-0", ""))[0])
    assert frame["index"] == 3
    assert native_form(listed=True).whole([{"text": "x"}], Usage(1, 1, 2)) == [{"text": "x"}]
    assert native_form().whole([{"text": "x"}], Usage(1, 1, 2)) == {"text": "x"}


@pytest.mark.parametrize("kind", list(ErrorType))
def test_every_error_says_whether_trying_again_helps(kind):
    (block,) = blocks(error_frame(error_body(kind, "why")))
    error = body_of(block)["error"]
    assert error["type"] == kind.value and error["message"] == "why"
    assert error["retryable"] is (kind in {ErrorType.OVERLOADED, ErrorType.UNAVAILABLE, ErrorType.NOT_RECOVERABLE})
