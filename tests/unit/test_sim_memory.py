"""The simulated engine's KV memory: what counts as cached, what gives way, who is retracted."""

from typing import Any

import pytest

from infctl_daemon.engine.sim.kv import Memory, to_retract
from infctl_daemon.engine.sim.model import write_model
from infctl_daemon.engine.sim.request import Request
from infctl_daemon.engine.sim.tokens import Vocabulary

PARAMS: dict[str, Any] = {
    "max_new": 50, "min_new": 0, "stop_ids": [], "stops": [], "ignore_eos": True, "no_stop_trim": False,
    "skip_special": True, "every": 1, "salt": 0, "taste": (0.0, 0.0, 1.0, {}), "logs": None, "space": 0,
    "adapter": None,
}  # fmt: skip


@pytest.fixture(scope="module")
def vocab(tmp_path_factory: pytest.TempPathFactory) -> Vocabulary:
    out = tmp_path_factory.mktemp("model")
    write_model(out)
    return Vocabulary(out)


def request(vocab: Vocabulary, ids: list[int], said: int = 0, **params: Any) -> Request:
    made = Request("r", ids, {**PARAMS, **params}, vocab, lambda _: "", 0)
    made.out = [300] * said
    return made


def test_a_prompt_is_cached_up_to_its_last_token_once_it_was_computed(vocab: Vocabulary):
    memory = Memory(100, 7, keep=True)
    first = request(vocab, [1, 2, 3, 4])
    assert memory.enter(first) == 4
    memory.remember(first)
    again, longer = request(vocab, [1, 2, 3, 4]), request(vocab, [1, 2, 3, 4, 5])
    assert (memory.enter(again), again.cached, again.state) == (1, 3, first.state)
    assert (memory.enter(longer), longer.cached) == (1, 4)
    assert memory.enter(request(vocab, [1, 9, 3, 4])) == 3


@pytest.mark.parametrize("other", [{"adapter": "one"}, {"space": 5}])
def test_another_adapter_or_key_has_a_cache_of_its_own(vocab: Vocabulary, other: dict[str, Any]):
    memory = Memory(100, 7, keep=True)
    first = request(vocab, [1, 2, 3])
    memory.enter(first)
    memory.remember(first)
    assert memory.enter(request(vocab, [1, 2, 3], **other)) == 3


def test_log_probabilities_of_the_prompt_need_it_computed(vocab: Vocabulary):
    memory = Memory(100, 7, keep=True)
    first = request(vocab, [1, 2, 3, 4])
    memory.enter(first)
    memory.remember(first)
    assert memory.enter(request(vocab, [1, 2, 3, 4], logs=(2, 0, ()))) == 2
    assert memory.enter(request(vocab, [1, 2, 3, 4], logs=(-1, 0, ()))) == 1


def test_without_a_cache_everything_is_computed(vocab: Vocabulary):
    memory = Memory(100, 7, keep=False)
    first = request(vocab, [1, 2, 3])
    memory.enter(first)
    memory.remember(first)
    assert memory.enter(request(vocab, [1, 2, 3])) == 3


def test_kept_prefixes_give_way_the_least_used_first(vocab: Vocabulary):
    memory = Memory(8, 7, keep=True)
    old, new = request(vocab, [1, 2, 3, 4]), request(vocab, [5, 6, 7, 8])
    for one in (old, new):
        memory.enter(one)
        memory.remember(one)
    memory.trim(4)
    assert memory.enter(request(vocab, [5, 6, 7, 8])) == 1
    assert memory.enter(request(vocab, [1, 2, 3, 4])) == 4


def test_the_shortest_outputs_leave_first_and_one_stays(vocab: Vocabulary):
    memory = Memory(30, 7, keep=True)
    batch = [request(vocab, [1] * 5, said=n) for n in (9, 2, 6)]
    assert to_retract(batch, 1, memory) == [batch[1]]
    assert to_retract(batch[:1], 100, memory) == []
    assert to_retract([request(vocab, [1] * 40), request(vocab, [1] * 40)], 1, memory) != []
    assert len(to_retract([request(vocab, [1] * 40), request(vocab, [1] * 40)], 1, memory)) == 1


def test_a_retracted_one_is_computed_again_with_its_output_and_forgets_penalties(vocab: Vocabulary):
    memory = Memory(100, 7, keep=True)
    one = request(vocab, [1, 2, 3], taste=(1.0, 0.0, 1.0, {}))
    memory.enter(one)
    memory.remember(one)
    for _ in range(4):
        one.step(wrong=False)
    state = one.state
    one.retract()
    assert one.retractions == 1
    assert memory.enter(one) == 4
    assert one.state == state
