"""Small parts that all handlers of the HTTP surface share."""

from __future__ import annotations

from aiohttp import web

from infctl_daemon.engine.sim.schema import Malformed


def json_reply(body: bytes, status: int = 200) -> web.Response:
    return web.Response(body=body, status=status, content_type="application/json")


async def json_body(request: web.Request) -> bytes:
    """The body, if it says that it is JSON; raises `Malformed`."""
    if request.content_type != "application/json":
        raise Malformed(
            "'loc': ['header', 'content-type'], "
            "'msg': \"Unsupported Media Type: Only 'application/json' is allowed\", 'type': 'value_error'"
        )
    return await request.read()
