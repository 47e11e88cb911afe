"""Whether the parameters of a tool are a JSON schema: SGLang 0.5.23 refuses the chat where they are none.

Only what tools get wrong is looked at: names of types, `properties`, `required`, `enum`, and what is nested in them.
SGLang also takes the usual names of databases and languages for a type (varchar, int32, list[str]), so these pass, too.
"""

from __future__ import annotations

import re
from typing import Any

_TYPES = ("array", "boolean", "integer", "null", "number", "object", "string")
_OTHER_NAMES = re.compile(
    r"(str|text|varchar|char|enum|uuid|date|datetime|time|timestamp|binary|blob|bytea|bytes|varbinary|bool|bigint"
    r"|smallint|tinyint|double|decimal|real|numeric|arr|tuple|set|map)(\(.*)?"
    r"|(int|uint|long|short|unsigned|num|float|list|dict)([\d\[<( \t].*)?"
)
_OF_NAMES = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_OF_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_OF_ONE = ("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames")


def refusal(tools: list[Any]) -> str:
    """The first tool's problem in SGLang's words; "" where there is none."""
    for number, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, dict) else None
        parameters = function.get("parameters") if isinstance(function, dict) else None
        if parameters is None:
            continue
        try:
            problem = _problem(parameters)
        except RecursionError:
            return f"Tool {number} function 'parameters' schema is too deeply nested or contains a cycle."
        if problem:
            return f"Tool {number} function has invalid 'parameters' schema: {problem}"
    return ""


def _problem(schema: Any) -> str:
    if isinstance(schema, bool):
        return ""
    if not isinstance(schema, dict):
        return f"{schema!r} is not of type 'object', 'boolean'"
    return _type(schema.get("type")) or _lists(schema) or next(filter(None, map(_problem, _inner(schema))), "")


def _type(given: Any) -> str:
    names = given if isinstance(given, list) else [given]
    known = all(name is None or _is_type(name) for name in names)
    return "" if known and given != [] else f"{given!r} is not valid under any of the given schemas"


def _is_type(name: Any) -> bool:
    return isinstance(name, str) and (
        name.lower() in _TYPES or _OTHER_NAMES.fullmatch(name.strip().lower()) is not None
    )


def _lists(schema: dict[str, Any]) -> str:
    for key in ("required", "enum", *_OF_LISTS):
        if key in schema and not isinstance(schema[key], list):
            return f"{schema[key]!r} is not of type 'array'"
    for key in _OF_NAMES:
        if key in schema and not isinstance(schema[key], dict):
            return f"{schema[key]!r} is not of type 'object'"
    wrong = next((name for name in schema.get("required", []) if not isinstance(name, str)), None)
    return f"{wrong!r} is not of type 'string'" if wrong is not None else ""


def _inner(schema: dict[str, Any]) -> list[Any]:
    found = [one for key in _OF_NAMES for one in schema.get(key, {}).values()]
    found += [one for key in _OF_LISTS for one in schema.get(key, [])]
    return found + [schema[key] for key in _OF_ONE if key in schema]
