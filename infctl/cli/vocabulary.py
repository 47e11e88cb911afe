"""Every word of the command tree as plain data: what `help/words.json` holds, so that a TAB press need not build it."""

from __future__ import annotations

import json
from typing import Any

from infctl.cli.commands.help_topics import TOPICS
from infctl.cli.tree import Tree

# what stands in the place of a value, told by how the help writes it
_SOURCES = {
    "KIND/NAME": "addresses",
    "FILE": "files",
    "NODE": "nodes",
}


def vocabulary(tree: Tree) -> dict[str, Any]:
    """Commands, options and the values they take."""
    root = _node(tree, "")
    root["commands"]["help"]["values"] = [*TOPICS, *root["commands"]]
    return root


def text_of(words: dict[str, Any]) -> str:
    return json.dumps(words, indent=1, ensure_ascii=False) + "\n"


def _node(command: Any, short: str) -> dict[str, Any]:
    from typer._click import Context

    context = Context(command, info_name=command.name, **command.context_settings)
    options: dict[str, Any] = {}
    values: Any = None
    for parameter in command.get_params(context):
        if parameter.param_type_name == "option":
            known = {"help": _sentence(parameter.help or ""), "values": _values(parameter)}
            options.update(dict.fromkeys(sorted(parameter.opts, key=len), known))
        else:
            values = _values(parameter)
    node: dict[str, Any] = {"help": short, "options": options, "values": values}
    if isinstance(command, Tree):
        node["commands"] = {
            word: _node(command.get_command(context, word), short)
            for section in command.sections.values()
            for word, (short, _) in section.items()
        }
    return node


def _values(parameter: Any) -> Any:
    """A list of words, the name of a source (`cli.complete`), "any", or None for an option that takes no value."""
    if getattr(parameter, "is_flag", False):
        return None
    choices = getattr(parameter.type, "choices", None)
    if choices:
        return [str(getattr(choice, "value", choice)) for choice in choices]
    metavar = parameter.metavar or ""
    if parameter.param_type_name == "argument":
        if metavar.startswith("KIND"):
            return "objects"
        if metavar == "NAME":
            return "contexts"
        if metavar == "group/NAME":
            return "groups"
        kinds = [word.removesuffix("/NAME") for word in metavar.split("|") if word.endswith("/NAME")]
        if kinds:
            return f"addresses:{','.join(kinds)}"
    if "--context" in parameter.opts:
        return "contexts"
    if metavar in _SOURCES:
        return _SOURCES[metavar]
    words = metavar.split("|")
    return words if len(words) > 1 and all(word == word.lower() for word in words) else "any"


def _sentence(text: str) -> str:
    return text.split("\n")[0].rstrip(".")
