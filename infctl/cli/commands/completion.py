"""`infctl completion SHELL`: a script to source. It edits no start-up file, and a TAB press runs no network call."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from infctl.cli.tree import leaf
from infctl.domain.errors import UsageError

HELP = """Print a completion script for bash, zsh or fish.

\b
Examples:
  source <(infctl completion bash)
  infctl completion fish > ~/.config/fish/completions/infctl.fish
"""

_COMMANDS = "get apply demo dev completion version help"
_DEV = "up status down"
_OUTPUTS = "table wide json yaml name"
_SHELLS = "bash zsh fish"
_TOPICS = "exit-codes contexts kinds"


def _kinds() -> str:
    from infctl.view.kinds import Kind

    return " ".join(k.plural for k in Kind)


def _bash() -> str:
    return f"""\
_infctl() {{
  local cur="${{COMP_WORDS[COMP_CWORD]}}" prev="${{COMP_WORDS[COMP_CWORD-1]}}" words=""
  COMPREPLY=()
  case "$prev" in
    -o|--output) words="{_OUTPUTS}" ;;
    -f|--filename) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    --engine) words="sim sglang" ;;
    --fault) words="kill-rank freeze-rank kill-group none" ;;
    infctl) words="{_COMMANDS}" ;;
    get) words="{_kinds()}" ;;
    dev) words="{_DEV}" ;;
    completion) words="{_SHELLS}" ;;
    help) words="{_TOPICS}" ;;
  esac
  COMPREPLY=($(compgen -W "$words" -- "$cur"))
}}
complete -F _infctl infctl
"""


def _zsh() -> str:
    return f"""\
#compdef infctl
_infctl() {{
  local prev="${{words[CURRENT-1]}}"
  case "$prev" in
    -o|--output) compadd {_OUTPUTS} ;;
    -f|--filename) _files ;;
    --engine) compadd sim sglang ;;
    --fault) compadd kill-rank freeze-rank kill-group none ;;
    infctl) compadd {_COMMANDS} ;;
    get) compadd {_kinds()} ;;
    dev) compadd {_DEV} ;;
    completion) compadd {_SHELLS} ;;
    help) compadd {_TOPICS} ;;
  esac
}}
compdef _infctl infctl
"""


def _fish() -> str:
    return f"""\
complete -c infctl -f
complete -c infctl -n __fish_use_subcommand -a "{_COMMANDS}"
complete -c infctl -n "__fish_seen_subcommand_from get" -a "{_kinds()}"
complete -c infctl -n "__fish_seen_subcommand_from dev" -a "{_DEV}"
complete -c infctl -n "__fish_seen_subcommand_from completion" -a "{_SHELLS}"
complete -c infctl -n "__fish_seen_subcommand_from help" -a "{_TOPICS}"
complete -c infctl -n "__fish_seen_subcommand_from get" -s o -l output -x -a "{_OUTPUTS}"
complete -c infctl -n "__fish_seen_subcommand_from apply" -s f -l filename -r -F
complete -c infctl -n "__fish_seen_subcommand_from demo dev" -l engine -x -a "sim sglang"
complete -c infctl -n "__fish_seen_subcommand_from demo" -l fault -x -a "kill-rank freeze-rank kill-group none"
"""


def command() -> Any:
    return leaf("completion", completion, HELP)


def completion(shell: Annotated[str, typer.Argument(metavar="bash|zsh|fish")]) -> None:
    from infctl.cli import io

    scripts = {"bash": _bash, "zsh": _zsh, "fish": _fish}
    if shell not in scripts:
        raise UsageError(f"no completion for {shell!r}", hint="one of: bash, zsh, fish")
    io.out(scripts[shell](), end="")
