"""Who may ask: keys of callers, and the checks that every request passes before it is handled."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import json
import math
import os
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ..data import atomic_write
from .errors import (
    ForbiddenError,
    LogError,
    RateError,
    RetryError,
    ServiceError,
    TooLargeError,
    UnauthorizedError,
)
from .settings import Limits

#: What a key may allow. No scope includes another: a key that may write may not read unless it says so.
SCOPES = ("read", "write", "admin")

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

_PREFIX = "simstream"

#: Callers remembered; the one not heard from for the longest time is forgotten first.
_MOST_CALLERS = 10_000

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


# -- keys -------------------------------------------------------------------------------------


class KeyRing:
    """The keys of a service, in a JSON file: shown once, stored as salted hashes, compared in constant time.

    Keys have 256 random bits, so one round of a salted hash is enough: there is nothing to guess.

    Parameters
    ----------
    path : the file; without it there are no keys

    Examples
    --------
    >>> import tempfile
    >>> ring = KeyRing(Path(tempfile.mkdtemp()) / "keys.json")
    >>> key = ring.add("page", ["read"])
    >>> ring.name_of(key, "read")
    'page'
    >>> ring.name_of(key, "write")
    Traceback (most recent call last):
    ...
    simstream.serve.errors.ForbiddenError: this key does not allow write
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._entries: dict[str, dict[str, Any]] = {}
        if path.exists():
            try:
                entries = json.loads(path.read_text())["keys"]
                self._entries = {entry["id"]: entry for entry in entries}
                for entry in entries:
                    bytes.fromhex(entry["salt"] + entry["hash"])
                    assert set(entry["scopes"]) <= set(SCOPES)
            except (ValueError, KeyError, TypeError, AssertionError) as error:
                raise LogError(f"{path}: not a file of keys") from error

    def __len__(self) -> int:
        return len(self._entries)

    def names(self) -> list[tuple[str, str, list[str]]]:
        """Id, name and scopes of every key."""
        return [(e["id"], e["name"], list(e["scopes"])) for e in self._entries.values()]

    def add(self, name: str, scopes: Iterable[str]) -> str:
        """Make a key and return it: it cannot be shown again."""
        allowed = [scope for scope in SCOPES if scope in set(scopes)]
        unknown = set(scopes) - set(SCOPES)
        if unknown or not allowed:
            raise ValueError(f"scopes: expected some of {', '.join(SCOPES)}, got {sorted(scopes)}")
        identity, secret = secrets.token_hex(4), secrets.token_urlsafe(32)
        salt = secrets.token_hex(16)
        self._entries[identity] = {
            "id": identity,
            "name": name,
            "scopes": allowed,
            "salt": salt,
            "hash": _hash(salt, secret),
        }
        self._save()
        return f"{_PREFIX}_{identity}_{secret}"

    def remove(self, identity: str) -> None:
        """Remove a key by its id."""
        if identity not in self._entries:
            raise ValueError(f"key: no key has the id {identity!r}")
        del self._entries[identity]
        self._save()

    def _save(self) -> None:
        if not self._path.exists():  # readable by its owner only, from the first moment
            os.close(os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        with atomic_write(self._path) as temporary:
            temporary.write_text(json.dumps({"keys": list(self._entries.values())}, indent=1))

    def name_of(self, key: str | None, scope: str) -> str:
        """The name of a key; an error unless it allows the scope."""
        prefix, _, rest = (key or "").partition("_")
        identity, _, secret = rest.partition("_")
        entry = self._entries.get(identity)
        # An unknown id takes as long as a wrong secret.
        salt, expected = (entry["salt"], entry["hash"]) if entry else ("00", _hash("00", ""))
        is_right = hmac.compare_digest(_hash(salt, secret), expected)
        if entry is None or not is_right or prefix != _PREFIX:
            raise UnauthorizedError("expected a key in the header Authorization: Bearer ...")
        if scope not in entry["scopes"]:
            raise ForbiddenError(f"this key does not allow {scope}")
        return str(entry["name"])


def _hash(salt: str, secret: str) -> str:
    return hashlib.sha256(bytes.fromhex(salt) + secret.encode("utf-8", "replace")).hexdigest()


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
    is_plain = bool(host) and all(letter.isalnum() or letter in ".-:[]" for letter in host)
    name = urlsplit(f"//{host}").hostname if is_plain else None
    if name is None:
        return False
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def check_host(host: str, keys: KeyRing) -> None:
    """Refuse to listen for other machines without keys.

    Examples
    --------
    >>> check_host("0.0.0.0", KeyRing(Path("absent.json")))
    Traceback (most recent call last):
    ...
    ValueError: host: expected this machine (127.0.0.1), or keys (simstream keys add), got 0.0.0.0
    """
    if not len(keys) and not is_local_host(f"[{host}]" if ":" in host else host):
        raise ValueError(
            f"host: expected this machine (127.0.0.1), or keys (simstream keys add), got {host}"
        )


# -- rates ------------------------------------------------------------------------------------


class TokenBuckets:
    """Limits the requests of each caller to a rate, with bursts.

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


# -- requests ---------------------------------------------------------------------------------


def error_response(error: ServiceError) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of the answer to a refused request."""
    headers = {"content-type": "application/json"}
    if isinstance(error, RetryError):
        headers["retry-after"] = str(error.retry_after)
    if isinstance(error, UnauthorizedError):
        headers["www-authenticate"] = "Bearer"
    return error.status, headers, json.dumps({"error": str(error)}).encode()


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
        app: Any,
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
            status = 499  # nobody is left to answer
        except ServiceError as error:
            code, fields, content = error_response(error)
            encoded = [(name.encode(), value.encode()) for name, value in fields.items()]
            await sending({"type": "http.response.start", "status": code, "headers": encoded})
            await sending({"type": "http.response.body", "body": content})
        finally:
            route = getattr(scope.get("route"), "path", "other")
            self._on_done(route, status, time.perf_counter() - started)

    def _check_caller(self, scope: Scope, headers: dict[str, str]) -> None:
        path, host = scope["path"], headers.get("host", "")
        origin = headers.get("origin")
        is_foreign = origin is not None and urlsplit(origin).netloc != host
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
            # Without keys the service is for this machine only: another name that resolves to it is an
            # attack.
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
    """Receive a body that was already read."""
    is_read = False

    async def again() -> MutableMapping[str, Any]:
        nonlocal is_read
        if is_read:
            return await receive()
        is_read = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again
