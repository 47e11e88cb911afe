"""Adapters of the simulated engine. What they answer is what SGLang 0.5.23 answered; it has no adapters on a plain CPU
(it asks for pinned memory), so the suite shows only the refusals of an engine without them on both.
"""

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from infctl_daemon.engine.sim.model import write_model
from tests.conformance.engines import Engine
from tests.conformance.sims import Sim, launch, wait_ready
from tests.conformance.streams import body, call, stream

OFF = (
    "LoRA adapter 'one' was requested, but LoRA is not enabled. Please launch the server with --enable-lora flag and "
    "preload adapters using --lora-paths or /load_lora_adapter endpoint."
)


async def test_adapter_of_an_engine_without_adapters_is_refused(engine: Engine):
    answer = await call(engine, {**body(stream=False), "lora_path": "one"})
    assert (answer.status_code, answer.json()) == (400, {"error": {"message": OFF}})
    got = await stream(engine, {**body(), "lora_path": "one"})
    assert got.status == 200
    assert got.frames[0]["error"]["message"] == OFF
    plain = await call(engine, {**body(stream=False), "lora_path": ""})
    assert plain.status_code == 200


async def test_adapters_cannot_be_loaded_into_an_engine_without_them(engine: Engine):
    said = "LoRA is not enabled. Please set `--enable-lora` to enable LoRA."
    expected = {"rid": None, "http_worker_ipc": None, "success": False, "error_message": said, "loaded_adapters": None}
    async with engine.admin() as client:
        load = await client.post("/load_lora_adapter", json={"lora_name": "one", "lora_path": "/x"})
        unload = await client.post("/unload_lora_adapter", json={"lora_name": "one"})
    assert (load.status_code, load.json()) == (400, expected)
    assert (unload.status_code, unload.json()) == (400, expected)
    async with engine.client() as client:
        assert (await client.post("/load_lora_adapter", json={})).status_code == 401


class Fleet:
    """One engine with two adapters in folders, the first loaded at the start, two at most."""

    def __init__(self, sim: Sim, folder: Path) -> None:
        self.sim = sim
        self.folder = folder

    def post(self, path: str, **content: Any) -> httpx.Response:
        return httpx.post(self.sim.url + path, json=content, timeout=20)

    def load(self, name: str, folder: str | None = None) -> dict[str, Any]:
        answer = self.post("/load_lora_adapter", lora_name=name, lora_path=str(self.folder / (folder or name)))
        said = answer.json()
        assert list(said) == ["rid", "http_worker_ipc", "success", "error_message", "loaded_adapters"]
        assert answer.status_code == (200 if said["success"] else 400)
        return dict(said)

    def listed(self) -> list[str]:
        return [m["id"] for m in httpx.get(self.sim.url + "/v1/models").json()["data"]][1:]

    def say(self, name: str | None, ids: list[int] | None = None, n: int = 12) -> httpx.Response:
        params = {"temperature": 0, "max_new_tokens": n}
        return self.post("/generate", input_ids=ids or [300, 301, 302], lora_path=name, sampling_params=params)

    def ids(self, name: str | None, ids: list[int] | None = None, n: int = 12) -> list[int]:
        return list(self.say(name, ids, n).json()["output_ids"])


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    write_model(tmp_path / "model")
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "adapter_config.json").write_text(json.dumps({"r": 4}))
    flags = ["--enable-lora", "--lora-paths", f"one={tmp_path / 'one'}", "--max-loaded-loras", "2"]
    sim = launch(tmp_path / "model", tmp_path, *flags)
    wait_ready(sim)
    yield Fleet(sim, tmp_path)
    sim.end()


def test_each_adapter_says_something_else_and_stays_the_same_in_a_replay(fleet: Fleet):
    fleet.load("two")
    base, one, two = fleet.ids(None), fleet.ids("one"), fleet.ids("two")
    assert len({tuple(base), tuple(one), tuple(two)}) == 3
    assert fleet.ids("one", [300, 301, 302, *one[:5]], 7) == one[5:]
    assert fleet.ids(None) == base


def test_cache_of_one_adapter_is_not_anothers(fleet: Fleet):
    fleet.ids("one")
    assert fleet.say("one").json()["meta_info"]["cached_tokens"] == 2
    assert fleet.say(None).json()["meta_info"]["cached_tokens"] == 0


def test_models_list_names_the_adapters_and_one_model_does_not(fleet: Fleet):
    cards = httpx.get(fleet.sim.url + "/v1/models").json()["data"]
    base, one = cards
    assert (one["id"], one["root"], one["parent"]) == ("one", str(fleet.folder / "one"), base["id"])
    assert one["max_model_len"] is None
    assert base["parent"] is None
    assert httpx.get(fleet.sim.url + "/v1/models/one").status_code == 404


def test_never_loaded_is_refused_and_unloaded_comes_back(fleet: Fleet):
    answer = fleet.say("two")
    message = "Got LoRA adapter that has never been loaded: two\nAll loaded adapters: dict_keys(['one'])."
    assert (answer.status_code, answer.json()) == (400, {"error": {"message": message}})
    first = fleet.ids("one")
    gone = fleet.post("/unload_lora_adapter", lora_name="one").json()
    assert (gone["success"], gone["error_message"], gone["loaded_adapters"]) == (True, "", {})
    assert fleet.listed() == []
    assert fleet.ids("one") == first
    assert fleet.listed() == ["one"]


def test_loading_and_unloading(fleet: Fleet):
    said = fleet.load("two")
    folders = {name: str(fleet.folder / name) for name in ("one", "two")}
    assert (said["success"], said["error_message"], said["loaded_adapters"]) == (True, "", folders)
    again = fleet.load("two")
    assert again["error_message"] == "Failed to load LoRA adapter two because it is already loaded"
    assert again["loaded_adapters"] == folders
    assert fleet.load("four", "nowhere")["success"] is False
    fleet.ids("one")
    assert list(fleet.load("three", "two")["loaded_adapters"]) == ["one", "three"], "the least used one leaves"
    never = fleet.post("/unload_lora_adapter", lora_name="never").json()
    expected = "LoRA with name never does not exist. Loaded LoRAs: odict_keys(['one', 'three'])"
    assert (never["error_message"], never["loaded_adapters"]) == (expected, None)


async def test_unloading_waits_for_who_uses_it(fleet: Fleet):
    async with httpx.AsyncClient(timeout=20) as client:
        params = {"temperature": 0, "max_new_tokens": 100}
        request = {"input_ids": [300], "lora_path": "one", "sampling_params": params}
        running = asyncio.create_task(client.post(fleet.sim.url + "/generate", json=request))
        await asyncio.sleep(0.2)
        began = time.monotonic()
        await client.post(fleet.sim.url + "/unload_lora_adapter", json={"lora_name": "one"})
        assert running.done() or time.monotonic() - began > 0.3
        assert len((await running).json()["output_ids"]) == 100


def test_a_batch_may_mix_adapters(fleet: Fleet):
    params = {"temperature": 0, "max_new_tokens": 12}
    ids = [[300, 301, 302]] * 2
    answers = fleet.post("/generate", input_ids=ids, lora_path=["one", None], sampling_params=params).json()
    assert [a["output_ids"] for a in answers] == [fleet.ids("one"), fleet.ids(None)]
