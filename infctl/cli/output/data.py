"""Documents for programs: JSON and YAML of the same data, and plain addresses."""

from __future__ import annotations

import json
from typing import Any

from infctl.cli import io
from infctl.view.kinds import Kind


def print_json(document: Any) -> None:
    io.out(json.dumps(document, indent=2, ensure_ascii=False))


def print_yaml(document: Any) -> None:
    import yaml

    io.out(yaml.safe_dump(document, sort_keys=False, allow_unicode=True, default_flow_style=False), end="")


def print_names(kind: Kind, documents: list[dict[str, Any]]) -> None:
    for document in documents:
        io.out(f"{kind.value}/{document['metadata']['name']}")
