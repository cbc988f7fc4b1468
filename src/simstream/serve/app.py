"""The HTTP application: who may ask, error answers, the page; and running it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import signal
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.routing import Match, Mount
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .. import __version__
from ..processors import allowed_cpus
from .access import (
    WATCHED_PATHS,
    BusyError,
    ForbiddenError,
    KeyRing,
    MalformedError,
    NotAllowedError,
    NotFoundError,
    RateError,
    ServiceError,
    StorageError,
    TokenBuckets,
    TooLargeError,
    TooSlowError,
    UnauthorizedError,
    check_host,
    in_brackets,
    is_local_host,
    scope_needed,
)
from .log import LogError
from .logs import REQUEST_ID, id_for, log_request, spoken_for
from .mistakes import refusal
from .reference import describe, docs_page, refusals
from .routes import Metrics, add_routes
from .service import Limits, Service
from .tracing import end_request, request_span
from .workers import Readers, listening_socket

logger = logging.getLogger("simstream.serve")

_MEDIA_TYPES = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
}

#: Sent with every answer: nothing from other sites, no inline script, no frames.
SECURITY_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


def create_app(service: Service, keys: KeyRing | None = None) -> FastAPI:
    """The application of a service. It closes the service when it ends.

    Without any keys, only this machine may call, and may do everything.
    """

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await run_in_threadpool(service.close)

    keys = KeyRing(Path("/nonexistent")) if keys is None else keys
    metrics = Metrics(service)
    settings = service.settings
    app = bare_app(keys, settings.limits, metrics.count, shared=settings.shared, lifespan=lifespan)
    app.state.metrics = metrics
    add_routes(app, service, metrics, keys)
    _add_page(app)
    return app


def bare_app(
    keys: KeyRing,
    limits: Limits,
    on_done: Callable[[str, int, float], None],
    *,
    shared: Path | None = None,
    **options: Any,
) -> FastAPI:
    """An application without routes, that knows who may ask and how errors are answered."""
    app = FastAPI(
        title="simstream",
        version=__version__,
        description="Search that learns from feedback.",
        docs_url=None,
        redoc_url=None,
        responses=refusals(),
        generate_unique_id_function=lambda route: route.name,
        **options,
    )
    app.add_middleware(Guard, keys=keys, limits=limits, on_done=on_done, shared=shared)
    _add_error_handlers(app)
    describe(app, keys)
    return app


def _problem(text: str, status: int, headers: Mapping[str, str] | None = None) -> Response:
    """The answer to a request that was refused or has failed."""
    return JSONResponse({"error": text, "request_id": REQUEST_ID.get()}, status, headers)


def refused(error: ServiceError, scope: Scope) -> Response:
    """The answer to a refused request."""
    headers = SECURITY_HEADERS.copy()
    if error.retry_after is not None:
        headers["retry-after"] = str(error.retry_after)
    if isinstance(error, UnauthorizedError):
        headers["www-authenticate"] = "Bearer"
    if isinstance(error, NotAllowedError):
        refused = {scope["method"], "HEAD"} if scope["method"] == "GET" else {scope["method"]}
        headers["allow"] = ", ".join(one for one in _methods(scope) if one not in refused)
    return _problem(str(error), error.status, headers)


def _methods(scope: Scope) -> list[str]:
    """The methods that the address of a request can be asked with."""
    routes = scope["app"].routes
    path = next((one.path for one in routes if one.matches(scope)[0] is not Match.NONE), None)
    methods = {method for one in routes if one.path == path for method in one.methods}
    return sorted(methods | ({"HEAD"} if "GET" in methods else set()))


class _GoneError(Exception):
    """The caller has disconnected."""


class Guard:
    """ASGI middleware: checks callers and bodies, answers errors, adds security headers.

    It calls `on_done` with route, status and seconds of every request.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        keys: KeyRing,
        limits: Limits,
        on_done: Callable[[str, int, float], None],
        shared: Path | None = None,
    ) -> None:
        self._app, self._keys, self._limits, self._on_done = app, keys, limits, on_done
        rates = None if shared is None else shared / "rates"
        self._buckets = TokenBuckets(limits.rate, limits.burst, shared=rates)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, status, is_begun = time.perf_counter(), 500, False
        headers = Headers(scope=scope)
        identity = id_for(headers.get("x-request-id"))
        token = REQUEST_ID.set(identity)
        method = scope["method"]
        is_head = method == "HEAD"
        if is_head:  # as GET, without the body
            scope = {**scope, "method": "GET"}

        async def sending(message: Message) -> None:
            nonlocal status, is_begun
            if message["type"] == "http.response.start":
                status, is_begun = message["status"], True
                answered = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    answered.setdefault(name, value)
                answered["x-request-id"] = identity
            elif is_head:
                message = {**message, "body": b""}
            await send(message)

        def asked() -> str:
            """The template of the address: the address itself may name items."""
            route = scope.get("route")
            if route is None or isinstance(route, Mount):  # it was refused before it reached one
                return "other"
            return route.path

        prefix = scope.get("root_path", "")

        def ended() -> None:
            seconds = time.perf_counter() - started
            route = asked()
            self._on_done(route, status, seconds)
            route = route if route == "other" else prefix + route
            log_request(method, route, status, seconds, scope)
            end_request(traced, method, route, status)
            REQUEST_ID.reset(token)

        with request_span(method, headers, identity) as traced:
            if traced is not None:
                traced.set_attributes(spoken_for("simstream.collection"))
            try:
                self._check_caller(scope, headers)
                body = await self._read_body(headers, receive)
                await self._app(scope, _replay(body, receive), sending)
            except _GoneError:
                status = 499  # nobody is left to answer
            except ServiceError as error:  # of these checks, or of the route
                await refused(error, scope)(scope, receive, sending)
            except Exception:
                logger.exception("%s %s failed", method, prefix + asked())
                if is_begun:
                    raise
                answer = _problem("the service has failed; its log says why", 500)
                await answer(scope, receive, sending)
            finally:
                ended()

    def _check_caller(self, scope: Scope, headers: Headers) -> None:
        # A collection is mounted under a prefix, which is part of the path.
        path, host = scope["path"].removeprefix(scope.get("root_path", "")), headers.get("host", "")
        origin = headers.get("origin")
        is_foreign = origin is not None and origin.partition("://")[2] != host
        if path.startswith("/v1/"):  # also for GET: a question that is shown is kept
            is_foreign |= headers.get("sec-fetch-site") in ("cross-site", "same-site")
        if is_foreign:
            raise ForbiddenError("requests from pages of other sites are refused")
        caller = scope["client"][0] if scope.get("client") else "unknown"
        needed = scope_needed(scope["method"], path)
        self._keys.refresh()
        if self._keys.is_used:
            if needed is not None:
                given = headers.get("authorization", "")
                kind, _, key = given.partition(" ")
                caller = self._keys.name_of(key if kind.lower() == "bearer" else None, needed)
                scope.setdefault("state", {})["key"] = caller
        elif not is_local_host(host) or not _is_local(caller):
            # Another name that leads to this machine is an attack: DNS rebinding.
            raise ForbiddenError("without keys, expected a request to localhost")
        wait = 0.0 if path in WATCHED_PATHS else self._buckets.wait(caller)
        if wait:
            raise RateError("too many requests", retry_after=math.ceil(wait))

    async def _read_body(self, headers: Headers, receive: Receive) -> bytes:
        largest = self._limits.body_bytes
        told = headers.get("content-length", "0")
        too_large = TooLargeError(f"body: expected at most {largest} bytes")
        if not told.isdecimal() or int(told) > largest:
            raise too_large
        parts, size = [], 0
        end = time.monotonic() + self._limits.body_seconds
        while True:
            try:
                message = await asyncio.wait_for(receive(), max(0.0, end - time.monotonic()))
            except asyncio.CancelledError:
                raise BusyError("the service is ending") from None
            except TimeoutError:
                seconds = self._limits.body_seconds
                raise TooSlowError(f"body: expected all of it within {seconds:g} seconds") from None
            if message["type"] == "http.disconnect":
                raise _GoneError
            size += len(message.get("body", b""))
            if size > largest:
                raise too_large
            parts.append(message.get("body", b""))
            if not message.get("more_body"):
                return b"".join(parts)


def _is_local(caller: str) -> bool:
    """Whether the address of a caller is one of this machine; "unknown" is a socket file."""
    return caller == "unknown" or is_local_host(in_brackets(caller))


def _replay(body: bytes, receive: Receive) -> Receive:
    """Receive a body that was already read."""
    is_read = False

    async def again() -> Message:
        nonlocal is_read
        if is_read:
            return await receive()
        is_read = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


def _add_error_handlers(app: FastAPI) -> None:
    """Answer what a route or FastAPI itself raises as all errors are answered."""

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        # Of what was sent, only numbers, ids and names of fields are sent back: the rest may be anything.
        if isinstance(error.body, bytes):  # not read, because it was not declared to be JSON
            got = request.headers.get("content-type", "none")
            text = f"Content-Type: expected application/json, got {got}"
        else:
            text = refusal(error.errors())
        return _problem(text[:500], 422)

    @app.exception_handler(LogError)
    async def damaged(request: Request, error: LogError) -> Response:
        return refused(StorageError(error.public), request.scope)

    @app.exception_handler(HTTPException)
    async def other(request: Request, error: HTTPException) -> Response:
        if error.status_code == 400:  # FastAPI's word for every body that cannot even be read
            text = "body: expected JSON in UTF-8, not too deeply nested"
            return refused(MalformedError(text), request.scope)
        if error.status_code == 405:
            method = request.scope["method"]
            text = f"method: expected one of {', '.join(_methods(request.scope))}, got {method}"
            return refused(NotAllowedError(text), request.scope)
        if error.status_code == 404:
            path = request.scope["path"][:200]
            text = f"path: expected one that /docs lists, got {path}"
            return refused(NotFoundError(text), request.scope)
        return _problem(str(error.detail), error.status_code, error.headers)


def _add_page(app: FastAPI) -> None:
    """Add the page and its files, read once."""
    files: dict[str, tuple[str, bytes]] = {}
    for file in (resources.files(__package__) / "page").iterdir():
        media_type = _MEDIA_TYPES.get(Path(file.name).suffix)
        if media_type is not None:
            files[file.name] = (media_type, file.read_bytes())

    def serve(name: str) -> Response:
        if name not in files:
            raise NotFoundError("page: no such file")
        media_type, content = files[name]
        return Response(content, media_type=media_type)

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return serve("index.html")

    @app.get("/static/{name}", include_in_schema=False)
    async def static(name: str) -> Response:
        return serve(name)

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return HTMLResponse(docs_page(app.openapi()))


# -- running it -------------------------------------------------------------------------------


#: Connections at the same time; more are refused with 503.
_MOST_CONNECTIONS = 2000


def configuration(
    service: Service,
    keys: KeyRing | None = None,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    proxy: str | None = None,
) -> uvicorn.Config:
    """How the server of one service runs; see `run`."""
    app = create_app(service, keys)
    return server_config(app, service.settings.limits, host=host, port=port, proxy=proxy)


def server_config(
    app: ASGIApp, limits: Limits, *, host: str, port: int, proxy: str | None
) -> uvicorn.Config:
    """How the server of an application runs; see `run`."""
    return uvicorn.Config(
        app,
        host=host,
        port=port,
        log_config=None,  # see logs
        log_level="warning",
        access_log=False,  # request addresses may name items
        server_header=False,
        timeout_graceful_shutdown=10,
        limit_concurrency=_MOST_CONNECTIONS,
        proxy_headers=proxy is not None,
        forwarded_allow_ips=proxy or "",
        http=_protocol(limits.body_seconds),
        ws="none",
    )


def run(
    service: Service,
    *,
    host: str,
    port: int,
    on_ready: Callable[[str], None],
    proxy: str | None = None,
    workers: int = 0,
    telemetry: Mapping[str, Any] | None = None,
) -> None:
    """Serve until SIGINT, SIGTERM or SIGHUP; everything acknowledged is learnt and saved before it returns.

    Port 0 takes a free one; `on_ready` is called with the address once the service answers. A caller's
    address is that of its connection; only `proxy`, if given, may say that it speaks for another. With
    `workers`, that many other processes accept connections and answer searches; this needs the setting
    `shared` of the service. `telemetry` says how these log and whether they send spans: log_format, quiet and
    otel, by default text, False and False.
    """
    keys = KeyRing(service.settings.folder / "keys.json")
    check_host(host, keys, proxy)
    if workers:
        _run_with_readers(service, keys, workers, host, port, on_ready, proxy, telemetry or {})
        return
    config = configuration(service, keys, host=host, port=port, proxy=proxy)
    run_server(config, lambda server: on_ready(address_of(server)))


def address_of(server: uvicorn.Server) -> str:
    """Where a started server can be reached."""
    actual = server.servers[0].sockets[0].getsockname()[1]
    return f"http://{in_brackets(server.config.host)}:{actual}"


def _run_with_readers(
    service: Service,
    keys: KeyRing,
    count: int,
    host: str,
    port: int,
    on_ready: Callable[[str], None],
    proxy: str | None,
    telemetry: Mapping[str, Any],
) -> None:
    """Serve a socket file; other processes pass on what they get from the port, except searches."""
    settings = service.settings
    assert settings.shared is not None
    inner = settings.shared / "writer.sock"
    told = {
        "folder": str(settings.folder.absolute()),
        "log": settings.log,
        "limits": asdict(settings.limits),
        "randomise": settings.randomise,
        "searching": {
            "index": settings.index,
            "candidates": settings.candidates,
            "recall_share": settings.recall_share,
        },
        "threads": max(1, allowed_cpus() // count),  # more would only take turns
        "shared": str(settings.shared),
        "writer": str(inner),
        "proxy": proxy,
        "log_format": "text",
        "quiet": False,
        "otel": False,
        **telemetry,
    }
    with listening_socket(host, port) as listening, socket.socket(socket.AF_UNIX) as local:
        local.bind(str(inner))
        readers = Readers(
            count, listening, told, lambda: service.writer.last, lambda: _has_learnt_all(service)
        )
        service.readers = readers
        address = f"http://{in_brackets(host)}:{listening.getsockname()[1]}"

        def tell() -> None:
            if readers.wait_until_ready():
                on_ready(address)

        def on_started(_: uvicorn.Server) -> None:
            readers.start()
            threading.Thread(target=tell, name="ready", daemon=True).start()

        # Readers name the caller of each request, and only they can open the socket file.
        config = configuration(service, keys, proxy="*")
        try:
            run_server(config, on_started, [local], before_end=readers.close)
        finally:
            readers.close()


def _has_learnt_all(service: Service) -> bool:
    return service.engine.failure is None and not service.engine.lag


def run_server(
    config: uvicorn.Config,
    on_started: Callable[[uvicorn.Server], None],
    sockets: list[socket.socket] | None = None,
    before_end: Callable[[], None] | None = None,
) -> None:
    """Run a server until SIGINT, SIGTERM or SIGHUP, on the configured port or on sockets.

    At the first of these signals `before_end` runs in a thread, while requests are still answered.
    """

    class Server(uvicorn.Server):
        _ending: threading.Thread | None = None

        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            if self.started:
                on_started(self)

        def handle_exit(self, sig: int, frame: Any) -> None:
            end = super().handle_exit
            if before_end is None or self._ending is not None:
                end(sig, frame)
                return

            def prepare_and_end() -> None:
                try:
                    before_end()
                finally:
                    end(sig, frame)

            self._ending = threading.Thread(target=prepare_and_end, name="ending", daemon=True)
            self._ending.start()

    # A search passes through several threads and must not wait long for each of them while others compute.
    sys.setswitchinterval(0.0005)
    # The server handles these signals itself and raises them again once everything is done.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    # The terminal was closed: end as if asked to, unless that was to be ignored (nohup).
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: signal.raise_signal(signal.SIGTERM))
    Server(config).run(sockets)


def _protocol(seconds: float) -> type[asyncio.Protocol]:
    """Uvicorn's protocol, but for connections whose headers do not arrive in time: these are closed."""
    from uvicorn.protocols.http.auto import AutoHTTPProtocol

    class Protocol(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
        """Closes a connection that has not sent the headers of a request within some seconds."""

        _late: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._wait_for_headers()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.cycle is not None and not self.cycle.response_complete:
                self._stop_waiting()
            elif self._late is None:
                self._wait_for_headers()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_waiting()
            super().connection_lost(exc)

        def _wait_for_headers(self) -> None:
            self._late = self.loop.call_later(seconds, self.transport.close)

        def _stop_waiting(self) -> None:
            if self._late is not None:
                self._late.cancel()
                self._late = None

    return Protocol


def check_port(host: str, port: int) -> None:
    """Raise if it is impossible to listen there, before anything is opened or created.

    Examples
    --------
    >>> with socket.create_server(("127.0.0.1", 0)) as other:
    ...     check_port("127.0.0.1", other.getsockname()[1])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    OSError: port: cannot listen on 127.0.0.1 port ... (Address already in use); ...
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server does
            trial.bind(address)
    except OSError as error:
        raise OSError(
            f"port: cannot listen on {host} port {port} ({error.strerror}); choose another with --port, "
            "or 0 for any free one"
        ) from error
