"""Whatever groups say in whatever order: an answer is confirmed by two of them or by the operator, and then stays."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from infctl.domain.answers import ENOUGH, MOST_REFUSED, Answers, Heard, Voice, hear

X, Y, Z = (1, 1), (2, 2), (3, 3)
GROUPS = ("a", "b", "c", "d")


def told(*words: tuple[str, tuple[int, ...]], operator: tuple[int, ...] = ()) -> list[tuple[Heard, bool]]:
    """What came of each word, and whether its group may serve."""
    known, found = None, []
    for group, ids in words:
        verdict = hear(known, Voice(group, ids), operator)
        known = verdict.answers
        found.append((verdict.heard, verdict.right))
    return found


@pytest.mark.parametrize(
    ("words", "outcomes"),
    [
        ([("a", X)], ["recorded"]),
        ([("a", X), ("a", X)], ["recorded", "nothing"]),
        ([("a", X), ("b", X)], ["recorded", "confirmed"]),
        ([("a", X), ("b", X), ("c", X)], ["recorded", "confirmed", "nothing"]),
        ([("a", X), ("b", Y)], ["recorded", "differs!"]),
        # the same word again is no news, and no second voice
        ([("a", X), ("b", Y), ("b", Y)], ["recorded", "differs!", "nothing!"]),
        # a third that agrees with the refused one outvotes the first, whose next check fails
        ([("a", X), ("b", Y), ("c", Y), ("a", X), ("b", Y)],
         ["recorded", "differs!", "confirmed", "nothing!", "nothing"]),
        # a third that agrees with the first confirms it
        ([("a", X), ("b", Y), ("c", X), ("b", Y)], ["recorded", "differs!", "confirmed", "nothing!"]),
        # confirmed is confirmed, however many say otherwise
        ([("a", X), ("b", X), ("c", Y), ("d", Y)], ["recorded", "confirmed", "differs!", "differs!"]),
        # one that changes its mind is refused, and its first word counts no more
        ([("a", X), ("a", Y), ("b", X)], ["recorded", "differs!", "nothing"]),
        ([("a", X), ("a", Y), ("b", Y)], ["recorded", "differs!", "confirmed"]),
        ([("a", X), ("b", Y), ("a", Y)], ["recorded", "differs!", "confirmed"]),
        # three that all differ: nobody is right but the first
        ([("a", X), ("b", Y), ("c", Z), ("a", X)], ["recorded", "differs!", "differs!", "nothing"]),
    ],
)  # fmt: skip
def test_what_comes_of_words(words: list[tuple[str, tuple[int, ...]]], outcomes: list[str]) -> None:
    """An outcome with '!' is a refusal."""
    assert [f"{heard}{'' if right else '!'}" for heard, right in told(*words)] == outcomes


def test_the_operators_word_wins_over_everyone() -> None:
    assert told(("a", Y), ("b", Y), ("c", X), ("d", X), operator=X) == [
        (Heard.DIFFERS, False),
        (Heard.DIFFERS, False),
        (Heard.NOTHING, True),
        (Heard.NOTHING, True),
    ]
    confirmed = Answers(Y, confirmed=True, voices=(Voice("a", Y), Voice("b", Y)))
    verdict = hear(confirmed, Voice("a", X), operator=X)
    assert (verdict.heard, verdict.right, verdict.answers.by_operator) == (Heard.RECORDED, True, True)


def test_a_word_that_the_operator_took_back_is_forgotten() -> None:
    given_ = hear(None, Voice("a", X), operator=X).answers
    verdict = hear(given_, Voice("b", Y))
    assert (verdict.heard, verdict.right, verdict.answers.ids) == (Heard.RECORDED, True, Y)


def test_an_answer_of_an_older_version_is_provisional_and_needs_two_voices() -> None:
    old = Answers(X)
    assert "not known any more" in old.source
    first = hear(old, Voice("a", X))
    assert (first.heard, first.answers.confirmed) == (Heard.NOTHING, False)
    assert hear(first.answers, Voice("b", X)).answers.confirmed


class Pool(RuleBasedStateMachine):
    """Groups speak in any order; `last` is the model: each group's last word."""

    def __init__(self) -> None:
        super().__init__()
        self.known: Answers | None = None
        self.last: dict[str, tuple[int, ...]] = {}

    @rule(group=st.sampled_from(GROUPS), ids=st.sampled_from((X, Y, Z)))
    def speaks(self, group: str, ids: tuple[int, ...]) -> None:
        before = self.known
        verdict = hear(before, Voice(group, ids))
        self.last[group] = ids
        self.known = verdict.answers
        assert verdict.right == (verdict.answers.ids == ids)
        assert (verdict.heard is Heard.RECORDED) == (before is None)
        if before is not None and before.confirmed:
            assert (verdict.answers.ids, verdict.answers.confirmed) == (before.ids, True)
            assert verdict.answers.voices == before.voices
        if verdict.heard is Heard.CONFIRMED:
            assert before is not None and not before.confirmed
            # confirmed by the last words of at least two groups, at this moment
            assert sum(word == verdict.answers.ids for word in self.last.values()) >= ENOUGH
        again = hear(self.known, Voice(group, ids))
        assert (again.answers, again.heard, again.right) == (self.known, Heard.NOTHING, verdict.right)

    @invariant()
    def each_group_has_one_word(self) -> None:
        if self.known is None:
            return
        refused = [v.group for v in self.known.refused]
        assert len(set(refused)) == len(refused) <= MOST_REFUSED
        assert all(self.last[v.group] == v.ids != self.known.ids for v in self.known.refused)
        assert all(v.ids == self.known.ids for v in self.known.voices)
        if not self.known.confirmed:
            assert len(self.known.voices) < ENOUGH
            assert not {v.group for v in self.known.voices} & set(refused)


TestPool = Pool.TestCase


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 30)), max_size=60))
def test_what_is_kept_is_bounded(words: list[tuple[int, int]]) -> None:
    known = None
    for group, word in words:
        known = hear(known, Voice(f"g{group}", (word,))).answers
        assert len(known.refused) <= MOST_REFUSED
