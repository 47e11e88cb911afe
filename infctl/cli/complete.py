"""What a TAB press offers: `infctl __complete SHELL -- WORDS...`, the last word being the one under the cursor.

Kept true: it never raises, never prints to stderr, loads neither typer nor grpc, and asks the store for names within
a short deadline only. The words come from `help/words.json`, made from the command tree by tests/cli/test_help.py.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Node = dict[str, Any]
    # (kind, flags that say which cluster) -> names
    Names = Callable[[str, dict[str, str]], Iterable[str]]

WORDS = os.path.join(os.path.dirname(__file__), "help", "words.json")
FILES = ":files"
_CLUSTER_FLAGS = ("--endpoints", "--context", "--cluster")

Offer = tuple[str, str]


def answer(argv: list[str]) -> str:
    """The lines for a shell: `word` for bash, `word<TAB>description` for the others; `:files` asks for file names."""
    try:
        shell, _, *words = argv
        with open(WORDS, encoding="utf-8") as file:
            root = json.load(file)
        found = offers(root, _joined(words) if shell == "bash" else words, _names, bash=shell == "bash")
    except Exception:
        # a completion that fails offers nothing: there is no place for a message in a half-written line
        return ""
    return "".join(f"{w}\n" if shell == "bash" or not text else f"{w}\t{text}\n" for w, text in found)


def offers(root: Node, words: list[str], names: Names, *, bash: bool = False) -> list[Offer]:
    """What can stand in the place of the last word, with a description where there is one."""
    *before, current = words or [""]
    node, given, flags, pending, literal = root, [], {}, "", False
    for word in before:
        if pending:
            flags[pending], pending = word, ""
        elif word == "--" and not literal:
            literal = True
        elif word.startswith("-") and len(word) > 1 and not literal:
            name, equals, value = word.partition("=")
            if equals:
                flags[name] = value
            elif node["options"].get(word, {}).get("values"):
                pending = word
        elif "commands" in node:
            if word not in node["commands"]:
                return []
            node = node["commands"][word]
        else:
            given.append(word)
    where = {flag: flags[flag] for flag in _CLUSTER_FLAGS if flag in flags}
    if pending:
        return _fit(_values(node["options"][pending]["values"], current, [], where, names), current)
    if current.startswith("-") and not literal:
        name, equals, value = current.partition("=")
        if not equals:
            return _fit([(o, known["help"]) for o, known in node["options"].items()], current)
        found = _fit(_values(node["options"].get(name, {}).get("values"), value, [], where, names), value)
        # bash sees the part after the '=' as a word of its own
        return found if bash else [(f"{name}={word}", text) for word, text in found]
    if "commands" in node:
        return _fit([(word, child["help"]) for word, child in node["commands"].items()], current)
    return _fit(_values(node["values"], current, given, where, names), current)


def _values(what: Any, current: str, given: list[str], where: dict[str, str], names: Names) -> list[Offer]:
    """The values an option or an argument takes: a list of words, or the name of a source."""
    if isinstance(what, list):
        return [(word, "") for word in what]
    if what == "contexts":
        from infctl.config.context import load_contexts

        found = load_contexts()
        return [(name, f"cluster {context.cluster}") for name, context in sorted(found.contexts.items())]
    if what == "files":
        return [(FILES, "")]
    if what == "addresses":
        return _addresses(current, where, names)
    if what == "groups":
        return [(f"group/{name}", "") for name in names("group", where)]
    if what == "nodes":
        return [(name, "") for name in names("node", where)]
    if isinstance(what, str) and what.startswith("addresses:"):
        kinds = what.partition(":")[2].split(",")
        return [offer for offer in _addresses(current, where, names) if offer[0].partition("/")[0] in kinds]
    if what == "objects":
        return _objects(current, given, where, names)
    return []


def _objects(current: str, given: list[str], where: dict[str, str], names: Names) -> list[Offer]:
    """Kinds first, then names of the kind; or addresses all along."""
    from infctl.view.kinds import WORDS as KINDS
    from infctl.view.kinds import Kind

    if "/" in current or any("/" in word for word in given):
        return [(word, text) for word, text in _addresses(current, where, names) if word not in given]
    if not given:
        several, comma, _ = current.rpartition(",")
        taken = {KINDS.get(word) for word in several.split(",")}
        return [(f"{several}{comma}{kind.plural}", "") for kind in Kind if kind not in taken]
    kind = KINDS.get(given[0])
    return [(name, "") for name in names(kind.value, where) if name not in given] if kind else []


def _addresses(current: str, where: dict[str, str], names: Names) -> list[Offer]:
    from infctl.view.kinds import WORDS as KINDS
    from infctl.view.kinds import Kind

    word, slash, _ = current.partition("/")
    if not slash:
        return [(f"{kind.value}/", "") for kind in Kind if kind is not Kind.EVENT]
    return [(f"{word}/{name}", "") for name in names(KINDS[word].value, where)] if word in KINDS else []


def _fit(found: Iterable[Offer], current: str) -> list[Offer]:
    return [(word, text) for word, text in found if word.startswith(current) or word == FILES]


def _joined(words: list[str]) -> list[str]:
    """Bash breaks words at '='; an option and its value are one word again, but for the one under the cursor."""
    found: list[str] = []
    for word in words:
        if word == "=" and found and found[-1].startswith("--") and "=" not in found[-1]:
            found[-1] += "="
        elif found and found[-1].startswith("--") and found[-1].endswith("="):
            found[-1] += word
        else:
            found.append(word)
    return found


def _names(kind: str, where: dict[str, str]) -> Iterable[str]:
    from infctl.client.names import known_names

    return known_names(kind, *(where.get(flag, "") for flag in _CLUSTER_FLAGS))
