"""One beat for all that look at something now and then: they wake the loop together, not each on its own.

For a daemon at rest a wake-up costs more than most looks.
"""

from __future__ import annotations

import asyncio

_TOO_SOON = 0.001  # a timer may fire a trifle early: that beat is the one that was waited for


async def beat(every: float) -> None:
    """Until the loop's clock is at a multiple of `every` seconds: at most that long."""
    left = every - asyncio.get_running_loop().time() % every
    await asyncio.sleep(left if left > _TOO_SOON else left + every)
