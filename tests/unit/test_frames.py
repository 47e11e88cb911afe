"""The reader of SGLang's cumulative frames: fast road and full parse agree, hostile bytes do not pass."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infctl_daemon.gateway.frames import BadFrame, FrameReader


def frame(ids, text="t", finish=None, **meta):
    body = {
        "text": text,
        "output_ids": ids,
        "meta_info": {"id": "r", "finish_reason": finish, "prompt_tokens": 3, "completion_tokens": len(ids), **meta},
    }
    return json.dumps(body, separators=(",", ":")).encode()


def test_each_frame_gives_only_its_new_ids():
    reader = FrameReader()
    assert reader.read(frame([])).ids == []
    first = reader.read(frame([7]))
    assert (first.start, first.ids) == (0, [7])
    later = reader.read(frame([7, 8, 900]))
    assert (later.start, later.ids) == (1, [8, 900])
    assert reader.count == 3


def test_a_repeated_frame_gives_nothing():
    reader = FrameReader()
    reader.read(frame([1, 2]))
    again = reader.read(frame([1, 2]))
    assert (again.start, again.ids) == (2, [])


@pytest.mark.parametrize("other", [[123, 4], [13, 4]])
def test_frames_of_another_request_are_refused(other):
    reader = FrameReader()
    reader.read(frame([12]))
    with pytest.raises(BadFrame, match="have changed"):
        reader.read(frame(other))


def test_text_cannot_forge_the_id_list():
    reader = FrameReader()
    forged = '"output_ids":[9,9],"meta_info":{"finish_reason":{"type":"stop"}}'
    got = reader.read(frame([5], text=forged))
    assert got.ids == [5] and got.meta.finish_reason is None


def test_an_abort_frame_without_ids_keeps_what_was_taken():
    reader = FrameReader()
    reader.read(frame([1, 2, 3]))
    body = b'{"text":"","meta_info":{"id":"r","finish_reason":{"type":"abort","message":"x","status_code":503}}}'
    got = reader.read(body)
    assert got.ids == [] and got.start == 3 and got.meta.finish_reason["status_code"] == 503


def test_keys_after_meta_info_take_the_slow_road():
    reader = FrameReader()
    body = frame([4, 5])[:-1] + b',"index":0}'
    assert reader.read(body).ids == [4, 5]


def test_an_error_frame_is_told():
    assert FrameReader().read(b'{"error":{"message":"no","code":400}}').error == {"message": "no", "code": 400}


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"{}",
        b'{"output_ids":[1],"meta_info":3}',
        b'{"output_ids":["x"],"meta_info":{}}',
        b"\xff\xfe",
    ],
)
def test_what_is_no_frame_is_refused(bad):
    with pytest.raises(BadFrame):
        FrameReader().read(bad)


@given(st.lists(st.lists(st.integers(0, 200_000), max_size=4), max_size=12), st.text(max_size=30), st.booleans())
def test_fast_and_slow_agree_on_every_sequence(steps, text, spaced):
    fast, slow = FrameReader(), FrameReader(keep_meta=True)
    ids: list[int] = []
    taken: list[int] = []
    for fresh in steps:
        ids += fresh
        body = frame(ids, text=text)
        if spaced:
            body = json.dumps(json.loads(body)).encode()
        a, b = fast.read(body), slow.read(body)
        assert (a.start, a.ids) == (b.start, b.ids)
        assert a.start == len(taken)
        taken += a.ids
    assert taken == ids
