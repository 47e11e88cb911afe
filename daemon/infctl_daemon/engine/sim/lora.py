"""Adapters by name: loaded at the start or later, listed beside the model, asked for by `lora_path`.

What stays true: a name asks for an adapter, wherever it came from; one that was unloaded is loaded again by the first
request for it, one that never was is refused; what it makes the model say depends on its name only, so that engines
of a fleet agree.
"""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any


class LoraError(Exception):
    """An adapter that cannot be had; the text is SGLang's. `loaded` is shown where SGLang shows it."""

    def __init__(self, message: str, loaded: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.loaded = loaded


_OFF = "LoRA is not enabled. Please set `--enable-lora` to enable LoRA."


class Adapters:
    """`given` maps names to folders; at most `most` are loaded (None: no limit), the least used leaves first."""

    def __init__(self, enabled: bool, given: dict[str, str], most: int | None) -> None:
        self.enabled = enabled
        self._most = most
        self._loaded: OrderedDict[str, str] = OrderedDict(given)
        self._ever: dict[str, str] = dict(given)

    @property
    def loaded(self) -> dict[str, str]:
        return dict(self._loaded)

    def load(self, name: str, path: str) -> None:
        """Raises `LoraError`."""
        if not self.enabled:
            raise LoraError(_OFF)
        if name in self._loaded:
            raise LoraError(f"Failed to load LoRA adapter {name} because it is already loaded", self.loaded)
        if not (Path(path) / "adapter_config.json").is_file():
            raise LoraError(
                "Repo id must be in the form 'repo_name' or 'namespace/repo_name': "
                f"'{path}'. Use `repo_type` argument if needed.",
                self.loaded,
            )
        self._loaded[name] = self._ever[name] = path
        while self._most is not None and len(self._loaded) > self._most:
            self._loaded.popitem(last=False)

    def unload(self, name: str) -> None:
        """Raises `LoraError`."""
        if not self.enabled:
            raise LoraError(_OFF)
        if name not in self._loaded:
            raise LoraError(f"LoRA with name {name} does not exist. Loaded LoRAs: o{_keys(self._loaded)}")
        del self._loaded[name]

    def resolve(self, name: str) -> None:
        """Makes sure that `name` is loaded; raises `LoraError`."""
        if not self.enabled:
            raise LoraError(
                f"LoRA adapter '{name}' was requested, but LoRA is not enabled. Please launch the server with "
                "--enable-lora flag and preload adapters using --lora-paths or /load_lora_adapter endpoint."
            )
        if name not in self._loaded:
            if name not in self._ever:
                raise LoraError(
                    f"Got LoRA adapter that has never been loaded: {name}\nAll loaded adapters: {_keys(self._ever)}."
                )
            try:
                self.load(name, self._ever[name])
            except LoraError as error:
                raise LoraError(f"Failed to implicitly load LoRA adapter {name}: {error}") from error
        self._loaded.move_to_end(name)


def _keys(names: Any) -> str:
    return f"dict_keys({list(names)})"


def parse_paths(words: list[str]) -> dict[str, str]:
    """`name=folder` or `folder` of the command line (the folder is then the name)."""
    out: dict[str, str] = {}
    for word in words:
        name, equals, path = word.partition("=")
        out[name] = path if equals else word
    return out
