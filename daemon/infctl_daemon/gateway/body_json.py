"""JSON from clients: what does not decode is an error that names its field; nothing else gets through."""

from __future__ import annotations

from typing import Any

import msgspec

from infctl_daemon.gateway.errors import invalid


def decode(decoder: msgspec.json.Decoder[Any], body: bytes) -> Any:
    """Raises ClientError."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        message = str(error)
        param = message.rpartition("`$.")[2].rstrip("`") if "`$." in message else None
        if "missing required field" in message:
            param = message.partition("`")[2].partition("`")[0]
        raise invalid(message, param) from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise invalid(f"the body is not JSON: {error}", code="malformed_json") from None


def schema_of(response_format: dict[str, Any] | None) -> str | None:
    """OpenAI's `response_format` as SGLang's `json_schema`; None for plain text. Raises ClientError."""
    kind = (response_format or {}).get("type", "text")
    if kind == "text":
        return None
    if kind == "json_object":
        return '{"type": "object"}'
    form = (response_format or {}).get("json_schema")
    if kind != "json_schema" or not isinstance(form, dict) or not isinstance(form.get("schema"), dict):
        raise invalid("response_format is text, json_object or json_schema with its schema", "response_format")
    return msgspec.json.encode(form["schema"]).decode()
