"""The pool's known answer in the store: each word of a group is heard once, by compare-and-swap.

Kept true: what is stored belongs to one model revision, prompt and length; an answer of any other starts anew.
Fields that this version does not know survive.
"""

from __future__ import annotations

from dataclasses import dataclass

from infctl.domain.answers import Answers, Heard, Verdict, Voice, hear
from infctl.domain.errors import EngineError
from infctl.ports.store import Compare, Get, Put, Store
from infctl.store.codec import BadRecord, Stored, decode_stored, encode
from infctl.store.records import KnownAnswer
from infctl.store.records import Voice as VoiceRecord
from infctl.store.stamp import now_text

_TRIES = 8


@dataclass(frozen=True, slots=True)
class Question:
    """What an answer belongs to."""

    revision: str
    input_ids: tuple[int, ...]
    tokens: int


def from_record(record: KnownAnswer, question: Question) -> Answers | None:
    """What the record says on this question; None where it is about another one."""
    same = record.revision == question.revision and tuple(record.input_ids) == question.input_ids
    if not same or len(record.output_ids) != question.tokens:
        return None
    return Answers(
        tuple(record.output_ids),
        record.confirmed,
        record.by_operator,
        tuple(Voice(v.group, tuple(v.output_ids), v.at) for v in record.voices),
        tuple(Voice(v.group, tuple(v.output_ids), v.at) for v in record.refused),
    )


def to_record(answers: Answers, question: Question, by: str, at: str) -> KnownAnswer:
    return KnownAnswer(
        revision=question.revision,
        input_ids=list(question.input_ids),
        output_ids=list(answers.ids),
        confirmed=answers.confirmed,
        by_operator=answers.by_operator,
        voices=[VoiceRecord(group=v.group, output_ids=list(v.ids), at=v.at) for v in answers.voices],
        refused=[VoiceRecord(group=v.group, output_ids=list(v.ids), at=v.at) for v in answers.refused],
        recorded_by="operator" if answers.by_operator else by,
        recorded_at=at,
    )


async def tell(store: Store, key: str, question: Question, voice: Voice, operator: tuple[int, ...], by: str) -> Verdict:
    """Let a group's word be heard; what it changed is stored when this returns. Raises StoreError."""
    kv = await store.get(key)
    for _ in range(_TRIES):
        stored = _stored(kv.value, kv.mod_revision) if kv is not None else None
        known = from_record(stored.record, question) if stored is not None else None
        verdict = hear(known, voice, operator)
        if verdict.answers == known:
            return verdict
        by_then, at = by, now_text()
        if stored is not None and known is not None and known.ids == verdict.answers.ids:
            by_then, at = stored.record.recorded_by, stored.record.recorded_at  # the answer is not a new one
        record = to_record(verdict.answers, question, by_then, at)
        value = stored.encode(record) if stored is not None else encode(record)
        compare = Compare.unchanged(key, kv.mod_revision if kv else 0)
        result = await store.txn([compare], [Put(key, value)], [Get(key)])
        if result.succeeded:
            return verdict
        kv = result.gets[0][0] if result.gets and result.gets[0] else None
    raise EngineError("the pool's known answer changes all the time")


async def look(store: Store, key: str, question: Question, timeout: float) -> Answers | None:
    """What is known now on this question. Raises StoreError."""
    kv = await store.get(key, timeout=timeout)
    stored = _stored(kv.value, kv.mod_revision) if kv is not None else None
    return from_record(stored.record, question) if stored is not None else None


def _stored(value: bytes, revision: int) -> Stored[KnownAnswer] | None:
    try:
        return decode_stored(KnownAnswer, value, revision)
    except BadRecord:
        return None


def event_of(heard: Heard) -> str:
    """The kind of the event that tells of it; "" where there is nothing to tell."""
    return "" if heard is Heard.NOTHING else f"answer.{heard}"
