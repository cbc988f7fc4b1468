"""Who may ask: the checks that every request passes before it is handled."""

from __future__ import annotations

import ipaddress
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .errors import (
    ForbiddenError,
    RateError,
    RetryError,
    ServiceError,
    TooLargeError,
    UnauthorizedError,
)
from .keys import KeyRing
from .settings import Limits

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

_OPEN_PATHS = ("/", "/healthz", "/readyz", "/docs", "/openapi.json", "/favicon.ico")
_ADMIN_PATHS = ("/v1/pin", "/v1/rollback")

#: Callers remembered; the one not heard from for the longest time is forgotten first.
_MOST_CALLERS = 10_000


def scope_needed(method: str, path: str) -> str | None:
    """The scope that a request needs; None if it needs no key.

    Examples
    --------
    >>> scope_needed("POST", "/v1/search"), scope_needed("GET", "/v1/query"), scope_needed("GET", "/")
    ('read', 'write', None)
    """
    if path in _OPEN_PATHS or path.startswith("/static/"):
        return None
    if path in _ADMIN_PATHS:
        return "admin"
    if path == "/v1/search" or (method in ("GET", "HEAD") and path != "/v1/query"):
        return "read"
    return "write"


def is_local_host(host: str) -> bool:
    """Whether a host name, with or without a port, means this machine.

    Examples
    --------
    >>> [is_local_host(host) for host in ("localhost:8000", "127.0.0.1", "[::1]:80", "evil.example")]
    [True, True, True, False]
    """
    if not all(letter.isalnum() or letter in ".-:[]" for letter in host):
        return False
    try:
        name = urlsplit(f"//{host}").hostname
        return name == "localhost" or ipaddress.ip_address(name or "").is_loopback
    except ValueError:  # neither a name that we know nor an address
        return False


def check_host(host: str, keys: KeyRing) -> None:
    """Refuse to listen for other machines without keys.

    Examples
    --------
    >>> from pathlib import Path
    >>> check_host("0.0.0.0", KeyRing(Path("absent.json")))
    Traceback (most recent call last):
    ...
    ValueError: host: expected this machine (127.0.0.1), or keys (simstream keys add), got 0.0.0.0
    """
    if not len(keys) and not is_local_host(f"[{host}]" if ":" in host else host):
        raise ValueError(
            f"host: expected this machine (127.0.0.1), or keys (simstream keys add), got {host}"
        )


class TokenBuckets:
    """Limits the requests of each caller to a rate, with bursts, in bounded memory.

    Parameters
    ----------
    rate : requests per second; 0 means no limit
    burst : requests that may come at once
    clock : seconds

    Examples
    --------
    >>> now = [0.0]
    >>> buckets = TokenBuckets(rate=1.0, burst=2.0, clock=lambda: now[0])
    >>> [buckets.wait("ann") for _ in range(3)]
    [0.0, 0.0, 1.0]
    >>> now[0] = 1.0
    >>> buckets.wait("ann")
    0.0
    """

    def __init__(
        self, rate: float, burst: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._rate, self._burst, self._clock = rate, max(1.0, burst), clock
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._lock = threading.Lock()

    def wait(self, caller: str) -> float:
        """Take a token and return 0; if there is none, return the seconds until there is one."""
        if self._rate <= 0:
            return 0.0
        with self._lock:
            now = self._clock()
            level, then = self._levels.pop(caller, (self._burst, now))
            level = min(self._burst, level + (now - then) * self._rate)
            allowed = level >= 1
            self._levels[caller] = (level - allowed, now)
            if len(self._levels) > _MOST_CALLERS:
                self._levels.popitem(last=False)
            return 0.0 if allowed else (1 - level) / self._rate


def refused(error: ServiceError) -> Response:
    """The answer to a refused request."""
    headers = {}
    if isinstance(error, RetryError):
        headers["retry-after"] = str(error.retry_after)
    if isinstance(error, UnauthorizedError):
        headers["www-authenticate"] = "Bearer"
    return JSONResponse({"error": str(error)}, error.status, headers)


class _GoneError(Exception):
    """The caller has disconnected."""


class Guard:
    """ASGI middleware: checks callers and bodies, adds security headers, counts requests.

    Parameters
    ----------
    app : the application behind it
    keys : without any, only this machine may call, and may do everything
    limits : largest body, and requests per second
    on_done : called with route, status and seconds of every request
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        keys: KeyRing,
        limits: Limits,
        on_done: Callable[[str, int, float], None],
    ) -> None:
        self._app, self._keys, self._limits, self._on_done = app, keys, limits, on_done
        self._buckets = TokenBuckets(limits.rate, limits.burst)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, status = time.perf_counter(), 500

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            headers = Headers(scope=scope)
            self._check_caller(scope, headers)
            body = await self._read_body(headers, receive)
            await self._app(scope, _replay(body, receive), sending)
        except _GoneError:
            status = 499  # nobody is left to answer
        except ServiceError as error:
            await refused(error)(scope, receive, sending)
        finally:
            route = getattr(scope.get("route"), "path", "other")
            self._on_done(route, status, time.perf_counter() - started)

    def _check_caller(self, scope: Scope, headers: Headers) -> None:
        path, host = scope["path"], headers.get("host", "")
        origin = headers.get("origin")
        is_foreign = origin is not None and origin.partition("://")[2] != host
        if path.startswith("/v1/"):  # also for GET: a question that is shown is kept
            is_foreign |= headers.get("sec-fetch-site") in ("cross-site", "same-site")
        if is_foreign:
            raise ForbiddenError("requests from pages of other sites are refused")
        caller = scope["client"][0] if scope.get("client") else "unknown"
        needed = scope_needed(scope["method"], path)
        if len(self._keys):
            if needed is not None:
                given = headers.get("authorization", "")
                kind, _, key = given.partition(" ")
                caller = self._keys.name_of(key if kind.lower() == "bearer" else None, needed)
        elif not is_local_host(host):
            # Another name that leads to this machine is an attack: DNS rebinding.
            raise ForbiddenError("without keys, expected a request to localhost")
        wait = self._buckets.wait(caller)
        if wait:
            error = RateError("too many requests")
            error.retry_after = math.ceil(wait)
            raise error

    async def _read_body(self, headers: Headers, receive: Receive) -> bytes:
        largest = self._limits.body_bytes
        told = headers.get("content-length", "0")
        too_large = TooLargeError(f"body: expected at most {largest} bytes")
        if not told.isdecimal() or int(told) > largest:
            raise too_large
        parts, size = [], 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise _GoneError
            size += len(message.get("body", b""))
            if size > largest:
                raise too_large
            parts.append(message.get("body", b""))
            if not message.get("more_body"):
                return b"".join(parts)


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
