"""How often and how soon a group is started again, and when to stop trying.

Kept true: an end that was ordered is no failure; a long good life forgets the failures before it; what a restart
seldom helps is tried less often; whoever gives up says what makes it begin again. Pure: the random part of a delay is
taken from the launch's name, which is random itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from zlib import crc32

from infctl.domain.causes import Recovery, traits


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """Seconds; `attempts` new launches within `interval`, `change_attempts` after ends that only a change can help."""

    first_delay: float = 2.0
    max_delay: float = 60.0
    attempts: int = 5
    interval: float = 600.0
    load_deadline: float = 900.0
    canary_deadline: float = 60.0
    kill_deadline: float = 30.0
    change_attempts: int = 2
    jitter: float = 0.2
    good_life: float = 300.0

    def delay(self, failures: int, chance: float = 0.5) -> float:
        """Doubling from `first_delay`; `failures` counts those inside the interval, from 1. `chance` is 0…1.

        The jitter is a share of the delay, half of it to each side, and never exceeds `max_delay`.
        """
        plain = min(self.max_delay, self.first_delay * 2.0 ** min(max(0, failures - 1), 16))
        return min(self.max_delay, plain * (1.0 + self.jitter * (chance - 0.5)))


@dataclass(frozen=True, slots=True)
class Failures:
    """The moments of the ends that count, oldest first; `vain` are those among them that only a change can help."""

    at: tuple[float, ...] = ()
    vain: tuple[float, ...] = ()

    def with_end(self, policy: RestartPolicy, reason: str, now: float, served: float) -> Failures:
        """After one more end. `served`: how long the launch was ready, seconds."""
        what = traits(reason)
        if served >= policy.good_life:
            recent = Failures()
        else:
            recent = Failures(
                tuple(t for t in self.at if now - t < policy.interval),
                tuple(t for t in self.vain if now - t < policy.interval),
            )
        if what.recovery is Recovery.NONE:
            return recent
        vain = (*recent.vain, now) if what.recovery is Recovery.CHANGE else recent.vain
        return Failures((*recent.at, now), vain)


@dataclass(frozen=True, slots=True)
class Again:
    delay: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    why: str


def verdict(policy: RestartPolicy, failures: Failures, launch: str) -> Again | GiveUp:
    """What to do after `launch` has ended."""
    vain = len(failures.vain)
    if vain > min(policy.attempts, policy.change_attempts):
        return GiveUp(f"{_ends(vain)} within {policy.interval:g} s that starting again does not help")
    count = len(failures.at)
    if count > policy.attempts:
        return GiveUp(f"{_ends(count)} within {policy.interval:g} s")
    return Again(policy.delay(count, chance(launch)))


def _ends(count: int) -> str:
    return f"{count} end" if count == 1 else f"{count} ends"


def what_clears(group: str) -> str:
    """Said with every giving-up."""
    return f"`infctl restart group/{group}` or a changed specification starts it again"


def chance(name: str) -> float:
    """A number in [0, 1) that is as random as the name."""
    return crc32(name.encode()) / 2.0**32
