"""What every request passes before it is looked at: who asks, how much, how often; and what is counted."""

from __future__ import annotations

import ipaddress
import json
import math
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from .auth import KeyRing
from .errors import ForbiddenError, RateError, ServiceError, TooLargeError, UnauthorizedError
from .limits import TokenBuckets
from .metrics import RequestMetrics
from .settings import Limits

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

#: Sent with every answer: nothing from elsewhere, no inline script, no frames.
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


def scope_needed(method: str, path: str) -> str | None:
    """What a key must allow for a request; None where none is needed.

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


def error_body(error: ServiceError) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body that tell a caller of an error."""
    headers = {"content-type": "application/json"}
    retry_after = getattr(error, "retry_after", None)
    if retry_after is not None:
        headers["retry-after"] = str(retry_after)
    if isinstance(error, UnauthorizedError):
        headers["www-authenticate"] = "Bearer"
    return error.status, headers, json.dumps({"error": str(error)}).encode()


class _GoneError(Exception):
    """The caller went away."""


class Guard:
    """ASGI middleware.

    Parameters
    ----------
    app : the application behind it
    keys : without any, only this machine may call, and may do everything
    limits, metrics : see there
    """

    def __init__(self, app: Any, *, keys: KeyRing, limits: Limits, metrics: RequestMetrics) -> None:
        self._app, self._keys, self._limits, self._metrics = app, keys, limits, metrics
        self._buckets = TokenBuckets(limits.rate, limits.burst)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, status = time.perf_counter(), 500

        async def sending(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                present = {name for name, _ in message.get("headers", [])}
                message["headers"] = [
                    *message.get("headers", []),
                    *(
                        (name.encode(), value.encode())
                        for name, value in SECURITY_HEADERS.items()
                        if name.encode() not in present
                    ),
                ]
            await send(message)

        try:
            headers = {name.decode("latin-1"): v.decode("latin-1") for name, v in scope["headers"]}
            self._check_caller(scope, headers)
            body = await self._read_body(headers, receive)
            await self._app(scope, _replay(body, receive), sending)
        except _GoneError:
            status = 499  # nobody is there to be answered
        except ServiceError as error:
            code, fields, content = error_body(error)
            encoded = [(name.encode(), value.encode()) for name, value in fields.items()]
            await sending({"type": "http.response.start", "status": code, "headers": encoded})
            await sending({"type": "http.response.body", "body": content})
        finally:
            route = getattr(scope.get("route"), "path", "other")
            self._metrics.add(route, status, time.perf_counter() - started)

    def _check_caller(self, scope: Scope, headers: dict[str, str]) -> None:
        path, host = scope["path"], headers.get("host", "")
        origin = headers.get("origin")
        is_foreign = origin is not None and urlsplit(origin).netloc != host
        if path.startswith("/v1/"):  # even to look: a question that is shown is kept
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
            # Without keys the service is for this machine: a foreign name that leads here is a trick.
            raise ForbiddenError("without keys, expected a request to localhost")
        wait = self._buckets.wait(caller)
        if wait:
            error = RateError("too many requests")
            error.retry_after = math.ceil(wait)
            raise error

    async def _read_body(self, headers: dict[str, str], receive: Receive) -> bytes:
        largest = self._limits.body_bytes
        told = headers.get("content-length", "0")
        too_large = TooLargeError(f"body: expected at most {largest} bytes")
        if not told.isdigit() or int(told) > largest:
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
    """A body that was read already, for whoever is next."""
    is_read = False

    async def again() -> MutableMapping[str, Any]:
        nonlocal is_read
        if is_read:
            return await receive()
        is_read = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


def is_local_host(host: str) -> bool:
    """Whether a host, with or without a port, is this machine.

    Examples
    --------
    >>> [is_local_host(host) for host in ("localhost:8000", "127.0.0.1", "[::1]:80", "evil.example")]
    [True, True, True, False]
    """
    name = urlsplit(f"//{host}").hostname if _is_plain(host) else None
    if name is None:
        return False
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _is_plain(host: str) -> bool:
    return bool(host) and all(letter.isalnum() or letter in ".-:[]" for letter in host)
