"""The demo: a cluster of its own, a stream, a fault in the middle, and the verdict of a separate client process.

Kept true: whatever happens, Ctrl-C included, the cluster and its folder are gone at the end; the driver makes the
fault and reads clocks, but tokens are counted only by the witness (`witness.py`), which knows nothing of the fault.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infctl.adapters.etcd import EtcdStore
from infctl.client.demo.fault import Fault, Struck, Target
from infctl.client.demo.findings import Seen, Side, assemble
from infctl.client.demo.observer import Observer
from infctl.client.demo.report import Arrivals, Outcome, first
from infctl.client.demo.traffic import Tally, dispatches, flush_cache, small_requests
from infctl.client.local.cluster import LocalCluster, Running, Say
from infctl.client.local.plan import GROUPS, MODEL, Engine, Layout
from infctl.domain.errors import DeadlineExceeded, InfctlError, NotReady, StoreError, UsageError
from infctl.store.codec import decode
from infctl.store.records import EndpointRecord, Generation, GroupStatus, Secret, StreamRecord

# begins unlike the canary's prompt and the small requests: nothing of it is in any cache
_PROMPT = "Every client follows one stream, and the worker"


@dataclass(frozen=True, slots=True)
class Options:
    """Times are seconds. `at`: the fault comes when this many tokens have arrived."""

    engine: Engine
    fault: Fault
    tokens: int = 256
    at: int = 127
    streams: int = 1
    keep: bool = False

    def check(self) -> None:
        """Raises UsageError."""
        if self.tokens < 2 or self.streams < 1:
            raise UsageError("--tokens must be at least 2 and --streams at least 1")
        if not 0 < self.at < self.tokens:
            raise UsageError(f"--at must be between 1 and {self.tokens - 1}, so that something is left to generate")

    @property
    def reference_first(self) -> bool:
        """Real arithmetic depends on what is cached: the reference runs while both groups are equally fresh."""
        return self.engine is Engine.SGLANG

    @property
    def stream_deadline(self) -> float:
        """For stream and reference together: generous, a slow machine is not a lost token."""
        a_token = 0.05 if self.engine is Engine.SIM else 0.5
        return 120.0 + 4 * self.tokens * a_token


class Demo:
    """One run. `say` gets progress (a line that begins with a line break interrupts the text), `text` what the
    model says, as it comes."""

    def __init__(self, options: Options, say: Say, text: Callable[[str], None]) -> None:
        options.check()
        self.options = options
        self._say = say
        self._text = text
        self._arrivals = [Arrivals() for _ in range(options.streams)]
        self._verdict: list[dict[str, Any]] = []
        self._reached = asyncio.Event()
        self._opened = asyncio.Event()
        self._referred = asyncio.Event()

    async def run(self) -> Outcome:
        """Raises InfctlError when the cluster does not come up or the witness does not answer in time."""
        root = Path(tempfile.mkdtemp(prefix="infctl-demo-"))
        cluster = LocalCluster(Layout(root), self._say)
        try:
            running = await cluster.start(self.options.engine, streams=self.options.streams)
            store = EtcdStore([running.endpoint])
            try:
                return await self._play(cluster, running, store)
            finally:
                await store.close()
        finally:
            await asyncio.shield(self._clean(cluster, root))

    async def _clean(self, cluster: LocalCluster, root: Path) -> None:
        """Bounded, and not to be interrupted: a second Ctrl-C here would leave engines behind."""
        self._say("cleaning up")
        with _deaf():
            try:
                await cluster.stop(hurry=True)
            finally:
                if self.options.keep:
                    self._say(f"kept {root}")
                else:
                    await asyncio.to_thread(shutil.rmtree, root, True)

    async def _play(self, cluster: LocalCluster, running: Running, store: EtcdStore) -> Outcome:
        observer = Observer(store, cluster.keys)
        await observer.start()
        group, other = GROUPS
        tally = Tally()
        try:
            async with (
                self._witness(running.gateway, group, other) as (reading, go),
                asyncio.timeout(self.options.stream_deadline),
            ):
                if self.options.reference_first:
                    await self._wait(self._referred, reading)
                    await self._flush(store, cluster, other)
                    go()
                await self._wait(self._opened, reading)
                record = await self._stream_record(store, cluster, reading)
                before = await self._side(store, cluster, record.group)
                struck = await self._strike(store, cluster, record.group, reading)
                traffic = asyncio.create_task(
                    small_requests(running.gateway, 0.025 if self.options.engine is Engine.SIM else 0.2, tally)
                )
                try:
                    seen = await self._after(observer, running, before, struck)
                finally:
                    traffic.cancel()
                    await asyncio.gather(traffic, return_exceptions=True)
                await reading
            after = await self._relaunched(store, cluster, record.group, before, struck)
            seen.after, seen.dispatched = after, await dispatches(running.admin)
        except TimeoutError:
            raise DeadlineExceeded(
                f"the streams did not end within {self.options.stream_deadline:.0f} s",
                hint=f"gateway log:\n{cluster.log_tail('gateway')}",
            ) from None
        finally:
            await observer.stop()
        seen.events, seen.noticed = observer.events, observer.noticed
        seen.tally = tally
        return assemble(self.options.engine.value, self.options.fault.value, self.options.tokens, seen)

    async def _strike(
        self, store: EtcdStore, cluster: LocalCluster, group: str, reading: asyncio.Task[None]
    ) -> Struck | None:
        if self.options.fault is Fault.NONE:
            return None
        status = await store.get(cluster.keys.group_status(group))
        if status is None:
            raise NotReady(f"group/{group} has no status")
        target = Target(decode(GroupStatus, status.value).pid)
        await self._wait(self._reached, reading)
        struck = target.strike(self.options.fault)
        self._say(f"\n{struck.what} of group/{group}")
        return struck

    async def _after(self, observer: Observer, running: Running, before: Side, struck: Struck | None) -> Seen:
        """Let the small requests run until the first stream has moved, and a moment longer."""
        seen = Seen(self._arrivals, self._verdict, before, struck)
        if struck is not None:
            subject = f"stream/{self._arrivals[0].id}"
            await observer.until(lambda: before.launch in observer.noticed, 30.0)
            seen.dispatched_at_notice = await dispatches(running.admin)
            await observer.until(lambda: first(observer.events, "stream.resumed", subject) is not None, 30.0)
            await asyncio.sleep(1.0)
        return seen

    async def _flush(self, store: EtcdStore, cluster: LocalCluster, group: str) -> None:
        """Empty the group's KV cache: a replay that finds the reference's would look faster than it is."""
        endpoint = await store.get(cluster.keys.endpoint(group))
        secret = await store.get(cluster.keys.secret(group))
        if endpoint is not None and secret is not None:
            url, key = decode(EndpointRecord, endpoint.value).url, decode(Secret, secret.value).api_key
            if await flush_cache(url, key):
                return
        self._say(f"could not empty the cache of group/{group}: prefill_ms will be too good")

    async def _side(self, store: EtcdStore, cluster: LocalCluster, group: str) -> Side:
        found = await store.get(cluster.keys.group_generation(group))
        if found is None:
            raise NotReady(f"group/{group} has no generation")
        generation = decode(Generation, found.value)
        return Side(group, generation.launch, generation.generation)

    async def _relaunched(
        self, store: EtcdStore, cluster: LocalCluster, group: str, before: Side, struck: Struck | None
    ) -> Side:
        """The group's registration at the end; after a fault it is waited for."""
        loop = asyncio.get_running_loop()
        until = loop.time() + (30.0 if struck is not None else 0.0)
        while True:
            with contextlib.suppress(StoreError):
                side = await self._side(store, cluster, group)
                if side.launch != before.launch or loop.time() >= until:
                    return side
            if loop.time() >= until:
                return before
            await asyncio.sleep(0.1)

    async def _stream_record(
        self, store: EtcdStore, cluster: LocalCluster, reading: asyncio.Task[None]
    ) -> StreamRecord:
        """What the gateway recorded about the first stream: which group has it."""
        async with asyncio.timeout(10.0):
            while not reading.done():
                found = await store.get(cluster.keys.stream(self._arrivals[0].id))
                if found is not None and (record := decode(StreamRecord, found.value)).group:
                    return record
                await asyncio.sleep(0.02)
        raise NotReady("the stream ended before it was recorded", hint=self._arrivals[0].error)

    async def _wait(self, event: asyncio.Event, reading: asyncio.Task[None]) -> None:
        """Wait for `event`, but no longer than the witness lives."""
        waiting = asyncio.create_task(event.wait())
        try:
            await asyncio.wait({waiting, reading}, return_when=asyncio.FIRST_COMPLETED)
            if not event.is_set():
                await reading  # its own error, where it has one
                why = next((a.error for a in self._arrivals if a.error), "the witness ended")
                raise InfctlError(f"the stream ended before the fault: {why}", reason="StreamFailed")
        finally:
            waiting.cancel()

    @asynccontextmanager
    async def _witness(
        self, url: str, group: str, other: str
    ) -> AsyncIterator[tuple[asyncio.Task[None], Callable[[], None]]]:
        """The witness process, killed at the end if it still runs: the task that reads its lines, and its start."""
        o = self.options
        argv = [sys.executable, "-m", "infctl.client.demo.witness", "--url", url, "--model", MODEL]
        argv += ["--prompt", _PROMPT, "--tokens", str(o.tokens), "--streams", str(o.streams)]
        argv += ["--group", group, "--reference", other]
        argv += ["--reference-first"] if o.reference_first else []
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            limit=1 << 24,
            start_new_session=True,  # Ctrl-C is ours to handle
        )
        reading = asyncio.create_task(self._read(process))
        assert process.stdin is not None
        stdin = process.stdin
        try:
            yield reading, lambda: stdin.write(b"go\n")
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
            await asyncio.wait({reading}, timeout=5.0)
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), 5.0)

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None and process.stderr is not None
        async for line in process.stdout:
            self._heard(json.loads(line))
        errors = (await process.stderr.read()).decode(errors="replace").strip()
        await process.wait()
        if not self._verdict:
            raise InfctlError(f"the witness gave no verdict: {errors[-1000:] or 'no word from it'}", reason="NoVerdict")

    def _heard(self, line: dict[str, Any]) -> None:
        match line:
            case {"kind": "opened", "stream": n, "id": name}:
                self._arrivals[n].id = name
                if n == 0:
                    self._opened.set()
            case {"kind": "frame", "stream": n, "n": count, "total": total, "text": text, "t": t}:
                if count:
                    self._arrivals[n].frames.append((total, t))
                if n == 0:
                    self._text(text)
                    if total >= self.options.at:
                        self._reached.set()
            case {"kind": "ended", "stream": n, "error": error}:
                self._arrivals[n].error = error
                if n == 0:
                    self._text("\n")
            case {"kind": "reference", "group": group}:
                self._say(f"the witness asks group/{group} for an uninterrupted run")
            case {"kind": "referred"}:
                self._referred.set()
            case {"kind": "note", "text": text}:
                self._say(text)
            case {"kind": "verdict", "streams": streams}:
                self._verdict.extend(streams)


@contextlib.contextmanager
def _deaf() -> Any:
    """Ignore Ctrl-C for a while; the loop's own handler comes back afterwards."""
    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before if before is not None else signal.SIG_DFL)
