"""What lets a simulated engine run the code under test, wherever another copy of it is installed: daemons pass on no
PYTHONPATH of their own."""

from __future__ import annotations

import os
from pathlib import Path

_ROOT = Path(__file__).parents[2]

ENGINE_ENV = {"PYTHONPATH": os.pathsep.join([str(_ROOT), str(_ROOT / "daemon")])}
