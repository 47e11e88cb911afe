"""`infctl-noded`: reads its settings, takes the lock on its state folder, runs the agent until it is told to stop.

One daemon for a state folder: the lock is held as long as the process lives. SIGTERM or SIGINT ends the daemon and
leaves the engines running for the next one; with --stop-groups-on-exit the first signal stops them in order, the second
one at once. SIGHUP takes over what can change in a running daemon.
"""

from __future__ import annotations

import argparse
import asyncio
import faulthandler
import fcntl
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from infctl.config.load import load_node_config
from infctl.config.node import NodeConfig
from infctl.domain.errors import Conflict, InfctlError
from infctl.domain.ids import check_name
from infctl_daemon.node.agent import STOP_DEADLINE, Agent, Settings
from infctl_daemon.node.api_options import read_api
from infctl_daemon.node.check_config import DEFAULT_FILE, check, chosen_address
from infctl_daemon.runtime import log
from infctl_daemon.runtime.console import complain
from infctl_daemon.runtime.etcd_options import add_etcd_options, find_etcd
from infctl_daemon.runtime.memory import one_arena
from infctl_daemon.runtime.reload import Reloader, follow_sighup
from infctl_daemon.runtime.sdnotify import Notifier, feed_watchdog
from infctl_daemon.runtime.settings import Checked, report

SUPERVISING = "supervising"
COMMANDS = """\
commands:
  run                   supervise (also without this word)
  check-config [FILE]   say what is wrong with the settings, or every value and where it comes from
  install               write the systemd unit and a first configuration (--print: only show them)
"""


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Of `run`."""
    parser = argparse.ArgumentParser(
        prog="infctl-noded",
        description="Supervises the worker groups of this host.",
        epilog=COMMANDS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_options(parser)
    parser.add_argument(
        "--once",
        action="store_true",
        help="look once, say what would be done, do nothing; exit 0: nothing to do, 1: something is",
    )
    return parser.parse_args(argv)


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", metavar="node.yaml", help="settings; an argument below wins over the file")
    add_etcd_options(parser)
    parser.add_argument("--cluster")
    parser.add_argument("--node", help="this host's name in the cluster")
    parser.add_argument(
        "--address", metavar="IP", help="engines listen here, other hosts reach them (default 127.0.0.1)"
    )
    parser.add_argument("--state-dir", type=Path, help="kept over restarts: generations, logs of engines")
    parser.add_argument("--run-dir", type=Path, help="not kept over a reboot: key files")
    parser.add_argument(
        "--stop-groups-on-exit",
        action="store_const",
        const=True,
        help="end the engines when the daemon ends; else they run on, and the next daemon takes them over",
    )
    parser.add_argument("--log-level", choices=["debug", "info", "warning", "error"], help="default: info")
    parser.add_argument("--read-api", metavar="HOST:PORT", help="the read-only API (default 127.0.0.1:8070)")


def settings(args: argparse.Namespace) -> Settings:
    """Arguments over the environment over the file over defaults. Raises ConfigError or UsageError."""
    config = load_node_config(args.config) if args.config else NodeConfig()
    return Settings(
        etcd=find_etcd(args, config),
        cluster=check_name(args.cluster or config.cluster, "cluster"),
        node=check_name(args.node or config.node, "node"),
        address=chosen_address(args, config),
        state_dir=Path(args.state_dir or config.state_dir).absolute(),
        run_dir=Path(args.run_dir or config.run_dir).absolute(),
        limits=config.limits,
        container=None if config.container == "auto" else config.container,
        stop_groups=args.stop_groups_on_exit or config.stop_groups_on_exit,
        log_level=args.log_level or config.log_level,
        read_api=read_api(args, config),
    )


def lock(folder: Path) -> int:
    """Hold the state folder for this process's life. Raises Conflict when another daemon has it."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise Conflict(f"another daemon runs over {folder}", reason="AlreadyRunning") from None
    return fd


async def serve(chosen: Settings, args: argparse.Namespace, notify: Notifier) -> None:
    logger = log.get("noded", node=chosen.node, cluster=chosen.cluster)
    agent = Agent(chosen, logger)

    def told() -> None:
        if agent.stop.is_set():
            logger.warning("told again: stopping at once")
            agent.hurry.set()
            return
        logger.info("told to stop", groups="stopped" if agent.stop_groups else "run on")
        notify.stopping(STOP_DEADLINE + 10.0)
        agent.stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told)
    logger.info("starting", endpoints=list(chosen.etcd.endpoints), state_dir=str(chosen.state_dir))
    feed_watchdog(notify)
    reloading = follow_sighup(_reloader(agent, args, logger, notify), logger)
    # ready means supervising; a store that is away makes a daemon wait, not fail
    notify.ready(SUPERVISING)
    try:
        await agent.run()
    finally:
        reloading.cancel()
    logger.info("stopped")


def _reloader(
    agent: Agent, args: argparse.Namespace, logger: log.Logger, notify: Notifier
) -> Reloader[NodeConfig] | None:
    """What SIGHUP takes over; None where there is no file to read."""
    if not args.config:
        return None

    def read() -> Checked[NodeConfig]:
        return check(args, args.config)

    def adopt_stop(config: NodeConfig) -> None:
        agent.stop_groups = config.stop_groups_on_exit

    rules: dict[str, Callable[[NodeConfig], None] | None] = {
        "stopGroupsOnExit": adopt_stop,
        "logLevel": lambda config: log.set_level(config.log_level),
        "limits": lambda config: agent.adopt_limits(config.limits),
        "limits.leaseTtlSeconds": None,  # the lease keeps the length it was granted with
    }
    return Reloader(read, read(), rules, logger, notify, SUPERVISING)


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    match words[:1]:
        case ["check-config"]:
            return _check_config(words[1:])
        case ["install"]:
            from infctl_daemon.node.install import main as install

            return install(words[1:])
        case ["run"]:
            words = words[1:]
    args = arguments(words)
    if args.once:
        from infctl_daemon.node.once import main as once

        return once(args)
    return _run(args)


def _run(args: argparse.Namespace) -> int:
    # a watchdog that ends us (SIGABRT) leaves in the log where the loop stood
    faulthandler.enable()
    # /proc is read in a thread; at the usual 5 ms it would hold up the loop just when a fault is being written
    sys.setswitchinterval(0.0005)
    one_arena()
    log.configure(args.log_level or "info")
    try:
        chosen = settings(args)
        log.set_level(chosen.log_level)
        held = lock(chosen.state_dir)
        try:
            asyncio.run(serve(chosen, args, Notifier.from_environment()))
        finally:
            os.close(held)
    except InfctlError as error:
        log.get("noded").error(error.message, reason=error.reason, hint=error.hint)
        return error.exit_code
    return 0


def _check_config(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="infctl-noded check-config",
        description="Says everything that is wrong with the settings (exit 2), or every value and where it comes from.",
    )
    parser.add_argument("file", nargs="?", metavar="FILE", help=f"default: --config, or {DEFAULT_FILE}")
    _add_options(parser)
    args = parser.parse_args(words)
    args.config = args.file or args.config or DEFAULT_FILE
    try:
        return report(check(args, args.config))
    except InfctlError as error:
        return complain(error)


if __name__ == "__main__":
    sys.exit(main())
