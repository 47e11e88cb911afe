"""Tokenizers, loaded once for each digest and checked against it: a file that changed is not routable."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path

from tokenizers import Tokenizer

from infctl.domain.errors import ConfigError


class Vocabularies:
    """Tokenizers by digest. Loading runs in a thread; a failure is remembered with its reason."""

    def __init__(self) -> None:
        self._loaded: dict[str, Tokenizer] = {}
        self._loading: dict[str, asyncio.Task[Tokenizer]] = {}

    def get(self, digest: str) -> Tokenizer | None:
        return self._loaded.get(digest)

    async def load(self, path: str, digest: str) -> Tokenizer:
        """Raises ConfigError when the file is missing, is no tokenizer, or has another digest."""
        if (ready := self._loaded.get(digest)) is not None:
            return ready
        task = self._loading.get(digest)
        if task is None:
            task = self._loading[digest] = asyncio.create_task(asyncio.to_thread(_read, path, digest))
        try:
            self._loaded[digest] = tokenizer = await asyncio.shield(task)
        finally:
            if task.done():
                self._loading.pop(digest, None)
        return tokenizer


def _read(path: str, digest: str) -> Tokenizer:
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"tokenizer {path}: {error.strerror}", reason="TokenizerMissing") from None
    found = hashlib.sha256(data).hexdigest()
    if found != digest:
        raise ConfigError(
            f"tokenizer {path} has digest {found[:12]}…, the endpoint says {digest[:12]}…", reason="TokenizerMismatch"
        )
    try:
        return Tokenizer.from_str(data.decode())
    except Exception as error:  # the library raises bare Exception for a malformed file
        raise ConfigError(f"tokenizer {path}: {error}", reason="TokenizerInvalid") from None
