"""From checked documents to the specs that the store holds, pools first: a group is never there before its pool."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from infctl.store.records import Drain, GroupSpec, Host, PoolSpec, Restart

if TYPE_CHECKING:
    from infctl.config.documents import GroupDocument, PoolDocument
    from infctl.config.load import Located

Spec = PoolSpec | GroupSpec


def address(spec: Spec) -> str:
    return f"{'pool' if isinstance(spec, PoolSpec) else 'group'}/{spec.name}"


def to_specs(documents: Iterable[Located]) -> list[Spec]:
    specs: list[Spec] = []
    for located in documents:
        document = located.document
        specs.append(pool_spec(document) if document.kind == "Pool" else group_spec(document))
    return sorted(specs, key=lambda s: isinstance(s, GroupSpec))


def pool_spec(document: PoolDocument) -> PoolSpec:
    spec = document.spec
    return PoolSpec(
        name=document.metadata.name,
        model=spec.model,
        min_ready=spec.min_ready,
        disruptions=spec.budgets.disruptions,
        recovery_tokens=spec.budgets.recovery_tokens,
        canary_prompt=spec.canary.prompt,
        canary_tokens=spec.canary.asked,
        canary_answer=list(spec.canary.answer),
        canary_revision=spec.canary.revision,
    )


def group_spec(document: GroupDocument) -> GroupSpec:
    spec = document.spec
    hosts = [Host(node=h.node, gpus=list(h.gpus)) for h in spec.hosts] or [Host(node=spec.node or "")]
    restart, drain = spec.restart, spec.drain
    return GroupSpec(
        name=document.metadata.name,
        pool=spec.pool,
        node=hosts[0].node,
        # one host without GPUs has one form, however it was written
        hosts=hosts if len(hosts) > 1 or hosts[0].gpus else [],
        role=spec.role,
        engine=spec.engine,
        python=spec.python,
        model_path=spec.model_path,
        tokenizer=spec.tokenizer,
        revision=spec.revision,
        tp=spec.tensor_parallel,
        pp=spec.pipeline_parallel,
        dp=spec.data_parallel,
        ep=spec.expert_parallel,
        max_running=spec.max_running,
        max_queued=spec.max_queued,
        context_length=spec.context_length,
        deterministic=spec.deterministic,
        port=spec.port,
        engine_args=list(spec.engine_args),
        env=dict(spec.env),
        restart=Restart(
            first_delay=restart.first_delay_seconds,
            max_delay=restart.max_delay_seconds,
            attempts=restart.attempts,
            interval=restart.interval_seconds,
            load_deadline=restart.load_deadline_seconds,
            canary_deadline=restart.canary_deadline_seconds,
        ),
        drain=Drain(
            hand_over=drain.hand_over_seconds,
            deadline=drain.deadline_seconds,
            kill_grace=drain.kill_grace_seconds,
        ),
    )
