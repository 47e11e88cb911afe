"""Writes how a launch ended, once it is gone: who ended, with which code or signal, why the launch was ended for it.

Never in the way of the next launch: a disk that is full or broken costs the record and nothing else.
"""

from __future__ import annotations

import asyncio
import hashlib

from infctl.store.records import FaultNotice
from infctl.store.stamp import now_text, text_of
from infctl_daemon.node.context import Context
from infctl_daemon.node.launch import Launch, Remains
from infctl_daemon.proc import ended


async def keep(
    context: Context,
    group: str,
    name: str,
    launch: Launch | None,
    notice: FaultNotice | None,
    why: str = "",
    remains: Remains | None = None,
) -> None:
    """Write the record of launch `name`. `launch` is another one, or None, where an earlier life started it; `why` is
    said where the notice is somebody else's, `remains` what is still known of an earlier life's launch."""
    if launch is None or launch.name != name:
        launch = None
    remains = (launch.remains if launch else remains) or Remains()
    process, code = _first_end(launch) if launch else ("", remains.status.returncode)
    state = context.state.read(group)
    record = ended.Ended(
        group=group,
        launch=name,
        generation=launch.generation if launch else state.generation,
        node_rank=launch.node_rank if launch else state.node_rank,
        reason=notice.reason if notice else why,
        message=notice.evidence if notice else "",
        process=process,
        exit_code=code if code is not None and code >= 0 else None,
        signal=-code if code is not None and code < 0 else None,
        oom_kills=remains.oom_kills,
        container=remains.container,
        started_at=text_of(launch.started * 1000.0) if launch and launch.started else "",
        ended_at=now_text(),
        log=str(ended.log_path(context.state_dir, name)),
        key_digest=digest(launch.api_key) if launch else "",
    )
    try:
        await asyncio.to_thread(ended.write, context.state_dir, record)
    except OSError as error:
        context.log.error("how the launch ended could not be written", group=group, launch=name, why=str(error))


def digest(api_key: str) -> str:
    """What stands for an engine's key where it must not be: the key is 24 random bytes, so this leads nowhere."""
    return hashlib.sha256(api_key.encode()).hexdigest()


def _first_end(launch: Launch) -> tuple[str, int | None]:
    """Title and exit status (minus the signal) of what ended first; of the main process, without a title, if we did."""
    if (first := launch.first_end) is not None:
        return first.title or "main process", launch.code_of(first)
    main = launch.tree.watched.get(launch.tree.main) if launch.tree else None
    return "", launch.code_of(main) if main else None
