"""Keys of callers: shown once, stored as salted hashes, compared in constant time."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..data import atomic_write
from .errors import ForbiddenError, LogError, UnauthorizedError

#: What a key may allow. No scope includes another: a key that may write may not read unless it says so.
SCOPES = ("read", "write", "admin")

_PREFIX = "simstream"


class KeyRing:
    """The keys of a service, in a JSON file.

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
