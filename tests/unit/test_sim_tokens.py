"""The simulated model: its next token, its vocabulary, its folder."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from infctl_daemon.engine.sim.detokenizer import Text
from infctl_daemon.engine.sim.model import CHAT_TEMPLATE, SPECIALS, render_chat, revision, write_model
from infctl_daemon.engine.sim.tokens import Vocabulary, fold, origin


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("model")
    write_model(out)
    return out


@pytest.fixture(scope="module")
def vocab(folder: Path) -> Vocabulary:
    return Vocabulary(folder)


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def say(vocab: Vocabulary, ids: list[int], n: int, *, seed: int = 0, revision: str = "a", salt: int = 0) -> list[int]:
    state = origin(seed, revision)
    for token in ids:
        state = fold(state, token)
    missing = vocab.missing(ids)
    out = []
    for _ in range(n):
        token = vocab.choose(state, salt, missing)
        out.append(token)
        missing = vocab.after(token, missing)
        state = fold(state, token)
    return out


@settings(deadline=None)
@given(ids=st.lists(st.integers(0, 1300), min_size=1, max_size=20), cut=st.integers(1, 199))
def test_prompt_and_k_tokens_are_continued_exactly(vocab: Vocabulary, ids: list[int], cut: int):
    whole = say(vocab, ids, 200)
    assert say(vocab, ids + whole[:cut], 200 - cut) == whole[cut:]


def test_seed_revision_and_prefix_each_change_what_follows(vocab: Vocabulary):
    base = say(vocab, [40, 41], 32)
    assert say(vocab, [40, 41], 32) == base
    others = [
        say(vocab, [40, 41], 32, seed=1),
        say(vocab, [40, 41], 32, revision="b"),
        say(vocab, [41, 40], 32),
        say(vocab, [40, 41], 32, salt=7),
    ]
    assert all(other != base for other in others)


def test_text_is_valid_and_holds_characters_of_several_tokens(vocab: Vocabulary, tokenizer: Tokenizer):
    ids = say(vocab, [40], 4000)
    text = tokenizer.decode(ids)
    assert "\ufffd" not in text[:-1]
    assert sum(ord(c) > 127 for c in text) > 20 and sum(0x1F000 <= ord(c) < 0x20000 for c in text) > 4
    assert not set(ids) & set(range(len(SPECIALS)))


@pytest.mark.parametrize(
    ("text", "missing"), [("a", 0), ("é", 1), ("漢", 2), ("漢", 1), ("🙂", 3), ("🙂", 2), ("🙂", 1), ("🙂", 0)]
)
def test_missing_bytes_of_a_prompt_cut_inside_a_character(
    vocab: Vocabulary, tokenizer: Tokenizer, text: str, missing: int
):
    ids = tokenizer.encode("word " + text).ids
    assert vocab.missing(ids[: len(ids) - missing] if missing else ids) == missing


@settings(deadline=None)
@given(ids=st.lists(st.integers(7, 1300), max_size=12))
def test_missing_kept_step_by_step_is_missing_counted_at_once(vocab: Vocabulary, ids: list[int]):
    whole = say(vocab, [40, *ids], 60)
    missing = vocab.missing([40, *ids])
    for i, token in enumerate(whole):
        missing = vocab.after(token, missing)
        assert missing == vocab.missing([40, *ids, *whole[: i + 1]])


def test_banned_tokens_are_never_said(vocab: Vocabulary):
    state = origin(0, "a")
    first = vocab.choose(state, 0, 0)
    assert vocab.choose(state, 0, 0, {first}) != first


@settings(deadline=None)
@given(text=st.text(max_size=80))
def test_any_text_goes_there_and_back(tokenizer: Tokenizer, text: str):
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_the_folder_is_the_same_each_time(folder: Path, tmp_path: Path):
    write_model(tmp_path)
    for name in ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes()
    assert revision(tmp_path) == revision(folder)
    assert json.loads((folder / "tokenizer_config.json").read_text())["chat_template"] == CHAT_TEMPLATE


def test_special_tokens_are_single_ids(tokenizer: Tokenizer):
    assert tokenizer.encode("<|user|>\nhi<|end|>").ids[0] == SPECIALS.index("<|user|>")


def test_chat_text():
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
    ]
    expected = "<|system|>\nbe brief<|end|>\n<|user|>\nhi<|end|>\n<|assistant|>\n"
    assert render_chat(messages, None, True) == expected
    assert render_chat(messages[:1], [{"a": 1}], False) == '<|tool|>\n[{"a": 1}]<|end|>\n<|system|>\nbe brief<|end|>\n'


@settings(deadline=None)
@given(state=st.integers(0, 2**64 - 1), salt=st.sampled_from([0, 7, 2**61]), missing=st.integers(0, 2))
def test_the_short_way_says_what_the_long_way_says(vocab: Vocabulary, state: int, salt: int, missing: int):
    token = vocab.choose(state, salt, missing)
    assert vocab.follow(state, salt, missing) == (token, fold(state, token), vocab.after(token, missing))


@settings(deadline=None)
@given(ids=st.lists(st.integers(0, 1300), min_size=1, max_size=60), start=st.lists(st.integers(0, 1300), max_size=5))
def test_text_without_a_window_is_the_text_with_one(vocab: Vocabulary, tokenizer: Tokenizer, ids: list[int], start):
    short = Text(tokenizer, vocab.spoken(), True, False)
    long = Text(tokenizer, {}, True, False)
    said = say(vocab, [*start, 40], 60)
    for token in ids + said:
        assert short.push([token], None) == long.push([token], None)
    end = {"type": "length", "length": 1}
    assert short.push([300], end) == long.push([300], end)
