"""One beat for all that look at something now and then: they wake the loop together, not each on its own.

For a daemon at rest waking up costs more than most looks do. The beat is the monotonic clock's, so two hosts have
different ones.
"""

from __future__ import annotations

import asyncio

_TOO_SOON = 0.001  # a timer may fire a trifle early: that beat is the one that was waited for


def last_beat(by: float, every: float) -> float:
    """The last moment of the loop's clock, at or before `by`, that is a multiple of `every` seconds."""
    return by - by % every


async def beat(every: float) -> None:
    """Until the next multiple of `every` seconds: at most that long."""
    now = asyncio.get_running_loop().time()
    left = last_beat(now + every, every) - now
    await asyncio.sleep(left if left > _TOO_SOON else left + every)
