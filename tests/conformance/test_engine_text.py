"""The gateway turns text into ids and ids into text itself: both must be what the engine would have made."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer

from infctl_daemon.gateway.detok import Detokenizer
from tests.conformance.engines import Engine
from tests.conformance.streams import PROMPT, body, stream


async def tokenizer_of(engine: Engine) -> Tokenizer:
    async with engine.client() as client:
        path = (await client.get("/model_info")).json()["tokenizer_path"]
    return Tokenizer.from_file(str(Path(path) / "tokenizer.json"))


@pytest.mark.parametrize(
    "text", [PROMPT, "é, 漢字, 🙂\n\n  two  spaces", "<|user|>\nhello<|end|>", " leading", "tab\there"]
)
async def test_text_becomes_the_ids_that_the_engine_would_use(engine: Engine, text: str):
    tokenizer = await tokenizer_of(engine)
    async with engine.client() as client:
        ids = (await client.post("/tokenize", json={"prompt": text})).json()["tokens"]
    assert tokenizer.encode(text).ids == ids


async def test_ids_become_the_text_that_the_engine_sends(engine: Engine):
    tokenizer = await tokenizer_of(engine)
    prompt = tokenizer.encode(PROMPT).ids
    got = await stream(engine, body(max_new=60, ids=prompt))
    detok = Detokenizer(tokenizer, prompt)
    shown = "".join(detok.feed([token]) for token in got.ids)
    assert shown + detok.finish(None) == got.last["text"]


async def test_a_stop_string_is_cut_at_the_same_place(engine: Engine):
    tokenizer = await tokenizer_of(engine)
    prompt = tokenizer.encode(PROMPT).ids
    free = await stream(engine, body(max_new=40, ids=prompt))
    text = free.last["text"]
    stop = next(text[i : i + 3] for i in range(10, len(text)) if text[i : i + 3].isascii() and text[i : i + 3].strip())
    got = await stream(engine, body(max_new=40, ids=prompt, stop=[stop]))
    detok = Detokenizer(tokenizer, prompt, stops=[stop])
    shown = "".join(detok.feed([token]) for token in got.ids)
    assert got.finish == {"type": "stop", "matched": stop}
    assert shown + detok.finish(stop) == got.last["text"]
