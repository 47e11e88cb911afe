"""`infctl demo`: a stream outlives its worker, before your eyes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from infctl.cli.commands.dev import Engine, parse_engine
from infctl.cli.tree import leaf
from infctl.domain.errors import UsageError

if TYPE_CHECKING:
    from infctl.client.demo.report import Outcome

HELP = """Kill a rank in the middle of a stream, and watch the stream go on.

Starts etcd, a node daemon, a gateway and two groups of two ranks in a folder of its own, streams a completion, makes
the fault, and lets a separate client process judge what it received against an uninterrupted run. Cleans up.

\b
Examples:
  infctl demo
  infctl demo --fault freeze-rank
  infctl demo --engine sglang --json
  infctl demo --streams 20 --fault kill-group
"""


def command() -> Any:
    return leaf("demo", demo, HELP)


def demo(
    engine: Engine = "sim",
    fault: Annotated[
        str, typer.Option("--fault", metavar="kill-rank|freeze-rank|kill-group|none", help="The fault.")
    ] = "kill-rank",
    tokens: Annotated[int, typer.Option("--tokens", help="Tokens of each stream.")] = 256,
    at: Annotated[int, typer.Option("--at", help="Make the fault at this token.")] = 127,
    streams: Annotated[int, typer.Option("--streams", help="Streams at once; the first one is shown.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, nothing else.")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the folder with logs and data.")] = False,
) -> None:
    from infctl.cli import io
    from infctl.cli.running import run_async
    from infctl.client.demo.driver import Demo, Options
    from infctl.client.demo.fault import Fault

    try:
        chosen_fault = Fault(fault)
    except ValueError:
        raise UsageError(f"no fault {fault!r}", hint=f"one of: {', '.join(Fault)}") from None
    options = Options(parse_engine(engine), chosen_fault, tokens, at, streams, keep)
    if options.engine.value == "sim":
        io.err("engine: simulated, no GPU and no model needed (--engine sglang runs the real one)")

    def say(line: str) -> None:
        if line.startswith("\n") and not as_json:
            io.err()
        io.err(io.paint(f"· {line.lstrip()}", "dim", io.stderr()))

    def text(words: str) -> None:
        if not as_json:
            io.out(io.printable(words), end="")
            io.flush()

    async def play() -> Outcome:
        return await Demo(options, say, text).run()

    outcome = run_async(play())
    if as_json:
        from infctl.cli.output.data import print_json

        print_json(outcome.report.to_dict())
        for problem in outcome.problems:
            io.err(f"problem: {problem}")
    else:
        show(outcome)
    if not outcome.kept:
        raise typer.Exit(1)


def show(outcome: Outcome) -> None:
    """The timeline and the verdict, for people."""
    from infctl.cli import io

    report = outcome.report
    if outcome.timeline:
        io.out("\ntimeline (0 is the fault)")
        for line in outcome.timeline:
            io.out(f"  {io.printable(line)}")
    io.out("\nverdict of the client process")
    io.out(f"  tokens {report.tokens}, lost {report.lost}, repeated {report.repeated}, "
           f"equal to an uninterrupted run: {'yes' if report.exact else 'NO'}")  # fmt: skip
    if report.gap_ms is not None:
        io.out(f"  gap {_ms(report.gap_ms)} (replay prefill {_ms(report.prefill_ms)}, net {_ms(report.net_gap_ms)}), "
               f"detected after {_ms(report.detect_ms)}")  # fmt: skip
        io.out(f"  requests sent to the dead launch after its notice: {report.requests_after_notice}")
    for problem in outcome.problems:
        io.out(io.paint(f"  problem: {problem}", "red"))
    word, style = ("KEPT: one unbroken stream", "green") if outcome.kept else ("BROKEN", "red")
    io.out(io.paint(f"  {word}", style))


def _ms(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.0f} ms"
