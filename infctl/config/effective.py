"""Every setting of a daemon with the place it was taken from: flag, environment, line of the file, or default."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from infctl.config.check import Part
from infctl.config.source import Document, Path_, dotted

_HEAD = ("apiVersion", "kind")


@dataclass(frozen=True, slots=True)
class Value:
    """`key` as it is written in the file: `limits.stallSeconds`."""

    key: str
    value: object
    origin: str

    @property
    def text(self) -> str:
        match self.value:
            case "" | None | [] | ():
                return "-"
            case list() | tuple():
                return ",".join(map(str, self.value))
            case bool():
                return str(self.value).lower()
            case float():
                return f"{self.value:g}"
        return str(self.value)


def of_part(part: Part, document: Document | None, path: Path_ = ()) -> Iterator[Value]:
    """What the file and the defaults say, in the order of the model."""
    for name, info in type(part).model_fields.items():
        here = (*path, info.alias or name)
        value = getattr(part, name)
        if here in [(head,) for head in _HEAD]:
            continue
        if isinstance(value, Part):
            yield from of_part(value, document, here)
        elif document is not None and here in document.lines:
            yield Value(dotted(here), value, f"{document.file}:{document.lines[here]}")
        else:
            yield Value(dotted(here), value, "default")


def overlaid(values: Iterable[Value], stronger: Iterable[Value]) -> list[Value]:
    """`values` with those of `stronger` in the place of the same key."""
    over = {value.key: value for value in stronger}
    return [over.get(value.key, value) for value in values]
