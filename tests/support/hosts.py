"""Several hosts on this machine: a network namespace each, joined by a router in one more, with handles to cut them.

Each host has loopback and one address, `10.x.y.N`, and reaches every other one. The test itself is outside and reaches
none of them but through `Host.run`, `Host.connect` and `Hosts.reach`, which looks from a host of its own, `observer`.

Why a router and no bridge: a rule of it drops what two hosts send each other, both ways in one step, and it needs only
`ip`. Measured (Linux 6.18) against an established connection and a new one:

    rule `blackhole` in the router                 silence, new connections too: no answer at all
    rule `unreachable` in the router               silence; a new connection fails at once (network unreachable)
    rule `prohibit` in the router                  silence, both; its ICMP is no error to connect()
    `blackhole`, `unreachable` routes on the hosts silence; a new connection fails at once (EINVAL, no route)
    a link down                                    silence; a new connection fails at once (EHOSTUNREACH, ENETUNREACH)

None of them resets what is established. TCP goes on by itself after a heal, when its next retransmission is due: within
the time that the cut took, or sooner.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from tests.support import netns
from tests.support.relay import Relay

How = Literal["blackhole", "unreachable"]
OBSERVER = "observer"
_ROUTER = "router"


class Host:
    """One of them; it has power until `Hosts.power_off`."""

    def __init__(self, name: str, namespace: str, address: str) -> None:
        self.name, self.namespace, self.address = name, namespace, address

    def command(self, argv: Sequence[str]) -> list[str]:
        """The words that run `argv` there; the process is the one that was started (nsenter becomes it)."""
        return ["nsenter", f"--net={netns.NAMES / self.namespace}", "--", *argv]

    def run(self, argv: Sequence[str], timeout: float = 30.0, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run it there to its end; whatever its exit code."""
        return subprocess.run(self.command(argv), capture_output=True, text=True, timeout=timeout, **options)

    def popen(self, argv: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self.command(argv), **options)

    def connect(self, port: int, to: Host | None = None, timeout: float = 5.0) -> socket.socket:
        """A connection from this host, to a port of its own or of another one."""
        target = ((to or self).address, port)
        return netns.within(self.namespace, lambda: socket.create_connection(target, timeout))

    def listen(self, port: int = 0) -> socket.socket:
        return netns.within(self.namespace, lambda: socket.create_server((self.address, port)))

    def pids(self) -> list[int]:
        return [ident.pid for ident in netns.processes(self.namespace)]


class Hosts:
    """`hosts["a"]` or `hosts.a` is one of them."""

    def __init__(self, *names: str) -> None:
        prefix = netns.fresh_prefix()
        x, y = secrets.randbelow(250) + 1, secrets.randbelow(250) + 1
        self.router = prefix + _ROUTER
        self.gateway_address = f"10.{x}.{y}.254"
        self.all = {
            name: Host(name, prefix + name, f"10.{x}.{y}.{number}") for number, name in enumerate((*names, OBSERVER), 1)
        }
        self._cuts: dict[frozenset[str], How] = {}
        self._off: set[str] = set()
        self._relay = Relay(self.all[OBSERVER].namespace)

    def __getitem__(self, name: str) -> Host:
        return self.all[name]

    def __getattr__(self, name: str) -> Host:
        try:
            return self.__dict__["all"][name]  # type: ignore[no-any-return]
        except KeyError:
            raise AttributeError(name) from None

    def reach(self, address: str, port: int) -> tuple[str, int]:
        """Where the test's own process finds what the observer sees at this address."""
        return "127.0.0.1", self._relay.port_to(address, port)

    # hurting
    def cut(self, one: str, other: str, how: How = "blackhole") -> None:
        """From now on nothing passes between them, in no direction; with `unreachable` who connects is told."""
        assert frozenset((one, other)) not in self._cuts, f"{one} and {other} are cut already"
        self._rules("add", one, other, how)
        self._cuts[frozenset((one, other))] = how

    def heal(self, one: str, other: str) -> None:
        self._rules("delete", one, other, self._cuts.pop(frozenset((one, other))))

    def power_off(self, name: str) -> None:
        """The host loses power: its link is dead before anybody in it is, so nothing says goodbye."""
        netns.ip([f"link set dev {self._port(name)} down"], self.router)
        self._off.add(name)
        netns.kill(self[name].namespace)

    def power_on(self, name: str) -> None:
        """The host is back, empty."""
        self._off.remove(name)
        netns.ip([f"link set dev {self._port(name)} up", self._route(name)], self.router)

    def restore(self) -> None:
        """Nothing is cut and every host has power."""
        for pair in list(self._cuts):
            self.heal(*pair)
        for name in list(self._off):
            self.power_on(name)

    # making
    def open(self) -> None:
        netns.sweep()
        spaces = [self.router, *(host.namespace for host in self.all.values())]
        netns.ip([f"netns add {space}" for space in spaces])
        netns.within(self.router, _forward)
        for name, host in self.all.items():
            port, inner = self._port(name), host.namespace
            there = [f"link add name {port} type veth peer name eth0 netns {inner}"]
            there += [f"address add {self.gateway_address}/32 dev {port}", f"link set dev {port} up", self._route(name)]
            netns.ip(there, self.router)
            here = ["link set dev lo up", f"address add {host.address}/32 dev eth0", "link set dev eth0 up"]
            here += [f"route add {self.gateway_address} dev eth0", f"route add default via {self.gateway_address}"]
            netns.ip(here, inner)
        self._relay.open()

    def close(self) -> None:
        """Everybody there is killed and nothing is left, whatever became of one of them."""
        self._relay.close()
        with contextlib.ExitStack() as every:
            for space in [self.router, *(host.namespace for host in self.all.values())]:
                every.callback(netns.remove, space)

    def _port(self, name: str) -> str:
        return f"to-{name}"

    def _route(self, name: str) -> str:
        return f"route replace {self[name].address} dev {self._port(name)}"

    def _rules(self, verb: str, one: str, other: str, how: How) -> None:
        pairs = ((self[one].address, self[other].address), (self[other].address, self[one].address))
        netns.ip([f"rule {verb} from {source} to {target} {how}" for source, target in pairs], self.router)


def _forward() -> None:
    """/proc/sys/net is that of the thread that opens it. Whoever connects over a cut is told each time."""
    for name, value in (("ip_forward", "1"), ("icmp_ratelimit", "0")):
        with open(f"/proc/sys/net/ipv4/{name}", "w") as file:
            file.write(value)


@contextlib.contextmanager
def hosts(*names: str) -> Iterator[Hosts]:
    """These, the observer and the network between them; nothing is left when it ends."""
    made = Hosts(*names)
    try:
        made.open()
        yield made
    finally:
        made.close()


def reap(process: subprocess.Popen[bytes], seconds: float = 10.0) -> int:
    """The exit code of a process that was killed with its host, or is ended now."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
    return process.wait(seconds)
