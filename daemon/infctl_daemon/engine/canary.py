"""One real generation, compared with the pool's known answer.

Kept true: an endpoint is published only after an engine gave the answer on which the pool's groups agree (R2), or the
first answer of all, which is provisional until a second group gives it (`domain.answers`). A group that serves on a
provisional answer looks again whether it was outvoted, and a store that does not answer changes nothing (R5).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass

from infctl.domain.answers import Answers, Verdict, Voice
from infctl.domain.errors import Rejected, StoreError
from infctl.ports.store import Store
from infctl.store.keys import Keys
from infctl.store.records import PoolSpec
from infctl.store.stamp import now_text
from infctl_daemon.engine import identity, known_answer
from infctl_daemon.engine.identity import Identity
from infctl_daemon.engine.known_answer import Question
from infctl_daemon.engine.probe import Engine

LOOK_TIMEOUT = 1.0

# as `node.events.EventWriter.say`
Say = Callable[..., None]


@dataclass(frozen=True, slots=True)
class Wrong:
    """The canary ran and what it says is bad."""

    why: str


@dataclass(slots=True)
class Canary:
    """The check of one launch. `expected` is filled by `check` and used by `still_right`; as long as it is provisional
    (`confirmed` is False) the store is asked too."""

    engine: Engine
    model: Identity
    pool: PoolSpec
    node: str
    input_ids: list[int] | None = None
    expected: tuple[int, ...] = ()
    group: str = ""
    say: Say | None = None
    confirmed: bool = False
    source: str = ""
    _known: tuple[Store, str] | None = None

    async def _generate(self, timeout: float) -> tuple[int, ...]:
        if self.input_ids is None:
            ids = await asyncio.to_thread(identity.encode, self.model.tokenizer, self.pool.canary_prompt)
            self.input_ids = [i for i in ids if not self.model.vocab_size or i < self.model.vocab_size] or [1]
        # the name shares no beginning with any stream's: the engine aborts by prefix
        rid = f"canary-{os.urandom(8).hex()}"
        answer = await self.engine.generate(self.input_ids, self.pool.canary_tokens, rid, timeout)
        if answer.weight_version and answer.weight_version != self.model.revision:
            why = f"weight version {answer.weight_version!r}, expected {self.model.revision!r}"
            raise Rejected(why, reason="WrongRevision")
        return answer.ids

    @property
    def _question(self) -> Question:
        return Question(self.model.revision, tuple(self.input_ids or ()), self.pool.canary_tokens)

    def _operators(self) -> tuple[int, ...]:
        """The answer in the pool's specification, where it is about our revision."""
        fits = identity.names(self.pool.canary_revision, self.model.revision)
        return tuple(self.pool.canary_answer) if fits else ()

    async def check(self, store: Store, keys: Keys, timeout: float) -> Wrong | None:
        """None when the answer is the pool's. Raises StoreError when the store cannot say, NotReady on no answer."""
        try:
            ids = await self._generate(timeout)
        except Rejected as error:
            return Wrong(error.message)
        if len(ids) != self.pool.canary_tokens:
            return Wrong(f"answered {len(ids)} tokens, {self.pool.canary_tokens} were asked for")
        key = keys.pool_answer(self.pool.name)
        voice = Voice(self.group or self.node, ids, now_text())
        verdict = await known_answer.tell(store, key, self._question, voice, self._operators(), f"node/{self.node}")
        self._announce(verdict, voice)
        if not verdict.right:
            return Wrong(self._differs(ids, verdict.answers.ids, verdict.answers.source))
        self._known = (store, key)
        self._adopt(verdict.answers)
        return None

    def resume(self, expected: tuple[int, ...], store: Store, keys: Keys) -> None:
        """What an earlier life of the daemon had found right; whether it was confirmed is looked up when it matters."""
        self.expected = expected
        self._known = (store, keys.pool_answer(self.pool.name))

    def _adopt(self, answers: Answers) -> None:
        self.expected, self.confirmed, self.source = answers.ids, answers.confirmed, answers.source

    def _differs(self, ids: tuple[int, ...], known: tuple[int, ...], source: str) -> str:
        who = f"group/{self.group} " if self.group else ""
        return f"{who}answered {list(ids)}, the pool's known answer is {list(known)}, {source}"

    def _announce(self, verdict: Verdict, voice: Voice) -> None:
        kind = known_answer.event_of(verdict.heard)
        if not kind or self.say is None:
            return
        known = verdict.answers
        message = f"{list(known.ids)}, {known.source}"
        if not verdict.right:
            message = f"group/{voice.group} answered {list(voice.ids)}, the known answer is {message}"
        elif known.refused:
            message += f"; refused: {', '.join(f'group/{v.group}' for v in known.refused)}"
        self.say(kind, f"pool/{self.pool.name}", message=message, group=voice.group, revision=self.model.revision)

    async def still_right(self, timeout: float) -> Wrong | None:
        """The same question to a running engine. Raises NotReady when nothing comes back.

        A refusal (queue full) is an answer: whoever refuses is not hung.
        """
        try:
            ids = await self._generate(timeout)
        except Rejected:
            return None
        if not self.expected:
            return None
        if not self.confirmed:
            await self._look_again()
        return None if ids == self.expected else Wrong(self._differs(ids, self.expected, self.source))

    async def _look_again(self) -> None:
        """A provisional answer may have been confirmed or outvoted since; until then, ours stands."""
        if self._known is None:
            return
        store, key = self._known
        try:
            known = await known_answer.look(store, key, self._question, LOOK_TIMEOUT)
        except StoreError:
            return
        if known is not None and known.confirmed:
            self._adopt(known)

    async def answer(self, timeout: float) -> tuple[int, ...]:
        """What a running engine says now, to be compared with `expected`. Raises NotReady when nothing comes back, and
        Rejected: with reason `Shed` it is full, with `WrongRevision` other weights answered.
        """
        ids = await self._generate(timeout)
        if self.expected and not self.confirmed:
            await self._look_again()
        return ids

    def differs(self, ids: tuple[int, ...]) -> str:
        """For people: what was said, what is known, and who says so."""
        return self._differs(ids, self.expected, self.source)
