"""Writes the tiny model that the real engine serves in the tests. Run by the interpreter of SGLang's environment.

What stays true: the same script makes the same weights, tokenizer and chat template every time (fixed torch seed,
text generated here, nothing downloaded), so that two engines that load it agree to the token. The tokenizer is
byte-level, so any UTF-8 text goes there and back. Greedy output wanders instead of falling into a short loop.

    <sglang venv>/bin/python tests/support/tiny_model.py DIR
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

VOCAB = 512
CONTEXT = 4096
SEED = 20
SPECIALS = ["<|pad|>", "<|end|>", "<|bos|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>"]
CHAT_TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>\n{{ m['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


def corpus() -> list[str]:
    """Plain sentences, enough for a few hundred merges; made here so that no data set is needed."""
    who = ["the worker", "a gateway", "the daemon", "one rank", "every client", "our cluster", "this stream"]
    does = ["sends", "keeps", "counts", "drains", "replays", "watches", "starts", "moves", "follows", "returns"]
    what = ["tokens", "frames", "a prompt", "the lease", "its queue", "the request", "an answer", "two groups"]
    when = ["again", "at once", "before the deadline", "after a fault", "in order", "without a gap", "for the user"]
    names = [
        a + b + c
        for a in ("ba", "dor", "fi", "lum", "ster", "qua", "zin")
        for b in ("ka", "ni", "rou", "gle")
        for c in ("m", "ve", "xt")
    ]
    lines = [f"{a.capitalize()} {b} {c} {d}. " for a in who for b in does for c in what for d in when]
    return [f"{names[i % len(names)]} {line}" for i, line in enumerate(lines)]


def write_tokenizer(out: Path) -> None:
    """tokenizer.json and its config, byte-level BPE trained on `corpus()`."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=SPECIALS,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tok.train_from_iterator(corpus(), trainer)
    if tok.get_vocab_size() != VOCAB:
        raise SystemExit(f"the tokenizer has {tok.get_vocab_size()} entries, the model has {VOCAB}")
    tok.save(str(out / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": CONTEXT,
        "bos_token": "<|bos|>",
        "eos_token": "<|end|>",
        "pad_token": "<|pad|>",
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (out / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")


def write_weights(out: Path) -> None:
    """A two-layer Llama with random weights of a wide scale: a narrow one repeats itself within a few tokens."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(SEED)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        initializer_range=0.35,
        tie_word_embeddings=False,
        bos_token_id=SPECIALS.index("<|bos|>"),
        eos_token_id=SPECIALS.index("<|end|>"),
        pad_token_id=SPECIALS.index("<|pad|>"),
    )
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    model.save_pretrained(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dir", type=Path)
    out: Path = parser.parse_args().dir
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    out.mkdir(parents=True, exist_ok=True)
    write_tokenizer(out)
    write_weights(out)


if __name__ == "__main__":
    main()
