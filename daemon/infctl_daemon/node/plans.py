"""The plan of a launch over several hosts: what the owner writes once, so that every host starts its part of it.

Kept true: a plan is written only while its launch is registered, not ended and without a fault notice; it is the same
however often it is tried.
"""

from __future__ import annotations

from infctl.domain.errors import StoreUnavailable
from infctl.ports.store import Compare, Get, Put, Relation, Store, Target
from infctl.store.codec import decode, encode
from infctl.store.keys import Keys
from infctl.store.records import Generation, LaunchPlan
from infctl_daemon.node.claims import TXN_TIMEOUT, Refused

TRIES = 4


async def write(store: Store, keys: Keys, plan: LaunchPlan) -> Refused | None:
    """Raises StoreError."""
    group, launch = plan.group, plan.launch
    key, generation, fault = keys.launch_plan(group, launch), keys.group_generation(group), keys.fault(group, launch)
    record = keys.group_launch(group, launch)
    unended = Compare(record, Target.VERSION, Relation.EQUAL, 1)  # ending it is its second version
    for _ in range(TRIES):
        kv = await store.get(generation)
        registered = decode(Generation, kv.value) if kv else None
        if kv is None or registered is None or registered.launch != launch:
            return Refused(f"the registered launch is {registered.launch if registered else 'none'}")
        done = await store.txn(
            [Compare.unchanged(generation, kv.mod_revision), unended, Compare.absent(fault), Compare.absent(key)],
            [Put(key, encode(plan))],
            [Get(key), Get(fault), Get(record)],
            timeout=TXN_TIMEOUT,
        )
        if done.succeeded or done.gets[0]:
            return None
        if done.gets[1]:
            return Refused("there is a fault notice for this launch")
        if not done.gets[2] or done.gets[2][0].version != 1:
            return Refused("the launch's record is ended or gone")
    raise StoreUnavailable("the generation changes all the time")
