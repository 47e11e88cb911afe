"""The small model folder of the simulated engine: `python -m infctl_daemon.engine.sim.model DIR`.

What stays true: the same code writes the same bytes (no training, no clock, no randomness); the tokenizer is
byte-level, so any UTF-8 text goes there and back; most entries are whole words, so that what the engine says can be
read. `render_chat` gives exactly what `CHAT_TEMPLATE` would.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

SPECIALS = ("<|pad|>", "<|end|>", "<|bos|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>")
EOS_ID = 1
CONTEXT = 32768
CHAT_TEMPLATE = (
    "{% if tools %}<|tool|>\n{{ tools | tojson }}<|end|>\n{% endif %}"
    "{% for m in messages %}<|{{ m['role'] }}|>\n{{ m['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)

_WORDS = """
the a an one two three every each some any no our your this that these which what all both many few next last first
worker gateway daemon rank group pool client cluster stream request answer token frame prompt queue lease prefix
store node host device process launch epoch term attempt budget deadline drain canary probe signal fault crash hang
replay journal segment cache batch step layer weight model engine schema router reader writer owner peer
sends keeps counts drains replays watches starts moves follows returns holds reads writes loses finds sees stops waits
gives takes joins leaves fails heals grows shrinks turns runs serves answers commits aborts resumes publishes
is was are were be been has had can may will must should does did not never always again soon now then here there
in on at by to of for from with without before after under over into out off up down and or but if when while until
quick slow short long new old whole empty ready frozen alive dead healthy quiet busy idle late early exact safe clear
"""


def _byte_chars() -> list[str]:
    """The printable stand-in of each byte, 0 to 255 (the alphabet of byte-level BPE)."""
    keep = [*range(33, 127), *range(161, 173), *range(174, 256)]
    chars = {b: chr(b) for b in keep}
    spare = 256
    for b in range(256):
        if b not in chars:
            chars[b] = chr(spare)
            spare += 1
    return [chars[b] for b in range(256)]


BYTE_CHARS = _byte_chars()


def _tokenizer() -> dict[str, Any]:
    vocab = {name: i for i, name in enumerate(SPECIALS)}
    for char in BYTE_CHARS:
        vocab[char] = len(vocab)
    merges: list[list[str]] = []
    space = BYTE_CHARS[32]
    for word in sorted(set(_WORDS.split())):
        for text in (word, space + word):
            have = text[0]
            for char in text[1:]:
                if have + char not in vocab:
                    vocab[have + char] = len(vocab)
                    merges.append([have, char])
                have += char
    added = [
        {"id": i, "content": name, "single_word": False, "lstrip": False, "rstrip": False}
        | {"normalized": False, "special": True}
        for i, name in enumerate(SPECIALS)
    ]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": None,
        "decoder": level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": True,
            "vocab": vocab,
            "merges": merges,
        },
    }


def write_model(out: Path, *, context: int = CONTEXT) -> None:
    """Writes config.json, generation_config.json, tokenizer.json and tokenizer_config.json into `out`."""
    tokenizer = _tokenizer()
    config = {
        "architectures": ["SimForCausalLM"],
        "model_type": "sim",
        "vocab_size": len(tokenizer["model"]["vocab"]),
        "max_position_embeddings": context,
        "bos_token_id": SPECIALS.index("<|bos|>"),
        "eos_token_id": EOS_ID,
        "pad_token_id": SPECIALS.index("<|pad|>"),
        "torch_dtype": "bfloat16",
    }
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": context,
        "bos_token": "<|bos|>",
        "eos_token": "<|end|>",
        "pad_token": "<|pad|>",
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    out.mkdir(parents=True, exist_ok=True)
    files = {
        "config.json": config,
        "generation_config.json": {"eos_token_id": EOS_ID},
        "tokenizer.json": tokenizer,
        "tokenizer_config.json": tokenizer_config,
    }
    for name, content in files.items():
        text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
        (out / name).write_text(text, encoding="utf-8")


def render_chat(messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] | None, generation: bool) -> str:
    """The prompt text of a chat, as `CHAT_TEMPLATE` writes it. Content may be text or a list of text parts."""
    parts = [f"<|tool|>\n{json.dumps(tools)}<|end|>\n"] if tools else []
    for message in messages:
        content = message.get("content")
        if isinstance(content, list):
            content = " ".join(str(p.get("text", "")) for p in content if isinstance(p, dict))
        parts.append(f"<|{message.get('role', 'user')}|>\n{'' if content is None else content}<|end|>\n")
    if generation:
        parts.append("<|assistant|>\n")
    return "".join(parts)


def revision(folder: Path) -> str:
    """sha256 over config.json and tokenizer.json, for those who want a `--weight-version` of this folder."""
    digest = hashlib.sha256()
    for name in ("config.json", "tokenizer.json"):
        digest.update((folder / name).read_bytes())
    return digest.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dir", type=Path)
    parser.add_argument("--context-length", type=int, default=CONTEXT)
    args = parser.parse_args()
    write_model(args.dir, context=args.context_length)


if __name__ == "__main__":
    main()
