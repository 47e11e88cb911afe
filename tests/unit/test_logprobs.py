"""Log probabilities follow the committed tokens, whichever attempt told them."""

from infctl_daemon.gateway.logprobs import Logprobs


def meta(*entries, top=True, **more):
    told = {"output_token_logprobs": [[v, t, None] for v, t in entries], "output_token_logprobs_length": len(entries)}
    if top:
        told["output_top_logprobs"] = [[[v, t, None]] for v, t in entries]
    return {**told, **more}


def take(known, told, start, ids, skip=0):
    known.hear(told, start, ids)
    known.commit(skip, len(ids) - skip)
    known.offsets += [0] * (len(ids) - skip)


def test_cumulative_lists_are_taken_once():
    known = Logprobs()
    take(known, meta((-1.0, 5)), 0, [5])
    take(known, meta((-1.0, 5), (-2.0, 6), (-3.0, 7)), 1, [6, 7])
    assert known.lists["output_token_logprobs"] == [[-1.0, 5, None], [-2.0, 6, None], [-3.0, 7, None]]
    assert known.at(2) == (-3.0, [[-3.0, 7, None]])


def test_another_attempt_goes_on_where_the_first_one_stopped():
    known = Logprobs()
    take(known, meta((-1.0, 5), input_token_logprobs=[[None, 1, None], [-9.0, 2, None]]), 0, [5])
    take(known, meta((-2.0, 6), input_token_logprobs=[]), 0, [6])
    assert [entry[0] for entry in known.lists["output_token_logprobs"]] == [-1.0, -2.0]
    assert known.at_prompt(1)[0] == -9.0, "what was said of the prompt stays"
    assert known.at_prompt(0) == (None, [])


def test_tokens_that_are_known_already_bring_no_entries():
    known = Logprobs()
    take(known, meta((-1.0, 5)), 0, [5])
    take(known, meta((-1.0, 5), (-2.0, 6)), 0, [5, 6], skip=1)
    assert [entry[1] for entry in known.lists["output_token_logprobs"]] == [5, 6]


def test_an_engine_that_leaves_entries_out_shifts_nothing():
    known = Logprobs()
    take(known, {}, 0, [5])
    take(known, meta((-1.0, 5), (-2.0, 6)), 1, [6])
    assert known.lists["output_token_logprobs"] == [[None, 5, None], [-2.0, 6, None]]
    assert known.lists["output_top_logprobs"] == [None, [[-2.0, 6, None]]]
    assert known.at(0) == (None, []) and known.mean() == -2.0


def test_native_meta_shows_the_whole_stream():
    known = Logprobs()
    take(known, meta((-1.0, 5), input_token_logprobs=[[None, 1, None]]), 0, [5])
    take(known, meta((-2.0, 6), input_token_logprobs=[]), 0, [6])
    merged = known.into({**meta((-2.0, 6), input_token_logprobs=[]), "id": "x"}, 2)
    assert len(merged["output_token_logprobs"]) == merged["output_token_logprobs_length"] == 2
    assert merged["input_token_logprobs"] == [[None, 1, None]] and merged["id"] == "x"


def test_hostile_entries_are_no_numbers():
    known = Logprobs()
    take(
        known,
        {"output_token_logprobs": ["x", [], [True, 1], [None]], "output_top_logprobs": [[["a"], 5]]},
        0,
        [1, 2, 3, 4],
    )
    assert known.at(0) == (None, []) and known.at(1)[0] is None and known.at(3)[0] is None
