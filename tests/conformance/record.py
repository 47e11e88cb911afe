"""Writes `recorded/`: what the real engine said, byte for byte, to a fixed list of calls.

    python -m tests.conformance.record [NAME ...]

Starts a fresh engine for it, so that nothing is cached. Paths of this machine are replaced by the word MODEL.
`test_engine_recorded` compares shapes, so tokens and times may differ.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import httpx

from tests.conformance.engines import ADMIN_KEY, API_KEY, SGLANG_MODEL, Engine, start

FOLDER = Path(__file__).parent / "recorded"
_GREEDY = {"temperature": 0, "ignore_eos": True}


def _generate(rid: str, *, stream: bool = True, prompt: Any = None, **params: Any) -> dict[str, Any]:
    sampling = {**_GREEDY, "max_new_tokens": 4, **params}
    return {"rid": rid, **(prompt or {"input_ids": [70, 71, 72]}), "stream": stream, "sampling_params": sampling}


CALLS: dict[str, tuple[str, str, dict[str, Any] | str | None]] = {
    "stream": ("POST", "/generate", _generate("rec-1")),
    "stream-cached": ("POST", "/generate", _generate("rec-2")),
    "whole": ("POST", "/generate", _generate("rec-3", stream=False, prompt={"input_ids": [80, 81, 82, 83]})),
    "no-tokens": ("POST", "/generate", _generate("rec-4", stream=False, prompt={"input_ids": [90]}, max_new_tokens=0)),
    "logprobs-stream": (
        "POST", "/generate",
        _generate("rec-8", prompt={"input_ids": [84, 85, 86]})
        | {"return_logprob": True, "top_logprobs_num": 2, "logprob_start_len": 1, "return_text_in_logprobs": True},
    ),
    "logprobs": (
        "POST", "/generate",
        _generate("rec-9", stream=False, prompt={"input_ids": [87, 88]})
        | {"return_logprob": True, "token_ids_logprob": [40, 41]},
    ),
    "batch": ("POST", "/generate", _generate("rec-10", stream=False, prompt={"input_ids": [[91, 92], [93]]})),
    "adapter-off": ("POST", "/generate", _generate("rec-11", stream=False) | {"lora_path": "one"}),
    "refused-stream": ("POST", "/generate", {"stream": True}),
    "refused": ("POST", "/generate", {}),
    "contract": ("POST", "/generate", _generate("rec-5", stop_token_ids="x")),
    "malformed": ("POST", "/generate", '{"text":'),
    "too-long-stream": ("POST", "/generate", _generate("rec-6", prompt={"input_ids": [50] * 4090})),
    "too-long": ("POST", "/generate", _generate("rec-7", stream=False, prompt={"input_ids": [50] * 4090})),
    "abort": ("POST", "/abort_request", {"rid": "none"}),
    "ready": ("GET", "/ready", None),
    "loads": ("GET", "/v1/loads", None),
    "model-info": ("GET", "/model_info", None),
    "models": ("GET", "/v1/models", None),
    "model-missing": ("GET", "/v1/models/other", None),
    "tokenize": ("POST", "/tokenize", {"prompt": "a worker"}),
    "detokenize": ("POST", "/detokenize", {"tokens": [70, 71]}),
    "not-found": ("GET", "/no_such_path", None),
    "messages": ("POST", "/tokenize", {"messages": [{"role": "user", "content": "a worker"}]}),
    "no-messages": ("POST", "/tokenize", {"messages": []}),
    "weights": ("POST", "/update_weight_version", {"new_version": "rev-1"}),
    "continue": ("POST", "/continue_generation", {}),
    "adapter-load": ("POST", "/load_lora_adapter", {"lora_name": "one", "lora_path": "/none"}),
    "no-key": ("GET", "/v1/loads?no-key", None),
}  # fmt: skip
ADMIN_CALLS = ("abort", "weights", "continue", "adapter-load")
OPEN_CALLS = ("no-key",)


def shown(content: dict[str, Any] | str | None) -> Any:
    """The request as it is kept: a long prompt by its length."""
    if isinstance(content, dict) and len(content.get("input_ids", ())) > 100:
        return {**content, "input_ids": f"{len(content['input_ids'])} times {content['input_ids'][0]}"}
    return content


def send(client: httpx.Client, name: str, key: str, admin: str) -> httpx.Response:
    """One of `CALLS`."""
    method, path, content = CALLS[name]
    headers = {"Content-Type": "application/json"}
    if name not in OPEN_CALLS:
        headers["Authorization"] = f"Bearer {admin if name in ADMIN_CALLS else key}"
    raw = content if isinstance(content, str) else json.dumps(content) if content is not None else None
    return client.request(method, path, content=raw, headers=headers)


def record(engine: Engine, names: list[str]) -> None:
    with httpx.Client(base_url=engine.url, timeout=60) as client:
        version = send(client, "loads", API_KEY, ADMIN_KEY).json()["version"]
        for name in names:
            method, path, content = CALLS[name]
            answer = send(client, name, API_KEY, ADMIN_KEY)
            body = re.sub(r'/[^"\' ]*/(?:models/[^"/]+|site-packages/[^"\\]*?\.py)', "MODEL", answer.text)
            kept = ("content-type", "transfer-encoding", "server", "allow")
            sample = {
                "sglang": version,
                "request": {"method": method, "path": path, "body": shown(content)},
                "status": answer.status_code,
                "headers": {k: v for k, v in answer.headers.items() if k in kept},
                "body": body,
            }
            text = json.dumps(sample, indent=1, ensure_ascii=False) + "\n"
            (FOLDER / f"{name}.json").write_text(text, encoding="utf-8")


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        engine = start("sglang", SGLANG_MODEL, Path(folder))
        try:
            record(engine, sys.argv[1:] or list(CALLS))
        finally:
            engine.end()


if __name__ == "__main__":
    main()
