"""A copy of the log of a service on another machine, which is kept up to date over HTTP.

The service that is followed answers ``GET /v1/log`` with stored events after a position, one JSON line each,
after a line that says which log it is and its hash at that position. A follower appends them to the SQLite
file of its own folder if every event is whole and continues the chain of hashes: so its copy is the log, or
the beginning of it. What it serves is computed from the copy, as by any service.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import os
import re
import socket
import sqlite3
import struct
import threading
import time
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from .events import FORMAT_VERSION, EventKind
from .log import Log, LogError, lock_folder

logger = logging.getLogger("simstream.serve")

#: Where the key for the service that is followed is given: other users of a machine see its command lines.
KEY_VARIABLE = "SIMSTREAM_KEY"

#: Events of one answer, and about how many bytes of vectors and texts.
MOST_ROWS, _MOST_BYTES = 1000, 4 * 2**20

#: Seconds that a service waits for new events before it answers that there are none: so long it may take to
#: end. And the longest silence of one that answers.
_WAIT, _TIMEOUT = 2, 10.0

#: Seconds until the next request to a service that limits how many it answers.
_PAUSE = 1.0

#: Seconds after which a service that is away is tried again, at first and at most.
_FIRST_RETRY, _LONGEST_RETRY = 0.5, 30.0

#: Seconds that a follower without a copy waits for the service, which may be starting, too.
_PATIENCE = 30.0


def encode_rows(log: Log, after: int, limit: int) -> bytes:
    """The answer to a follower that has a copy of a log up to a position."""
    head = {
        "format": FORMAT_VERSION,
        "settings": log.settings(),
        "hash": log.hash_at(after),
        "last": log.last,
    }
    lines = [json.dumps(head)]
    for (*plain, vector, body), digest, link in log.rows_within(after, limit, _MOST_BYTES):
        text = None if vector is None else b64encode(vector).decode()
        lines.append(json.dumps([*plain, text, body, digest.hex(), link.hex()]))
    return "\n".join(lines).encode()


class LogPart(NamedTuple):
    """What a service answers: what it says of its log, and some of the events."""

    #: Version of its events.
    format: int
    #: What is stored beside the events, with the identity.
    settings: dict[str, str]
    #: Its hash at the position that was asked for, and its last position.
    hash: str
    last: int
    #: The next stored events, with digest and hash.
    rows: list[tuple[Any, ...]]

    @classmethod
    def decoded(cls, content: bytes) -> LogPart:
        """Read what `encode_rows` wrote."""
        head, *lines = map(json.loads, content.split(b"\n"))
        rows: list[tuple[Any, ...]] = []
        for position, at, kind, subject, text, body, *links in lines:
            vector = None if text is None else b64decode(text)
            digest, link = map(bytes.fromhex, links)
            rows.append((position, at, kind, subject, vector, body, digest, link))
        return cls(head["format"], dict(head["settings"]), head["hash"], head["last"], rows)


class RefusedError(OSError):
    """The service does not give its log to this follower."""


class Source:
    """The service that is followed.

    Examples
    --------
    >>> Source("http://me:secret@127.0.0.1")
    Traceback (most recent call last):
    ...
    ValueError: follow: expected http(s)://host[:port][/path], and the key in SIMSTREAM_KEY
    """

    def __init__(self, url: str) -> None:
        parts, port = urlsplit(url), None
        with contextlib.suppress(ValueError):
            port = parts.port or (443 if parts.scheme == "https" else 80)
        if port is None or not parts.hostname or "@" in url or parts.query or parts.fragment:
            raise ValueError(
                f"follow: expected http(s)://host[:port][/path], and the key in {KEY_VARIABLE}"
            )
        key = os.environ.get(KEY_VARIABLE, "").strip()
        if not re.fullmatch("[!-~]*", key):
            raise ValueError(f"{KEY_VARIABLE}: expected a key, got other characters")
        self.name, self._path = url.rstrip("/"), parts.path.rstrip("/")
        self.ending = threading.Event()
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        # Certificates are verified by those of the system.
        is_secure = parts.scheme == "https"
        kind = http.client.HTTPSConnection if is_secure else http.client.HTTPConnection
        self._connection = kind(parts.hostname, port, timeout=_TIMEOUT)

    def read(self, after: int, wait: int = 0, limit: int = MOST_ROWS) -> LogPart:
        """Ask for what comes after a position; OSError if no answer came that can be used."""
        path = f"{self._path}/v1/log?after={after}&wait={wait}&limit={limit}"
        status, reason, content = self._ask(path)
        while status == 429 and not self.ending.wait(_PAUSE):
            status, reason, content = self._ask(path)
        told = f"{self.name}: answers {status} {reason}"
        if status in (401, 403):
            raise RefusedError(f"{told}; give a key of the scope follow in {KEY_VARIABLE}")
        if 300 <= status < 500 and status not in (408, 429):
            raise RefusedError(f"{told}; expected the address of a service with /v1/log")
        if status != 200:
            raise ConnectionError(told)
        try:
            return LogPart.decoded(content)
        except (ValueError, KeyError, TypeError) as error:
            raise ConnectionError(
                f"{self.name}: expected the log of a service, got another answer"
            ) from error

    def _ask(self, path: str) -> tuple[int, str, bytes]:
        try:
            self._connection.request("GET", path, headers=self._headers)
            response = self._connection.getresponse()
            return response.status, response.reason, response.read()
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise ConnectionError(f"{self.name}: {str(error) or type(error).__name__}") from error

    def close(self) -> None:
        """Close the connection; who waits for an answer gets an error."""
        self.ending.set()
        with contextlib.suppress(OSError, AttributeError):
            self._connection.sock.shutdown(socket.SHUT_RDWR)
        self._connection.close()


class MirrorLog(Log):
    """The copy of a service's log in a folder of its own, which a thread continues.

    It is opened once it has all that the service had then; if that is away, with what there was before.
    Without a copy it waits half a minute for the service.

    Parameters
    ----------
    folder : of the copy; a new one, or one that followed the same service before
    url : address of the service
    """

    is_copy = True

    def __init__(self, folder: Path, url: str) -> None:
        self._source, self._opened = Source(url), contextlib.ExitStack()
        self._ending, self._is_away = self._source.ending, False
        self._thread = threading.Thread(target=self._run, name="mirror", daemon=True)
        #: What stopped the copying, if something did.
        self._failure: LogError | None = None
        path = folder / "log.sqlite"
        if (folder / "log.address").exists():
            raise LogError(f"{folder}: its log is in a database; follow {url} in a new folder")
        try:
            if not path.exists():
                self._await_answer()  # raises before anything is made
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._opened.enter_context(lock_folder(folder))
            self._copy = Log(path, is_owner=True)
            self._opened.callback(self._copy.close)
            self._begin()
            super().__init__(path)
        except BaseException:
            self.close()
            raise
        self._thread.start()

    @property
    def is_lost(self) -> bool:
        """Whether the service was away when it was last asked."""
        return self._is_away

    def look(self) -> int:
        """Position of the last event now; raises if it cannot be continued."""
        if self._failure is not None:
            raise self._failure
        return super().look()

    def close(self) -> None:
        """Stop copying, close the connections of all threads, unlock the folder."""
        self._source.close()
        if self._thread.is_alive():
            self._thread.join()
        if hasattr(self, "store"):
            super().close()
        self._opened.close()

    # -- copying ------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Copy all that there is now; the first time, all of it must arrive."""
        has_some = bool(self._copy.end.position)
        if not has_some:
            self._await_answer()
        try:
            last = self._pull(is_start=True).last
            while self._copy.end.position < last and self._pull().rows:
                pass
        except RefusedError:
            raise
        except OSError as error:
            if not has_some:
                raise
            self._tell_away(error)

    def _await_answer(self) -> None:
        """Ask until the service answers; raise if it refuses, or is away for long."""
        end = time.monotonic() + _PATIENCE
        while True:
            try:
                self._source.read(0, limit=1)
            except RefusedError:
                raise
            except OSError as error:
                if time.monotonic() >= end:
                    raise
                self._tell_away(error)
                self._ending.wait(_FIRST_RETRY)
            else:
                self._is_away = False
                return

    def _run(self) -> None:
        delay = _FIRST_RETRY
        while not self._ending.is_set():
            try:
                if not self._pull(_WAIT).rows:
                    self._ending.wait(_FIRST_RETRY / 10)
            except (OSError, sqlite3.Error) as error:  # a full disk, too: later it may be possible
                if not self._ending.is_set():
                    self._tell_away(error)
                    self._ending.wait(delay)
                    delay = min(2 * delay, _LONGEST_RETRY)
            except Exception as error:  # whatever it is, `look` must tell
                self._failure = error if isinstance(error, LogError) else LogError(repr(error))
                return
            else:
                if self._is_away:
                    logger.info("%s: is followed again", self._source.name)
                self._is_away, delay = False, _FIRST_RETRY

    def _tell_away(self, error: Exception) -> None:
        if not self._is_away:
            logger.warning("cannot follow now, will try again: %s", error)
        self._is_away = True

    def _pull(self, wait: int = 0, *, is_start: bool = False) -> LogPart:
        """Ask the service once, and make durable what it answers, if it continues the copy."""
        answer = self._source.read(self._copy.end.position, wait)
        self._compare(answer, is_start)
        if not answer.rows:
            return answer
        has_erased = any(row[2] == EventKind.ERASE for row in answer.rows)
        try:
            with self._copy.store.scrubbing() if has_erased else contextlib.nullcontext():
                self._append(answer.rows)
        except LogError as error:
            if not has_erased or self._copy.end.position != answer.rows[-1][0]:
                raise
            logger.warning("erased texts are in log.sqlite-wal until the service ends: %s", error)
        return answer

    def _append(self, rows: list[tuple[Any, ...]]) -> None:
        with self._copy.transaction():
            try:
                damaged = self._copy.take(rows)
            except (TypeError, ValueError, struct.error):
                damaged = rows[0][0]
            if damaged is not None:
                raise ConnectionError(
                    f"{self._source.name}: expected events that continue the log, got a damaged one at "
                    f"position {damaged}; nothing of this answer was kept"
                )
            for row in rows:
                if row[2] == EventKind.ERASE:
                    self._copy.erase(json.loads(row[5])["positions"])

    def _compare(self, answer: LogPart, is_start: bool) -> None:
        """Raise unless an answer is about the log that this is a copy of, and about all of it."""
        copy, name = self._copy, self._source.name
        if answer.format > FORMAT_VERSION:
            raise LogError(f"{name}: its log needs a newer version of simstream; upgrade it here")
        kept = copy.settings()
        new = "service" not in kept and not copy.end.position
        if not new and kept["identity"] != answer.settings.get("identity"):
            raise LogError(
                f"{copy.folder}: has another log than {name}; follow it in a new folder (--data)"
            )
        if not new and copy.end.hash.hex() != answer.hash:
            raise LogError(
                f"{copy.folder}: up to position {copy.end.position} it is not what {name} has: that was "
                "restored from an older copy, or this was written to; follow it in a new folder (--data)"
            )
        if not answer.settings.items() <= kept.items():
            if not is_start:
                raise LogError(f"{name}: its settings have changed; start this service again")
            with copy.transaction():
                copy.adopt(answer.settings)
