"""The one shape of every bench: `machine, versions, contestants, results, ratios` (milliseconds unless named)."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from typing import Any


def envelope(results: dict[str, Any], contestants: list[str], ratios: dict[str, float] | None = None) -> dict[str, Any]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "machine": {
            "cpus": os.cpu_count(),
            "memory_bytes": memory,
            "kernel": platform.release(),
            "load_1m": os.getloadavg()[0],
        },
        "versions": {"python": platform.python_version(), "infctl": version("infctl")},
        "contestants": contestants,
        "results": results,
        "ratios": ratios or {},
    }


def quantile(values: list[float], q: float) -> float:
    """The value at rank q (0..1) of a sorted copy, nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))] if ordered else float("nan")


def spread(values: list[float], digits: int = 1) -> dict[str, float]:
    return {
        "p50": round(quantile(values, 0.5), digits),
        "p90": round(quantile(values, 0.9), digits),
        "p99": round(quantile(values, 0.99), digits),
        "max": round(max(values), digits) if values else float("nan"),
    }
