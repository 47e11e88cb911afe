"""Which description belongs to which kind."""

from __future__ import annotations

from collections.abc import Callable

from infctl.view.describe import endpoint, event, gateway, group, node, pool, stream
from infctl.view.describe.look import Look
from infctl.view.describe.page import Page
from infctl.view.kinds import Kind

DESCRIBE: dict[Kind, Callable[[Look, str], Page]] = {
    Kind.NODE: node.describe,
    Kind.POOL: pool.describe,
    Kind.GROUP: group.describe,
    Kind.ENDPOINT: endpoint.describe,
    Kind.STREAM: stream.describe,
    Kind.GATEWAY: gateway.describe,
    Kind.EVENT: event.describe,
}
