"""Requests of the driver's own: small ones all through the fault, which show whether new work still reaches the dead
launch, and a few words with the gateway's operator API and the engines.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import httpx

from infctl.client.local.plan import MODEL


@dataclass(slots=True)
class Tally:
    sent: int = 0
    served: int = 0


async def small_requests(url: str, every: float, tally: Tally) -> None:
    """One token every `every` seconds until cancelled; answers are counted, nothing waits for them."""
    body = {"model": MODEL, "prompt": "Say", "max_tokens": 1, "temperature": 0}
    async with httpx.AsyncClient(base_url=url, timeout=30.0, trust_env=False) as http:

        async def one() -> None:
            tally.sent += 1
            try:
                response = await http.post("/v1/completions", json=body)
            except httpx.HTTPError:
                return
            tally.served += response.status_code == 200

        running: set[asyncio.Task[None]] = set()
        try:
            while True:
                task = asyncio.create_task(one())
                running.add(task)
                task.add_done_callback(running.discard)
                await asyncio.sleep(every)
        finally:
            if running:
                await asyncio.wait(running, timeout=5.0)
            for task in list(running):
                task.cancel()


async def flush_cache(url: str, api_key: str) -> bool:
    """Ask an engine to forget its KV cache; it refuses while requests run, so this asks a few times."""
    headers = {"authorization": f"Bearer {api_key}"}
    async with httpx.AsyncClient(timeout=10.0, trust_env=False, headers=headers) as http:
        for _ in range(10):
            try:
                if (await http.post(f"{url}/flush_cache")).status_code == 200:
                    return True
            except httpx.HTTPError:
                return False
            await asyncio.sleep(0.5)
    return False


async def dispatches(admin: str) -> dict[str, tuple[int, float]]:
    """Of each launch: requests ever sent to it, and when the last one was (epoch ms). Empty without an answer."""
    try:
        async with httpx.AsyncClient(timeout=5.0, trust_env=False) as http:
            found = (await http.get(f"{admin}/v1/launches")).json()
        return {k: (int(v["dispatched"]), float(v["last_dispatch_at_ms"])) for k, v in found.items()}
    except (httpx.HTTPError, ValueError, KeyError, TypeError):
        return {}
