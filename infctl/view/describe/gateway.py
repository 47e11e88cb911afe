"""A gateway: whether it is heard, how old its picture of the cluster is, and what it carries."""

from __future__ import annotations

from infctl.view.describe.look import GATEWAY_SILENT, STREAM_HEADS, Look, count, stream_rows
from infctl.view.describe.page import Page, Tone
from infctl.view.humanize import duration

# past this the gateway routes by an old picture
_OLD_PICTURE = 5.0


def describe(look: Look, name: str) -> Page:
    g = look.snapshot.gateways[name]
    silent = look.since(g.updated_at)
    picture = g.snapshot_age_ms / 1000.0
    hushed = silent is not None and silent > GATEWAY_SILENT
    page = Page(f"gateway/{name}", "Ready", Tone.GOOD, f"carries {count(g.streams, 'stream')}")
    if hushed:
        page.state, page.tone = "Silent", Tone.WARN
        page.why = f"has not written for {duration(silent or 0.0)}, though its lease is alive"
    elif picture > _OLD_PICTURE:
        page.tone, page.why = Tone.WARN, f"but its picture of the cluster is {duration(picture)} old"
    page.fact("URL", g.url)
    admin = str(g.stats.get("admin") or "")
    page.fact("Admin", admin)
    page.fact("Version", g.version, f"started {look.ago(g.started_at)}", f"incarnation {g.incarnation}")
    page.fact("Last word", look.ago(g.updated_at), "it writes every 2s")
    page.fact("Picture", f"{picture:.1f}s old", f"revision {g.snapshot_revision}",
              f"the store is at {look.snapshot.revision}" if look.snapshot.revision else "")  # fmt: skip
    lag = g.stats.get("journal_lag")
    page.fact("Load", count(g.streams, "stream"), f"{g.queued} queued",
              f"{lag} writes waiting for etcd" if isinstance(lag, int) else "")  # fmt: skip
    counters = g.stats.get("counters")
    if isinstance(counters, dict):
        page.table("Counters since its start", ("COUNTER", "VALUE"),
                   [(str(k), str(v)) for k, v in sorted(counters.items()) if v], right="VALUE")  # fmt: skip
    suspicions = [x for (_, _, gw), x in sorted(look.snapshot.suspicions.items()) if gw == name]
    page.table("Suspects", ("GROUP", "LAUNCH", "KIND", "WHEN", "WHY"),
               [(x.group, x.launch, x.kind, look.ago(x.at), x.why) for x in suspicions])  # fmt: skip
    page.table("Streams", STREAM_HEADS, stream_rows(look, look.live_streams(owner=name)), right="TOKENS MOVES")
    look.tell(page, f"gateway/{name}", actor=f"gateway/{name}")
    curl = ("curl", f"{admin}/v1/status") if admin else ()
    if hushed:
        page.step("It hangs, or cannot write to etcd. Its streams may go on.", *curl)
    elif picture > _OLD_PICTURE:
        page.step("It routes by what it knew last. Can it reach etcd?", *curl)
    for x in suspicions:
        if not look.is_over(x.group, x.launch):
            page.step(f"It lost {x.launch} on the data path.", "infctl describe", f"group/{x.group}")
    return page
