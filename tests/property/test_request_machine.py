"""Every order of events that a request can meet, in a small world of launches, attempts, timers and readers.

The world is the executor: it carries out effects, lets engines speak at any time (also those that nobody listens to
any more), loses, repeats and reorders what they say, and may die after any prefix of a plan. What is checked are
outcomes: the tokens that the client has, who was allowed to say them, how many attempts hold a worker, how it ends.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant
from weighted import WeightedWorld, action

from infctl.domain import request as machine
from infctl.domain import request_events as ev
from infctl.domain.ids import Epoch
from infctl.domain.request import ON_WORKER, TERMINAL, Phase, Request
from infctl.domain.request_events import Break, ErrorType

ANSWER = tuple(range(1000, 1009))
POISON = -1
ENDED = TERMINAL | {Phase.CANCELLING}
pytestmark = pytest.mark.timeout(300)  # a bound on hangs, not on the speed of the machine
WORKER_BREAKS = sorted(set(Break) - {Break.ERROR_FRAME})


@dataclass
class Attempt:
    """What an engine does for us: `open` while it holds a worker, `barred` once the machine was told of its end.

    `told`: the machine knows that it was sent; whoever sends it says so before he reads its first byte.
    """

    epoch: Epoch
    launch: str
    base: int
    at: int
    open: bool = True
    barred: bool = False
    told: bool = False


@dataclass
class Timer:
    name: str
    epoch: Epoch
    due: float


@dataclass
class Gateway:
    """One life of the owner: what is lost when it dies."""

    state: Request
    pending: list[ev.Dispatch] = field(default_factory=list)
    mail: list[ev.RequestEvent] = field(default_factory=list)
    timers: list[Timer] = field(default_factory=list)
    endings: list[ev.Finish | ev.Fail] = field(default_factory=list)
    silent: bool = False
    cancelled: bool = False


class RequestWorld(WeightedWorld):
    @initialize(
        limit=st.sampled_from([0, 1, 2, 3, 3]),
        grace=st.sampled_from([0.0, 15.0, 15.0]),
        replayable=st.sampled_from([True, True, True, False]),
        launches=st.integers(1, 3),
    )
    def begin(self, limit: int, grace: float, replayable: bool, launches: int) -> None:
        self.now = 100.0
        self.delivered: list[int] = []
        self.attempts: list[Attempt] = []
        self.launches = [f"a-{n}" for n in range(launches)]
        self.lost: set[str] = set()
        self.made = launches
        self.prefix: int | None = None
        self.lives = 1
        self.readers = 1
        self.left_at = self.now
        start = Request("r", self.now + 600.0, replayable, limit, grace)
        self.gateway = Gateway(start)
        self.feed(ev.Started())

    # the executor
    def feed(self, event: ev.RequestEvent) -> None:
        gateway = self.gateway
        before = gateway.state
        after, effects = machine.step(before, event, self.now)
        gateway.state = after
        self.check(before, event, after, effects)
        self.bar(event, before)
        prefix, self.prefix = self.prefix, None
        for index, effect in enumerate(effects):
            if prefix is not None and index >= prefix:
                self.die()
                return
            self.execute(effect, event)
        if prefix is not None:
            self.die()

    def bar(self, event: ev.RequestEvent, before: Request) -> None:
        """Who may not speak any more, told from the event alone."""
        for one in self.attempts:
            match event:
                case ev.WorkerChosen(epoch, launch):
                    one.told |= one.epoch == epoch and one.launch == launch
                case ev.AttemptFinished(epoch, launch) | ev.AttemptBroken(epoch, launch):
                    one.barred |= one.epoch == epoch and one.launch == launch
                case ev.LaunchLost(launch):
                    one.barred |= one.launch == launch
                case ev.CancelRequested():
                    one.barred = True
                case ev.TermSeen(term):
                    one.barred |= term > one.epoch.term

    def execute(self, effect: ev.RequestEffect, event: ev.RequestEvent) -> None:
        gateway = self.gateway
        match effect:
            case ev.Dispatch():
                gateway.pending.append(effect)
                for one in self.attempts:
                    one.barred = True
            case ev.Deliver(skip, count):
                assert isinstance(event, ev.TokensArrived)
                assert skip >= 0 and count > 0 and skip + count == event.count
                speaker = self.speaker(event)
                assert speaker is not None and not speaker.barred, "a frame of a barred attempt was delivered"
                self.delivered += self.frame(event)[skip : skip + count]
            case ev.AbortAttempt(epoch, launch):
                for one in self.attempts:
                    if one.epoch == epoch and one.launch == launch:
                        one.open = False
                        one.barred = True
            case ev.SetTimer(name, epoch, delay):
                assert delay >= 0
                gateway.timers.append(Timer(name, epoch, self.now + delay))
            case ev.Finish() | ev.Fail():
                gateway.endings.append(effect)
            case ev.Silence():
                gateway.silent = True

    def speaker(self, event: ev.TokensArrived) -> Attempt | None:
        fits = [a for a in self.attempts if a.epoch == event.epoch and a.launch == event.launch]
        return fits[-1] if fits else None

    def frame(self, event: ev.TokensArrived) -> list[int]:
        speaker = self.speaker(event)
        if speaker is None or speaker.barred:
            return [POISON] * event.count
        return list(ANSWER[event.start : event.start + event.count])

    def die(self) -> None:
        """The gateway is gone; another takes the stream over where the client is, by a higher term."""
        old = self.gateway.state
        for one in self.attempts:
            one.open = False
            one.barred = True
        heir = replace(old, phase=Phase.ADMITTED, epoch=Epoch(old.epoch.term + 1, 0), launch="", migrations=0)
        heir = replace(heir, committed=len(self.delivered), excluded=(), retries=0, waiting=False, owned=True)
        heir = replace(heir, readers=1, detached=False)
        self.readers = 1
        self.gateway = Gateway(heir)
        self.lives += 1
        self.feed(ev.Started())

    # what holds after every step
    def check(
        self, before: Request, event: ev.RequestEvent, after: Request, effects: tuple[ev.RequestEffect, ...]
    ) -> None:
        gateway = self.gateway
        assert after.epoch >= before.epoch
        if not isinstance(event, ev.TermSeen):
            assert after.epoch.term == before.epoch.term
        assert after.committed >= before.committed
        assert after.migrations <= after.migration_limit
        assert (after.launch != "") == (after.phase in ON_WORKER)
        assert not (after.detached and after.readers)
        if before.phase in TERMINAL:
            assert after == before
            assert all(isinstance(e, ev.Drop | ev.AbortAttempt) for e in effects)
        if after.phase is Phase.CANCELLING and before.phase is not Phase.CANCELLING:
            assert after.epoch > before.epoch
            if isinstance(event, ev.TimerFired):
                assert self.now >= self.left_at + after.grace, "cancelled before the grace was over"
        said = [e for e in effects if isinstance(e, ev.Deliver | ev.Finish | ev.Fail)]
        assert not (gateway.silent and said), "spoke after another gateway took over"
        if isinstance(event, ev.CancelRequested) and before.phase not in TERMINAL:
            gateway.cancelled = True
        if isinstance(event, ev.TermSeen) and event.term > before.epoch.term and before.phase not in TERMINAL:
            assert after.phase in TERMINAL and not after.owned
        sent = [e for e in effects if isinstance(e, ev.Dispatch)]
        assert len(sent) <= 1
        for dispatch in sent:
            assert not gateway.cancelled, "a cancel was overtaken by a migration"
            assert dispatch.epoch == after.epoch and dispatch.base == after.committed
            assert dispatch.epoch > before.epoch or isinstance(event, ev.TimerFired)
            assert not gateway.pending, "two dispatches under way"

    @invariant()
    def the_client_has_a_prefix_of_the_answer(self) -> None:
        assert tuple(self.delivered) == ANSWER[: len(self.delivered)]
        assert self.gateway.state.committed == len(self.delivered)

    @invariant()
    def at_most_one_attempt_holds_a_worker(self) -> None:
        assert sum(a.open for a in self.attempts) <= 1

    @invariant()
    def there_is_one_ending_and_it_is_honest(self) -> None:
        endings = self.gateway.endings
        assert len(endings) <= 1
        phase = self.gateway.state.phase
        if phase is Phase.COMPLETED:
            assert isinstance(endings[0], ev.Finish) and len(self.delivered) == len(ANSWER)
        if phase in (Phase.CANCELLING, Phase.CANCELLED):
            assert isinstance(endings[0], ev.Fail) and endings[0].error is ErrorType.CANCELLED
        if phase is Phase.FAILED and self.gateway.state.owned:
            assert isinstance(endings[0], ev.Fail)

    # the world goes on
    @action(24, lambda self: self.gateway.pending, choice=st.integers(0, 3), hold_back=st.booleans())
    def a_worker_is_picked(self, choice: int, hold_back: bool) -> None:
        dispatch = self.gateway.pending.pop(0)
        able = [x for x in self.launches if x not in self.lost and x not in dispatch.exclude]
        event: ev.RequestEvent
        if dispatch.base >= len(ANSWER):
            event = ev.NothingLeft(dispatch.epoch, "length")
        elif not able:
            event = ev.NoWorker(dispatch.epoch, ErrorType.UNAVAILABLE, "none ready")
        else:
            launch = able[choice % len(able)]
            self.attempts.append(Attempt(dispatch.epoch, launch, dispatch.base, dispatch.base))
            event = ev.WorkerChosen(dispatch.epoch, launch, dispatch.base, split=choice % 2 == 1)
        if hold_back:
            self.gateway.mail.append(event)
        else:
            self.feed(event)

    @action(14, lambda self: self.gateway.mail, pick=st.integers(0, 63), twice=st.booleans())
    def held_back_news_arrive(self, pick: int, twice: bool) -> None:
        mail, life = self.gateway.mail, self.lives
        event = mail.pop(pick % len(mail))
        self.feed(event)
        if twice and life == self.lives:
            self.feed(event)

    def speaking(self) -> list[Attempt]:
        return [a for a in self.attempts if a.open and a.told and a.launch not in self.lost]

    @action(
        30,
        lambda self: self.speaking(),
        count=st.integers(1, 4),
        back=st.sampled_from([0, 0, 1, 3]),
        ahead=st.sampled_from([0, 0, 0, 0, 0, 1]),
    )
    def the_engine_speaks(self, count: int, back: int, ahead: int) -> None:
        """`back` repeats tokens that were said before; `ahead` means that a frame was lost on the way."""
        one = self.speaking()[-1]
        start = max(one.base, one.at - back) + ahead
        end = min(len(ANSWER), max(one.at + ahead, start) + count)
        if end > start:
            one.at = end
            self.feed(ev.TokensArrived(one.epoch, one.launch, start, end - start))

    @action(
        20,
        lambda self: self.speaking() and self.speaking()[-1].at == len(ANSWER),
        twice=st.booleans(),
        hold_back=st.booleans(),
    )
    def the_engine_finishes(self, twice: bool, hold_back: bool) -> None:
        one = self.speaking()[-1]
        one.open = False
        event = ev.AttemptFinished(one.epoch, one.launch, "length", one.at)
        if hold_back:
            self.gateway.mail += [event] * (1 + twice)
            return
        life = self.lives
        self.feed(event)
        if twice and life == self.lives:
            self.feed(event)

    @action(1, lambda self: self.speaking(), total=st.integers(0, 12))
    def the_engine_finishes_at_a_token_we_do_not_have(self, total: int) -> None:
        one = self.speaking()[-1]
        if total != self.gateway.state.committed:
            one.open = False
            self.feed(ev.AttemptFinished(one.epoch, one.launch, "stop", total))

    @action(
        3,
        lambda self: self.attempts,
        pick=st.integers(0, 63),
        count=st.integers(0, 4),
        kind=st.sampled_from(["epoch", "launch", "both"]),
    )
    def a_frame_comes_late(self, pick: int, count: int, kind: str) -> None:
        """From an attempt that was barred, or with the epoch of one and the launch of another."""
        state = self.gateway.state
        old = self.attempts[pick % len(self.attempts)]
        epoch = state.epoch if kind == "launch" else old.epoch
        launch = state.launch if kind == "epoch" else old.launch
        speaker = next((a for a in self.attempts if a.epoch == epoch and a.launch == launch), None)
        if speaker is None or speaker.barred:
            self.feed(ev.TokensArrived(epoch, launch, state.committed, count))

    @action(2, lambda self: self.gateway.state.phase in ON_WORKER, count=st.integers(1, 3), term=st.booleans())
    def a_frame_bears_half_of_the_live_name(self, count: int, term: bool) -> None:
        """The live epoch with a launch that was never asked, or the live launch under an earlier term."""
        state = self.gateway.state
        epoch = Epoch(state.epoch.term - 1, state.epoch.attempt) if term else state.epoch
        self.feed(ev.TokensArrived(epoch, state.launch if term else "a-older", state.committed, count))

    @action(
        3,
        lambda self: self.attempts,
        pick=st.integers(0, 63),
        what=st.sampled_from(["finished", "broken", "error-frame", "transfer", "settled", "none"]),
    )
    def an_old_attempt_is_heard_of(self, pick: int, what: str) -> None:
        old = self.attempts[pick % len(self.attempts)]
        if not old.barred:
            return
        self.feed(
            {
                "finished": ev.AttemptFinished(old.epoch, old.launch, "stop", self.gateway.state.committed),
                "broken": ev.AttemptBroken(old.epoch, old.launch, Break.EOF, "late"),
                "error-frame": ev.AttemptBroken(old.epoch, old.launch, Break.ERROR_FRAME, "late"),
                "transfer": ev.TransferDone(old.epoch, old.launch),
                "settled": ev.AbortSettled(old.epoch),
                "none": ev.NoWorker(Epoch(old.epoch.term, old.epoch.attempt - 1), ErrorType.OVERLOADED, "late"),
            }[what]
        )

    @action(8, lambda self: self.gateway.state.phase is Phase.TRANSFERRING)
    def the_transfer_ends(self) -> None:
        state = self.gateway.state
        self.feed(ev.TransferDone(state.epoch, state.launch))

    @action(3, lambda self: self.speaking(), kind=st.sampled_from(WORKER_BREAKS), hold_back=st.booleans())
    def the_attempt_breaks(self, kind: Break, hold_back: bool) -> None:
        one = self.speaking()[-1]
        one.open = False
        event = ev.AttemptBroken(one.epoch, one.launch, kind, "broken")
        if hold_back:
            self.gateway.mail.append(event)
        else:
            self.feed(event)

    @action(
        4,
        lambda self: any(a.open for a in self.attempts),
        kind=st.sampled_from([Break.FAULT, Break.FROZEN]),
        twice=st.booleans(),
    )
    def the_launch_of_the_attempt_is_lost(self, kind: Break, twice: bool) -> None:
        """Its streams hang in silence: nothing but the notice tells of it, and it may come before `WorkerChosen`."""
        launch = next(a.launch for a in self.attempts if a.open)
        self.lost.add(launch)
        life = self.lives
        self.feed(ev.LaunchLost(launch, kind, "lost"))
        if twice and life == self.lives:
            self.feed(ev.LaunchLost(launch, kind, "lost"))

    @action(1, pick=st.integers(0, 63))
    def some_launch_is_lost(self, pick: int) -> None:
        launch = self.launches[pick % len(self.launches)]
        self.lost.add(launch)
        self.feed(ev.LaunchLost(launch, Break.FAULT, "lost"))

    @action(2)
    def a_new_launch_is_ready(self) -> None:
        self.launches.append(f"a-{self.made}")
        self.made += 1

    @action(2, lambda self: self.readers)
    def a_reader_leaves(self) -> None:
        self.readers -= 1
        self.left_at = self.now
        self.feed(ev.ReaderLeft())

    @action(3, lambda self: not self.readers)
    def the_reader_comes_back(self) -> None:
        self.now += 4.0
        self.a_reader_comes()

    @action(8, lambda self: any(t.name == "retry" for t in self.gateway.timers), twice=st.booleans())
    def the_retry_comes(self, twice: bool) -> None:
        timer = next(t for t in self.gateway.timers if t.name == "retry")
        self.gateway.timers.remove(timer)
        self.now = max(self.now, timer.due)
        life = self.lives
        self.feed(ev.TimerFired(timer.name, timer.epoch))
        if twice and life == self.lives:
            self.feed(ev.TimerFired(timer.name, timer.epoch))

    @action(4, lambda self: self.gateway.state.detached)
    def the_oldest_grace_timer_fires(self) -> None:
        timer = next((t for t in self.gateway.timers if t.name == "grace"), None)
        if timer is not None:
            self.gateway.timers.remove(timer)
            self.now = max(self.now, timer.due)
            self.feed(ev.TimerFired(timer.name, timer.epoch))

    @action(8, lambda self: self.gateway.state.phase is Phase.CANCELLING)
    def the_deadline_passes_while_it_is_cancelled(self) -> None:
        self.now = max(self.now, self.gateway.state.deadline)
        self.feed(ev.TimerFired("deadline", Epoch(self.gateway.state.epoch.term, 1)))

    @action(1)
    def a_reader_comes(self) -> None:
        self.readers += 1
        self.feed(ev.ReaderJoined())

    @action(1, sure=st.sampled_from([False, False, False, False, True]))
    def somebody_cancels(self, sure: bool) -> None:
        if sure or self.gateway.state.phase in ENDED:
            self.feed(ev.CancelRequested("client"))

    @action(24, lambda self: self.gateway.state.phase is Phase.CANCELLING)
    def the_abort_settles(self) -> None:
        self.feed(ev.AbortSettled(self.gateway.state.epoch))

    @action(1, ahead=st.sampled_from([-1, 0, 0, 0, 0, 0, 1]))
    def a_term_is_seen(self, ahead: int) -> None:
        self.feed(ev.TermSeen(self.gateway.state.epoch.term + ahead))

    @action(1, again=st.booleans())
    def it_is_started_again(self, again: bool) -> None:
        self.feed(ev.Started())

    @action(4, lambda self: self.gateway.timers, pick=st.integers(0, 63), twice=st.booleans())
    def a_timer_fires(self, pick: int, twice: bool) -> None:
        """Also one that was set for an earlier attempt or an earlier detach: it was in the queue already."""
        timers = self.gateway.timers
        timer = timers.pop(pick % len(timers))
        if timer.name == "deadline" and not twice:
            timers.append(timer)  # far away in most runs
            return
        self.now = max(self.now, timer.due)
        life = self.lives
        event = ev.TimerFired(timer.name, timer.epoch)
        self.feed(event)
        if twice and life == self.lives:
            self.feed(event)

    @action(1, seconds=st.sampled_from([0.01, 0.3, 4.0, 14.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @action(1, lambda self: self.lives < 3, prefix=st.integers(0, 3))
    def the_gateway_will_die_within_its_next_plan(self, prefix: int) -> None:
        self.prefix = prefix

    def teardown(self) -> None:
        """The world calms down: one healthy launch stays, everything under way arrives. Then the request ends."""
        if not hasattr(self, "gateway"):
            return
        self.prefix = None
        deadline_passed = self.now >= self.gateway.state.deadline
        self.a_new_launch_is_ready()
        for _ in range(400):
            gateway = self.gateway
            if gateway.pending:
                self.a_worker_is_picked(2, False)
            elif gateway.mail:
                self.feed(gateway.mail.pop(0))
            elif gateway.state.phase in TERMINAL:
                break
            elif speaking := self.speaking():
                one = speaking[-1]
                if one.at < len(ANSWER):
                    self.feed(ev.TokensArrived(one.epoch, one.launch, one.at, 1))
                    one.at += 1
                else:
                    self.the_engine_finishes(False, False)
            else:
                timer = min(gateway.timers, key=lambda t: t.due)
                gateway.timers.remove(timer)
                self.now = max(self.now, timer.due)
                self.feed(ev.TimerFired(timer.name, timer.epoch))
            self.the_client_has_a_prefix_of_the_answer()
            self.at_most_one_attempt_holds_a_worker()
        self.there_is_one_ending_and_it_is_honest()
        state = self.gateway.state
        assert state.phase in TERMINAL, f"never ends: {state}"
        assert not any(a.open for a in self.attempts), "an attempt holds a worker after the end"
        late = [e for e in self.gateway.endings if isinstance(e, ev.Fail) and e.error is ErrorType.DEADLINE]
        assert deadline_passed or not late, f"only the deadline ended it: {state}"


RequestWorld.TestCase.settings = settings(stateful_step_count=60)


class TestRequestMachine(RequestWorld.TestCase):  # type: ignore[misc, name-defined]
    def runTest(self) -> None:
        """A world in which nothing happens proves nothing: count what was done."""
        super().runTest()
        never = [name for name, count in RequestWorld.counts.items() if count < 4]
        assert not never, f"hardly ever done: {never}"
