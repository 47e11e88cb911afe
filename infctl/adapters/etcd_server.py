"""The embedded member: one etcd process of our own over one directory, found again by whoever comes next.

Keeps true:

* at most one etcd runs over a directory. The lock is inherited by the etcd process, so it is held exactly as long as
  that lives, whatever became of the process that started it;
* a signal goes only to the process we started: pid *and* start time must match, and it is sent through a pidfd;
* ready means that it answers a linearizable read, not that a port is open;
* every wait has a deadline, and a start that fails leaves no process behind.

Losing the space quota (NOSPACE makes /health answer 503) never restarts it. Directory: `etcd.lock`, `etcd.pid` while it
runs, `etcd.json` (version and ports, kept), `etcd.log`, `data/`. Needs Linux.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import logging
import os
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from infctl.adapters.etcd import EtcdStore
from infctl.adapters.etcd_binary import EtcdBinary, check_upgrade, command, find_etcd
from infctl.adapters.free_port import free_port
from infctl.domain.errors import Conflict, InfctlError, StartFailed, StoreError

_log = logging.getLogger(__name__)

_POLL_S = 0.02
_KILL_S = 5.0  # SIGKILL needs no more, unless the disk hangs
_LOG_TAIL = 2000
_warned: set[str] = set()  # said once, however many members run


@dataclass(frozen=True, slots=True)
class RunningEtcd:
    """A process as the pid file tells it; `start_ticks` makes the pid unmistakable (field 22 of /proc/<pid>/stat)."""

    pid: int
    start_ticks: int
    client_port: int
    peer_port: int
    version: str

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.client_port}"

    @property
    def alive(self) -> bool:
        return start_ticks(self.pid) == self.start_ticks


class EmbeddedEtcd:
    """One member on 127.0.0.1. Ports of 0 mean: the ones used before in this directory, else free ones."""

    def __init__(
        self,
        data_dir: str | os.PathLike[str],
        client_port: int = 0,
        *,
        peer_port: int = 0,
        binary: str | os.PathLike[str] | None = None,
        name: str = "infctl",
        cluster: Mapping[str, int] | None = None,
        unsafe_no_fsync: bool = False,
    ) -> None:
        """`cluster`: peer port of every member by name, where this is one of several on this machine."""
        self.dir = Path(data_dir).absolute()
        self._client_port = client_port
        self._peer_port = cluster[name] if cluster else peer_port
        self._configured = binary
        self._name = name
        self._cluster = cluster
        self._unsafe_no_fsync = unsafe_no_fsync
        self.binary: EtcdBinary | None = None
        self.attached = False

    @property
    def log_path(self) -> Path:
        return self.dir / "etcd.log"

    @property
    def pid_path(self) -> Path:
        return self.dir / "etcd.pid"

    @property
    def running(self) -> RunningEtcd | None:
        """The member that runs over this directory now, started by whichever process."""
        found = self._read(self.pid_path)
        with contextlib.suppress(KeyError, TypeError, ValueError):
            known = RunningEtcd(**found)
            if known.alive:
                return known
            _reap(known.pid)
        return self._search()

    @property
    def endpoint(self) -> str:
        """`host:port` of the running member. Raises StartFailed when there is none."""
        running = self.running
        if running is None:
            raise StartFailed(f"no etcd runs over {self.dir}", reason="EtcdNotRunning")
        return running.endpoint

    async def start(self, timeout: float = 30.0) -> RunningEtcd:
        """Start the member, or join the one that runs already (`attached`); returns when it is ready.

        Raises NotFound, ConfigError or InfctlError for what must be repaired first, StartFailed for the rest.
        """
        deadline = asyncio.get_running_loop().time() + timeout
        self.dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        for attempt in range(3):
            running = await self._lock_and_spawn(deadline)
            try:
                await self._wait_ready(running, deadline)
                return running
            except StartFailed:
                if self.attached:
                    if running.alive or attempt == 2:
                        raise
                    continue  # the one we joined was just about to end
                await self.stop()
                # somebody took a free port between our look and etcd's bind: worth another one
                if attempt == 2 or "address already in use" not in self._log_tail() or self._client_port:
                    raise
            except BaseException:
                if not self.attached:
                    await asyncio.shield(self.stop())
                raise
        raise StartFailed("etcd found no free port")

    async def stop(self, timeout: float = 10.0) -> bool:
        """SIGTERM, SIGKILL after `timeout`; True when something ran. Works from any process of the same user."""
        running = self.running
        if running is None:
            return False
        try:
            pidfd = os.pidfd_open(running.pid)
        except ProcessLookupError:
            return False
        try:
            if not running.alive:  # the pid was given to somebody else before the pidfd pinned it
                return False
            signal.pidfd_send_signal(pidfd, signal.SIGTERM)
            if not await _ended(pidfd, timeout):
                _log.warning("etcd %d ignored SIGTERM for %g s: killed", running.pid, timeout)
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                if not await _ended(pidfd, _KILL_S):
                    raise InfctlError(
                        f"etcd {running.pid} does not end", reason="EtcdStuck", hint="is its disk hanging?"
                    )
        finally:
            os.close(pidfd)
        _reap(running.pid)
        self.pid_path.unlink(missing_ok=True)
        return True

    async def _lock_and_spawn(self, deadline: float) -> RunningEtcd:
        loop = asyncio.get_running_loop()
        lock = os.open(self.dir / "etcd.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if running := self.running:
                        self.attached = True
                        return running
                if loop.time() > deadline:
                    raise Conflict(f"{self.dir} is locked, but no etcd of ours runs there", reason="EtcdLocked")
                await asyncio.sleep(_POLL_S)
            self.attached = False
            return self._spawn(lock)
        finally:
            os.close(lock)  # etcd has inherited it

    def _spawn(self, lock: int) -> RunningEtcd:
        binary = self.binary = find_etcd(self._configured)
        kept = self._read(self.dir / "etcd.json")
        check_upgrade(binary, kept.get("version"))
        for warning in set(binary.warnings) - _warned:
            _log.warning("%s", warning)
            _warned.add(warning)
        client_port = self._client_port or free_port(kept.get("client_port"))
        peer_port = self._peer_port or free_port(kept.get("peer_port"), other_than=(client_port,))
        # before it can touch the data: a newer minor may change the files and die before it is ready
        self._write("etcd.json", {"version": binary.version_text, "client_port": client_port, "peer_port": peer_port})
        argv = command(
            binary,
            name=self._name,
            data_dir=self.dir / "data",
            client_url=f"http://127.0.0.1:{client_port}",
            peer_url=f"http://127.0.0.1:{peer_port}",
            cluster={n: f"http://127.0.0.1:{p}" for n, p in (self._cluster or {self._name: peer_port}).items()},
            unsafe_no_fsync=self._unsafe_no_fsync,
        )
        with open(self.log_path, "wb") as log:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.dir,
                pass_fds=(lock,),
                start_new_session=True,  # it outlives us and our terminal; who wants otherwise calls stop()
            )
        process.returncode = 0  # we wait for it by pid; Popen would complain of a child that outlives the object
        running = RunningEtcd(process.pid, start_ticks(process.pid) or 0, client_port, peer_port, binary.version_text)
        self._write(self.pid_path.name, asdict(running))
        return running

    async def _wait_ready(self, running: RunningEtcd, deadline: float) -> None:
        loop = asyncio.get_running_loop()
        store = EtcdStore([running.endpoint])
        why = "no answer"
        try:
            while loop.time() < deadline:
                if not running.alive:
                    raise StartFailed(f"etcd ended at its start: {self._log_tail()}", reason="EtcdStartFailed")
                if await _healthy(running.client_port, deadline - loop.time()):
                    try:
                        await store.get("ready", timeout=max(0.1, min(2.0, deadline - loop.time())))
                        return
                    except StoreError as error:
                        why = error.message
                await asyncio.sleep(_POLL_S)
        finally:
            await store.close()
        raise StartFailed(f"etcd is not ready ({why}): {self._log_tail()}", reason="EtcdStartFailed")

    def _search(self) -> RunningEtcd | None:
        """Find it by its arguments: whoever started it may have died before the pid file was there."""
        kept = self._read(self.dir / "etcd.json")
        wanted = str(self.dir / "data").encode()
        for entry in Path("/proc").iterdir() if kept else ():
            if not entry.name.isdigit():
                continue
            with contextlib.suppress(OSError, KeyError):
                argv = (entry / "cmdline").read_bytes().split(b"\0")
                if b"--data-dir" in argv and argv[argv.index(b"--data-dir") + 1] == wanted:
                    ticks = start_ticks(int(entry.name))
                    if ticks is not None and entry.stat().st_uid == os.geteuid():
                        return RunningEtcd(
                            int(entry.name), ticks, kept["client_port"], kept["peer_port"], kept["version"]
                        )
        return None

    def _log_tail(self) -> str:
        try:
            return self.log_path.read_bytes()[-_LOG_TAIL:].decode(errors="replace").strip()
        except OSError:
            return ""

    def _read(self, path: Path) -> dict[str, Any]:
        try:
            found = json.loads(path.read_bytes())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def _write(self, name: str, content: dict[str, Any]) -> None:
        """Whole or not at all."""
        new = self.dir / f".{name}.new"
        with open(new, "w") as file:
            json.dump(content, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, self.dir / name)


def _reap(pid: int) -> None:
    """Collect it where it was our child; elsewhere init does."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def start_ticks(pid: int) -> int | None:
    """When the process started, in clock ticks since boot; None when it is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return None
    return None if fields[0] in "ZX" else int(fields[19])


async def _ended(pidfd: int, timeout: float) -> bool:
    """Wait on a pidfd: it becomes readable when the process is dead, reaped or not."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(pidfd, ended.set)
    try:
        await asyncio.wait_for(ended.wait(), timeout)
        return True
    except TimeoutError:
        return False
    finally:
        loop.remove_reader(pidfd)


async def _healthy(port: int, timeout: float) -> bool:
    """GET /health says 200."""
    try:
        async with asyncio.timeout(max(0.1, min(2.0, timeout))):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(b"GET /health HTTP/1.0\r\nHost: localhost\r\n\r\n")
                status = await reader.readline()
                return status.split()[1:2] == [b"200"]
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False
