"""What `infctl describe` shows: pages of the objects asked for, all from one snapshot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from infctl.client.listing import EVERYTHING, first_of, pick, read_prefixes
from infctl.domain.errors import NotFound
from infctl.ports.store import Store
from infctl.store.keys import Keys
from infctl.view.describe.kinds import DESCRIBE
from infctl.view.describe.look import Look
from infctl.view.describe.page import Page
from infctl.view.documents import documents
from infctl.view.kinds import Kind


@dataclass(frozen=True, slots=True)
class Described:
    """`unreadable` are keys whose values were not what their keys promise; `missing` is about names not there."""

    pages: list[Page]
    unreadable: tuple[str, ...]
    missing: NotFound | None = None


async def describe(store: Store, keys: Keys, wanted: Mapping[Kind, list[str]], now: datetime) -> Described:
    """The pages, in the order asked for; every object of a kind without names. Raises StoreError."""
    snapshot = await read_prefixes(store, keys, EVERYTHING)
    look = Look(snapshot, now)
    pages: list[Page] = []
    errors: list[NotFound | None] = []
    for kind, names in wanted.items():
        found, missing = pick(documents(snapshot, kind), kind, names)
        errors.append(missing)
        pages.extend(DESCRIBE[kind](look, str(d["metadata"]["name"])) for d in found)
    return Described(pages, snapshot.unreadable, first_of(errors))
