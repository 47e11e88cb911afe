"""What a client hears of an engine's refusal: the reason, on one line, and nothing of the engine's own files."""

import json
from pathlib import Path

import pytest

from infctl_daemon.gateway.errors import MOST_WORDS, engine_words

RECORDED = Path(__file__).parents[1] / "conformance" / "recorded"


@pytest.mark.parametrize("name", ["malformed", "contract", "refused", "too-long", "no-tokens"])
def test_the_real_engines_refusals_are_said_without_its_source(name):
    said = json.loads((RECORDED / f"{name}.json").read_text())["body"]
    words = engine_words(said.encode())
    assert words and "\n" not in words and "File" not in words and ".py" not in words


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (b'{"error":{"message":"too long"}}', "too long"),
        (b'{"object":"error","message":"Tool 0 has a bad schema\\n\\nFailed validating"}', "Tool 0 has a bad schema"),
        (b'{"error":"invalid type"}', "invalid type"),
        (b"Unauthorized", "Unauthorized"),
        (b"{}", "no reason given"),
        (b"\xff\xfe", "\ufffd\ufffd"),
        (b"[" * 100_000, "[" * MOST_WORDS),
    ],
)
def test_every_form_of_a_refusal_is_read(said, words):
    assert engine_words(said) == words
