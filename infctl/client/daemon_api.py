"""A daemon's read-only API as a client: found by the node's lease key, asked with a token or a certificate.

Kept true: an answer counts only when it comes from the node that was asked; whatever goes wrong is a typed error.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx
import msgspec

from infctl.client.connect import Place
from infctl.config.read_api import read_token
from infctl.config.store_tls import check_files
from infctl.domain.errors import InfctlError, NodeUnreachable, NotFound, PermissionDenied
from infctl.store.records import NodeLease

CONNECT_S, ANSWER_S = 3.0, 15.0


class ToldLaunch(msgspec.Struct, frozen=True, kw_only=True):
    """A launch as the daemon tells of it: `state` is running, ending or ended; `log` a path on its host.

    `node_rank` is above 0 for a part of a launch that another host owns; such a part has no generation.
    """

    launch: str
    generation: int = 0
    node_rank: int = 0
    state: str = ""
    reason: str = ""
    message: str = ""
    process: str = ""
    exit_code: int | None = None
    signal: int | None = None
    oom_kills: int = 0
    started_at: str = ""
    ended_at: str = ""
    log: str = ""


class _Launches(msgspec.Struct):
    launches: list[ToldLaunch]


@dataclass(slots=True)
class DaemonApi:
    """The API of one node's daemon."""

    node: str
    url: str
    http: httpx.AsyncClient

    async def launches(self, group: str) -> list[ToldLaunch]:
        """Newest first. Raises NotFound, NodeUnreachable, PermissionDenied."""
        async with self._get(f"/v1/groups/{group}/launches", ANSWER_S) as answer:
            try:
                return msgspec.json.decode(await answer.aread(), type=_Launches).launches
            except msgspec.MsgspecError as error:
                raise self._unreachable(f"answers something else: {error}") from None

    async def log(
        self, group: str, launch: str, lines: int, *, follow: bool = False
    ) -> AsyncIterator[tuple[str, bool]]:
        """Pieces of whole lines; with each whether earlier lines that were asked for are missing."""
        path = f"/v1/groups/{group}/launches/{launch}/log?lines={lines}{'&follow=1' if follow else ''}"
        async with self._get(path, None if follow else ANSWER_S) as answer:
            cut = answer.headers.get("x-infctl-cut") == "1"
            async for text in answer.aiter_text():
                yield text, cut

    @asynccontextmanager
    async def _get(self, path: str, patience: float | None) -> AsyncIterator[httpx.Response]:
        """An answer with status 200 from this very node. `patience` is for each read; None waits for ever."""
        limit = httpx.Timeout(ANSWER_S, connect=CONNECT_S, read=patience)
        try:
            async with self.http.stream("GET", self.url + path, timeout=limit) as answer:
                if (who := answer.headers.get("x-infctl-node", "")) != self.node:
                    raise self._unreachable(f"is {f'node/{who}' if who else 'something else'}")
                if answer.status_code != 200:
                    raise self._refused(answer.status_code, await answer.aread())
                yield answer
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, OSError) as error:
            raise self._unreachable(f"does not answer: {str(error) or type(error).__name__}") from None

    def _unreachable(self, why: str) -> NodeUnreachable:
        return NodeUnreachable(
            f"the read API of node/{self.node} at {self.url} {why}",
            hint="it listens for its own host only? Run infctl there, or set readApi.listen in its node.yaml"
            if httpx.URL(self.url).host in ("127.0.0.1", "localhost", "::1")
            else "is infctl-noded running there, and can it be reached from here?",
        )

    def _refused(self, status: int, body: bytes) -> InfctlError:
        try:
            said = str(msgspec.json.decode(body)["error"]["message"])
        except (msgspec.MsgspecError, KeyError, TypeError):
            said = f"status {status}"
        if status == 401:
            return PermissionDenied(
                f"the read API of node/{self.node} refuses us: {said}",
                hint="name a file with its token in INFCTL_READ_TOKEN_FILE, or read_token_file in the context",
            )
        if status == 404:
            return NotFound(said)
        return InfctlError(f"the read API of node/{self.node}: {said}", reason="ReadApiError")


@asynccontextmanager
async def open_daemon(lease: NodeLease, place: Place) -> AsyncIterator[DaemonApi]:
    """The API of the daemon that holds this lease. Raises ConfigError, NodeUnreachable."""
    if not lease.address:
        raise NodeUnreachable(
            f"the daemon of node/{lease.node} has no read API now",
            reason="ReadApiOff",
            hint=f"its log says why: on {lease.node}, journalctl -u infctl-noded",
        )
    url = lease.address if "://" in lease.address else f"http://{lease.address}"
    headers = {}
    if place.read_token_file is not None:
        headers["authorization"] = f"Bearer {read_token(place.read_token_file).decode()}"
    verify = _certificates(place) if url.startswith("https://") else True
    async with httpx.AsyncClient(headers=headers, verify=verify, trust_env=False) as http:
        yield DaemonApi(lease.node, url, http)


def _certificates(place: Place) -> ssl.SSLContext:
    """Those that are shown to etcd: one authority for a cluster is the usual case."""
    files = check_files(place.tls, place.origin)
    context = ssl.create_default_context(cafile=str(files.ca) if files and files.ca else None)
    if files and files.cert and files.key:
        context.load_cert_chain(files.cert, files.key)
    return context
