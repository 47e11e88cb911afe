"""On what a pool's groups agree: the canary's known answer as the words of several groups.

Kept true: an answer is confirmed only by two groups that gave it, or by the operator; a confirmed one is never
replaced by what groups say; each group has one word, its last; a group whose word is not the answer is refused.
The first word of all is provisional: its group may serve on it, and two others that agree outvote it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

ENOUGH = 2
MOST_REFUSED = 16


@dataclass(frozen=True, slots=True)
class Voice:
    """What one group answered last; `at` is for people."""

    group: str
    ids: tuple[int, ...]
    at: str = ""


@dataclass(frozen=True, slots=True)
class Answers:
    """`ids` is the answer; `voices` gave it, `refused` gave another one. Groups that only repeat a confirmed answer
    are not added."""

    ids: tuple[int, ...]
    confirmed: bool = False
    by_operator: bool = False
    voices: tuple[Voice, ...] = ()
    refused: tuple[Voice, ...] = ()

    @property
    def source(self) -> str:
        """Who says so, in words."""
        if self.by_operator:
            return "given by the operator"
        names = " and ".join(f"group/{voice.group}" for voice in self.voices)
        return f"{'agreed by' if self.confirmed else 'given only by'} {names or 'a group that is not known any more'}"


class Heard(StrEnum):
    """What a word changed."""

    NOTHING = "nothing"
    RECORDED = "recorded"
    CONFIRMED = "confirmed"
    DIFFERS = "differs"


@dataclass(frozen=True, slots=True)
class Verdict:
    """`answers` is what is to be kept; `right`: the group's word is the answer."""

    answers: Answers
    heard: Heard
    right: bool


def hear(known: Answers | None, voice: Voice, operator: tuple[int, ...] = ()) -> Verdict:
    """What is known once `voice` has spoken. `operator`: the answer in the pool's specification; it wins."""
    new = False
    if operator and (known is None or not known.by_operator or known.ids != operator):
        known, new = Answers(operator, confirmed=True, by_operator=True), True
    elif not operator and known is not None and known.by_operator:
        known = None  # the operator took the word back
    if known is None:
        return Verdict(Answers(voice.ids, voices=(voice,)), Heard.RECORDED, True)
    if voice.ids == known.ids:
        verdict = _agrees(known, voice)
        return replace(verdict, heard=Heard.RECORDED) if new else verdict
    return _differs(known, voice)


def _agrees(known: Answers, voice: Voice) -> Verdict:
    heard = replace(known, refused=_without(known.refused, voice.group))
    if known.confirmed or any(v.group == voice.group for v in known.voices):
        return Verdict(heard, Heard.NOTHING, True)
    voices = (*known.voices, voice)
    confirmed = len(voices) >= ENOUGH
    return Verdict(
        replace(heard, voices=voices, confirmed=confirmed), Heard.CONFIRMED if confirmed else Heard.NOTHING, True
    )


def _differs(known: Answers, voice: Voice) -> Verdict:
    if any(v.group == voice.group and v.ids == voice.ids for v in known.refused):
        refused, heard = known.refused, Heard.NOTHING  # it says so again
    else:
        refused, heard = (*_without(known.refused, voice.group), voice)[-MOST_REFUSED:], Heard.DIFFERS
    if known.confirmed:
        return Verdict(replace(known, refused=refused), heard, False)
    same = tuple(v for v in refused if v.ids == voice.ids)
    left = _without(known.voices, voice.group)
    if len(same) >= ENOUGH:
        others = (*(v for v in refused if v.ids != voice.ids), *left)[-MOST_REFUSED:]
        return Verdict(Answers(voice.ids, confirmed=True, voices=same, refused=others), Heard.CONFIRMED, True)
    return Verdict(replace(known, voices=left, refused=refused), heard, False)


def _without(voices: tuple[Voice, ...], group: str) -> tuple[Voice, ...]:
    return tuple(v for v in voices if v.group != group)
