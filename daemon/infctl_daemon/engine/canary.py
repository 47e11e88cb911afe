"""One real generation, compared with the pool's known answer.

The answer is recorded once for a model revision, by compare-and-swap: of two groups that start at the same time the
first writer wins and the other is compared with it. An answer of another revision, prompt or length is replaced.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass

from infctl.domain.errors import EngineError, Rejected
from infctl.ports.store import Compare, Get, Put, Store
from infctl.store.codec import BadRecord, decode, encode
from infctl.store.keys import Keys
from infctl.store.records import KnownAnswer, PoolSpec
from infctl.store.stamp import now_text
from infctl_daemon.engine import identity
from infctl_daemon.engine.identity import Identity
from infctl_daemon.engine.probe import Engine


@dataclass(frozen=True, slots=True)
class Wrong:
    """The canary ran and what it says is bad."""

    why: str


@dataclass(slots=True)
class Canary:
    """The check of one launch. `expected` is filled by `check` and used by `still_right` without the store."""

    engine: Engine
    model: Identity
    pool: PoolSpec
    node: str
    input_ids: list[int] | None = None
    expected: tuple[int, ...] = ()

    async def _generate(self, timeout: float) -> tuple[int, ...]:
        if self.input_ids is None:
            ids = await asyncio.to_thread(identity.encode, self.model.tokenizer, self.pool.canary_prompt)
            self.input_ids = [i for i in ids if not self.model.vocab_size or i < self.model.vocab_size] or [1]
        # the name shares no beginning with any stream's: the engine aborts by prefix
        rid = f"canary-{os.urandom(8).hex()}"
        answer = await self.engine.generate(self.input_ids, self.pool.canary_tokens, rid, timeout)
        if answer.weight_version and answer.weight_version != self.model.revision:
            raise Rejected(f"weight version {answer.weight_version!r}, expected {self.model.revision!r}")
        return answer.ids

    async def check(self, store: Store, keys: Keys, timeout: float) -> Wrong | None:
        """None when the answer is the pool's. Raises StoreError when the store cannot say, NotReady on no answer."""
        try:
            ids = await self._generate(timeout)
        except Rejected as error:
            return Wrong(error.message)
        assert self.input_ids is not None
        known = await self._known(store, keys, ids)
        if ids != known:
            return Wrong(f"answered {list(ids)}, the pool's known answer is {list(known)}")
        self.expected = ids
        return None

    async def _known(self, store: Store, keys: Keys, ids: tuple[int, ...]) -> tuple[int, ...]:
        """The pool's answer for this revision and prompt; ours becomes it when there is none."""
        key = keys.pool_answer(self.pool.name)
        kv = await store.get(key)
        for _ in range(8):
            if kv is not None and (found := self._fits(kv.value)) is not None:
                return found
            ours = KnownAnswer(
                revision=self.model.revision,
                input_ids=self.input_ids or [],
                output_ids=list(ids),
                recorded_by=f"node/{self.node}",
                recorded_at=now_text(),
            )
            result = await store.txn(
                [Compare.unchanged(key, kv.mod_revision if kv else 0)], [Put(key, encode(ours))], [Get(key)]
            )
            if result.succeeded:
                return ids
            kv = result.gets[0][0] if result.gets and result.gets[0] else None
        raise EngineError("the pool's known answer changes all the time")

    def _fits(self, value: bytes) -> tuple[int, ...] | None:
        try:
            record = decode(KnownAnswer, value)
        except BadRecord:
            return None
        same = record.revision == self.model.revision and record.input_ids == self.input_ids
        return tuple(record.output_ids) if same and len(record.output_ids) == self.pool.canary_tokens else None

    async def still_right(self, timeout: float) -> Wrong | None:
        """The same question to a running engine, for hang detection. Raises NotReady when nothing comes back.

        A refusal (queue full) is an answer: whoever refuses is not hung.
        """
        try:
            ids = await self._generate(timeout)
        except Rejected:
            return None
        return None if not self.expected or ids == self.expected else Wrong(f"answered {list(ids)}")
