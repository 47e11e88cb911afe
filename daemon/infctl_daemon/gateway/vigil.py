"""Workers that the store does not vouch for at this moment, and what lets them have new work all the same (R5, R7).

Two kinds. An endpoint that left the store without a fault notice lost a lease, not its engine: its owner registers the
same launch again within moments. And what a gateway reads from its own disk was true once. Kept true: such a launch
gets new work only while it answers a probe with its own key and its daemon, where that can be reached, does not call it
over; whoever does not come back into the store is forgotten, but only in time during which the store could have said
so. While the store is away the daemons of all the others are asked, too.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import aiohttp
import structlog

from infctl.ports.tls import TlsFiles
from infctl.store.records import EndpointRecord
from infctl_daemon.gateway.witness import Daemons, Word
from infctl_daemon.runtime.log import about

log = structlog.get_logger()

EVERY = 1.0
WINDOW = 3.0  # how long one good answer counts; a busy machine may miss the next probe or two
AT_ONCE = 32
A_SECOND = 250  # so many probes a second at most, once each was asked
FOREVER = float("inf")


class Proof(Enum):
    """What a probe brought."""

    LIVES = "lives"
    REFUSED = "refused"  # a definite no: nobody listens, or another launch does
    SILENT = "silent"


@dataclass(slots=True)
class Doubt:
    """`left`: seconds until it is forgotten, run down only while the store is heard; `until` counts in any case."""

    proven_at: float
    left: float
    until: float = FOREVER


class Doubts:
    """The launches in doubt. `now` is monotonic seconds."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._of: dict[str, Doubt] = {}
        self.window = WINDOW
        self.added = asyncio.Event()

    def __contains__(self, launch: str) -> bool:
        return launch in self._of

    def __len__(self) -> int:
        return len(self._of)

    def items(self) -> Iterator[tuple[str, Doubt]]:
        return iter(list(self._of.items()))

    def add(self, launch: str, left: float, *, proven: bool, until: float = FOREVER) -> None:
        """Begin to doubt. `proven`: it was vouched for until this moment. A doubt that exists goes on."""
        old = self._of.get(launch)
        if old is not None and old.until == until:
            return
        proven_at = self._now() if proven else -FOREVER
        self._of[launch] = Doubt(old.proven_at if old else proven_at, left, until)
        self.added.set()

    def settle(self, launch: str) -> None:
        """The store speaks for it again, or it is gone."""
        self._of.pop(launch, None)

    def allows(self, launch: str) -> bool:
        """May it get new work?"""
        doubt = self._of.get(launch)
        return doubt is None or self._now() - doubt.proven_at <= self.window

    def probed(self, launch: str, proof: Proof) -> None:
        if (doubt := self._of.get(launch)) is None:
            return
        if proof is Proof.LIVES:
            doubt.proven_at = self._now()
        elif proof is Proof.REFUSED:
            doubt.proven_at = -FOREVER


class Doubted(Protocol):
    """What the vigil needs of the routing table."""

    doubts: Doubts

    @property
    def away(self) -> bool: ...

    def address(self, launch: str) -> tuple[str, str] | None:
        """Url and key."""
        ...

    def record(self, launch: str) -> EndpointRecord | None: ...

    def unproven(self) -> list[str]:
        """Launches that get work on the store's last word alone."""
        ...

    def over(self, launch: str) -> bool:
        """Its own daemon says that it was ended; False when that was known."""
        ...

    def forget(self, launch: str) -> None: ...


class Vigil:
    """Probes every doubted launch about once a second, and forgets those whose time is over."""

    def __init__(
        self, fleet: Doubted, http: aiohttp.ClientSession, timeout: float, tls: TlsFiles | None = None
    ) -> None:
        self._fleet = fleet
        self._http = http
        self.timeout = timeout
        self._daemons = Daemons(http, tls)
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def run(self) -> None:
        doubts = self._fleet.doubts
        loop = asyncio.get_running_loop()
        began = loop.time()
        while True:
            if not doubts and not self._fleet.away:
                doubts.added.clear()
                await doubts.added.wait()
                began = loop.time()
            asked = loop.time()
            others = self._fleet.unproven() if self._fleet.away else []
            every = max(EVERY, (len(doubts) + len(others)) / A_SECOND)
            await asyncio.gather(self._round(), *(self._second_opinion(launch) for launch in others))
            took = loop.time() - asked
            doubts.window = max(WINDOW, 2.5 * (took + every))
            await asyncio.sleep(max(0.1, every - took))
            began, passed = loop.time(), loop.time() - began
            for launch, doubt in doubts.items():
                if not self._fleet.away:
                    doubt.left -= passed
                if doubt.left <= 0 or began >= doubt.until:
                    words = {"launch": launch, **about(self._fleet.record(launch))}
                    log.warning("endpoint.forgotten", **words, why="it did not come back into the store")
                    self._fleet.forget(launch)

    async def _round(self) -> None:
        """Ask everybody once. When half of four or more are silent together, it is us or the net, not they (R6)."""
        doubts = self._fleet.doubts
        before = {launch for launch, _ in doubts.items() if doubts.allows(launch)}
        proofs = dict(await asyncio.gather(*(self._one(launch) for launch, _ in doubts.items())))
        silent = {launch for launch, proof in proofs.items() if proof is Proof.SILENT}
        if len(proofs) >= 4 and 2 * len(silent) >= len(proofs):
            log.warning(
                "probes.silent", silent=len(silent), asked=len(proofs), why="holding: what was routable stays so"
            )
            for launch in silent & before:
                doubts.probed(launch, Proof.LIVES)

    async def _one(self, launch: str) -> tuple[str, Proof]:
        async with self._slots:
            at = self._fleet.address(launch)
            if at is None:
                proof = Proof.REFUSED
            else:
                proof, word = await asyncio.gather(self._probe(*at), self._ask(launch, at[1]))
                if word is Word.OVER:
                    proof = Proof.REFUSED
                elif word is Word.CUT_OFF and proof is Proof.LIVES and not self._fleet.away:
                    # the store is there for us and not for its daemon: nobody can say whose the group is by now
                    proof = Proof.SILENT
            self._fleet.doubts.probed(launch, proof)
            return launch, proof

    async def _second_opinion(self, launch: str) -> None:
        async with self._slots:
            if (at := self._fleet.address(launch)) is not None:
                await self._ask(launch, at[1])

    async def _ask(self, launch: str, api_key: str) -> Word:
        """The word of the launch's daemon. One that it calls over gets nothing from here on."""
        record = self._fleet.record(launch)
        word = await self._daemons.ask(record, api_key, self.timeout) if record is not None else Word.NONE
        if word is Word.OVER and self._fleet.over(launch):
            words = {"launch": launch, **about(record)}
            log.warning("endpoint.over", **words, why="its daemon says that this launch was ended")
        return word

    async def _probe(self, url: str, api_key: str) -> Proof:
        limit = aiohttp.ClientTimeout(total=self.timeout)
        headers = {"authorization": f"Bearer {api_key}"}
        try:
            async with self._http.get(f"{url}/v1/loads?include=core", headers=headers, timeout=limit) as answer:
                await answer.read()
                return Proof.LIVES if answer.status == 200 else Proof.REFUSED
        except TimeoutError:
            return Proof.SILENT
        except (aiohttp.ClientError, OSError):
            return Proof.REFUSED
