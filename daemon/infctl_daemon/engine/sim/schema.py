"""The two schemas a /generate body passes before anything else, with SGLang's words for what does not fit.

What stays true: the first (`Malformed`) is lax, as pydantic is: "2" is a number to it; the second (`Contract`) is
strict. A body that fails either is HTTP 400 even for a stream.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

_FIELD_NAMES = (
    "max_new_tokens stop stop_token_ids stop_regex temperature top_p top_k min_p frequency_penalty presence_penalty "
    "repetition_penalty min_new_tokens n json_schema regex ebnf structural_tag ignore_eos skip_special_tokens "
    "spaces_between_special_tokens no_stop_trim stream_interval logit_bias sampling_seed custom_params beam_width "
    "watermark choice"
)
_FIELDS = _FIELD_NAMES.split()
_WHOLE = ("max_new_tokens", "min_new_tokens", "n", "top_k", "sampling_seed", "stream_interval")
_REAL = ("temperature", "top_p", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty")
_FLAGS = ("ignore_eos", "no_stop_trim", "skip_special_tokens")
_TRUE = ("yes", "true", "on", "1", "y", "t")
_FALSE = ("no", "false", "off", "0", "n", "f")
_EITHER = {
    "return_logprob": ("bool", "list[bool]", "BoolOrList"),
    "logprob_start_len": ("int", "list[int]", "Int64OrList"),
    "top_logprobs_num": ("int", "list[int]", "Int64OrList"),
    "bootstrap_host": ("str", "list[nullable[str]]", "OptionalStringOrList"),
    "bootstrap_port": ("int", "list[nullable[int]]", "OptionalInt64OrList"),
    "bootstrap_room": ("int", "list[nullable[int]]", "OptionalInt64OrList"),
    "lora_path": ("str", "list[nullable[str]]", "OptionalStringOrList"),
}


class Malformed(Exception):
    """Body that does not fit the schema; the text is one problem a line."""


class Contract(Exception):
    """Value of the wrong type for the strict schema."""


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def parse_json(raw: bytes) -> Any:
    """The body as JSON; NaN and Infinity are not JSON. Raises `Malformed`."""
    try:
        return json.loads(raw, parse_constant=_reject_constant)
    except ValueError as error:
        at = getattr(error, "pos", 0)
        raise Malformed(f"'type': 'json_invalid', 'loc': ('body', {at}), 'msg': 'JSON decode error'") from error


def wrong(field: str, kind: str, want: str, got: object) -> NoReturn:
    raise Malformed(f"'type': '{kind}', 'loc': ('body', '{field}'), 'msg': 'Input should be {want}', 'input': {got!r}")


def flag(field: str, value: object) -> bool:
    """A boolean as pydantic reads it."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in _TRUE:
        return True
    if isinstance(value, str) and value.lower() in _FALSE:
        return False
    if isinstance(value, int) and value in (0, 1):
        return bool(value)
    if isinstance(value, str | int):
        wrong(field, "bool_parsing", "a valid boolean, unable to interpret input", value)
    wrong(field, "bool_type", "a valid boolean", value)


def _lax(kind: str, value: object) -> str | None:
    """What pydantic has against `value` as a scalar: kind and message of its problem."""
    if kind == "str":
        return None if isinstance(value, str) else "string_type: Input should be a valid string"
    if kind == "bool":
        if isinstance(value, bool) or value in (0, 1) or (isinstance(value, str) and value.lower() in _TRUE + _FALSE):
            return None
        return "bool_parsing: Input should be a valid boolean, unable to interpret input"
    if isinstance(value, int):
        return None
    if isinstance(value, float):
        if value.is_integer():
            return None
        return "int_from_float: Input should be a valid integer, got a number with a fractional part"
    if isinstance(value, str):
        if value.strip().lstrip("+-").isdecimal():
            return None
        return "int_parsing: Input should be a valid integer, unable to parse string as an integer"
    return "int_type: Input should be a valid integer"


def _strict(kind: str, value: object) -> bool:
    if kind == "bool":
        return isinstance(value, bool)
    if kind == "int":
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, str)


def check_either(body: dict[str, Any]) -> None:
    """The fields that are one value or a list of them; raises `Malformed` or `Contract`."""
    strict: list[str] = []
    for field, (kind, many, contract) in _EITHER.items():
        value = body.get(field)
        if value is None:
            continue
        if isinstance(value, list):
            if not all(v is None or _strict(kind, v) for v in value):
                wrong(field, f"{kind}_type", f"a valid {kind}", value)
            continue
        problem = _lax(kind, value)
        if problem:
            type_, _, message = problem.partition(": ")
            raise Malformed(
                f"'type': 'list_type', 'loc': ('body', '{field}', '{many}'), "
                f"'msg': 'Input should be a valid list', 'input': {value!r}\n"
                f"'type': '{type_}', 'loc': ('body', '{field}', '{kind}'), 'msg': '{message}', 'input': {value!r}"
            )
        if not _strict(kind, value):
            strict.append(f"invalid type: {_kind(value)}, expected a value or an array of values for {contract}")
    ids = body.get("token_ids_logprob")
    if ids is not None and not isinstance(ids, list):
        problem = f"'msg': 'Input should be a valid list', 'input': {ids!r}"
        kinds = ("list[list[int]]", "list[int]")
        raise Malformed(
            "\n".join(f"'type': 'list_type', 'loc': ('body', 'token_ids_logprob', '{k}'), {problem}" for k in kinds)
        )
    if strict:
        raise Contract(strict[0])


def read_body(raw: bytes) -> dict[str, Any]:
    """A /generate body that fits both schemas; raises `Malformed` or `Contract`. Unknown keys stay, as in SGLang."""
    body = parse_json(raw)
    if not isinstance(body, dict):
        raise Malformed("'type': 'dataclass_type', 'loc': ('body',), 'msg': 'Input should be a dictionary'")
    text, ids, rid = body.get("text"), body.get("input_ids"), body.get("rid")
    if text is not None and not isinstance(text, str | list):
        wrong("text", "string_type", "a valid string", text)
    if ids is not None and not isinstance(ids, list):
        raise Malformed(
            f"'type': 'value_error', 'loc': ('body', 'input_ids'), "
            f"'msg': 'Value error, must be list or null; got {type(ids).__name__}', 'input': {ids!r}"
        )
    if rid is not None and not isinstance(rid, str | list):
        wrong("rid", "string_type", "a valid string", rid)
    prompts: list[Any] = ids or []
    for prompt in prompts if prompts and isinstance(prompts[0], list) else [prompts]:
        for token in prompt if isinstance(prompt, list) else [prompt]:
            if not isinstance(token, int) or isinstance(token, bool):
                wrong("input_ids", "int_type", "a valid integer", token)
    body["stream"] = flag("stream", body.get("stream", False))
    for name in ("return_text_in_logprobs", "return_prompt_token_ids"):
        body[name] = flag(name, body.get(name, False))
    given = body.get("sampling_params")
    if given is not None and not isinstance(given, dict | list):
        wrong("sampling_params", "dict_type", "a valid dictionary", given)
    check_either(body)
    for params in given if isinstance(given, list) else [given or {}]:
        if not isinstance(params, dict):
            wrong("sampling_params", "dict_type", "a valid dictionary", params)
        check_contract(params)
    return body


def _kind(value: object) -> str:
    if isinstance(value, bool):
        return f"boolean `{str(value).lower()}`"
    if isinstance(value, int):
        return f"integer `{value}`"
    if isinstance(value, float):
        return f"floating point `{value}`"
    if isinstance(value, str):
        return f'string "{value}"'
    return "sequence" if isinstance(value, list) else "map"


def check_contract(params: dict[str, Any]) -> None:
    """sampling_params of one request; raises `Contract`."""
    for name, value in params.items():
        if name not in _FIELDS:
            known = ", ".join(f"`{f}`" for f in _FIELDS)
            raise Contract(f"unknown field `{name}`, expected one of {known}")
        if value is None:
            continue
        whole = isinstance(value, int) and not isinstance(value, bool)
        if name in _WHOLE and not whole:
            raise Contract(f"invalid type: {_kind(value)}, expected i64")
        if name in _REAL and not (whole or isinstance(value, float)):
            raise Contract(f"invalid type: {_kind(value)}, expected f64")
        if name == "stop" and not isinstance(value, str | list):
            raise Contract(f"invalid type: {_kind(value)}, expected a value or an array of values for StringOrList")
        if name == "stop_token_ids" and not isinstance(value, list):
            raise Contract(f"invalid type: {_kind(value)}, expected a sequence")
        if name == "logit_bias" and not isinstance(value, dict):
            raise Contract(f"invalid type: {_kind(value)}, expected a map")
        if name in _FLAGS and not isinstance(value, bool):
            raise Contract(f"invalid type: {_kind(value)}, expected a boolean")
