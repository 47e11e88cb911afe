"""Random transactions: the store in memory is the model, and every etcd must answer as it does."""

from __future__ import annotations

import random
from typing import Any

import pytest

from infctl.adapters.memory_store import MemoryStore
from infctl.domain.errors import StoreError
from infctl.ports.store import (
    Compare,
    Delete,
    Get,
    KeyValue,
    Op,
    Put,
    Relation,
    Target,
    TxnResult,
)
from tests.contract.conftest import Backend

pytestmark = pytest.mark.timeout(60)


def _random_ops(rng: random.Random, keys: list[str], leases: list[int]) -> list[Op]:
    ops: list[Op] = []
    for _ in range(rng.randrange(5)):
        key, whole = rng.choice(keys), rng.random() < 0.2
        match rng.randrange(5):
            case 0 | 1:
                lease, keep = rng.choice([0, 0, *leases]), rng.random() < 0.2
                ops.append(Put(key, rng.choice([b"", b"1", b"2"]), 0 if keep else lease, keep))
            case 2:
                ops.append(Delete(key[:-1] if whole else key, whole))
            case _:
                ops.append(Get(key[:-1] if whole else key, whole, rng.randrange(3)))
    return ops


def _normal(result: TxnResult, base: int, leases: list[int]) -> Any:
    def kv(kv: KeyValue) -> Any:
        lease = leases.index(kv.lease) if kv.lease else None
        return kv.key, kv.value, kv.create_revision - base, kv.mod_revision - base, kv.version, lease

    gets = [[kv(found) for found in get] for get in result.gets]
    return result.succeeded, result.revision - base, gets, result.deleted


async def test_random_transactions_mean_the_same_as_in_memory(backend: Backend) -> None:
    """The in-memory store is the model: both must answer 300 random transactions alike."""
    rng = random.Random(20261202)
    model = MemoryStore()
    keys = [backend.key(f"{d}/{n}") for d in "ab" for n in "123"]
    sides = []
    for store in (model, backend.store):
        leases = [(await (backend if store is backend.store else store).grant(60)).id for _ in range(2)]
        sides.append((store, (await store.status()).revision, leases))
    outcomes = set()
    for step in range(300):
        seed = rng.random()
        answers = []
        for store, base, leases in sides:
            mine = random.Random(seed)
            compares = []
            for _ in range(mine.randrange(3)):
                target, relation, key = mine.choice(list(Target)), mine.choice(list(Relation)), mine.choice(keys)
                operand: int | bytes = mine.choice([0, 1, 2])
                if target in (Target.MOD, Target.CREATE):
                    operand = base + mine.randrange(max(1, step))
                elif target is Target.VALUE:
                    operand = mine.choice([b"", b"1"])
                elif target is Target.LEASE:
                    operand = mine.choice([0, *leases])
                    relation = mine.choice([Relation.EQUAL, Relation.NOT_EQUAL])  # ids are not ordered alike
                compares.append(
                    Compare(key[:-1], target, relation, operand, True)
                    if mine.random() < 0.2
                    else Compare(key, target, relation, operand)
                )
            try:
                result = await store.txn(compares, _random_ops(mine, keys, leases), _random_ops(mine, keys, leases))
                answers.append(_normal(result, base, leases))
            except StoreError as error:
                answers.append(error.reason)
        assert answers[0] == answers[1], f"step {step}"
        outcomes.add(answers[0] if isinstance(answers[0], str) else answers[0][0])
    assert outcomes == {True, False, "InvalidRequest"}
    await model.close()
