"""What a new spec changes: the fields that differ, when each takes effect, and a diff of the canonical document.

Kept true: the canonical form is one that `infctl apply` reads and that gives the same spec again, every default
spelled out, so that a diff shows what will be meant and not how it was written.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec
import yaml

from infctl.client.specs import Spec, address
from infctl.store.records import PoolSpec
from infctl.view.models import API_VERSION
from infctl.view.specs import group_spec, pool_spec

_ABSENT: Any = object()


class TakesEffect(StrEnum):
    NOW = "now"
    NEXT_LAUNCH = "next-launch"
    MOVES = "moves-the-group"


# by the first key of the field; everything else takes a new launch
_AT_ONCE = frozenset({"minReady", "budgets", "restart", "drain"})
_MOVES = frozenset({"node", "hosts"})


@dataclass(frozen=True, slots=True)
class Change:
    """One field that differs, as it is written in a file; None where it is not there."""

    field: str
    before: Any
    after: Any
    takes_effect: TakesEffect


def canonical(spec: Spec) -> dict[str, Any]:
    """The document of a spec."""
    body: dict[str, Any]
    if isinstance(spec, PoolSpec):
        body = msgspec.to_builtins(pool_spec(spec))
    else:
        body = msgspec.to_builtins(group_spec(spec))
        del body["hosts" if not spec.hosts else "node"]  # one of the two, as in a file
    kind = "Pool" if isinstance(spec, PoolSpec) else "Group"
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": spec.name}, "spec": body}


def changes(before: Spec | None, after: Spec) -> tuple[Change, ...]:
    """Every field that differs, in the order of the document; none for a spec that is new."""
    if before is None:
        return ()
    moved = getattr(before, "node", "") != getattr(after, "node", "")
    old, new = dict(_leaves(canonical(before)["spec"])), dict(_leaves(canonical(after)["spec"]))
    found = []
    for field in [*new, *(f for f in old if f not in new)]:
        was, is_ = old.get(field, _ABSENT), new.get(field, _ABSENT)
        if was != is_:
            found.append(Change(field, _plain(was), _plain(is_), _when(field, moved)))
    return tuple(found)


def _plain(value: Any) -> Any:
    return None if value is _ABSENT else value


def _when(field: str, moved: bool) -> TakesEffect:
    head = field.split(".")[0]
    if head in _MOVES and moved:
        return TakesEffect.MOVES
    return TakesEffect.NOW if head in _AT_ONCE else TakesEffect.NEXT_LAUNCH


def _leaves(value: dict[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """`restart.attempts` and the like; a list is one value, an empty mapping none."""
    for key, inner in value.items():
        here = f"{path}.{key}" if path else key
        if isinstance(inner, dict):
            yield from _leaves(inner, here)
        else:
            yield here, inner


def unified(before: Spec | None, after: Spec) -> list[str]:
    """A unified diff of the canonical YAML, without line ends; empty when both are the same."""
    name = address(after)
    old, new = (_lines(before) if before is not None else []), _lines(after)
    lines = difflib.unified_diff(old, new, f"{name} (in the cluster)", f"{name} (as written)", lineterm="")
    return list(lines)


def _lines(spec: Spec) -> list[str]:
    text = yaml.safe_dump(canonical(spec), sort_keys=False, allow_unicode=True, default_flow_style=False, width=10_000)
    return str(text).splitlines()
