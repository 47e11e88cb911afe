"""What one attempt tells its stream: the engine's words become events; what cannot be trusted becomes no token."""

from types import SimpleNamespace

import msgspec
import pytest

from infctl.domain import request_events as ev
from infctl.domain.ids import Epoch
from infctl.domain.model import Contract
from infctl.domain.request_events import Break
from infctl_daemon.gateway.stream import Attempt
from infctl_daemon.gateway.upstream import End

EPOCH = Epoch(1, 2)


@pytest.fixture
def told():
    return []


@pytest.fixture
def attempt(told):
    suspects = []
    core = SimpleNamespace(
        attempt_started=lambda a: None,
        attempt_ended=lambda a: told.append("released"),
        token_seen=lambda launch: None,
        worker_suspect=lambda launch, kind, why: suspects.append(kind),
        suspects=suspects,
    )
    job = SimpleNamespace(logprobs=None)
    stream = SimpleNamespace(contract=Contract.CONTINUABLE, job=job, feed=told.append, _frame_ids=[], _matched=None)
    return Attempt(core, stream, EPOCH, "a-1", 10, b"", b"")


def say(attempt, ids, finish=None, **extra):
    meta = {"id": "r", "finish_reason": finish}
    data = msgspec.json.encode({"text": "", "output_ids": ids, "meta_info": meta, **extra})
    attempt.on_frame(attempt.upstream.frames.read(data))


def test_tokens_are_placed_after_the_committed_ones(attempt, told):
    say(attempt, [7])
    say(attempt, [7, 8, 9])
    assert told == [ev.TokensArrived(EPOCH, "a-1", 10, 1), ev.TokensArrived(EPOCH, "a-1", 11, 2)]
    assert attempt.stream._frame_ids == [8, 9]


def test_the_end_counts_every_token_of_the_stream(attempt, told):
    say(attempt, [7, 8], {"type": "stop", "matched": 8})
    assert told == [
        ev.TokensArrived(EPOCH, "a-1", 10, 2),
        "released",
        ev.AttemptFinished(EPOCH, "a-1", "stop", 12),
    ]
    assert attempt.stream._matched == 8


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, Break.ERROR_FRAME), (503, Break.OVERLOADED), (500, Break.ENGINE_FAILED), (None, Break.ABORTED)],
)
def test_an_abort_is_no_end_and_its_ids_are_no_tokens(attempt, told, status, kind):
    say(attempt, [0], {"type": "abort", "message": "m", "status_code": status})
    assert told == ["released", ev.AttemptBroken(EPOCH, "a-1", kind, "m")]
    assert attempt.core.suspects == [], "an answer is no sign of a dead worker"


@pytest.mark.parametrize(
    ("end", "kind", "suspect"),
    [
        (End(False, 0, False, "refused"), Break.REFUSED, True),
        (End(True, 200, False, "connection closed"), Break.EOF, True),
        (End(True, 200, False, "connection reset: x"), Break.RESET, True),
        (End(True, 401, False, "response ended", b"Unauthorized"), Break.UNAUTHORIZED, True),
        (End(True, 403, False, "response ended"), Break.UNAUTHORIZED, True),
        (End(True, 400, False, "response ended", b"bad"), Break.ERROR_FRAME, False),
        (End(True, 503, False, "response ended"), Break.OVERLOADED, False),
        (End(True, 500, False, "response ended"), Break.ENGINE_FAILED, False),
    ],
)
def test_each_way_a_connection_ends_has_its_name(attempt, told, end, kind, suspect):
    attempt.on_end(end)
    assert told[0] == "released" and told[1].kind is kind
    assert attempt.core.suspects == ([kind] if suspect else [])


def test_after_its_end_an_attempt_says_nothing_more(attempt, told):
    say(attempt, [7], {"type": "length", "length": 1})
    before = list(told)
    attempt.on_end(End(True, 200, True, "connection closed"))
    assert told == before


def test_an_error_frame_is_about_the_request(attempt, told):
    attempt.on_frame(attempt.upstream.frames.read(b'{"error":{"message":"no","code":400}}'))
    assert told[1] == ev.AttemptBroken(EPOCH, "a-1", Break.ERROR_FRAME, "no")
