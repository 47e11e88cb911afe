"""The timers of a cluster as a file gives them (`...Seconds`), checked against each other by the domain (R4)."""

from __future__ import annotations

from pydantic import Field

from infctl.config.check import Part
from infctl.config.source import Document, Path_, Problem
from infctl.domain.model import Limits

_DEFAULT = Limits()


class LimitsPart(Part):
    """`limits:` of node.yaml and gateway.yaml. What is left out keeps its default."""

    loads_poll_seconds: float = _DEFAULT.loads_poll
    stall_seconds: float = _DEFAULT.stall
    probe_seconds: float = _DEFAULT.probe
    lease_ttl_seconds: float = _DEFAULT.lease_ttl
    hand_over_seconds: float = _DEFAULT.hand_over
    sigterm_seconds: float = _DEFAULT.sigterm
    drain_deadline_seconds: float = _DEFAULT.drain_deadline
    detach_grace_seconds: float = _DEFAULT.detach_grace
    resume_window_seconds: float = _DEFAULT.resume_window
    request_deadline_seconds: float = _DEFAULT.request_deadline
    relaunch_delay_seconds: float = _DEFAULT.relaunch_delay
    migrations: int = Field(default=_DEFAULT.migrations, ge=0)

    def to_limits(self) -> Limits:
        values = {name.removesuffix("_seconds"): getattr(self, name) for name in type(self).model_fields}
        return Limits(**values)


def timer_problems(document: Document, part: LimitsPart, path: Path_ = ("limits",)) -> list[Problem]:
    """Every rule between the timers that the file breaks, at the line of the key that is too large or too small."""
    limits = part.to_limits()
    found: list[Problem] = []
    for name, sentence in limits.problems():
        key = _key(name)
        for field in sorted(Limits.__slots__, key=len, reverse=True):
            if field != "migrations":
                sentence = _rename(sentence, field)
        found.append(document.problem((*path, key), sentence))
    return found


def _key(name: str) -> str:
    info = LimitsPart.model_fields.get(f"{name}_seconds") or LimitsPart.model_fields[name]
    return info.alias or name


def _rename(sentence: str, field: str) -> str:
    words = [_key(field) if word == field else word for word in sentence.split(" ")]
    return " ".join(words)
