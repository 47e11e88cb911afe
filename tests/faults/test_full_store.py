"""NOSPACE: a dead endpoint still leaves a database that takes no puts (real etcd, every version found)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from infctl.adapters.etcd_binary import EtcdBinary
from infctl.store.codec import encode
from infctl.store.keys import Keys
from infctl.store.records import EndpointRecord, FaultNotice, GroupSpec, NodeLease, Secret
from infctl_daemon.node.claims import Claims, Registration
from infctl_daemon.node.leases import SpareLease
from tests.support.etcd import BINARIES, fill, live_cluster, live_etcd, store_on

pytestmark = [pytest.mark.faults, pytest.mark.timeout(60)]
KEYS = Keys()


@pytest.mark.parametrize("members", [live_etcd, live_cluster], ids=["one-member", "three-members"])
@pytest.mark.parametrize("binary", BINARIES, ids=lambda binary: binary.version_text)
async def test_the_dead_endpoint_leaves_a_full_database(
    binary: EtcdBinary, members: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """etcd over its quota refuses transactions with compares; a lone delete passes, on any member."""
    monkeypatch.setattr("infctl.adapters.etcd_binary.QUOTA_BYTES", 4 << 20)
    async with members(binary, tmp_path) as etcd, store_on(*etcd.endpoints) as store:
        lease = (await store.grant(60)).id
        await store.put(KEYS.node_lease("n1"), encode(NodeLease(node="n1", boot_id="b", incarnation="i")), lease=lease)
        claims = Claims(store, KEYS, "n1", SpareLease(store))
        spec = GroupSpec(name="a", pool="p", node="n1", model_path="/m", max_running=1, max_queued=1)
        mine = await claims.claim_launch(spec, 0, lease)
        assert isinstance(mine, Registration)
        endpoint = EndpointRecord(
            group="a",
            pool="p",
            node="n1",
            generation=mine.generation,
            launch=mine.launch,
            url="http://127.0.0.1:1",
            model="m",
            revision="r",
            tokenizer="",
            tokenizer_digest="",
            context_length=1,
            vocab_size=1,
            max_running=1,
            max_queued=1,
        )
        assert await claims.publish(endpoint, Secret(launch=mine.launch, api_key="k"), lease) is None
        await fill(store, "filler/")

        notice = FaultNotice(fault_id="f1", group="a", launch=mine.launch, generation=1, reason="process-exited")
        assert await claims.write_fault(notice)
        assert await store.get(KEYS.endpoint("a")) is None
        assert await store.get(KEYS.secret("a")) is None
        assert store.endpoint == etcd.endpoints[0], "a full member is no dead one"
