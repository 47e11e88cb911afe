"""The simulated engine's memory and its price list: what a full memory does to streams, what a step costs."""

import asyncio
import json
import time

import httpx

from tests.conformance.sims import BODY, GREEDY, Sim, Start


async def test_memory_that_is_full_retracts_and_nothing_is_lost(start_sim: Start):
    """Three streams of 60 tokens do not fit into 150: some wait again, their clients see a pause and every token."""
    sim = start_sim("--max-total-tokens", "150")
    free = start_sim()

    async def one(engine: Sim, first: int) -> dict[str, object]:
        body = {"input_ids": [first, 301, 302], "sampling_params": {**GREEDY, "max_new_tokens": 60}}
        async with httpx.AsyncClient(timeout=30) as client:
            return dict((await client.post(engine.url + "/generate", json=body)).json())

    got = await asyncio.gather(*(one(sim, 300 + i) for i in range(3)))
    assert [g["output_ids"] for g in got] == [(await one(free, 300 + i))["output_ids"] for i in range(3)]
    assert sum(g["meta_info"]["num_retractions"] for g in got) > 0  # type: ignore[index]


def test_prompt_longer_than_the_memory_is_refused(start_sim: Start):
    sim = start_sim("--max-total-tokens", "100")
    for length, expected in ((93, 200), (94, 400)):
        body = {"input_ids": [300] * length, "sampling_params": {**GREEDY, "max_new_tokens": 2}}
        answer = httpx.post(sim.url + "/generate", json=body, timeout=20)
        assert answer.status_code == expected, length


def test_a_step_costs_more_in_a_large_batch(start_sim: Start):
    sim = start_sim("--sim-decode-seconds", "0", "--sim-decode-seconds-each", "0.01")

    def seconds(n: int) -> float:
        body = {"input_ids": [300], "sampling_params": {**GREEDY, "max_new_tokens": 20, "n": n}}
        began = time.monotonic()
        assert httpx.post(sim.url + "/generate", json=body, timeout=20).status_code == 200
        return time.monotonic() - began

    assert seconds(8) > 3 * seconds(1)


async def test_several_tokens_a_turn_are_frames_of_their_own(start_sim: Start):
    sim, plain = start_sim("--sim-steps-per-turn", "5"), start_sim()
    body = {**BODY, "sampling_params": {**GREEDY, "max_new_tokens": 23}}
    frames: dict[str, list[list[int]]] = {}
    for engine in (sim, plain):
        async with httpx.AsyncClient(timeout=20) as client:
            lines = (await client.post(engine.url + "/generate", json=body)).text.splitlines()
        frames[engine.url] = [json.loads(line[6:])["output_ids"] for line in lines if line.startswith("data: {")]
    assert frames[sim.url] == frames[plain.url]
    assert len(frames[sim.url]) == 23
