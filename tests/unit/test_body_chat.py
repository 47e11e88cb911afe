"""What a chat may ask for, before any worker has seen it."""

import json

import pytest

from infctl_daemon.gateway.body_chat import read_chat
from infctl_daemon.gateway.errors import ClientError

USER = {"role": "user", "content": "x"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}


def chat(**fields):
    return read_chat(json.dumps({"model": "m", "messages": [USER], **fields}).encode())


def test_what_the_template_needs_goes_to_the_renderer_and_nothing_else():
    asked = chat(tools=[TOOL], chat_template_kwargs={"enable_thinking": False}, temperature=0, user="me", seed=3)
    assert asked.rendering == {
        "messages": [USER],
        "tools": [TOOL],
        "chat_template_kwargs": {"enable_thinking": False},
    }
    assert asked.answer.sampling["temperature"] == 0 and asked.answer.sampling["sampling_seed"] == 3


def test_tools_that_may_not_be_called_are_rendered_as_such():
    assert chat(tools=[TOOL], tool_choice="none").rendering["tool_choice"] == "none"
    assert "tool_choice" not in chat(tool_choice="auto").rendering


def test_the_models_own_parameters_fill_what_the_client_left_open():
    bundle = chat(temperature=0).bundle([1, 2], {"temperature": 0.7, "top_p": 0.8})
    (answer,) = bundle.answers
    assert (answer.sampling["temperature"], answer.sampling["top_p"]) == (0, 0.8)
    assert answer.prompt == [1, 2]


def test_either_name_of_the_limit_is_taken():
    assert chat(max_tokens=5).answer.max_new == 5 == chat(max_completion_tokens=5).answer.max_new
    assert chat(max_tokens=5, max_completion_tokens=5).answer.max_new == 5
    assert chat().answer.max_new is None


def test_alternatives_are_asked_of_the_engine():
    assert chat(logprobs=True, top_logprobs=4).answer.extra == {"return_logprob": True, "top_logprobs_num": 4}
    assert chat(logprobs=True).top_logprobs == 0 and chat().top_logprobs is None


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]},
        {"role": "tool", "content": "42", "tool_call_id": "1"},
        {"role": "developer", "content": [{"type": "text", "text": "x"}]},
        {"role": "user", "content": ""},
    ],
)
def test_every_role_of_the_api_is_taken(message):
    assert chat(messages=[message, USER]).rendering["messages"][0] == message


@pytest.mark.parametrize("role", [None, 5, ["user"], {"a": 1}, "User", "king" * 1000])
def test_a_role_that_is_none_is_named_shortly(role):
    with pytest.raises(ClientError) as caught:
        chat(messages=[USER, {"role": role, "content": "x"}])
    assert caught.value.param == "messages[1].role" and len(caught.value.message) < 200


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "f"}}, "f"])
def test_a_forced_call_is_refused_and_not_forgotten(choice):
    with pytest.raises(ClientError) as caught:
        chat(tools=[TOOL], tool_choice=choice)
    assert caught.value.param == "tool_choice"
