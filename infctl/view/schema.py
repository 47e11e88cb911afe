"""JSON schemas of the documents, made from `view.models`; the files under `view/schemas` are what this makes.

Objects are left open: a newer program may add fields, so what is valid today stays valid.
"""

from __future__ import annotations

import json
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any

import msgspec

from infctl.view import models
from infctl.view.kinds import Kind
from infctl.view.part import View

FOLDER = Path(__file__).parent / "schemas"
_REF = "#/$defs/"


def list_type(kind: Kind | None) -> type[msgspec.Struct]:
    """The type of `infctl get KIND -o json`; None: of several kinds at once."""
    item: Any = models.OF_KIND[kind] if kind else reduce(or_, models.OF_KIND.values())
    return _list(f"{kind.title if kind else ''}List", item)


def _list(title: str, item: Any) -> type[msgspec.Struct]:
    fields: list[tuple[str, Any]] = [
        ("api_version", models.ApiVersion),
        ("metadata", models.ListMetadata),
        ("items", list[item]),
    ]
    names = {"__doc__": "A list document; one object is a list, too."}
    made: type[msgspec.Struct] = msgspec.defstruct(
        title, fields, bases=(View,), namespace=names, tag_field="kind", tag=title
    )
    return made


def schemas() -> dict[str, dict[str, Any]]:
    """Each schema by the name of its file."""
    kinds: list[Kind | None] = [*Kind, None]
    lists = {(f"{kind.plural}.json" if kind else "list.json"): list_type(kind) for kind in kinds}
    contexts = _list("ContextList", models.ContextView)
    others: dict[str, type[msgspec.Struct]] = {
        "version.json": models.VersionView,
        "contexts.json": contexts,
        "config.json": models.ConfigView,
        "diff.json": _list("DiffList", models.DiffView),
    }
    return {name: _schema(made) for name, made in (lists | others).items()}


def text_of(schema: dict[str, Any]) -> str:
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def _schema(made: type[msgspec.Struct]) -> dict[str, Any]:
    body = msgspec.json.schema(made, ref_template=_REF + "{name}")
    names = {name: name.removesuffix("View") for name in body["$defs"]}
    renamed: dict[str, Any] = _renamed(body, names)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **renamed}


def _renamed(value: Any, names: dict[str, str]) -> Any:
    """The same with the names documents use instead of those of our classes."""
    if isinstance(value, list):
        return [_renamed(v, names) for v in value]
    if isinstance(value, dict):
        return {names.get(k, k): _renamed(v, names) for k, v in value.items()}
    if isinstance(value, str):
        head = _REF if value.startswith(_REF) else ""
        return head + names.get(value[len(head) :], value[len(head) :])
    return value
