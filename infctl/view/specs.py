"""Specs of pools and groups as documents have them: what `infctl apply` reads, every default spelled out."""

from __future__ import annotations

from infctl.store.records import GroupSpec, PoolSpec
from infctl.view.part import View


class CanaryView(View, frozen=True, kw_only=True):
    """The request that every launch must answer as the pool knows it; `answer` is the operator's own word on it."""

    prompt: str
    tokens: int
    answer: list[int]
    revision: str


class BudgetsView(View, frozen=True, kw_only=True):
    """How many groups may be down on purpose at once, how many tokens prefilled again after faults (0: not bounded
    by the operator)."""

    disruptions: int
    recovery_tokens: int


class PoolSpecView(View, frozen=True, kw_only=True):
    """`model` is the name clients ask for."""

    model: str
    min_ready: int
    budgets: BudgetsView
    canary: CanaryView


class RestartView(View, frozen=True, kw_only=True):
    """How often and how soon a group is started again."""

    first_delay_seconds: float
    max_delay_seconds: float
    attempts: int
    interval_seconds: float
    load_deadline_seconds: float
    canary_deadline_seconds: float


class DrainView(View, frozen=True, kw_only=True):
    """Instants from the start of a drain; SIGTERM comes `killGraceSeconds` before the deadline, SIGKILL at it."""

    hand_over_seconds: float
    deadline_seconds: float
    kill_grace_seconds: float


class HostView(View, frozen=True, kw_only=True):
    """One host's part of a group; `gpus` is empty where they are not named."""

    node: str
    gpus: list[str]


class GroupSpecView(View, frozen=True, kw_only=True):
    """One worker group as it was applied. `node` is the owner: the first of `hosts`."""

    pool: str
    node: str
    hosts: list[HostView]
    role: str
    engine: str
    python: str
    model_path: str
    tokenizer: str
    revision: str
    tensor_parallel: int
    pipeline_parallel: int
    data_parallel: int
    expert_parallel: int
    max_running: int
    max_queued: int
    context_length: int
    deterministic: bool
    port: int
    engine_args: list[str]
    env: dict[str, str]
    restart: RestartView
    drain: DrainView


def pool_spec(pool: PoolSpec) -> PoolSpecView:
    """The spec of a pool as its document has it."""
    return PoolSpecView(
        model=pool.model,
        min_ready=pool.min_ready,
        budgets=BudgetsView(disruptions=pool.disruptions, recovery_tokens=pool.recovery_tokens),
        canary=CanaryView(
            prompt=pool.canary_prompt,
            tokens=pool.canary_tokens,
            answer=list(pool.canary_answer),
            revision=pool.canary_revision,
        ),
    )


def group_spec(spec: GroupSpec) -> GroupSpecView:
    """The spec of a group as its document has it."""
    restart, drain = spec.restart, spec.drain
    return GroupSpecView(
        pool=spec.pool,
        node=spec.node,
        hosts=[HostView(node=h.node, gpus=list(h.gpus)) for h in spec.placement],
        role=spec.role,
        engine=spec.engine,
        python=spec.python,
        model_path=spec.model_path,
        tokenizer=spec.tokenizer,
        revision=spec.revision,
        tensor_parallel=spec.tp,
        pipeline_parallel=spec.pp,
        data_parallel=spec.dp,
        expert_parallel=spec.ep,
        max_running=spec.max_running,
        max_queued=spec.max_queued,
        context_length=spec.context_length,
        deterministic=spec.deterministic,
        port=spec.port,
        engine_args=list(spec.engine_args),
        env=dict(spec.env),
        restart=RestartView(
            first_delay_seconds=restart.first_delay,
            max_delay_seconds=restart.max_delay,
            attempts=restart.attempts,
            interval_seconds=restart.interval,
            load_deadline_seconds=restart.load_deadline,
            canary_deadline_seconds=restart.canary_deadline,
        ),
        drain=DrainView(
            hand_over_seconds=drain.hand_over,
            deadline_seconds=drain.deadline,
            kill_grace_seconds=drain.kill_grace,
        ),
    )
