"""What holds the processes of one launch together, and how such a thing is started and found again.

Three kinds keep the same promises as far as the machine allows: a transient systemd unit, a cgroup of our own, a
session. Kept true by all of them: a daemon that ends, however it ends, takes no process of a container with it; a
container is named by one word that a later daemon finds it by; nothing outside it is ever signalled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from infctl_daemon.proc.procfs import Ident

Kind = Literal["systemd", "cgroup", "session"]


@dataclass(frozen=True, slots=True)
class Limits:
    """What one launch may use; 0 is "no limit" or the system's default. `cpu_weight` is 1…10000."""

    memory_bytes: int = 0
    cpu_weight: int = 0
    processes: int = 0

    @property
    def controllers(self) -> frozenset[str]:
        """The cgroup controllers without which these limits would be words."""
        asked = {"memory": self.memory_bytes, "cpu": self.cpu_weight, "pids": self.processes}
        return frozenset(name for name, value in asked.items() if value)


@dataclass(frozen=True, slots=True)
class Order:
    """What to start: `log` gets stdout and stderr; `env` is the whole environment."""

    launch: str
    argv: Sequence[str]
    env: Mapping[str, str]
    log: Path
    cwd: Path = field(default_factory=Path.cwd)
    limits: Limits = Limits()


@dataclass(frozen=True, slots=True)
class Status:
    """How a main process ended: `code` 0…255 or `signal`; both None when nobody can know."""

    code: int | None = None
    signal: int | None = None

    @classmethod
    def of(cls, returncode: int | None) -> Status:
        """From the usual number: minus the signal, or the exit code."""
        if returncode is None:
            return UNKNOWN
        return cls(signal=-returncode) if returncode < 0 else cls(code=returncode)

    @property
    def returncode(self) -> int | None:
        """The usual number again."""
        return self.code if self.signal is None else -self.signal

    @property
    def text(self) -> str:
        """In words, empty when it is not known."""
        if self.signal is not None:
            return f"signal {self.signal}"
        return "" if self.code is None else f"exit code {self.code}"


UNKNOWN = Status()


class Container(Protocol):
    """The processes of one launch. The quick questions are synchronous and cost microseconds."""

    @property
    def kind(self) -> Kind: ...

    @property
    def name(self) -> str:
        """For the state file: `<kind>:<unit, path or session id>`, read back by `choose.find`."""

    @property
    def main(self) -> Ident: ...

    def pids(self) -> frozenset[int] | None:
        """Every process in it now; None when only a scan of /proc can tell."""

    def kill(self) -> bool:
        """Let the kernel kill everything in it, those being forked too; False: it cannot, signal each one."""

    def oom_kills(self) -> int:
        """How many of its processes the kernel killed for memory, as far as that is known."""

    def status_now(self) -> Status:
        """How the main process ended, if that can be said without waiting."""

    async def status(self) -> Status:
        """How the main process ended; systemd still knows it when the daemon was away."""

    async def remove(self) -> bool:
        """Forget it. Only when nothing lives in it; False when something does or its keeper does not answer."""


class Driver(Protocol):
    """Starts containers of one kind and finds those that an earlier daemon started."""

    @property
    def kind(self) -> Kind: ...

    def refuses(self, limits: Limits) -> str:
        """Why these limits cannot be held, or nothing."""

    def name_of(self, launch: str) -> str:
        """What the container of that launch is called before it is there; "" where only its start decides."""

    async def start(self, order: Order) -> Container:
        """Start the main process. Raises StartFailed or OSError; then nothing of it is left."""

    async def find(self, name: str, main: Ident) -> Container | None:
        """The container of that name, when it still is there."""

    async def names(self) -> list[str]:
        """Every container that this daemon, in this life or an earlier one, has made and not removed."""
