"""The read-only API for operators, on its own port: what this gateway believes and has done. It changes nothing."""

from __future__ import annotations

from aiohttp import web

from infctl_daemon.gateway.core import Core
from infctl_daemon.gateway.http import CORE, json_response
from infctl_daemon.gateway.journal import Journal
from infctl_daemon.gateway.readiness import store_state

JOURNAL = web.AppKey("journal", Journal)


async def launches(request: web.Request) -> web.Response:
    """`{launch: {dispatched, last_dispatch_at_ms, running}}`: every attempt ever sent, by launch."""
    fleet = request.app[CORE].fleet
    return json_response(
        {
            launch: {"dispatched": count, "last_dispatch_at_ms": at, "running": fleet.load.get(launch, 0)}
            for launch, (count, at) in fleet.dispatched.items()
        }
    )


async def streams(request: web.Request) -> web.Response:
    """The live streams; no prompt and no text."""
    core = request.app[CORE]
    return json_response(
        {
            sid: {
                "state": s.state.phase.value,
                "term": s.state.epoch.term,
                "attempt": s.state.epoch.attempt,
                "group": s.group,
                "launch": s.launch,
                "committed": s.state.committed,
                "migrations": s.state.migrations,
            }
            for sid, s in core.streams.items()
        }
    )


async def status(request: web.Request) -> web.Response:
    core, journal = request.app[CORE], request.app[JOURNAL]
    return json_response(
        {
            "gateway": core.name,
            "streams": len(core.streams),
            "routable": sorted(e.launch for e in core.fleet.endpoints()),
            "quarantined": core.fleet.quarantined(),
            "counters": dict(core.counters),
            "journal": {"lag": journal.lag, "written": journal.written, "dropped": journal.dropped},
            "in_doubt": sorted(launch for launch, _ in core.fleet.doubts.items()),
            "store": store_state(core.fleet),
            "from_snapshot": core.fleet.source == "snapshot",
            "snapshot_revision": core.fleet.revision,
        }
    )


def admin_app(core: Core, journal: Journal) -> web.Application:
    app = web.Application()
    app[CORE] = core
    app[JOURNAL] = journal
    app.router.add_get("/v1/launches", launches)
    app.router.add_get("/v1/streams", streams)
    app.router.add_get("/v1/status", status)
    return app
