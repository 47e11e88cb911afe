"""The endpoint record of a launch: what gateways need to know of it, from its specification and its model's files."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from infctl.store.records import EndpointRecord
from infctl.store.stamp import now_text
from infctl_daemon.node.context import Context
from infctl_daemon.node.launch import Launch


def record(context: Context, launch: Launch, generation: int, state: str) -> EndpointRecord:
    """As it is written now; the model is known once the launch was prepared."""
    model, spec = launch.model, launch.spec
    assert model is not None
    return EndpointRecord(
        group=spec.name,
        pool=spec.pool,
        node=context.node,
        generation=generation,
        launch=launch.name,
        url=launch.url,
        model=launch.pool.model,
        revision=model.revision,
        tokenizer=model.tokenizer,
        tokenizer_digest=model.tokenizer_digest,
        context_length=model.context_length,
        vocab_size=model.vocab_size,
        eos_ids=list(model.eos_ids),
        sampling_defaults={} if _plain_defaults(spec.engine_args) else model.sampling_defaults,
        max_running=spec.max_running,
        max_queued=spec.max_queued,
        state=state,
        deterministic=spec.deterministic,
        read_api=context.read_api,
        published_at=now_text(),
    )


def _plain_defaults(engine_args: Sequence[str]) -> bool:
    """Whether the engine was told to ignore the model's own sampling parameters."""
    given = " ".join(engine_args).replace("=", " ").split()
    return ("--sampling-defaults", "openai") in pairwise(given)
