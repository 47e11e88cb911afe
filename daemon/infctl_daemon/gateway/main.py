"""`infctl-gateway`: wiring, life and end of one gateway process.

Start: listen at once, keep trying the store and say so; `/ready` turns 200 when the table was read and a group is
ready. End (SIGTERM, SIGINT): take no new requests, let running streams finish for the grace, then end them honestly.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import re
import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import structlog
from aiohttp import web

from infctl import __version__
from infctl.adapters.etcd import EtcdStore
from infctl.domain import request_events as ev
from infctl.domain.errors import ConfigError, InfctlError
from infctl.domain.ids import base32
from infctl.domain.model import Limits
from infctl.store import stamp
from infctl.store.codec import encode
from infctl.store.keys import Keys
from infctl.store.records import GatewayRecord
from infctl_daemon.gateway.admin import admin_app
from infctl_daemon.gateway.answer import KEEP_ALIVE
from infctl_daemon.gateway.core import Core
from infctl_daemon.gateway.fleet import Fleet
from infctl_daemon.gateway.http import MAX_BODY, client_app
from infctl_daemon.gateway.journal import Journal
from infctl_daemon.gateway.leases import HeldLease, RotatingLease
from infctl_daemon.gateway.snapshot import MAX_AGE, STATE_DIR, SnapshotFile, SnapshotKeeper
from infctl_daemon.gateway.vigil import Vigil
from infctl_daemon.gateway.vocabulary import Vocabularies
from infctl_daemon.runtime import log as logging
from infctl_daemon.runtime.etcd_options import EtcdAt, add_etcd_options, find_etcd
from infctl_daemon.runtime.recorder import Recorder
from infctl_daemon.runtime.sdnotify import Notifier

if TYPE_CHECKING:
    from infctl.config.gateway import GatewayConfig

log = structlog.get_logger()
PUBLISH_EVERY = 2.0
FADE_TTL = 900.0
FADE_EVERY = 60.0
STOP_GRACE = 5.0


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="infctl-gateway", description="Keeps token streams alive across workers.")
    parser.add_argument("--config", help="gateway.yaml; flags win over it")
    add_etcd_options(parser)
    parser.add_argument("--cluster")
    parser.add_argument("--name", help="this gateway's name; default: host name and port")
    parser.add_argument("--listen", help="HOST:PORT for clients (default 127.0.0.1:8080)")
    parser.add_argument("--admin", help="HOST:PORT of the read-only API for operators (default 127.0.0.1:8081)")
    parser.add_argument("--state-dir", type=Path, help="kept over restarts: the routing snapshot")
    parser.add_argument(
        "--snapshot-max-age",
        type=float,
        metavar="SECONDS",
        help="older ones are not served from (default 900; 0: never)",
    )
    parser.add_argument("--log-level", default="info", choices=["debug", "info", "warning", "error"])
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    arguments = _arguments(argv)
    logging.configure(arguments.log_level)
    try:
        config = _settings(arguments)
        asyncio.run(_run(**config))
    except ConfigError as error:
        sys.stderr.write(f"error: {error.message}\n" + (f"  hint: {error.hint}\n" if error.hint else ""))
        return error.exit_code
    except InfctlError as error:
        sys.stderr.write(f"error: {error.message}\n  reason: {error.reason}\n  hint: {error.hint}\n")
        return error.exit_code
    return 0


def _settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """File, environment and flags, the later ones winning. Raises ConfigError."""
    config: GatewayConfig | None = None
    if arguments.config:
        # pydantic takes a tenth of a second to load, and a restart by flags alone does not need it
        from infctl.config.load import load_gateway_config

        config = load_gateway_config(arguments.config)
    listen = _address(arguments.listen or (config.listen if config else "127.0.0.1:8080"), "--listen")
    admin = _address(arguments.admin or (config.admin if config else "127.0.0.1:8081"), "--admin")
    return {
        "etcd": find_etcd(arguments, config),
        "cluster": arguments.cluster or (config.cluster if config else "default"),
        "name": arguments.name or (config.name if config and config.name else f"{socket.gethostname()}-{listen[1]}"),
        "listen": listen,
        "admin": admin,
        "limits": config.limits if config else Limits(),
        "max_body": config.max_body_bytes if config else MAX_BODY,
        "keep_alive": config.keep_alive_seconds if config else KEEP_ALIVE,
        "state_dir": Path(arguments.state_dir or (config.state_dir if config else STATE_DIR)).absolute(),
        "snapshot_max_age": _max_age(arguments, config),
    }


def _max_age(arguments: argparse.Namespace, config: GatewayConfig | None) -> float:
    given: float | None = arguments.snapshot_max_age
    if given is None:
        return config.snapshot_max_age_seconds if config else MAX_AGE
    if not 0 <= given < float("inf"):
        raise ConfigError(f"--snapshot-max-age: {given:g} is not a number of seconds from 0 on")
    return given


def _address(text: str, flag: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"{flag}: {text!r} is not HOST:PORT")
    return host.strip("[]") or "127.0.0.1", int(port)


async def _run(
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
        operators = web.AppRunner(admin_app(core, journal), access_log=None, shutdown_timeout=1.0)
        try:
            url = await _listen(clients, listen, "--listen")
            admin_url = await _listen(operators, admin, "--admin")
            log.info("gateway.listening", gateway=name, url=url, admin=admin_url, endpoints=list(etcd.endpoints))
            async with asyncio.TaskGroup() as group:
                work = (own.run(), live.run(), fading.run(), journal.run(), fleet.run(), core.pulse.run(),
                        Vigil(fleet, http, limits.probe).run(), SnapshotKeeper(fleet, file).run(),
                        _publish(core, keys, journal, own, url, admin_url), _notify(fleet))  # fmt: skip
                tasks = [group.create_task(w) for w in work]
                await stop.wait()
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
    """Bind and serve; the address clients reach. Raises ConfigError when the port is taken."""
    await runner.setup()
    site = web.TCPSite(runner, *at, backlog=1024)
    try:
        await site.start()
    except OSError as error:
        raise ConfigError(
            f"{flag} {at[0]}:{at[1]}: {error.strerror}",
            reason="PortTaken",
            hint="choose another port, or 0 for a free one",
        ) from None
    host, port = runner.addresses[0][:2]
    return f"http://{host}:{port}"


async def _publish(core: Core, keys: Keys, journal: Journal, own: HeldLease, url: str, admin_url: str) -> None:
    """Keep `gateways/<gw>` fresh."""
    incarnation = base32(os.urandom(5), 8)
    started = stamp.now_text()
    while True:
        record = GatewayRecord(
            gateway=core.name,
            incarnation=incarnation,
            url=url,
            version=__version__,
            streams=len(core.streams),
            snapshot_revision=core.fleet.revision,
            snapshot_age_ms=round((core.now() - core.fleet.fresh_at) * 1000.0, 1),
            started_at=started,
            updated_at=stamp.now_text(),
            stats={"admin": admin_url, "journal_lag": journal.lag, "counters": dict(core.counters)},
        )
        journal.put(keys.gateway(core.name), encode(record), own.current)
        await asyncio.sleep(PUBLISH_EVERY if own.id else 0.1)


async def _notify(fleet: Fleet) -> None:
    await fleet.ready.wait()
    Notifier().ready("routing table read")


async def _wind_down(core: Core, clients: web.AppRunner, journal: Journal) -> None:
    """Stop listening, wait for running streams up to the grace, end the rest with a typed error."""
    Notifier().stopping(STOP_GRACE + 3)
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
