"""Actions of a small world, each with a weight: one rule draws among those that are possible now.

Hypothesis picks among rules evenly and switches some of them off for a whole run; in a world where each step needs
the one before it, runs then seldom get anywhere. Weights keep the usual usual and the rare rare.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

Body = Callable[..., None]


def action(weight: int, when: Callable[[Any], object] = lambda world: True, **given: st.SearchStrategy[Any]) -> Any:
    """Mark a method as an action: possible `when`, called with one draw of each of `given`."""

    def mark(body: Body) -> Body:
        body.__dict__["action"] = (weight, when, given)
        return body

    return mark


class WeightedWorld(RuleBasedStateMachine):
    """A state machine of which every step is one of its actions. `counts` tells what was done in all runs together."""

    counts: ClassVar[dict[str, int]]
    _actions: ClassVar[dict[str, tuple[int, Callable[[Any], object], dict[str, st.SearchStrategy[Any]]]]]

    def __init_subclass__(cls) -> None:
        cls._actions = {name: body.action for name, body in vars(cls).items() if hasattr(body, "action")}
        cls.counts = dict.fromkeys(cls._actions, 0)

    @rule(data=st.data())
    def something_happens(self, data: st.DataObject) -> None:
        possible = [name for name, (weight, when, _) in self._actions.items() if when(self) for _ in range(weight)]
        name = data.draw(st.sampled_from(possible), label="action")
        given = self._actions[name][2]
        type(self).counts[name] += 1
        getattr(self, name)(**{key: data.draw(draws, label=key) for key, draws in given.items()})
