"""A real systemd, booted as PID 1 of namespaces of its own: what units, cgroups and the watchdog do is then seen.

It runs in a cgroup of its own, so that its end is sure: the kernel kills what is in there, whatever became of it. The
network is this machine's, so an etcd of the test is reached at the same address from both sides. Project and Python are
inside where they are outside, read only; `/srv/shared` inside is `shared` outside.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from infctl.config.context import cache_home

PROJECT = Path(__file__).parents[2]
ROOT = cache_home() / "systemd-root"
BOOT = Path(__file__).with_name("boot_systemd.sh")
BOOT_DEADLINE = 60.0
_NUMBERS = itertools.count(1)


def why_not() -> str:
    """What this machine lacks; "" where a systemd can be booted."""
    if os.geteuid() != 0:
        return "needs root (namespaces, cgroups)"
    if not (ROOT / ".infctl-recipe").exists():
        return "no systemd to boot: make test-root builds it (.ci/systemd_root.sh)"
    lacking = [tool for tool in ("unshare", "nsenter", "setpriv", "pivot_root") if shutil.which(tool) is None]
    if lacking:
        return f"not installed: {', '.join(lacking)}"
    return "" if cgroup2() else "no cgroup v2 is mounted here"


def cgroup2() -> Path | None:
    """Where the unified hierarchy is mounted: alone, or beside those of version 1."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, where, kind = line.split()[:3]
        if kind == "cgroup2":
            return Path(where)
    return None


def read_only_folders() -> list[Path]:
    """What Python needs to run our code: the project, the environment, and the installation under it."""
    wanted = {PROJECT, Path(sys.prefix), Path(sys.base_prefix), Path(sysconfig.get_path("purelib"))}
    paths = sorted(p for p in {w.resolve() for w in wanted} if not p.is_relative_to("/usr"))
    return [p for p in paths if not any(p != q and p.is_relative_to(q) for q in paths)]


class RealSystemd:
    """`run` and `show` ask it; `pids` are those of this machine, for signals from outside."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.shared = folder / "shared"
        self.log = folder / "systemd.log"
        self.cgroup = Path()
        self._process: subprocess.Popen[bytes] | None = None
        self._pid = 0

    def boot(self) -> None:
        """Until it has started everything. Raises AssertionError with its output when it does not come up."""
        top = cgroup2()
        assert top is not None
        for name in ("work", "shared"):
            (self.folder / name).mkdir(parents=True)
        self.cgroup = top / f"infctl-tests-{os.getpid()}-{next(_NUMBERS)}"
        self.cgroup.mkdir()
        join = f'echo $$ >"{self.cgroup}/cgroup.procs" && exec "$@"'
        # should this process be killed, unshare dies with it, then PID 1 of the namespace, then everything in there
        argv = ["sh", "-c", join, "sh", "setpriv", "--pdeathsig", "KILL"]
        argv += ["unshare", "--fork", "--kill-child", "--pid", "--mount", "--uts", "--ipc", "--cgroup"]
        argv += [str(BOOT), str(ROOT), str(self.folder / "work"), str(self.shared), *map(str, read_only_folders())]
        with open(self.log, "ab") as log:
            self._process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self._wait(self._find, "PID 1 starts")
        self._wait(self._up, "systemd comes up")
        self._environment()

    def _find(self) -> bool:
        """PID 1 of the namespace: the only child of `unshare`, once it is systemd."""
        assert self._process is not None
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        if not children or Path(f"/proc/{children[0]}/comm").read_text().strip() != "systemd":
            return False
        self._pid = int(children[0])
        return True

    def _up(self) -> bool:
        asked = self.run("systemctl", "is-system-running", "--wait", check=False)
        return asked.stdout.strip() in ("running", "degraded")

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + BOOT_DEADLINE
        while True:
            assert self._process is not None
            with contextlib.suppress(OSError):
                if condition():
                    return
            gone = self._process.poll() is not None
            assert not gone and time.monotonic() < end, f"not within {BOOT_DEADLINE:g} s: {what}\n{self.output()}"
            time.sleep(0.05)

    def _environment(self) -> None:
        """Services of ours import the code under test, and see it where it lies below /tmp and theirs is private."""
        hidden = [p for p in read_only_folders() if p.is_relative_to("/tmp") or p.is_relative_to("/var/tmp")]
        lines = ["[Service]", f"Environment=PYTHONPATH={PROJECT}:{PROJECT}/daemon PYTHONDONTWRITEBYTECODE=1"]
        lines += [f"BindReadOnlyPaths={p}" for p in hidden]
        self.write("/etc/systemd/system/infctl-.service.d/tests.conf", "\n".join(lines) + "\n")
        self.run("systemctl", "daemon-reload")

    # asking
    def command(self, *argv: str) -> list[str]:
        """The words that run `argv` inside, for a Popen of one's own."""
        inside = ["nsenter", "--target", str(self._pid), "--mount", "--pid", "--uts", "--ipc", "--cgroup", "--root"]
        return [*inside, "--wd=/", "env", "-i", f"PATH={Path(sys.prefix) / 'bin'}:/usr/sbin:/usr/bin:/sbin:/bin",
                f"PYTHONPATH={PROJECT}:{PROJECT}/daemon", "PYTHONDONTWRITEBYTECODE=1", *argv]  # fmt: skip

    def run(
        self, *argv: str, check: bool = True, timeout: float = 60.0, stdin: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """Run a command inside and wait for its end; with `check` an exit code other than 0 fails the test."""
        done = subprocess.run(self.command(*argv), input=stdin, capture_output=True, text=True, timeout=timeout)
        assert not check or done.returncode == 0, f"{' '.join(argv)}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done

    def write(self, path: str, text: str, mode: int = 0o644) -> None:
        """A file inside, its folder too."""
        script = 'mkdir -p "$(dirname "$1")" && cat >"$1" && chmod "$2" "$1"'
        self.run("sh", "-c", script, "sh", path, f"{mode:o}", stdin=text)

    def read(self, path: str) -> str:
        return self.run("cat", path).stdout

    def show(self, unit: str) -> Mapping[str, str]:
        """Every property of a unit, as `systemctl show` says them."""
        lines = self.run("systemctl", "show", "--all", unit).stdout.splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line)

    def journal(self, unit: str) -> str:
        return self.run("journalctl", "--no-pager", "--output=cat", "--unit", unit).stdout

    def until(
        self, unit: str, condition: Callable[[Mapping[str, str]], object], what: str, seconds: float = 30.0
    ) -> Mapping[str, str]:
        """The unit's properties once they fulfil the condition."""
        end = time.monotonic() + seconds
        while True:
            shown = self.show(unit)
            if condition(shown):
                return shown
            if time.monotonic() > end:
                told = {k: shown.get(k) for k in ("ActiveState", "SubState", "Result", "NRestarts", "StatusText")}
                raise AssertionError(f"not within {seconds:g} s: {what}: {told}\n{self.journal(unit)[-4000:]}")
            time.sleep(0.05)

    def pids(self, unit: str) -> list[int]:
        """Processes in the unit's cgroup, by their numbers outside."""
        group = self.show(unit).get("ControlGroup", "")
        with contextlib.suppress(OSError):
            return [int(p) for p in (self.cgroup / group.lstrip("/") / "cgroup.procs").read_text().split()]
        return []

    def output(self) -> str:
        return self.log.read_text(errors="replace")[-4000:]

    # ending
    def close(self) -> None:
        """Everything in there is dead and its cgroup is gone when this returns."""
        if not (self.cgroup / "cgroup.events").exists():
            return
        if (self.cgroup / "cgroup.kill").exists():
            (self.cgroup / "cgroup.kill").write_text("1")
        elif self._pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)
        end = time.monotonic() + 10
        while "populated 1" in (self.cgroup / "cgroup.events").read_text():
            assert time.monotonic() < end, f"processes are left in {self.cgroup}"
            time.sleep(0.02)
        for path, _, _ in os.walk(self.cgroup, topdown=False):
            os.rmdir(path)


@contextlib.contextmanager
def real_systemd(folder: Path) -> Iterator[RealSystemd]:
    """A booted systemd; `folder` must not exist or be empty."""
    booted = RealSystemd(folder)
    try:
        booted.boot()
        yield booted
    finally:
        booted.close()
