"""`python -m bench.run NAME [--quick] [--json]`: runs one measurement and prints it. Figures, never a verdict."""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
from typing import Any

NAMES = ("noded", "recovery", "sim_frames", "start", "store")


def main(argv: list[str]) -> int:
    names = [a for a in argv if not a.startswith("-")]
    if len(names) != 1 or names[0] not in NAMES:
        print(f"usage: python -m bench.run NAME [--quick] [--json] [...]\nnames: {', '.join(NAMES)}", file=sys.stderr)
        return 0 if not argv else 2
    module = importlib.import_module(f"bench.{names[0]}")
    report: dict[str, Any] = asyncio.run(module.run(argv, quick="--quick" in argv))
    if "--json" in argv:
        print(json.dumps(report))
    else:
        print(json.dumps({k: v for k, v in report.items() if k != "results"}, indent=2))
        for key, value in report["results"].items():
            print(f"{key}")
            for name, figure in value.items():
                print(f"  {name:14} {figure}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
