"""Which texts are an address that engines listen on and others reach."""

from __future__ import annotations

import pytest

from infctl.config.host_address import host_address, in_url
from infctl_daemon.proc import ports


@pytest.mark.parametrize(("text", "shortest"), [("10.0.0.7", "10.0.0.7"), ("fd00:0:0::1", "fd00::1")])
def test_an_address_is_kept_in_its_shortest_form(text: str, shortest: str) -> None:
    assert host_address(text) == shortest


@pytest.mark.parametrize("text", ["0.0.0.0", "::", "224.0.0.1", "gpu-01", "", "10.0.0.1:80", "10.0.0"])
def test_what_others_cannot_reach_as_it_is_written_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="address"):
        host_address(text)


def test_an_ipv6_address_has_brackets_in_a_url() -> None:
    assert (in_url("fd00::1"), in_url("10.0.0.7")) == ("[fd00::1]", "10.0.0.7")


def test_only_addresses_of_this_host_are_ours() -> None:
    assert ports.is_ours("127.0.0.1")
    assert not ports.is_ours("192.0.2.1")  # TEST-NET-1: nobody's


def test_of_two_daemons_one_takes_a_port_until_it_lets_go() -> None:
    one, two = ports.Reserved(), ports.Reserved()
    port = ports.choose("seed", (), take=one.take)
    assert one.take(port) and not two.take(port)
    assert ports.choose("seed", (), take=two.take) not in (0, port)
    one.release(port)
    assert two.take(port)
    one.close()
    two.close()
