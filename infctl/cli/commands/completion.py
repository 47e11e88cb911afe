"""`infctl completion SHELL`: a script to source; it edits no start-up file. What TAB offers is `cli.complete`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from infctl.cli.tree import leaf
from infctl.domain.errors import UsageError

HELP = """Print a completion script for bash, zsh or fish.

Names of objects are completed, too: they are asked for at each TAB press, for a quarter of a second at most.

\b
Examples:
  source <(infctl completion bash)
  infctl completion zsh > "${fpath[1]}/_infctl"
  infctl completion fish > ~/.config/fish/completions/infctl.fish
"""

_BASH = """\
# bash completion for infctl; made by `infctl completion bash`
_infctl() {
  local line IFS=$'\\n'
  COMPREPLY=()
  for line in $(infctl __complete bash -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null); do
    if [[ $line == :files ]]; then
      compopt -o filenames 2>/dev/null
      COMPREPLY+=($(compgen -f -- "${COMP_WORDS[COMP_CWORD]}"))
    else
      COMPREPLY+=("$line")
    fi
  done
  if [[ ${COMPREPLY[0]-} == */ ]]; then
    compopt -o nospace 2>/dev/null
  fi
}
complete -F _infctl infctl
"""

_ZSH = """\
#compdef infctl
# zsh completion for infctl; made by `infctl completion zsh`
_infctl() {
  local line
  local -a described open
  for line in "${(@f)$(infctl __complete zsh -- "${(@)words[2,CURRENT]}" 2>/dev/null)}"; do
    case $line in
      '') ;;
      :files) _files ;;
      */) open+=("$line") ;;
      *) described+=("${line/$'\\t'/:}") ;;
    esac
  done
  (( $#open )) && compadd -S '' -- "${open[@]}"
  (( $#described )) && _describe -V infctl described
}
if [[ $funcstack[1] == _infctl ]]; then _infctl "$@"; else compdef _infctl infctl; fi
"""

_FISH = """\
# fish completion for infctl; made by `infctl completion fish`
function __infctl_complete
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    for line in (infctl __complete fish -- $words[2..-1] "$current" 2>/dev/null)
        if test "$line" = ":files"
            __fish_complete_path "$current"
        else
            printf '%s\\n' $line
        end
    end
end
complete -c infctl -f -a '(__infctl_complete)'
"""

SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


def command() -> Any:
    return leaf("completion", completion, HELP)


def completion(shell: Annotated[str, typer.Argument(metavar="bash|zsh|fish", show_default=False)]) -> None:
    from infctl.cli import io

    if shell not in SCRIPTS:
        raise UsageError(f"no completion for {shell!r}", hint=f"one of: {', '.join(SCRIPTS)}")
    io.out(SCRIPTS[shell], end="")
