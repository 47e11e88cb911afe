"""The node daemon with a hook that the real one has not: SIGUSR2 blocks its main loop for ever, and nothing else.

The process lives, its threads run, its sockets are open: only the watchdog can tell.
"""

from __future__ import annotations

import signal
import sys
import time

from infctl_daemon.node.main import main


def block_the_loop(number: int, frame: object) -> None:
    while True:  # handlers run in the main thread, between two steps of the loop
        time.sleep(60.0)


if __name__ == "__main__":
    signal.signal(signal.SIGUSR2, block_the_loop)
    sys.exit(main())
