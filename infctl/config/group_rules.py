"""What must hold between the keys of a group (R4 and what the engine refuses only after minutes of loading).

Kept true: every broken rule is found in one reading, also where other keys are wrong: a rule that needs a value
which cannot be read says nothing, and what is left out counts as its default.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from infctl.config.group import GroupPart
from infctl.config.source import Document, Path_, Problem
from infctl.config.values import is_index
from infctl.domain import engine_env
from infctl.domain.engine_flags import value_of

# (key below spec, what is wrong, what to do)
Finding = tuple[Path_, str, str]


class Given:
    """The values of one group: as written, else the default; None where it is unreadable or has none."""

    def __init__(self, document: Document) -> None:
        spec = document.data.get("spec") if isinstance(document.data, dict) else None
        self.spec: dict[str, Any] = spec if isinstance(spec, dict) else {}

    def __call__(self, *path: str) -> Any:
        value: Any = self.spec
        for key in path:
            if not isinstance(value, dict):
                return None
            if key not in value:
                return _default(GroupPart, path)
            value = value[key]
        return value

    def number(self, *path: str) -> float | None:
        value = self(*path)
        return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None

    def size(self, key: str) -> int | None:
        value = self(key)
        return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None

    def words(self, *path: str) -> list[str]:
        value = self(*path)
        return [v for v in value if isinstance(v, str)] if isinstance(value, list) else []

    def hosts(self) -> list[tuple[Any, list[str]]]:
        """(node, GPUs) of each host; None and nothing where they cannot be read."""
        value = self("hosts")
        hosts = [h if isinstance(h, dict) else {} for h in value] if isinstance(value, list) else []
        return [(h.get("node"), [str(g) for g in h["gpus"]] if isinstance(h.get("gpus"), list) else []) for h in hosts]


def _default(model: type[BaseModel], path: tuple[str, ...]) -> Any:
    for name, info in model.model_fields.items():
        if (info.alias or name) != path[0]:
            continue
        if len(path) > 1:
            inner = info.annotation
            return _default(inner, path[1:]) if isinstance(inner, type) and issubclass(inner, BaseModel) else None
        return None if info.is_required() else info.get_default(call_default_factory=True)
    return None


def group_problems(document: Document) -> list[Problem]:
    given = Given(document)
    rules = (_where, _engine, _ranks, _gpus, _restart, _drain, _environment)
    return [document.problem(("spec", *key), text, hint) for rule in rules for key, text, hint in rule(given)]


def _where(given: Given) -> Iterator[Finding]:
    if "node" in given.spec and "hosts" in given.spec:
        yield ("node",), "is given and hosts too", "node is the short form for one host: keep one of the two"
    elif not given("node") and not given("hosts"):
        yield ("node",), "required, but missing", "or hosts, a list of nodes with their GPUs"
    names = [node for node, _ in given.hosts()]
    for i, name in enumerate(names):
        if isinstance(name, str) and name in names[:i]:
            yield ("hosts", i, "node"), f"node {name} is given twice", "one entry for each host, with all its GPUs"


def _engine(given: Given) -> Iterator[Finding]:
    engine = given("engine")
    if engine == "sglang" and not given("python"):
        yield ("python",), "required with engine sglang", "the interpreter of SGLang's own environment"
    if engine == "sim" and given("role") in ("prefill", "decode"):
        yield ("role",), "the simulated engine is unified only", ""
    if engine == "sim" and (given.size("dataParallel") or 1) > 1:
        yield ("dataParallel",), "the simulated engine has one replica only", ""
    if given("deterministic") is True and value_of(given.words("engineArgs"), "--speculative-algorithm") is not None:
        # draft boundaries move when a stream is replayed, and seeded noise is keyed by them (SGLang 0.5.23)
        yield (
            ("deterministic",),
            "speculative decoding is in engineArgs, and with it a replayed stream samples otherwise",
            "take one of the two out: exact continuation cannot be promised with both",
        )


def _ranks(given: Given) -> Iterator[Finding]:
    tp, ep = given.size("tensorParallel"), given.size("expertParallel")
    if tp and ep and tp % ep:
        yield ("expertParallel",), f"expertParallel ({ep}) must divide tensorParallel ({tp})", ""
    hosts, dp = len(given.hosts()), given.size("dataParallel")
    for key in ("maxRunning", "maxQueued"):
        cap = given.number(key)
        if cap is not None and dp and cap % dp:
            yield (key,), f"{key} ({cap:g}) must be a multiple of dataParallel ({dp})", "each replica gets its share"
    if hosts > 1 and dp and dp > 1:
        yield (
            ("dataParallel",),
            "the engine cannot spread replicas over several hosts",
            "make each replica a group of its own, or write --attn-dp-size in engineArgs",
        )
    ranks = _count(given)
    if hosts > 1 and ranks and ranks % hosts:
        yield ("hosts",), f"{ranks} ranks do not spread evenly over {hosts} hosts", ""


def _count(given: Given) -> int | None:
    sizes = [given.size(key) for key in ("tensorParallel", "pipelineParallel", "dataParallel")]
    return None if None in sizes else (sizes[0] or 1) * (sizes[1] or 1) * (sizes[2] or 1)


def _gpus(given: Given) -> Iterator[Finding]:
    hosts, ranks = given.hosts(), _count(given)
    named = [bool(gpus) for _, gpus in hosts]
    for i, (_, gpus) in enumerate(hosts):
        key = ("hosts", i, "gpus")
        if not gpus:
            if any(named):
                yield key, "no GPUs are named here, but on another host they are", "name them on every host or on none"
            continue
        if len(set(gpus)) < len(gpus):
            yield key, "a GPU is given twice", ""
        if len({is_index(gpu) for gpu in gpus}) > 1:
            yield key, "indexes and UUIDs are mixed", "UUIDs stay when a GPU falls out and the others move up"
        if ranks and ranks % len(hosts) == 0 and len(gpus) != ranks // len(hosts):
            yield key, f"GPUs: {len(gpus)}, ranks here: {ranks // len(hosts)}", "one GPU for each rank"


def _restart(given: Given) -> Iterator[Finding]:
    first, most = given.number("restart", "firstDelaySeconds"), given.number("restart", "maxDelaySeconds")
    interval = given.number("restart", "intervalSeconds")
    if first is not None and most is not None and first > most:
        yield (
            ("restart", "firstDelaySeconds"),
            f"firstDelaySeconds ({first:g}) must not exceed maxDelaySeconds ({most:g})",
            "",
        )
    if most is not None and interval is not None and most >= interval:
        yield (
            ("restart", "maxDelaySeconds"),
            f"maxDelaySeconds ({most:g}) must be shorter than intervalSeconds ({interval:g})",
            "else attempts are forgotten while it waits, and a crash loop never ends",
        )


def _drain(given: Given) -> Iterator[Finding]:
    hand_over, deadline = given.number("drain", "handOverSeconds"), given.number("drain", "deadlineSeconds")
    grace = given.number("drain", "killGraceSeconds")
    if grace is not None and deadline is not None and grace >= deadline:
        yield (
            ("drain", "killGraceSeconds"),
            f"killGraceSeconds ({grace:g}) must be shorter than deadlineSeconds ({deadline:g})",
            "SIGTERM comes that long before the deadline, SIGKILL at it",
        )
    elif hand_over is not None and deadline is not None and grace is not None and hand_over >= deadline - grace:
        yield (
            ("drain", "handOverSeconds"),
            f"handOverSeconds ({hand_over:g}) must come before SIGTERM at {deadline - grace:g} s",
            "that is deadlineSeconds - killGraceSeconds",
        )


def _environment(given: Given) -> Iterator[Finding]:
    env = given("env")
    for name in env if isinstance(env, dict) else ():
        if why := engine_env.refusal(str(name)):
            yield ("env", str(name)), why, ""
