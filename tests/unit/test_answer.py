"""One response, several streams: marks that fit what was shown, a slow client caught up, one end for all."""

import asyncio
import struct
import zlib

import pytest

from infctl.domain.replay import Sampling
from infctl.domain.request_events import ErrorType
from infctl_daemon.gateway.answer import HIGH_WATER, PING, Answer
from infctl_daemon.gateway.asked import Asked, Bundle, Job
from infctl_daemon.gateway.logprobs import Logprobs
from infctl_daemon.gateway.sse import crc_of
from infctl_daemon.gateway.surface_completion import CompletionForm


class Transport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.sent: list[bytes] = []
        self.waiting = 0

    def get_write_buffer_size(self) -> int:
        return self.waiting

    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes) -> None:  # type: ignore[override]
        size, _, rest = data.partition(b"\r\n")
        assert len(rest) == int(size, 16) + 2
        self.sent.append(rest[:-2])


class Response:
    def __init__(self, transport: Transport) -> None:
        self.transport = transport

    async def prepare(self, request: object) -> None: ...

    async def write(self, data: bytes) -> None:
        if data:
            self.transport.sent.append(data)


class Request:
    version = (1, 1)

    def __init__(self, transport: Transport) -> None:
        self.transport = transport


def jobs(count: int, logprobs: list[Logprobs] | None = None) -> list[Job]:
    asked = Asked(model="m", prompt=[1, 2], sampling={}, max_new=9)
    return [Job(asked, [1, 2], Sampling(9), (), logprobs[i] if logprobs else None) for i in range(count)]


def answer_of(count: int, stream: bool = True, keep_alive: float = 15.0, **bundle: object) -> Answer:
    made = Bundle([j.asked for j in jobs(count)], stream=stream, token_ids=True, include_usage=True, **bundle)  # type: ignore[arg-type]
    answer = Answer(CompletionForm(made, 1, None, "r1"), made, keep_alive)  # type: ignore[arg-type]
    for job in jobs(count):
        answer.join("r1", job)
    return answer


async def begun(answer: Answer) -> Transport:
    transport = Transport()
    await answer.begin(Request(transport), Response(transport))  # type: ignore[arg-type]
    return transport


def mark(*answers: list[int]) -> bytes:
    crcs = [crc_of(ids) for ids in answers]
    digest = zlib.crc32(struct.pack(f"<{len(crcs)}I", *crcs)) if len(crcs) > 1 else crcs[0]
    return b"id: %s-%08x\n\n" % (".".join(str(len(ids)) for ids in answers).encode(), digest)


async def test_a_frame_is_written_in_the_call_that_committed_it() -> None:
    answer = answer_of(1)
    transport = await begun(answer)
    answer.parts[0].tokens([5], "a", 1, crc_of([5]), "")
    assert len(transport.sent) == 1 and transport.sent[0].endswith(mark([5]))


async def test_each_mark_covers_every_answer_as_far_as_it_was_shown() -> None:
    answer = answer_of(2)
    transport = await begun(answer)
    one, two = answer.parts
    one.tokens([5, 6], "ab", 2, crc_of([5, 6]), "")
    two.tokens([7], "c", 1, crc_of([7]), "")
    assert transport.sent[0].endswith(mark([5, 6], [])) and transport.sent[1].endswith(mark([5, 6], [7]))


async def test_a_slow_client_gets_one_frame_for_each_stream_once_it_reads_again() -> None:
    answer = answer_of(2)
    transport = await begun(answer)
    follow = asyncio.create_task(answer.follow())
    one, two = answer.parts
    transport.waiting = HIGH_WATER
    for n in range(1, 101):
        one.tokens([n], "x", n, crc_of(range(1, n + 1)), "moved" if n == 50 else "")
    two.tokens([7], "c", 1, crc_of([7]), "")
    assert transport.sent == []
    transport.waiting = 0
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    (sent,) = transport.sent
    assert sent.count(b"data: ") == 2 and b": moved\n" in sent and sent.endswith(mark(list(range(1, 101)), [7]))
    two.tokens([8], "d", 2, crc_of([7, 8]), "")
    assert len(transport.sent) == 2, "and then directly again"
    follow.cancel()


async def test_the_response_ends_when_every_stream_has() -> None:
    answer = answer_of(2)
    transport = await begun(answer)
    one, two = answer.parts
    one.tokens([5], "a", 1, crc_of([5]), "")
    one.finish("stop", None, "")
    assert not answer.done.is_set()
    two.finish("length", None, "")
    await asyncio.wait_for(answer.follow(), 1)
    whole = b"".join(transport.sent)
    assert whole.count(b"[DONE]") == 1 and whole.endswith(b"data: [DONE]\n\n")
    assert b'"completion_tokens":1,"total_tokens":5' in whole, "two prompts of two tokens, one token"


async def test_the_first_error_ends_the_response_and_nothing_follows_it() -> None:
    answer = answer_of(2)
    transport = await begun(answer)
    one, two = answer.parts
    one.fail(ErrorType.NOT_RECOVERABLE, "gone")
    two.tokens([7], "c", 1, 0, "")
    two.fail(ErrorType.CANCELLED, "later")
    await asyncio.wait_for(answer.follow(), 1)
    (frame,) = transport.sent
    assert b"not_recoverable" in frame and b"[DONE]" not in frame
    assert answer.error == (ErrorType.NOT_RECOVERABLE, "gone")


async def test_an_error_before_the_headers_is_no_frame() -> None:
    answer = answer_of(1)
    answer.parts[0].fail(ErrorType.OVERLOADED, "full")
    assert answer.done.is_set() and answer.error == (ErrorType.OVERLOADED, "full")


async def test_silence_is_filled_and_only_silence() -> None:
    answer = answer_of(1, keep_alive=0.05)
    transport = await begun(answer)
    follow = asyncio.create_task(answer.follow())
    for n in range(1, 20):
        answer.parts[0].tokens([n], "x", n, 0, "")
        await asyncio.sleep(0.01)
    assert PING not in transport.sent
    await asyncio.sleep(0.2)
    assert PING in transport.sent and not PING.endswith(b"\n\n")
    follow.cancel()


async def test_prompts_count_once_however_many_answers_they_get() -> None:
    answer = answer_of(4, stream=False, per_prompt=2, keep=2)
    for part in answer.parts:
        part.tokens([5], "a", 1, 0, "")
        part.finish("length", None, "")
    usage = answer.usage()
    assert (usage.prompt_tokens, usage.completion_tokens) == (4, 4)
    assert [c["index"] for c in answer.whole()["choices"]] == [0, 1, 2, 3]


@pytest.mark.parametrize(("values", "best"), [([-3.0, -1.0, -2.0], [1, 2]), ([-1.0, -1.0, -9.0], [0, 1])])
async def test_the_best_answers_are_given_best_first(values: list[float], best: list[int]) -> None:
    known = [Logprobs() for _ in values]
    for one, value in zip(known, values, strict=True):
        one.hear({"output_token_logprobs": [[value, 5, None]]}, 0, [5])
        one.commit(0, 1)
    made = Bundle([], stream=False, per_prompt=3, keep=2)
    made.answers = [j.asked for j in jobs(3)]
    answer = Answer(CompletionForm(made, 1, None, "r1"), made)  # type: ignore[arg-type]
    for number, job in enumerate(jobs(3, known)):
        part = answer.join("r1", job)
        part.tokens([5], f"t{number}", 1, 0, "")
        part.finish("length", None, "")
    choices = answer.whole()["choices"]
    assert [(c["index"], c["text"]) for c in choices] == [(0, f"t{best[0]}"), (1, f"t{best[1]}")]
    assert answer.usage().completion_tokens == 3
