"""Each engine's answers have the shape of those recorded from the real one: keys, their order, kinds of values."""

import json
from typing import Any

import httpx
import pytest

from tests.conformance.engines import ADMIN_KEY, API_KEY, Engine
from tests.conformance.record import CALLS, FOLDER, send

MORE_IN_THE_REAL_ONE = {"model-info": {"embedding"}}
"""Keys that the simulated engine leaves out, by sample: nothing of ours reads them."""

SAMPLES = sorted(path.stem for path in FOLDER.glob("*.json"))


def shape(value: Any) -> Any:
    """Keys in order with the kind of each value; a list has the shape of its first element."""
    if isinstance(value, dict):
        return [(key, shape(inner)) for key, inner in value.items()]
    if isinstance(value, list):
        return ["list", *(shape(inner) for inner in value[:1])]
    return "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__


def shapes(text: str) -> Any:
    """Shape of an answer; of a stream, the shapes of its frames in order, each once."""
    if not text.startswith("data: "):
        return shape(json.loads(text)) if text else None
    out: list[Any] = []
    for block in filter(None, text.split("\n\n")):
        found = "DONE" if block == "data: [DONE]" else shape(json.loads(block[6:]))
        if not out or out[-1] != found:
            out.append(found)
    return out


def test_every_call_was_recorded():
    assert sorted(CALLS) == SAMPLES


@pytest.mark.parametrize("name", SAMPLES)
def test_answer_has_the_recorded_shape(engine: Engine, name: str):
    recorded = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    with httpx.Client(base_url=engine.url, timeout=60) as client:
        if name != "stream-cached":
            headers = {"Authorization": f"Bearer {ADMIN_KEY}"}
            client.post("/flush_cache", headers=headers).raise_for_status()
        answer = send(client, name, API_KEY, ADMIN_KEY)
        if name == "stream-cached":
            answer = send(client, name, API_KEY, ADMIN_KEY)
    assert answer.status_code == recorded["status"]
    for header, value in recorded["headers"].items():
        got = answer.headers.get(header)
        assert sorted(got.replace(" ", "").split(",")) == sorted(value.replace(" ", "").split(",")), header
    want = shapes(recorded["body"])
    if engine.kind == "sim" and name in MORE_IN_THE_REAL_ONE:
        want = [entry for entry in want if entry[0] not in MORE_IN_THE_REAL_ONE[name]]
    assert shapes(answer.text) == want
