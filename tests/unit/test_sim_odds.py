"""The simulated model's odds: they agree with its choice, with a replay, and with what penalties should do."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infctl_daemon.engine.sim.logprobs import Lists, Wanted
from infctl_daemon.engine.sim.model import write_model
from infctl_daemon.engine.sim.odds import Asked, Odds, Taste
from infctl_daemon.engine.sim.request import Request
from infctl_daemon.engine.sim.tokens import Vocabulary, fold, origin

STATES = st.integers(0, 2**64 - 1)


@pytest.fixture(scope="module")
def vocab(tmp_path_factory: pytest.TempPathFactory) -> Vocabulary:
    out = tmp_path_factory.mktemp("model")
    write_model(out)
    return Vocabulary(out)


def request(vocab: Vocabulary, ids: list[int], n: int, *, taste: tuple = (0.0, 0.0, 1.0, {}), logs=None) -> Request:
    params = {
        "max_new": n, "min_new": 0, "stop_ids": [], "stops": [], "ignore_eos": True, "no_stop_trim": False,
        "skip_special": True, "every": 1, "salt": 0, "taste": taste, "logs": logs, "space": 0, "adapter": None,
    }  # fmt: skip
    made = Request("r", ids, params, vocab, lambda _: "", 0)
    state = origin(0, "a")
    for token in ids:
        state = fold(state, token)
    made.state = state
    return made


def say(vocab: Vocabulary, ids: list[int], n: int, taste: tuple = (0.0, 0.0, 1.0, {})) -> list[int]:
    made = request(vocab, ids, n, taste=taste)
    while made.step(wrong=False) is None:
        pass
    return made.out


@settings(deadline=None, max_examples=60)
@given(state=STATES, missing=st.integers(0, 2), top=st.integers(1, 20))
def test_first_of_the_ranking_is_the_choice(vocab: Vocabulary, state: int, missing: int, top: int):
    odds = Odds(vocab, state, missing)
    ranked = odds.top(top)
    assert odds.best() == ranked[0][1] == vocab.choose(state, 0, missing)
    assert [t for _, t in ranked] == [t for _, t in odds.top(top + 5)][:top]
    values = [v for v, _ in ranked]
    assert values == sorted(values, reverse=True)
    assert len({t for _, t in ranked}) == top
    assert all(v <= 0 for v in values)


@settings(deadline=None, max_examples=30)
@given(state=STATES)
def test_probabilities_of_the_whole_vocabulary_are_nearly_one_in_sum(vocab: Vocabulary, state: int):
    total = sum(2.718281828**v for v, _ in Odds(vocab, state, 0).top(vocab.size))
    assert 0.9 < total < 1.2


@pytest.mark.parametrize("taste", [(1.5, 0.0, 1.0, {}), (0.0, 1.5, 1.0, {}), (0.0, 0.0, 1.6, {}), (-1.0, 0.0, 1.0, {})])
def test_penalties_see_output_only_so_a_naive_replay_differs(vocab: Vocabulary, taste: tuple):
    prompt = [300, 301, 302]
    plain = say(vocab, prompt, 200)
    whole = say(vocab, prompt, 200, taste)
    assert whole != plain
    assert say(vocab, prompt, 200, taste) == whole
    naive = [say(vocab, prompt + whole[:cut], 200 - cut, taste) == whole[cut:] for cut in (60, 100, 140)]
    assert not all(naive)


def test_a_bias_replaces_a_frequency_penalty_exactly(vocab: Vocabulary):
    prompt, penalty = [300, 301, 302], 1.5
    whole = say(vocab, prompt, 200, (penalty, 0.0, 1.0, {}))
    for cut in (60, 140):
        bias: dict[int, float] = {}
        for token in whole[:cut]:
            bias[token] = bias.get(token, 0.0) - penalty
        assert say(vocab, prompt + whole[:cut], 200 - cut, (penalty, 0.0, 1.0, bias)) == whole[cut:]


def test_a_penalty_counts_before_the_factor_and_the_bias_after_it():
    taste = Taste(frequency=0.5, presence=0.25, repetition=2.0, bias={7: 1.0}, counts={7: 2, 8: 1})
    assert taste.adjust(7, 3.25) == (3.25 - 1.25) / 2 + 1.0
    assert taste.adjust(8, 0.25) == (0.25 - 0.75) * 2
    assert taste.adjust(9, 3.0) == 3.0


def test_everything_likely_forbidden_leaves_something_unlikely(vocab: Vocabulary):
    likely = [t for _, t in Odds(vocab, 5, 0).top(8)]
    odds = Odds(vocab, 5, 0, taste=Taste(bias=dict.fromkeys(likely, -100.0)))
    assert odds.best() not in likely
    assert odds.top(1)[0][1] == odds.best()


def test_replay_and_prompt_give_the_values_of_the_first_run(vocab: Vocabulary):
    prompt = [300, 301, 302]
    first = request(vocab, prompt, 60, logs=(-1, 2, (40,)))
    while first.step(wrong=False) is None:
        pass
    again = request(vocab, prompt + first.out[:20], 40, logs=(0, 2, (40,)))
    again.log_input(origin(0, "a"))
    while again.step(wrong=False) is None:
        pass
    assert again.output_logs == first.output_logs[20:]
    assert again.input_logs[0] == (None, 300, None, None)
    assert again.input_logs[3:] == first.output_logs[:20]


def test_lists_as_they_stand_in_a_frame():
    lists = Lists(Wanted(0, 1, (5,), text=True), lambda token: f"<{token}>\n")
    assert lists.body().startswith(
        b'"input_token_logprobs":[],"output_token_logprobs":[],"output_token_logprobs_length":0'
    )
    entry = (-0.5, 9, [(-0.25, 8)], [(-3.0, 5)])
    lists.take([(None, 7, None, None), entry], [entry])
    one, top, ids = b'[-0.5,9,"<9>\\n"]', b'[[-0.25,8,"<8>\\n"]]', b'[[-3.0,5,"<5>\\n"]]'
    assert lists.body() == b"".join(
        (
            b'"input_token_logprobs":[[null,7,"<7>\\n"],', one, b'],"output_token_logprobs":[', one,
            b'],"output_token_logprobs_length":1,"input_top_logprobs":[null,', top, b'],"output_top_logprobs":[', top,
            b'],"input_token_ids_logprobs":[null,', ids, b'],"output_token_ids_logprobs":[', ids, b"],",
        )
    )  # fmt: skip


def test_asked_for_nothing_beside_the_chosen(vocab: Vocabulary):
    value, token, top, ids = Asked().entry(Odds(vocab, 5, 0), 300)
    assert (token, top, ids) == (300, None, None)
    assert value is not None
    assert value < 0
