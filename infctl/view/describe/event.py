"""An event, and what else happened because of the same fault."""

from __future__ import annotations

import json

from infctl.view.describe.look import Look
from infctl.view.describe.page import Page, Tone
from infctl.view.humanize import clock


def describe(look: Look, name: str) -> Page:
    e = look.snapshot.events[name]
    page = Page(f"event/{name}", e.kind, Tone.PLAIN, e.message or e.reason)
    page.fact("At", clock(e.at, look.now), look.ago(e.at), e.at)
    page.fact("Subject", e.subject)
    page.fact("Actor", e.actor)
    page.fact("Reason", e.reason)
    if e.fault_id:
        page.fact("Fault", e.fault_id)
    for key, value in e.fields.items():
        page.fact(key, value if isinstance(value, str) else json.dumps(value))
    if e.fault_id:
        look.tell(page, "", faults=[e.fault_id])
    else:
        look.tell(page, e.subject)
    kind, slash, _ = e.subject.partition("/")
    if slash and kind in ("node", "pool", "group", "endpoint", "stream", "gateway"):
        page.step("How it is now:", "infctl describe", e.subject)
    return page
