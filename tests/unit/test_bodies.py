"""What clients may ask for. Each refusal names the field; nothing that can hurt an engine comes through."""

import json

import pytest

from infctl.domain.model import Contract
from infctl.domain.replay import replayability
from infctl_daemon.gateway.body_completion import read_completion
from infctl_daemon.gateway.body_generate import read_generate
from infctl_daemon.gateway.errors import ClientError
from infctl_daemon.gateway.fit import fit

FITS = {"context_length": 100, "vocab_size": 50, "deterministic": False}


def completion(**fields):
    """The only answer of a request for one."""
    (asked,) = completions(**fields).answers
    return asked


def native(**fields):
    (asked,) = natives(**fields).answers
    return asked


def completions(**fields):
    return read_completion(json.dumps({"model": "m", "prompt": [1, 2, 3], **fields}).encode())


def natives(**fields):
    return read_generate(json.dumps({"input_ids": [1, 2, 3], **fields}).encode())


def refused(call, *args, **kwargs) -> ClientError:
    with pytest.raises(ClientError) as caught:
        call(*args, **kwargs)
    assert caught.value.body["error"]["type"] == "invalid_request"
    assert caught.value.body["error"]["retryable"] is False
    return caught.value


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"", None),
        (b"{", None),
        (b"[]", None),
        (b'{"model":"m"}', "prompt"),
        (b'{"prompt":"x"}', "model"),
        (b'{"model":"m","prompt":"x","max_tokens":"many"}', "max_tokens"),
        (b'{"model":"m","prompt":"x","n":0}', "n"),
        (b'{"model":"m","prompt":"x","n":-1}', "n"),
        (b'{"model":"m","prompt":"x","n":129}', "n"),
        (b'{"model":"m","prompt":"x","n":true}', "n"),
        (b'{"model":"m","prompt":["a","b","c"],"n":100}', "n"),
        (b'{"model":"m","prompt":"x","n":3,"best_of":2}', "best_of"),
        (b'{"model":"m","prompt":"x","best_of":2,"stream":true}', "best_of"),
        (b'{"model":"m","prompt":"x","logprobs":-1}', "logprobs"),
        (b'{"model":"m","prompt":"x","logprobs":21}', "logprobs"),
        (b'{"model":"m","prompt":"x","logprobs":true}', "logprobs"),
        (b'{"model":"m","prompt":"x","suffix":"y"}', "suffix"),
        (b'{"model":"m","prompt":["a",[1]]}', "prompt"),
        (b'{"model":"m","prompt":["a",1]}', "prompt"),
        (b'{"model":"m","prompt":[[1],1]}', "prompt"),
        (b'{"model":"m","prompt":"x","custom_logit_processor":"gASV"}', "custom_logit_processor"),
        (b'{"model":"m","prompt":"x","temperature":NaN}', None),
        (b'{"model":"m","prompt":' + b"[" * 5000 + b"]" * 5000 + b"}", None),
    ],
)
def test_a_bad_completion_body_names_its_field(body, param):
    error = refused(read_completion, body)
    if param:
        assert error.param == param


@pytest.mark.parametrize(
    "fields",
    [
        {"custom_logit_processor": "x"},
        {"sampling_params": {"custom_params": {}}},
        {"text": "both"},
        {"sampling_params": {"n": 0}},
        {"sampling_params": {"n": "2"}},
        {"sampling_params": [{}]},
        {"input_ids": [[1], 2]},
        {"input_ids": [[1], [2]], "sampling_params": [{}]},
        {"input_ids": [[1], [2]], "sampling_params": [{"n": 1}, {"n": 2}]},
        {"input_ids": [[1], [2]], "top_logprobs_num": [1]},
        {"sampling_params": {"max_new_tokens": "9"}},
    ],
)
def test_a_bad_native_body_is_refused(fields):
    refused(native, **fields)


def test_what_changes_the_answer_is_passed_on_or_refused_and_never_left_out():
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "integer"}}}
    asked = completion(response_format=form, lora_path="sql", priority=3)
    assert json.loads(asked.sampling["json_schema"]) == {"type": "integer"}
    assert asked.extra == {"lora_path": "sql", "priority": 3}
    for bad in ({"type": "xml"}, {"type": "json_schema"}, {"type": "json_schema", "json_schema": {"schema": 1}}):
        with pytest.raises(ClientError) as caught:
            completion(response_format=bad)
        assert caught.value.param == "response_format"
    assert completion(logprobs=0).extra == {"return_logprob": True, "top_logprobs_num": 0}
    assert completion(logprobs=2, echo=True).extra["logprob_start_len"] == 0


def test_ids_that_only_we_set_are_not_passed_on():
    asked = native(rid="victim", bootstrap_room=7, priority=3, extra_key="k")
    assert asked.extra == {"priority": 3, "extra_key": "k"}


@pytest.mark.parametrize("token", [-1, 50, 10**12])
def test_ids_outside_the_vocabulary_never_reach_an_engine(token):
    (asked,) = read_generate(json.dumps({"input_ids": [1, token]}).encode()).answers
    assert str(token) in refused(fit, asked, [1, token], **FITS).message


@pytest.mark.parametrize("limit", [0, -1, -100])
def test_negative_limits_are_refused(limit):
    assert refused(fit, completion(max_tokens=limit), [1, 2, 3], **FITS).param == "max_tokens"


def test_a_prompt_over_the_context_is_refused():
    assert refused(fit, completion(), [1] * 200, **FITS).code == "context_length_exceeded"


def test_a_prompt_that_fits_but_whose_answer_does_not_is_refused():
    assert refused(fit, completion(max_tokens=99), [1, 2, 3], **FITS).code == "context_length_exceeded"


def test_an_open_limit_fills_the_context():
    assert fit(completion(max_tokens=None), [1, 2, 3], **FITS).sampling.max_new == 100 - 2 - 3


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"min_tokens": -1}, "min_tokens"),
        ({"min_tokens": 17}, "min_tokens"),
        ({"temperature": -0.1}, "temperature"),
        ({"stop_token_ids": [50]}, "stop_token_ids"),
        ({"logit_bias": {"50": 1.0}}, "logit_bias"),
        ({"logit_bias": {"x": 1.0}}, "logit_bias"),
    ],
)
def test_sampling_out_of_range_is_refused(fields, param):
    assert refused(fit, completion(**fields), [1, 2, 3], **FITS).param == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"top_logprobs_num": -1}, "top_logprobs_num"),
        ({"top_logprobs_num": 51}, "top_logprobs_num"),
        ({"top_logprobs_num": True}, "top_logprobs_num"),
        ({"logprob_start_len": -2}, "logprob_start_len"),
        ({"logprob_start_len": 4}, "logprob_start_len"),
        ({"logprob_start_len": "0"}, "logprob_start_len"),
        ({"top_logprobs_num": [2]}, "top_logprobs_num"),
        ({"return_logprob": "yes"}, "return_logprob"),
        ({"return_logprob": [True]}, "return_logprob"),
        ({"token_ids_logprob": [50]}, "token_ids_logprob"),
        ({"token_ids_logprob": 5}, "token_ids_logprob"),
        ({"sampling_params": {"stop": 5}}, "stop"),
        ({"sampling_params": {"stop": {"a": 1}}}, "stop"),
    ],
)
def test_log_probabilities_and_stops_out_of_range_are_refused(fields, param):
    assert refused(fit, native(**{"return_logprob": True, **fields}), [1, 2, 3], **FITS).param == param


def test_no_new_token_is_a_wish_only_where_the_prompt_is_shown():
    assert fit(completion(max_tokens=0, echo=True), [1], **FITS).sampling.max_new == 0
    refused(fit, completion(max_tokens=0), [1], **FITS)


def test_several_answers_become_as_many_streams_prompt_by_prompt():
    bundle = completions(prompt=["a", "b"], n=2, best_of=3, seed=7)
    assert [a.prompt for a in bundle.answers] == ["a"] * 3 + ["b"] * 3
    assert [a.sampling["sampling_seed"] for a in bundle.answers] == [7, 8, 9] * 2
    assert (bundle.per_prompt, bundle.keep) == (3, 2)
    assert all(a.extra["return_logprob"] for a in bundle.answers), "the best are told by their log probabilities"


def test_answers_without_a_seed_still_differ_on_a_deterministic_engine():
    seeds = [a.sampling.get("sampling_seed") for a in completions(n=3).answers]
    assert seeds == [None, 43, 44]  # the engine's own default is 42


def test_a_native_batch_gives_each_prompt_its_own_fields():
    bundle = natives(
        input_ids=[[1], [2]],
        sampling_params=[{"n": 2, "max_new_tokens": 3}, {"n": 2, "max_new_tokens": 4}],
        return_logprob=[True, False],
        token_ids_logprob=[5],
    )
    assert [(a.prompt, a.max_new, a.extra["return_logprob"]) for a in bundle.answers] == [
        ([1], 3, True),
        ([1], 3, True),
        ([2], 4, False),
        ([2], 4, False),
    ]
    assert all(a.extra["token_ids_logprob"] == [5] for a in bundle.answers)
    assert bundle.listed and all("n" not in a.sampling for a in bundle.answers)
    assert natives(input_ids=[[1]]).listed and not natives().listed


def test_min_p_is_refused_where_it_would_end_the_engine():
    asked = completion(min_p=0.1)
    assert fit(asked, [1], **FITS).sampling.max_new == 16
    assert refused(fit, asked, [1], **{**FITS, "deterministic": True}).param == "min_p"


@pytest.mark.parametrize(
    ("asked", "contract", "reason"),
    [
        (completion(), Contract.CONTINUABLE, "endpoint-not-deterministic"),
        (completion(regex="a+"), Contract.NONE, "grammar"),
        (completion(structural_tag="{}"), Contract.NONE, "grammar"),
        (completion(response_format={"type": "json_object"}), Contract.NONE, "grammar"),
        (completion(lora_path="sql"), Contract.NONE, "adapter"),
        (completion(session_params={"id": "s"}), Contract.NONE, "session"),
        (completion(response_format={"type": "text"}, priority=3), Contract.CONTINUABLE, "endpoint-not-deterministic"),
        (completion(repetition_penalty=1.2), Contract.NONE, "repetition-penalty"),
        (native(return_logprob=True), Contract.CONTINUABLE, "endpoint-not-deterministic"),
        (native(sampling_params={"stop_regex": "x"}), Contract.NONE, "stop-regex"),
    ],
)
def test_what_cannot_be_replayed_is_served_and_labelled(asked, contract, reason):
    job = fit(asked, [1, 2, 3], **FITS)
    assert replayability(job.sampling, deterministic=False) == (contract, reason)
