"""Runs the coroutine of a command. SIGTERM and Ctrl-C cancel it, so that it cleans up on the way out."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

import typer

T = TypeVar("T")


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """The coroutine's result. SIGINT ends in KeyboardInterrupt (130), SIGTERM and SIGHUP in exit code 143."""
    terminated = False

    async def guarded() -> T:
        nonlocal terminated
        task = asyncio.current_task()
        assert task is not None

        def on_term() -> None:
            nonlocal terminated
            terminated = True
            task.cancel()

        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, on_term)
        return await work

    try:
        return asyncio.run(guarded())
    except asyncio.CancelledError:
        if terminated:
            raise typer.Exit(143) from None
        raise
