"""Requests that a reader passes on: the service that writes answers everything but searches.

A request is passed on as it came, before anything is checked: keys, limits and rates are checked there. It
goes over a socket file that only the user of the service may open. So the service that writes believes a
reader that says which address a caller has.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket

import h11
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from .access import BusyError, ServiceError, StorageError
from .app import refused
from .logs import REQUEST_ID, id_for

logger = logging.getLogger("simstream.serve")

#: Headers of one connection, and those by which a caller could claim another address.
_NOT_SENT = {
    b"connection",
    b"expect",
    b"forwarded",
    b"keep-alive",
    b"proxy-connection",
    b"te",
    b"upgrade",
    b"x-forwarded-for",
    b"x-forwarded-proto",
}
_NOT_ANSWERED = {b"connection", b"date", b"keep-alive", b"transfer-encoding"}

_PIECE = 2**16


class Forwarding:
    """ASGI application: searches are answered by an application of this process, the rest is passed on.

    Parameters
    ----------
    app : answers searches
    writer : path of the socket file of the service that writes
    """

    def __init__(self, app: ASGIApp, writer: str) -> None:
        self._app, self._writer = app, writer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        is_search = scope["type"] == "http" and scope["path"] == "/v1/search"
        if scope["type"] != "http" or (is_search and scope["method"] == "POST"):
            await self._app(scope, receive, send)
            return
        with contextlib.closing(socket.socket(socket.AF_UNIX)) as connected:
            connected.setblocking(False)
            passing = _Passing(connected, scope)
            try:
                await asyncio.get_running_loop().sock_connect(connected, self._writer)
                await passing.exchange(receive, send)
            except (OSError, h11.ProtocolError, asyncio.CancelledError) as error:
                if passing.is_gone:
                    return
                is_ending = isinstance(error, asyncio.CancelledError)
                if not is_ending:
                    logger.warning("the service that writes does not answer: %s", error)
                if passing.is_answered:
                    raise
                if passing.may_be_whole and scope["method"] not in ("GET", "HEAD"):
                    refusal: ServiceError = _unknown()
                elif is_ending:
                    refusal = BusyError("the service is ending")
                else:
                    refusal = BusyError("the service that writes does not answer")
                await _refuse(refusal, scope, receive, send)


def _unknown() -> ServiceError:
    """As the log in PostgreSQL says it: who repeats a change without a key might make it twice."""
    return StorageError(
        "the service that writes ended before it answered; whether the changes were kept is not known: send "
        "them again with the same idempotency key"
    )


class _Passing:
    """One request on its way over a connection of its own, and its answer."""

    def __init__(self, connected: socket.socket, scope: Scope) -> None:
        self._socket, self._scope = connected, scope
        self._http = h11.Connection(h11.CLIENT)
        self._loop = asyncio.get_running_loop()
        #: Whether the answer has begun, and whether the caller has gone away.
        self.is_answered = self.is_gone = False
        #: Whether all of the request may have arrived: before that nothing is done.
        self.may_be_whole = False

    async def exchange(self, receive: Receive, send: Send) -> None:
        """Send the request while the answer is awaited: it may come before all of the request has arrived."""
        sending = asyncio.create_task(self._send_request(receive))
        try:
            await self._pass_answer(send)
        finally:
            sending.cancel()
            # The writer may have answered, and closed the connection, without reading all of it.
            with contextlib.suppress(asyncio.CancelledError, OSError, h11.ProtocolError):
                await sending

    async def _send_request(self, receive: Receive) -> None:
        scope = self._scope
        headers = [(name, value) for name, value in scope["headers"] if name not in _NOT_SENT]
        if scope.get("client"):
            headers.append((b"x-forwarded-for", scope["client"][0].encode()))
        query = b"?" + scope["query_string"] if scope["query_string"] else b""
        await self._send(
            h11.Request(
                method=scope["method"],
                target=scope["raw_path"] + query,
                headers=[*headers, (b"connection", b"close")],
            )
        )
        is_complete = False
        while not is_complete:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.is_gone = True
                self._socket.shutdown(socket.SHUT_RDWR)
                return
            is_complete = self.may_be_whole = not message.get("more_body")
            if message.get("body"):
                await self._send(h11.Data(data=message["body"]))
        await self._send(h11.EndOfMessage())

    async def _send(self, event: h11.Event) -> None:
        await self._loop.sock_sendall(self._socket, self._http.send(event) or b"")

    async def _pass_answer(self, send: Send) -> None:
        while True:
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                self._http.receive_data(await self._loop.sock_recv(self._socket, _PIECE))
            elif isinstance(event, h11.Response):
                kept = [(name, value) for name, value in event.headers if name not in _NOT_ANSWERED]
                self.is_answered = True
                await send(
                    {"type": "http.response.start", "status": event.status_code, "headers": kept}
                )
            elif isinstance(event, h11.Data):
                body = bytes(event.data)
                await send({"type": "http.response.body", "body": body, "more_body": True})
            elif isinstance(event, h11.EndOfMessage):
                await send({"type": "http.response.body", "body": b""})
                return
            elif isinstance(event, h11.ConnectionClosed):
                raise h11.RemoteProtocolError("the connection was closed without an answer")


async def _refuse(error: ServiceError, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a request that could not be passed on."""
    identity = id_for(Headers(scope=scope).get("x-request-id"))
    REQUEST_ID.set(identity)
    answer = refused(error, scope)
    answer.headers["x-request-id"] = identity
    await answer(scope, receive, send)
