"""What is known of one worker group, and the phases of its life; `domain.group` says how it moves."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from infctl.domain.restart import RestartPolicy


class Phase(StrEnum):
    IDLE = "idle"
    CLAIMING = "claiming"
    SPAWNING = "spawning"
    LOADING = "loading"
    CANARY = "canary"
    PUBLISHING = "publishing"
    READY = "ready"
    ENDING = "ending"
    BACKOFF = "backoff"
    FAILED = "failed"


ALIVE = frozenset({Phase.SPAWNING, Phase.LOADING, Phase.CANARY, Phase.PUBLISHING, Phase.READY})


@dataclass(frozen=True, slots=True)
class Group:
    """One group as its owner knows it. `failures` are the moments of recent ends that count, oldest first; `vain` those
    among them that only a change can help. `gave_up` says why and what clears it.

    `doubt`: why the launch gets no new work though it serves; `published`: the state its endpoint has in the store.
    `reclaim`: a lease was lost after the canary, so a new generation is due before the endpoint is written (R1).
    `kept_lease`: of an adopted launch, the lease that its generation was taken under; while that one still lives,
    nothing was lost and the generation stays.
    """

    name: str
    policy: RestartPolicy = RestartPolicy()
    phase: Phase = Phase.IDLE
    wanted: str = ""
    running: str = ""
    launch: str = ""
    generation: int = 0
    leased: bool = False
    reclaim: bool = False
    kept_lease: int = 0
    fault_pending: bool = False
    gone: bool = True
    end_reason: str = ""
    end_evidence: str = ""
    failures: tuple[float, ...] = ()
    vain: tuple[float, ...] = ()
    gave_up: str = ""
    ready_at: float | None = None
    doubt: str = ""
    doubt_why: str = ""
    published: str = ""
