"""SIGHUP: what can change in a running daemon is changed, what cannot is named, a broken file changes nothing.

Every key of the configuration falls under the longest rule that it begins with; a key without a rule needs a restart.
What needs one is said again at each reload until it is done.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Generic, TypeVar

from infctl.domain.errors import InfctlError
from infctl_daemon.runtime.log import Logger
from infctl_daemon.runtime.sdnotify import Notifier

if TYPE_CHECKING:  # pydantic is slow to load, and a daemon without a file does not need it
    from infctl_daemon.runtime.settings import Checked

C = TypeVar("C")


class Reloader(Generic[C]):
    """`read` gives the settings as they are now, `used` those that the daemon was started with.

    A rule takes the new ones over, or raises InfctlError and leaves all as it was. None: its keys need a restart.
    """

    def __init__(
        self,
        read: Callable[[], Checked[C]],
        used: Checked[C],
        rules: Mapping[str, Callable[[C], None] | None],
        log: Logger,
        notify: Notifier,
        status: str,
    ) -> None:
        self._read = read
        self._rules = rules
        self._log = log
        self._notify = notify
        self._status = status
        self._used = used.by_key
        self._again = asyncio.Event()

    def again(self) -> None:
        """Read once more; askings that come meanwhile are one."""
        self._again.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._again.wait()
            self._again.clear()
            self._notify.reloading()
            try:
                said = await self.reload()
            except Exception:
                self._log.exception("reload failed")
                said = "reload failed, see the log"
            self._notify.ready(f"{self._status}; {said}" if said else self._status)

    async def reload(self) -> str:
        """Returns what an operator should still know; empty where all is done."""
        checked = await asyncio.to_thread(self._read)
        if checked.problems:
            self._log.error("reload refused: nothing was changed", file=checked.file, problems=checked.problems)
            return "reload refused, see the log"
        new = checked.by_key
        changed = [key for key in new if key not in self._used or self._used[key] != new[key]]
        by_rule: dict[str, list[str]] = {}
        for key in changed:
            by_rule.setdefault(self._rule(key), []).append(key)
        needs_restart = by_rule.pop("", [])
        applied: list[str] = []
        for rule, keys in by_rule.items():
            apply = self._rules[rule]
            if apply is None:
                needs_restart += keys
                continue
            try:
                apply(checked.config)
            except InfctlError as error:
                self._log.warning("a change needs a restart", keys=keys, why=error.message)
                needs_restart += keys
                continue
            applied += keys
            self._used.update((key, new[key]) for key in keys)
        told = {key: new[key] for key in applied}
        self._log.info("reloaded", file=checked.file, applied=told, needs_restart=sorted(needs_restart))
        return f"needs a restart: {', '.join(sorted(needs_restart))}" if needs_restart else ""

    def _rule(self, key: str) -> str:
        """The longest that fits; "" where none does."""
        fitting = (rule for rule in self._rules if key == rule or key.startswith(rule + "."))
        return max(fitting, key=len, default="")


def follow_sighup(reloader: Reloader[C] | None, log: Logger) -> asyncio.Task[None]:
    """From now on until the task is cancelled; without a reloader a SIGHUP is answered with why nothing happens."""
    loop = asyncio.get_running_loop()
    if reloader is None:
        loop.add_signal_handler(signal.SIGHUP, lambda: log.warning("nothing to reload: started without --config"))
        return loop.create_task(asyncio.sleep(0), name="reload")
    loop.add_signal_handler(signal.SIGHUP, reloader.again)
    return loop.create_task(reloader.run(), name="reload")
