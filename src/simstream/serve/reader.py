"""A process that answers searches for another one that writes, and passes all else on to that one.

It is started by `simstream.serve.workers`. Its settings are the first line of its standard input, as JSON
values:

- folder, log, limits, randomise : of the service that writes
- searching : its settings of the index
- threads : searches at the same time
- shared : folder of what all processes of the service share
- writer : socket file of the service that writes
- proxy : address that may name the callers it speaks for, or null
- log_format, quiet, otel : how it logs, and whether it sends spans
- socket : number of the open socket to accept connections from
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import os
import shutil
import signal
import socket
import sys
import threading
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TextIO

import h11
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from .access import BusyError, KeyRing, ServiceError, StorageError
from .app import configuration, refused, run_server
from .evidence import Publishing
from .log import LogError, open_log
from .logs import REQUEST_ID, id_for, logged
from .service import Limits, Service, Settings
from .state import Learning
from .tracing import start_tracing
from .workers import BACKLOG

logger = logging.getLogger("simstream.serve")

#: Longest time between two looks at whether the service still follows.
_WATCH_SECONDS = 1.0

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


# -- requests that are passed on ---------------------------------------------------------------


class Forwarding:
    """ASGI application: searches are answered by an application of this process, the rest is passed on.

    A request is passed on as it came, before anything is checked: keys, limits and rates are checked there.
    It goes over a socket file that only the user of the service may open. So the service that writes believes
    a reader that says which address a caller has.

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


# -- following, and what is said to the service that writes ------------------------------------


def settings_of(told: dict[str, Any]) -> Settings:
    """The settings of a reader: how to learn stands in the log."""
    folder = Path(told["folder"])
    log = open_log(folder, told["log"])
    stored = log.setting("service")
    log.close()
    return Settings(
        folder,
        learning=Learning(**stored["learning"]),
        publishing=Publishing.stored_in(stored),
        n_features=stored["n_features"],
        limits=Limits(**told["limits"]),
        randomise=told["randomise"],
        **told["searching"],
        search_threads=told["threads"],
        log=told["log"],
        shared=Path(told["shared"]),
        follow=True,
    )


class _Voice:
    """Words to the service that writes, on what was the standard output: nothing else may get there."""

    def __init__(self) -> None:
        self._pipe = os.dup(1)
        os.dup2(2, 1)

    def __call__(self, word: str | int) -> None:
        try:
            os.write(self._pipe, f"{word}\n".encode())
        except OSError:  # nobody is left to answer for
            os._exit(1)


def _listen(lines: TextIO, first: Future[int], service: Future[Service], shared: str) -> None:
    """Hear that there are new events; end with the service that writes, however it ended."""
    for line in lines:
        if first.done():
            service.result().look()
        else:
            first.set_result(int(line))
    shutil.rmtree(shared, ignore_errors=True)  # if it was killed, nobody else does
    os._exit(1)  # nothing is lost: it only reads


def _watch(service: Service, say: _Voice, answering: Future[asyncio.AbstractEventLoop]) -> None:
    """Say that this process lives, as long as its event loop turns once it answers requests.

    End if it cannot follow any more: another begins where this one stopped. A log that cannot be reached is
    no reason: searches go on with what is in memory. If learning has stopped, the service that writes knows
    whether another process would do better.
    """
    while service.follow_failure is None:
        if answering.done():
            turned = threading.Event()
            try:
                answering.result().call_soon_threadsafe(turned.set)
            except RuntimeError:  # it has ended
                return
            turned.wait()
        say("alive" if service.engine.failure is None else "stopped")
        time.sleep(_WATCH_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)


def main(lines: TextIO) -> None:
    """Follow and answer until SIGTERM, or until the input ends."""
    gc.disable()  # everything allocated until it is ready stays alive
    say = _Voice()
    told = json.loads(lines.readline())
    with contextlib.ExitStack() as stack:
        stack.enter_context(logged(told["log_format"], quiet=told["quiet"]))
        try:
            if told["otel"]:
                stack.callback(start_tracing())
            _follow_and_answer(lines, say, told)
        except (OSError, LogError) as error:
            logger.error("a reader has failed: %s", error)
        except Exception:
            logger.exception("a reader has failed")
        else:
            return
    raise SystemExit(1)


def _follow_and_answer(lines: TextIO, say: _Voice, told: dict[str, Any]) -> None:
    first: Future[int] = Future()
    opened: Future[Service] = Future()
    threading.Thread(
        target=_listen, args=[lines, first, opened, told["shared"]], daemon=True
    ).start()
    service = Service(settings_of(told))
    opened.set_result(service)
    service.engine.on_publish = say
    say(service.version.position)
    answering: Future[asyncio.AbstractEventLoop] = Future()
    threading.Thread(target=_watch, args=[service, say, answering], daemon=True).start()
    last = first.result()
    service.look()
    if not service.engine.published(last).result():
        raise SystemExit(1)
    config = configuration(
        service, KeyRing(service.settings.folder / "keys.json"), proxy=told["proxy"]
    )
    app: Any = config.app
    config.app = Forwarding(app, told["writer"])
    # One at a time, so that connections that come together are divided among the processes.
    config.backlog = 1
    listening = socket.socket(fileno=told["socket"])

    def on_started(_: Any) -> None:
        listening.listen(BACKLOG)
        gc.freeze()
        gc.enable()
        answering.set_result(asyncio.get_running_loop())
        say("ready")

    run_server(config, on_started, [listening])


if __name__ == "__main__":
    main(sys.stdin)
