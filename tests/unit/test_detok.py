"""Text from ids: whatever the cuts, the pieces make the text the whole would have made."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from infctl_daemon.gateway.detok import Detokenizer


def byte_tokenizer() -> Tokenizer:
    """Every byte is a token, as at the worst split of a byte-level BPE."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


TOKENIZER = byte_tokenizer()


def ids_of(text: str) -> list[int]:
    return TOKENIZER.encode(text).ids


@given(st.text(alphabet=st.characters(blacklist_categories=("Cs",)), max_size=20), st.integers(1, 7))
def test_any_cut_gives_the_same_text(text, size):
    detok = Detokenizer(TOKENIZER, ids_of("prompt "))
    ids = ids_of(text)
    out = "".join(detok.feed(ids[i : i + size]) for i in range(0, len(ids), size))
    assert out + detok.finish(None) == text == detok.text


def test_half_an_emoji_is_never_shown():
    detok = Detokenizer(TOKENIZER, ids_of("x"))
    pieces = [detok.feed([token]) for token in ids_of("a😀b")]
    assert "".join(pieces) == "a😀b"
    assert not any("\ufffd" in piece for piece in pieces)


def test_a_stop_string_is_held_back_and_cut():
    detok = Detokenizer(TOKENIZER, ids_of("x"), stops=["STOP"])
    shown = "".join(detok.feed([token]) for token in ids_of("go STxx STOP"))
    assert shown == "go STxx "
    assert detok.finish("STOP") == ""
    assert detok.text == "go STxx "


def test_what_looked_like_a_stop_string_comes_out_at_the_end():
    detok = Detokenizer(TOKENIZER, ids_of("x"), stops=["STOP"])
    assert detok.feed(ids_of("a STO")) == "a "
    assert detok.finish(None) == "STO"


def test_no_stop_trim_leaves_the_stop_string():
    detok = Detokenizer(TOKENIZER, ids_of("x"), stops=["END"], no_stop_trim=True)
    detok.feed(ids_of("the END"))
    detok.finish("END")
    assert detok.text == "the END"


def test_a_stop_token_is_cut_off_the_text():
    detok = Detokenizer(TOKENIZER, ids_of("x"))
    bang = ids_of("!")[0]
    shown = detok.feed(ids_of("hey"))
    detok._pending = ""
    assert shown == "hey"
    held = Detokenizer(TOKENIZER, ids_of("x"), stops=["!?"])
    held.feed(ids_of("hey!"))
    held.finish(bang)
    assert held.text == "hey"


@pytest.mark.parametrize("text", ["", "plain"])
def test_an_empty_tail_adds_nothing(text):
    detok = Detokenizer(TOKENIZER, [])
    detok.feed(ids_of(text))
    assert detok.finish(None) == "" and detok.text == text
