"""`infctl logs`: what a group's engine printed, read from the daemon that has it."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from infctl.cli.options import Cluster, ContextName, Endpoints
from infctl.cli.tree import leaf
from infctl.cli.words import wanted
from infctl.domain.errors import UsageError
from infctl.view.kinds import Kind

HELP = """Show what a group's engine printed: of this launch, of the one before, or of a named one.

Lines go to stdout; which launch it is and how it ended go to stderr. The daemon that has the output is asked over its
read-only API (a token for it: INFCTL_READ_TOKEN_FILE, or read_token_file in the context): the owner's, or with --host
that of another host of the group, which has the output of its own ranks. The last ten launches of a group are kept.

\b
Examples:
  infctl logs group/llama-a
  infctl logs group/llama-a --previous
  infctl logs group/llama-a -f -n 20
  infctl logs group/llama-a --launch llama-a-7kq2m5xd
  infctl logs group/llama-a --host gpu-02
"""


def command() -> Any:
    return leaf("logs", logs, HELP)


def logs(
    group: Annotated[str, typer.Argument(metavar="group/NAME", show_default=False)],
    previous: Annotated[bool, typer.Option("-p", "--previous", help="The last launch that has ended.")] = False,
    launch: Annotated[str, typer.Option("--launch", metavar="LAUNCH", help="This launch.")] = "",
    host: Annotated[
        str, typer.Option("--host", metavar="NODE", help="This host of a group over several; default: the owner.")
    ] = "",
    lines: Annotated[
        int, typer.Option("-n", "--lines", metavar="LINES", min=0, max=10000, help="How many of the last lines.")
    ] = 200,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on until the launch has ended.")] = False,
    endpoints: Endpoints = "",
    context: ContextName = "",
    cluster: Cluster = "",
) -> None:
    if "/" not in group:
        raise UsageError(f"{group!r} is not an address", hint=f"infctl logs group/{group}")
    ((kind, names),) = wanted([group]).items()
    if kind is not Kind.GROUP:
        raise UsageError(f"{group} has no engine output", hint="infctl logs group/NAME")
    if previous and launch:
        raise UsageError("--previous and --launch name two launches", hint="give one of them")
    from infctl.cli.running import run_async
    from infctl.domain.ids import check_name

    node = check_name(host.removeprefix("node/"), "host") if host else ""
    run_async(_logs(names[0], node, previous, launch, lines, follow, find_by=(endpoints, context, cluster)))


async def _logs(
    group: str, host: str, previous: bool, launch: str, lines: int, follow: bool, find_by: tuple[str, str, str]
) -> None:
    from infctl.cli import io
    from infctl.client.connect import find_cluster, open_cluster
    from infctl.client.daemon_api import open_daemon
    from infctl.client.logs import choose, find_source, sentence

    place = find_cluster(*find_by)
    async with open_cluster(place) as (store, keys):
        source = await find_source(store, keys, group, host)
    if source.lease is None:
        raise source.away()
    async with open_daemon(source.lease, place) as api:
        told = await choose(api, source, previous=previous, launch=launch)
        lies = f"{told.log} on node/{source.node}" if told.log else "it printed nothing"
        io.err(io.printable(f"{sentence(told)}; {lies}"))
        said = False
        async for text, cut in api.log(group, told.launch, lines, follow=follow):
            if cut and not said:
                said = True
                io.err("earlier lines are left out: what is sent at once is at most 1 MiB")
            io.out(io.printable(text), end="")
            if follow:
                io.flush()
        if follow:
            again = await choose(api, source, launch=told.launch)
            if again.state == "ended" and again != told:
                io.err(io.printable(sentence(again)))
