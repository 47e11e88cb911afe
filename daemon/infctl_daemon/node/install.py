"""`infctl-noded install`: the systemd unit and a first configuration, with the paths of this installation.

Kept true: a file that somebody changed is not overwritten unless --force says so (a unit carries the digest of what we
wrote), and a configuration that is there is never touched. Nothing is started: what to run next is said.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import infctl_daemon
from infctl.config.gateway import GatewayConfig
from infctl.config.load import load_gateway_config, load_node_config
from infctl.config.node import NodeConfig
from infctl.domain.errors import ConfigError, Conflict, InfctlError, PermissionDenied
from infctl.domain.ids import check_name
from infctl_daemon.runtime.console import complain, say

MARK = "# infctl-install: "
UNITS = Path("/etc/systemd/system")
SYSUSERS = Path("/etc/sysusers.d/infctl-gateway.conf")


@dataclass(frozen=True, slots=True)
class Placed:
    """A file to be written; `ours`: it is not for editing, and carries the digest of its text."""

    path: Path
    text: str
    ours: bool


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="infctl-noded install", description=__doc__.partition("\n")[0])
    parser.add_argument("--print", action="store_true", dest="show", help="show the files, write nothing")
    parser.add_argument("--gateway", action="store_true", help="those of the gateway instead")
    parser.add_argument(
        "--force",
        action="store_true",
        help="overwrite what was changed by hand, and do not check that the gateway's user gets there",
    )
    parser.add_argument("--config", type=Path, help="of the daemon (default /etc/infctl/node.yaml or gateway.yaml)")
    parser.add_argument("--endpoints", metavar="HOST:PORT,...", help="etcd members, for a new configuration")
    parser.add_argument("--cluster", default="default", help="for a new configuration")
    parser.add_argument("--root", type=Path, default=Path("/"), help="write below this folder (an image)")
    args = parser.parse_args(argv)
    try:
        placed = plan(args)
        if args.show:
            say("\n".join(f"# {one.path}\n{one.text}" for one in placed))
            return 0
        if os.geteuid() != 0 and args.root == Path("/"):
            raise PermissionDenied(
                f"only root may write {UNITS}", hint="sudo, or --print to see the files, or --root FOLDER"
            )
        if (problem := unreachable(args.gateway)) and not args.force:
            raise ConfigError(problem, hint="install infctl where every user may read it, /opt/infctl for example")
        done = [f"{write(one, args.root, force=args.force)} {one.path}" for one in placed]
    except InfctlError as error:
        return complain(error)
    say("\n".join([*done, "next:", *(f"  {line}" for line in next_steps(args.gateway, placed[-1].path))]))
    return 0


def plan(args: argparse.Namespace) -> list[Placed]:
    """The files, the configuration last. Raises ConfigError when the one that is there is wrong."""
    program = "infctl-gateway" if args.gateway else "infctl-noded"
    config = (args.config or Path("/etc/infctl") / ("gateway.yaml" if args.gateway else "node.yaml")).absolute()
    endpoints = [e.strip() for e in (args.endpoints or "127.0.0.1:2379").split(",") if e.strip()]
    there = args.root / config.relative_to("/")
    words = {
        "noded": command(program, "infctl_daemon.node.main"),
        "gateway": command(program, "infctl_daemon.gateway.main"),
        "config": quoted(config),
        "writable": writable(args.gateway, there if there.exists() else None),
        "cluster": check_name(args.cluster, "cluster"),
        "endpoints": json.dumps(endpoints),
    }
    files = [Placed(UNITS / f"{program}.service", signed(filled(f"{program}.service", words)), True)]
    if args.gateway:
        files.append(Placed(SYSUSERS, signed(filled("infctl-gateway.sysusers.conf", words)), True))
    text = there.read_text() if there.exists() else filled(config_template(args.gateway), words)
    return [*files, Placed(config, text, False)]


def config_template(gateway: bool) -> str:
    return "gateway.yaml" if gateway else "node.yaml"


def filled(name: str, words: dict[str, str]) -> str:
    """A template with every @word@ in its place."""
    text = (_templates() / name).read_text()
    for word, value in words.items():
        text = text.replace(f"@{word}@", value)
    return text


def _templates() -> Path:
    """In the package where it was installed from a wheel, beside it in a source tree."""
    package = Path(infctl_daemon.__file__).parent
    found = [folder for folder in (package / "systemd", package.parent / "systemd") if folder.is_dir()]
    if not found:
        raise ConfigError(f"the unit templates are missing from {package}", hint="install infctl again")
    return found[0]


def command(program: str, module: str) -> str:
    """How a unit starts the program: the console script beside our interpreter, or the module."""
    script = Path(sys.executable).with_name(program)
    return quoted(script) if script.exists() else f"{quoted(Path(sys.executable))} -m {module}"


def quoted(path: Path) -> str:
    """As one word of a unit file."""
    text = str(path).replace("\\", "\\\\").replace("%", "%%").replace('"', '\\"')
    return f'"{text}"' if any(c in text for c in " \t\"';") else text


def writable(gateway: bool, config: Path | None) -> str:
    """Folders of the configuration that is there, where they are not the ones that systemd makes for the unit."""
    if gateway:
        chosen = load_gateway_config(config) if config else GatewayConfig()
        asked = {chosen.state_dir: "/var/lib/infctl/gateway"}
    else:
        node = load_node_config(config) if config else NodeConfig()
        asked = {node.state_dir: "/var/lib/infctl/node", node.run_dir: "/run/infctl/node"}
    return "".join(f" {quoted(Path(path))}" for path, usual in asked.items() if path != usual)


def signed(text: str) -> str:
    return f"{text}{MARK}{hashlib.sha256(text.encode()).hexdigest()[:16]}\n"


def untouched(text: str) -> bool:
    """Is it still what some version of us wrote?"""
    body, mark, digest = text.rpartition(MARK)
    return bool(mark) and signed(body) == f"{body}{MARK}{digest}"


def write(one: Placed, root: Path, *, force: bool) -> str:
    """What was done. Raises Conflict when somebody changed the file, PermissionDenied when it cannot be written."""
    path = root / one.path.relative_to("/")
    try:
        old = path.read_text() if path.exists() else None
        if old == one.text:
            return "unchanged" if one.ours else "kept     "
        if old is not None and not untouched(old) and not force:
            raise Conflict(
                f"{path} was changed by hand",
                reason="Changed",
                hint="move the changes to a drop-in (systemctl edit), or overwrite them with --force",
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_name(f".{path.name}.new")
        fresh.write_text(one.text)
        fresh.chmod(0o644)
        fresh.replace(path)
    except OSError as error:
        raise PermissionDenied(f"{path}: {error.strerror or error}") from None
    return "wrote    " if old is None else "replaced "


def unreachable(gateway: bool) -> str:
    """Why the gateway's user could not start this installation; empty where it can."""
    if not gateway:
        return ""
    for place in {Path(sys.executable), Path(sys.base_prefix), Path(infctl_daemon.__file__)}:
        real = place.resolve()
        for folder in real.parents:
            if not folder.stat().st_mode & 0o001:
                return f"the gateway runs as infctl-gateway, which may not enter {folder} (on the way to {real})"
            if str(folder) in ("/tmp", "/var/tmp"):
                return f"the gateway has a /tmp of its own, so that it would not see {real}"
    return ""


def next_steps(gateway: bool, config: Path) -> list[str]:
    program = "infctl-gateway" if gateway else "infctl-noded"
    users = [f"systemd-sysusers {SYSUSERS}"] if gateway else []
    ends = "ends running streams after 5 s" if gateway else "the engines run on"
    return [
        f"{program} check-config {config}",
        *users,
        "systemctl daemon-reload",
        f"systemctl enable --now {program}",
        f"systemctl restart {program}   # where it runs already: {ends}",
    ]
