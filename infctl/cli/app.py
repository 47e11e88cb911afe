"""The commands of `infctl`: how the help page groups and introduces them, and in which module each one lives."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from infctl.cli.tree import Entry, Tree

# words from other tools, and what they are called here
SYNONYMS = {
    "list": "get",
    "ls": "get",
    "show": "get",
    "ps": "get",
    "inspect": "describe",
    "log": "logs",
    "tail": "logs",
    "create": "apply",
    "up": "dev up",
    "down": "dev down",
    "start": "dev up",
    "stop": "dev down",
    "status": "get groups",
    "context": "config",
    "contexts": "config get-contexts",
}

HELP = "Cluster manager for fleets of SGLang inference workers."

EPILOG = """\b
Exit codes: infctl help exit-codes
Where the cluster is: infctl help contexts"""


def build() -> Tree:
    """The whole tree; a command's module is imported when its name is met."""
    return Tree(
        "infctl",
        help=HELP,
        epilog=EPILOG,
        synonyms=SYNONYMS,
        sections={
            "Look": {
                "get": _in("get", "Show objects of a kind, as a table or as documents."),
                "describe": _in("describe", "Tell everything about one object, and what to do next."),
                "logs": _in("logs", "Show what a group's engine printed, also before it ended."),
            },
            "Change": {
                "apply": _in("apply", "Make pools and groups as YAML files say."),
                "diff": _in("diff", "Show what applying YAML files would change."),
                "drain": _in("drain", "Let a group or a node finish its streams, then stop it."),
                "undrain": _in("undrain", "Take a drain back, or start again what was drained."),
                "restart": _in("restart", "Start a group anew, after its streams have finished."),
                "cordon": _in("cordon", "Start no new launch on a node."),
                "uncordon": _in("uncordon", "Let a node start launches again."),
            },
            "Try": {
                "dev": _in("dev", "Run a cluster on this machine."),
                "demo": _in("demo", "Kill a rank in mid-stream, and watch the stream go on."),
            },
            "Set up": {
                "config": _in("config", "Show and choose contexts: the clusters known here."),
                "completion": _in("completion", "Print a completion script for bash, zsh or fish."),
                "version": _in("version", "Print the version."),
                "help": _in("help_topics", "Explain a topic: exit-codes, contexts, kinds."),
            },
        },
    )


def _in(module: str, short: str) -> Entry:
    def load() -> Any:
        return import_module(f"infctl.cli.commands.{module}").command()

    return short, load
