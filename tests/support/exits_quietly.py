"""Becomes `sitecustomize` of an engine's interpreter: SIGUSR2 makes any process of it exit with code 0, on its own.

Nothing of the engine is edited: python itself imports the module when it starts, and spawned ranks are new pythons.
"""

from __future__ import annotations

import os
import signal

if __name__ == "sitecustomize":
    signal.signal(signal.SIGUSR2, lambda number, frame: os._exit(0))
