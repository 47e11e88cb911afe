"""One Hypothesis profile for all property tests: the same examples on every run, no time limit for a single one."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "infctl",
    max_examples=250,
    derandomize=True,
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
# a search with fresh examples: INFCTL_HYPOTHESIS=search
settings.register_profile("search", parent=settings.get_profile("infctl"), derandomize=False, max_examples=1500)
settings.load_profile("search" if os.environ.get("INFCTL_HYPOTHESIS") == "search" else "infctl")
