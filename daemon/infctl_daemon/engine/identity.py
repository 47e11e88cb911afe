"""Who a model is: revision, tokenizer digest, sizes, end tokens; computed from the files, not from their names.

Two groups with the same revision and digest may continue each other's streams, so nothing here guesses: a missing
file is an error, a file that changed is read again.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from infctl.domain.errors import StartFailed

_WEIGHTS = (".safetensors", ".bin", ".gguf", ".pt")
_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
# what SGLang takes from generation_config.json for chats, where a client says nothing
_DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
_HEX = re.compile(r"[0-9a-f]{8,64}")

ENCODE_DEADLINE = 60.0  # seconds
_ENCODE = """
import json, sys
from tokenizers import Tokenizer
text = sys.stdin.buffer.read().decode()
ids = Tokenizer.from_file(sys.argv[1]).encode(text, add_special_tokens=False).ids
print(json.dumps(ids))
"""

_digests: dict[tuple[str, int, int], str] = {}


@dataclass(frozen=True, slots=True)
class Identity:
    """What an endpoint record says about its model. Lengths in tokens."""

    revision: str
    tokenizer: str
    tokenizer_digest: str
    vocab_size: int
    context_length: int
    eos_ids: tuple[int, ...]
    sampling_defaults: dict[str, float] = field(default_factory=dict)


def file_digest(path: Path) -> str:
    """sha256 of a file; kept for as long as its size and time of change stay the same. Raises OSError."""
    seen = path.stat()
    key = (os.fspath(path.resolve()), seen.st_size, seen.st_mtime_ns)
    if key not in _digests:
        with open(path, "rb") as file:
            _digests[key] = hashlib.file_digest(file, "sha256").hexdigest()
    return _digests[key]


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise StartFailed(f"{path} cannot be read: {error}") from None
    return found if isinstance(found, dict) else {}


def revision(model: Path) -> str:
    """sha256 over config.json and the weight index with the shards' sizes, or over the weight files without one."""
    digest = hashlib.sha256()
    parts: list[tuple[str, str]] = [("config.json", file_digest(model / "config.json"))]
    weights = sorted(p for p in model.iterdir() if p.suffix in _WEIGHTS and p.is_file())
    index = next((model / name for name in _INDEXES if (model / name).is_file()), None)
    if index is not None:
        parts.append((index.name, file_digest(index)))
        parts += [(p.name, str(p.stat().st_size)) for p in weights]
    else:
        parts += [(p.name, file_digest(p)) for p in weights]
    for name, value in parts:
        digest.update(f"{name}\0{value}\n".encode())
    return digest.hexdigest()


def _ints(value: Any) -> set[int]:
    if isinstance(value, bool) or value is None:
        return set()
    if isinstance(value, int):
        return {value}
    return {v for v in value if isinstance(v, int)} if isinstance(value, list) else set()


def _numbers(generation: dict[str, Any]) -> dict[str, float]:
    found = {name: generation.get(name) for name in _DEFAULTS}
    return {n: v for n, v in found.items() if isinstance(v, int | float) and not isinstance(v, bool)}


def tokenizer_path(model: Path, stated: str) -> Path:
    path = Path(stated) if stated else model
    return path / "tokenizer.json" if path.is_dir() else path


def names(stated: str, revision: str) -> bool:
    """Whether a revision as somebody wrote it means this one: empty, the label itself, or a digest's beginning."""
    return stated in ("", revision) or (_HEX.fullmatch(stated) is not None and revision.startswith(stated))


def identify(model_path: str, tokenizer: str = "", stated: str = "", context_length: int = 0) -> Identity:
    """Read a model's identity. `stated` is the specification's revision: a hexadecimal one must be a prefix of what
    the files give, any other text is a label and is taken as it is. Blocking. Raises StartFailed with the reason.
    """
    model = Path(model_path)
    if not (model / "config.json").is_file():
        what = "has no config.json" if model.is_dir() else "does not exist"
        raise StartFailed(f"model path {model} {what}", reason="ModelMissing")
    tokens = tokenizer_path(model, tokenizer)
    try:
        computed = revision(model)
        digest = file_digest(tokens)
    except OSError as error:
        raise StartFailed(f"model files cannot be read: {error}", reason="ModelMissing") from None
    if stated and _HEX.fullmatch(stated) and not computed.startswith(stated):
        raise StartFailed(f"{model} is revision {computed[:16]}, not {stated[:16]}", reason="WrongRevision")
    config = _json(model / "config.json")
    nested = config.get("text_config")
    text = nested if isinstance(nested, dict) else {}
    generation = _json(model / "generation_config.json")
    eos = _ints(config.get("eos_token_id", text.get("eos_token_id"))) | _ints(generation.get("eos_token_id"))
    return Identity(
        revision=stated if stated and not _HEX.fullmatch(stated) else computed,
        tokenizer=str(tokens),
        tokenizer_digest=digest,
        vocab_size=int(config.get("vocab_size") or text.get("vocab_size") or 0),
        context_length=context_length
        or int(config.get("max_position_embeddings") or text.get("max_position_embeddings") or 0),
        eos_ids=tuple(sorted(eos)),
        sampling_defaults=_numbers(generation),
    )


def encode(tokenizer: str, text: str) -> list[int]:
    """Token ids of a canary's prompt. Blocking: large tokenizers take a second to load. Raises StartFailed.

    In a process of its own: it is needed once for each known answer, and the library would stay in a daemon's memory.
    """
    argv = [sys.executable, "-P", "-c", _ENCODE, tokenizer]
    try:
        done = subprocess.run(argv, input=text.encode(), capture_output=True, timeout=ENCODE_DEADLINE, check=True)
        ids = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        raise StartFailed(f"tokenizer {tokenizer} did not load within {ENCODE_DEADLINE:g} s") from None
    except subprocess.CalledProcessError as error:
        last = error.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise StartFailed(f"tokenizer {tokenizer} cannot be used: {last[:500]}") from None
    except (OSError, ValueError) as error:
        raise StartFailed(f"tokenizer {tokenizer} cannot be used: {error}") from None
    return [int(i) for i in ids]
