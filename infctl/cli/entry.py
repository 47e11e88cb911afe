"""The console script. Kept true: every way out of here has a documented exit code, and one error form on stderr.

Help and `infctl version` are answered before the command tree, or anything else that takes long to load, is there.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

_JSON_WORDS = frozenset({"-ojson", "-o=json", "--output=json", "--json"})


def main(argv: Sequence[str] | None = None) -> None:
    sys.exit(run(list(sys.argv[1:] if argv is None else argv)))


def run(argv: list[str]) -> int:
    """Run one command line; returns the exit code and never raises."""
    from infctl.cli import io

    stdout = sys.stdout
    try:
        code = _dispatch(argv)
        io.flush()
        return code
    except io.ReaderGone:
        io.close_quietly()
        return 141
    except SystemExit as error:
        # typer ends so when its own help meets a closed pipe, after it has wrapped stdout
        if sys.stdout is not stdout:
            sys.stdout = stdout
            io.close_quietly()
            return 141
        return error.code if isinstance(error.code, int) else 1
    except KeyboardInterrupt:
        io.err("interrupted")
        return 130


def wants_json(argv: Sequence[str]) -> bool:
    """Whether errors should be JSON too; looked up in the raw words, since the line may not even parse."""
    for i, word in enumerate(argv):
        if word == "--":
            return False
        if word in _JSON_WORDS or (word in ("-o", "--output") and i + 1 < len(argv) and argv[i + 1] == "json"):
            return True
    return False


def _dispatch(argv: list[str]) -> int:
    if (text := _at_once(argv)) is not None:
        from infctl.cli import io

        io.out(text, end="")
        return 0
    from typer import Abort, Exit
    from typer._click.exceptions import ClickException, UsageError

    from infctl.cli import io
    from infctl.cli.app import build
    from infctl.cli.errors import show, show_bug, show_error
    from infctl.domain.errors import InfctlError

    as_json = wants_json(argv)
    try:
        result = build().main(args=argv, prog_name="infctl", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except Exit as error:
        return error.exit_code
    except Abort:
        io.err("aborted")
        return 1
    except UsageError as error:
        where = error.ctx.command_path if error.ctx is not None else "infctl"
        show(error.format_message(), "Usage", f"{where} --help", 2, as_json=as_json)
        return 2
    except ClickException as error:
        show(error.format_message(), "Usage", "", 2, as_json=as_json)
        return 2
    except InfctlError as error:
        show_error(error, as_json=as_json)
        return error.exit_code
    except Exception as error:
        show_bug(error, as_json=as_json)
        return 70


def _at_once(argv: list[str]) -> str | None:
    """What needs no command tree; None for everything else."""
    if argv in (["version"], ["--version"], ["-V"], ["version", "--short"]):
        from infctl import __version__

        return f"{__version__}\n" if "--short" in argv else f"infctl {__version__}\n"
    if argv[:1] == ["__complete"]:
        from infctl.cli.complete import answer

        return answer(argv[1:])
    from infctl.cli.pages import page

    return page(argv)


if __name__ == "__main__":
    main()
