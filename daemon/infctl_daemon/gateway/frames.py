"""Frames of SGLang's `/generate` stream, read without paying for what was read before.

SGLang's frames are cumulative: the n-th one repeats all n ids. The reader keeps the bytes of the id list it has
already taken and compares them (one memcmp) instead of parsing them again; only new ids and the small `meta_info`
are parsed. A frame of any other shape is decoded in full, so speed never decides what is accepted.

Engine bytes are hostile until parsed: anything that is not what it should be raises `BadFrame`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

_IDS = b'"output_ids":['
_META = b'],"meta_info":'


class BadFrame(Exception):
    """The engine sent something that is no frame of `/generate`."""


class Meta(msgspec.Struct):
    """`meta_info`, the fields we use. Frames of the abort path lack prompt_tokens and cached_tokens."""

    id: str = ""
    finish_reason: dict[str, Any] | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    weight_version: str | None = None


class _Full(msgspec.Struct):
    output_ids: list[int] | None = None
    meta_info: Meta | None = None
    error: dict[str, Any] | None = None


_meta = msgspec.json.Decoder(Meta)
_full = msgspec.json.Decoder(_Full)
_ids = msgspec.json.Decoder(list[int])
_object = msgspec.json.Decoder(dict[str, Any])


@dataclass(slots=True)
class Frame:
    """One frame: the ids that are new since the frame before, and where the first of them stands (from 0)."""

    start: int
    ids: list[int]
    meta: Meta | None
    error: dict[str, Any] | None = None


class FrameReader:
    """Turns the data lines of one attempt into frames. `count` ids were taken so far."""

    __slots__ = ("_known", "count", "keep_meta", "last_meta")

    def __init__(self, *, keep_meta: bool = False) -> None:
        self.count = 0
        self._known = b""
        self.keep_meta = keep_meta
        self.last_meta: dict[str, Any] = {}

    def read(self, data: bytes) -> Frame:
        """Read one JSON object. Raises BadFrame."""
        try:
            frame = None if self.keep_meta else self._fast(data)
        except (msgspec.MsgspecError, ValueError):
            frame = None
        try:
            return frame or self._whole(data)
        except (msgspec.MsgspecError, ValueError) as error:
            raise BadFrame(str(error)) from None

    def _fast(self, data: bytes) -> Frame | None:
        # inside a JSON string every quote is escaped, so neither mark can be part of the text
        at = data.find(_IDS)
        end = data.find(_META, at)
        if at < 0 or end < 0:
            return None
        begin = at + len(_IDS)
        known = self._known
        cut = begin + len(known)
        if cut > end or data[begin:cut] != known:
            return None
        fresh = data[cut:end]
        if known and fresh[:1] not in (b",", b""):
            return None  # the last known number goes on: 12 became 123
        meta = _meta.decode(data[end + len(_META) : -1])
        ids = _ids.decode(b"[" + (fresh[1:] if known else fresh) + b"]") if fresh else []
        start = self.count
        self.count = start + len(ids)
        self._known = data[begin:end]
        return Frame(start, ids, meta)

    def _whole(self, data: bytes) -> Frame:
        full = _full.decode(data)
        if full.error is not None:
            return Frame(self.count, [], None, full.error)
        if full.meta_info is None:
            raise BadFrame("neither meta_info nor error")
        if self.keep_meta:
            self.last_meta = _object.decode(data).get("meta_info", {})
        all_ids = full.output_ids or []
        start = self.count
        if len(all_ids) < start:
            # an abort frame may carry no ids: what was taken stays taken
            return Frame(start, [], full.meta_info)
        if ",".join(map(str, all_ids[:start])).encode() != self._known:
            raise BadFrame("ids that were sent before have changed: another request's frames")
        self.count = len(all_ids)
        self._known = ",".join(map(str, all_ids)).encode()
        return Frame(start, all_ids[start:], full.meta_info)
