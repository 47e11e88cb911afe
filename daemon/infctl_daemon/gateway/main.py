"""`infctl-gateway`: wiring, life and end of one gateway process.

Start: listen at once, keep trying the store and say so; `/ready` turns 200 when the table was read and a group is
ready. End (SIGTERM, SIGINT): take no new requests, let running streams finish for the grace, then end them honestly.
SIGHUP takes over what can change in a running gateway.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import faulthandler
import os
import re
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import structlog
from aiohttp import web

from infctl import __version__
from infctl.adapters.etcd import EtcdStore
from infctl.domain import request_events as ev
from infctl.domain.errors import Conflict, InfctlError
from infctl.domain.ids import base32
from infctl.domain.model import Limits
from infctl.store import stamp
from infctl.store.codec import encode
from infctl.store.keys import Keys
from infctl.store.records import GatewayRecord
from infctl_daemon.gateway.admin import admin_app
from infctl_daemon.gateway.core import Core
from infctl_daemon.gateway.fleet import Fleet
from infctl_daemon.gateway.http import client_app
from infctl_daemon.gateway.journal import Journal
from infctl_daemon.gateway.leases import HeldLease, RotatingLease
from infctl_daemon.gateway.options import add_options, find_settings, read_arguments
from infctl_daemon.gateway.snapshot import SnapshotFile, SnapshotKeeper
from infctl_daemon.gateway.vigil import Vigil
from infctl_daemon.gateway.vocabulary import Vocabularies
from infctl_daemon.runtime import log as logging
from infctl_daemon.runtime.console import complain
from infctl_daemon.runtime.etcd_options import EtcdAt
from infctl_daemon.runtime.recorder import Recorder
from infctl_daemon.runtime.sdnotify import Notifier, feed_watchdog

if TYPE_CHECKING:
    from infctl.config.gateway import GatewayConfig

log = structlog.get_logger()
PUBLISH_EVERY = 2.0
PUBLISH_AGAIN = 0.1  # never sooner than this after the last time
FADE_TTL = 900.0
FADE_EVERY = 60.0
STOP_GRACE = 5.0
SERVING = "routing table read"


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    match words[:1]:
        case ["check-config"]:
            return _check_config(words[1:])
        case ["run"]:
            words = words[1:]
    arguments = read_arguments(words)
    # a watchdog that ends us (SIGABRT) leaves in the log where the loop stood
    faulthandler.enable()
    logging.configure(arguments.log_level or "info")
    try:
        asyncio.run(_run(arguments, Notifier.from_environment(), **find_settings(arguments)))
    except InfctlError as error:
        return complain(error)
    return 0


def _check_config(words: Sequence[str]) -> int:
    from infctl_daemon.gateway.check_config import DEFAULT_FILE, check
    from infctl_daemon.runtime.settings import report

    parser = argparse.ArgumentParser(
        prog="infctl-gateway check-config",
        description="Says everything that is wrong with the settings (exit 2), or every value and where it comes from.",
    )
    parser.add_argument("file", nargs="?", metavar="FILE", help=f"default: --config, or {DEFAULT_FILE}")
    add_options(parser)
    arguments = parser.parse_args(words)
    arguments.config = arguments.file or arguments.config or DEFAULT_FILE
    try:
        return report(check(arguments, arguments.config))
    except InfctlError as error:
        return complain(error)


async def _run(
    arguments: argparse.Namespace,
    notify: Notifier,
    etcd: EtcdAt,
    cluster: str,
    name: str,
    listen: tuple[str, int],
    admin: tuple[str, int],
    limits: Limits,
    max_body: int,
    keep_alive: float,
    state_dir: Path,
    snapshot_max_age: float,
) -> None:
    keys = Keys(cluster)
    store = EtcdStore(etcd.endpoints, tls=etcd.tls)
    file = SnapshotFile(state_dir / f"{re.sub('[^a-zA-Z0-9.-]', '_', name)}.snapshot.json", cluster, snapshot_max_age)
    fleet = Fleet(store, keys, Vocabularies(), grace=2 * limits.lease_ttl, file=file)
    journal = Journal(store)
    recorder = Recorder("gateway")
    own = HeldLease(store, limits.lease_ttl)
    live = HeldLease(store, limits.resume_window, on_new=lambda: core.record_all())
    fading = RotatingLease(store, ttl=FADE_TTL, every=FADE_EVERY)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=256)) as http:
        core = Core(
            name, keys, limits, fleet, journal, recorder, http,
            live_lease=live.current,
            fading_lease=fading.current,
            own_lease=own.current,
        )  # fmt: skip
        fleet.on_replaced = lambda message: core.announce("store.replaced", "store", "", message, {})
        clients = web.AppRunner(
            client_app(core, max_body, keep_alive), handler_cancellation=True, access_log=None, shutdown_timeout=1.0
        )
        vigil = Vigil(fleet, http, limits.probe, etcd.tls)
        operators = web.AppRunner(admin_app(core, journal), access_log=None, shutdown_timeout=1.0)
        try:
            url = await _listen(clients, listen, "--listen")
            admin_url = await _listen(operators, admin, "--admin")
            log.info("gateway.listening", gateway=name, url=url, admin=admin_url, endpoints=list(etcd.endpoints))
            async with asyncio.TaskGroup() as group:
                work = (own.run(), live.run(), fading.run(), journal.run(), fleet.run(), core.pulse.run(),
                        vigil.run(), SnapshotKeeper(fleet, file).run(),
                        _publish(core, keys, journal, own, url, admin_url), _notify(fleet, notify))  # fmt: skip
                tasks = [group.create_task(w) for w in work]
                tasks.append(_follow_sighup(arguments, core, vigil, notify))
                feed_watchdog(notify)
                await stop.wait()
                notify.stopping(STOP_GRACE + 3)
                await _wind_down(core, clients, journal)
                for task in tasks:
                    task.cancel()
            with contextlib.suppress(InfctlError):
                await own.release()
        finally:
            await operators.cleanup()
            await clients.cleanup()
            recorder.close()
            await store.close()


async def _listen(runner: web.AppRunner, at: tuple[str, int], flag: str) -> str:
    """Bind and serve; the address clients reach. Raises Conflict when the port is taken: it may be free again soon."""
    await runner.setup()
    site = web.TCPSite(runner, *at, backlog=1024)
    try:
        await site.start()
    except OSError as error:
        raise Conflict(
            f"{flag} {at[0]}:{at[1]}: {error.strerror}",
            reason="PortTaken",
            hint="choose another port, or 0 for a free one",
        ) from None
    host, port = runner.addresses[0][:2]
    return f"http://{host}:{port}"


async def _publish(core: Core, keys: Keys, journal: Journal, own: HeldLease, url: str, admin_url: str) -> None:
    """Keep `gateways/<gw>` fresh; who drains a group is told soon that its endpoint was seen."""
    told = core.fleet.endpoints_changed
    incarnation = base32(os.urandom(5), 8)
    started = stamp.now_text()
    while True:
        told.clear()
        record = GatewayRecord(
            gateway=core.name,
            incarnation=incarnation,
            url=url,
            version=__version__,
            streams=len(core.streams),
            snapshot_revision=core.fleet.revision,
            snapshot_age_ms=round((core.now() - core.fleet.fresh_at) * 1000.0, 1),
            endpoints_revision=core.fleet.endpoints_revision,
            launches=core.loads(),
            started_at=started,
            updated_at=stamp.now_text(),
            stats={"admin": admin_url, "journal_lag": journal.lag, "counters": dict(core.counters)},
        )
        journal.put(keys.gateway(core.name), encode(record), own.current)
        await asyncio.sleep(PUBLISH_AGAIN)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(told.wait(), PUBLISH_EVERY - PUBLISH_AGAIN if own.id else 0.0)


async def _notify(fleet: Fleet, notify: Notifier) -> None:
    """Ready means listening: a store that is away makes a gateway wait, not fail."""
    notify.ready("waits for etcd" if not fleet.ready.is_set() else SERVING)
    await fleet.ready.wait()
    notify.status(SERVING)


def _follow_sighup(arguments: argparse.Namespace, core: Core, vigil: Vigil, notify: Notifier) -> asyncio.Task[None]:
    """What SIGHUP takes over; nothing where there is no file to read."""
    from infctl_daemon.runtime.reload import Reloader, follow_sighup

    logger = logging.get("gateway", gateway=core.name)
    if not arguments.config:
        return follow_sighup(None, logger)
    from infctl_daemon.gateway.check_config import check

    def adopt(config: GatewayConfig) -> None:
        core.adopt_limits(config.limits)
        vigil.timeout = config.limits.probe

    rules: dict[str, Any] = {
        "logLevel": lambda config: logging.set_level(config.log_level),
        "limits": adopt,
        "limits.leaseTtlSeconds": None,  # leases keep the length they were granted with
        "limits.resumeWindowSeconds": None,
    }
    used = check(arguments, arguments.config)
    return follow_sighup(
        Reloader(lambda: check(arguments, arguments.config), used, rules, logger, notify, SERVING), logger
    )


async def _wind_down(core: Core, clients: web.AppRunner, journal: Journal) -> None:
    """Stop listening, wait for running streams up to the grace, end the rest with a typed error."""
    log.info("gateway.stopping", streams=len(core.streams))
    for site in list(clients.sites):
        await site.stop()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(STOP_GRACE):
            while core.streams:
                await next(iter(core.streams.values())).ended.wait()
    for stream in list(core.streams.values()):
        stream.feed(ev.CancelRequested("gateway shutdown"))
    await journal.drain(1.0)


if __name__ == "__main__":
    sys.exit(main())
