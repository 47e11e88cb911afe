"""What a command line means by its words: kinds, names and addresses, in the order given."""

from __future__ import annotations

from infctl.domain.errors import UsageError
from infctl.view.kinds import WORDS, Kind, nearest


def wanted(words: list[str]) -> dict[Kind, list[str]]:
    """The kinds meant, each with the names asked for (none: all of them).

    `groups`, `groups,nodes`, `groups a b` and `group/a node/n1` are understood. Raises UsageError.
    """
    first, *rest = words
    if "," in first:
        if rest or "/" in first:
            raise UsageError("names of several kinds are written KIND/NAME", hint="infctl get group/a node/n1")
        return {kind_of(word): [] for word in first.split(",") if word}
    found: dict[Kind, list[str]] = {}
    kind = None
    for word in words:
        head, slash, name = word.partition("/")
        if kind is not None and not slash:
            if not word:
                raise UsageError("an empty name")
            found[kind].append(word)
            continue
        kind = kind_of(head)
        names = found.setdefault(kind, [])
        if slash:
            if not name or "/" in name:
                raise UsageError(f"{word!r} is not an address", hint=f"write {kind.value}/NAME")
            names.append(name)
    return found


def kind_of(word: str) -> Kind:
    """The kind a word stands for. Raises UsageError."""
    if word not in WORDS:
        near = nearest(word, sorted(WORDS))
        raise UsageError(
            f"no kind {word!r}",
            reason="UnknownKind",
            hint=f"did you mean {near}?" if near else f"one of: {', '.join(k.plural for k in Kind)}",
        )
    return WORDS[word]
