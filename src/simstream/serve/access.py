"""Who may ask: keys and their scopes, addresses and rates; and the errors that refuse a request."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import ipaddress
import json
import logging
import math
import mmap
import os
import secrets
import struct
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ..data import atomic_write

logger = logging.getLogger("simstream.serve")

#: What a key may allow. No scope includes another: a key that may write may not read unless it says so.
SCOPES = ("read", "write", "admin", "follow")

_PREFIX = "simstream"

_OPEN_PATHS = ("/", "/healthz", "/readyz", "/docs", "/openapi.json", "/favicon.ico")
_SCOPES_OF_PATHS = {"/v1/pin": "admin", "/v1/rollback": "admin", "/v1/log": "follow"}

#: What machines that watch a service ask, as often as they like.
WATCHED_PATHS = ("/healthz", "/readyz")

#: Callers remembered; the one not heard from for the longest time is forgotten first.
_MOST_CALLERS = 10_000


# -- how a request is refused -----------------------------------------------------------------


class ServiceError(Exception):
    """A request is refused; nothing was changed. The docstring of each kind goes into the API reference."""

    status: int
    #: Seconds after which it may be possible; None if repeating the request is pointless.
    retry_after: int | None = None

    def __init__(self, message: str, retry_after: int | None = None) -> None:
        super().__init__(message)
        if retry_after is not None:
            self.retry_after = retry_after


class NotFoundError(ServiceError):
    """Not found."""

    status = 404


class ConflictError(ServiceError):
    """The request contradicts what is already there."""

    status = 409


class BadRequestError(ServiceError):
    """The request is malformed, or does not fit the items."""

    status = 422


class UnauthorizedError(ServiceError):
    """The key is missing or unknown."""

    status = 401


class ForbiddenError(ServiceError):
    """The key does not allow this, or the request comes from another site."""

    status = 403


class TooSlowError(ServiceError):
    """The body did not arrive in time."""

    status = 408


class TooLargeError(ServiceError):
    """The body is too large."""

    status = 413


class MalformedError(ServiceError):
    """The body is not JSON in UTF-8, or nested too deeply."""

    status = 400


class NotAllowedError(ServiceError):
    """Not with this method; or only read here: send changes to where it is written."""

    status = 405


class ReadOnlyError(NotAllowedError):
    """This service follows another one and only reads; send changes to that one."""


class BusyError(ServiceError):
    """Not possible now; see Retry-After."""

    status = 503
    retry_after = 1


class RateError(ServiceError):
    """Too many requests; see Retry-After."""

    status = 429


class StorageError(ServiceError):
    """The log cannot be written; nothing was kept, unless the message says that this is not known."""

    status = 507
    retry_after = 10


REFUSALS = (
    MalformedError,
    UnauthorizedError,
    ForbiddenError,
    NotFoundError,
    ConflictError,
    TooSlowError,
    TooLargeError,
    BadRequestError,
    RateError,
    NotAllowedError,
    BusyError,
    StorageError,
)


# -- keys -------------------------------------------------------------------------------------


def scope_needed(method: str, path: str) -> str | None:
    """The scope that a request needs; None if it needs no key.

    Examples
    --------
    >>> scope_needed("POST", "/v1/search"), scope_needed("GET", "/v1/query"), scope_needed("GET", "/")
    ('read', 'write', None)
    """
    if path in _OPEN_PATHS or path.startswith("/static/"):
        return None
    if path in _SCOPES_OF_PATHS:
        return _SCOPES_OF_PATHS[path]
    if path == "/v1/search" or (method in ("GET", "HEAD") and path != "/v1/query"):
        return "read"
    return "write"


class KeyRing:
    """The keys of a service, in a JSON file; without the file there are none.

    Keys have 256 random bits, so one round of a salted hash is enough: there is nothing to guess. The file is
    read again when it changes; if it cannot be read then, no key is valid until it can.

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
    simstream.serve.access.ForbiddenError: this key does not allow write
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._entries: dict[str, dict[str, Any]] = {}
        self._changed_at: int | None = None
        self._looked_at = 0.0
        #: Whether there are keys, or have been since this was made: a service that had keys never opens.
        self.is_used = False
        #: Why the file cannot be read, if so.
        self.problem: str | None = None
        self._read()

    def _read(self) -> None:
        """Read the file if it has changed."""
        self._looked_at = time.monotonic()
        changed_at = self._path.stat().st_mtime_ns if self._path.exists() else None
        if changed_at == self._changed_at:
            return
        entries: list[dict[str, Any]] = []
        if changed_at is not None:
            try:
                entries = json.loads(self._path.read_text())["keys"]
                for entry in entries:
                    bytes.fromhex(entry["id"] + entry["salt"] + entry["hash"])
                    float(entry.get("expires") or 0)
                    if not set(entry["scopes"]) <= set(SCOPES):
                        raise ValueError(f"unknown scopes {entry['scopes']}")
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise ValueError(f"{self._path}: not a file of keys") from error
        self._entries = {entry["id"]: entry for entry in entries}
        self._changed_at = changed_at
        self.is_used |= bool(entries)

    def refresh(self) -> None:
        """Notice changes of the file, at most once a second."""
        if time.monotonic() - self._looked_at < 1:
            return
        try:
            self._read()
            self.problem = None
        except (OSError, ValueError) as error:
            if self.problem is None:
                logger.error("no key is valid: %s", error)
            self.problem, self._entries, self._changed_at = str(error), {}, -1

    def __len__(self) -> int:
        return len(self._entries)

    def names(self) -> list[tuple[str, str, list[str], float | None]]:
        """Id, name and scopes of every key, and when it expires (seconds since 1970, or None)."""
        return [
            (e["id"], e["name"], list(e["scopes"]), e.get("expires"))
            for e in self._entries.values()
        ]

    def add(self, name: str, scopes: Iterable[str], days: float | None = None) -> str:
        """Make a key, valid for so many days or for ever, and return it: it cannot be shown again."""
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
            "expires": None if days is None else time.time() + 86400 * days,
        }
        self.is_used = True
        self._save()
        return f"{_PREFIX}_{identity}_{secret}"

    def remove(self, identity: str) -> str:
        """Remove a key by its id; return its name."""
        if identity not in self._entries:
            raise ValueError(f"key: no key has the id {identity!r} (simstream keys list shows ids)")
        entry = self._entries.pop(identity)
        self._save()
        return str(entry["name"])

    def _save(self) -> None:
        if not self._path.exists():  # readable by its owner only, from the first moment
            os.close(os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        owner = self._path.parent.stat()
        with atomic_write(self._path) as temporary:
            temporary.write_text(json.dumps({"keys": list(self._entries.values())}, indent=1))
            with contextlib.suppress(OSError, AttributeError):
                # Root may manage the keys of a service that runs as somebody else, who must read them.
                os.chown(temporary, owner.st_uid, owner.st_gid)

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
        if (entry.get("expires") or math.inf) <= time.time():
            raise UnauthorizedError("this key has expired")
        if scope not in entry["scopes"]:
            raise ForbiddenError(f"this key does not allow {scope}")
        return str(entry["name"])


def _hash(salt: str, secret: str) -> str:
    return hashlib.sha256(bytes.fromhex(salt) + secret.encode("utf-8", "replace")).hexdigest()


# -- addresses and rates ----------------------------------------------------------------------


def in_brackets(host: str) -> str:
    """A host as addresses have it before a port: IPv6 ones are in brackets.

    Examples
    --------
    >>> in_brackets("::1"), in_brackets("127.0.0.1")
    ('[::1]', '127.0.0.1')
    """
    return f"[{host}]" if ":" in host else host


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


def check_host(host: str, keys: KeyRing, proxy: str | None = None) -> None:
    """Refuse to listen for other machines, or for a proxy that speaks for them, without keys.

    Examples
    --------
    >>> from pathlib import Path
    >>> check_host("0.0.0.0", KeyRing(Path("absent.json")))
    Traceback (most recent call last):
    ...
    ValueError: host: expected this machine (127.0.0.1), or keys (simstream keys add), got 0.0.0.0
    """
    if not len(keys) and not is_local_host(in_brackets(host)):
        raise ValueError(
            f"host: expected this machine (127.0.0.1), or keys (simstream keys add), got {host}"
        )
    if proxy is not None:
        try:
            ipaddress.ip_network(proxy)
        except ValueError:
            raise ValueError(f"proxy: expected an IP address, got {proxy}") from None
        if not len(keys):
            raise ValueError(
                "proxy: expected keys (simstream keys add): a proxy speaks for anybody"
            )


class SharedLevels:
    """What each caller has left, in a file that several processes of a service share; see `TokenBuckets`.

    The file is a table of records: the hash of a caller, its level, and when it had that. A caller has few
    places in it; where all are taken, the one not heard from for the longest time is forgotten.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "rates"
    >>> one, other = SharedLevels(path), SharedLevels(path)
    >>> with one:
    ...     one["ann"] = (2.5, 10.0)
    >>> with other:
    ...     other.get("ann"), other.get("bob", (9.0, 0.0))
    ((2.5, 10.0), (9.0, 0.0))
    """

    _RECORD, _WAYS = struct.Struct("<16sdd"), 8
    _SETS = -(-_MOST_CALLERS // _WAYS)

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        size = self._RECORD.size * self._WAYS * self._SETS
        os.ftruncate(self._file, size)
        self._table = mmap.mmap(self._file, size)

    def __enter__(self) -> None:
        import fcntl

        fcntl.flock(self._file, fcntl.LOCK_EX)  # released if the process is killed

    def __exit__(self, *_: object) -> None:
        import fcntl

        fcntl.flock(self._file, fcntl.LOCK_UN)

    def _places(self, caller: str) -> tuple[bytes, list[int]]:
        """The hash of a caller, and where its record may be."""
        name = hashlib.blake2b(caller.encode(), digest_size=16).digest()
        first = int.from_bytes(name[:8], "little") % self._SETS * self._WAYS
        return name, [self._RECORD.size * place for place in range(first, first + self._WAYS)]

    def get(self, caller: str, default: tuple[float, float] | None = None) -> Any:
        """The level of a caller, and when it had that."""
        name, places = self._places(caller)
        for place in places:
            known, *found = self._RECORD.unpack_from(self._table, place)
            if known == name:
                return tuple(found)
        return default

    def __setitem__(self, caller: str, level: tuple[float, float]) -> None:
        name, places = self._places(caller)
        records = {place: self._RECORD.unpack_from(self._table, place) for place in places}
        oldest = min(places, key=lambda place: (records[place][0] != name, records[place][2]))
        self._RECORD.pack_into(self._table, oldest, name, *level)


class TokenBuckets:
    """Limits the requests of each caller to a rate per second (0: no limit), with bursts, in bounded memory.

    What a caller has left is counted together with other processes if they are given the same `shared` file.

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
        self,
        rate: float,
        burst: float,
        clock: Callable[[], float] = time.monotonic,
        shared: Path | None = None,
    ) -> None:
        self._rate, self._burst, self._clock = rate, max(1.0, burst), clock
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._shared = None if shared is None or rate <= 0 else SharedLevels(shared)
        self._lock = threading.Lock()

    def wait(self, caller: str) -> float:
        """Take a token and return 0; if there is none, return the seconds until there is one."""
        if self._rate <= 0:
            return 0.0
        with self._lock:
            now = self._clock()
            if self._shared is not None:
                with self._shared:
                    level = self._refilled(self._shared.get(caller), now)
                    self._shared[caller] = (level - (level >= 1), now)
            else:
                level = self._refilled(self._levels.pop(caller, None), now)
                self._levels[caller] = (level - (level >= 1), now)
                if len(self._levels) > _MOST_CALLERS:
                    self._levels.popitem(last=False)
            return 0.0 if level >= 1 else (1 - level) / self._rate

    def _refilled(self, known: tuple[float, float] | None, now: float) -> float:
        """What a caller has now."""
        level, then = known or (self._burst, now)
        return min(self._burst, level + max(0.0, now - then) * self._rate)
