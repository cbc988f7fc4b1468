"""The log of a service, one SQLite file that is only ever appended to; and the lock of its folder.

Whatever is read is compared with its digest: a damaged event is an error that says where.
Beside the log, the file ``head`` holds the position and hash of the last event that was acknowledged. It is
not synced, so it may be behind the log after a power cut, but it is never ahead of a log that is whole.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import sqlite3
import threading
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from .events import (
    CONTROL_KINDS,
    ERASED,
    FORMAT_VERSION,
    Event,
    EventKind,
    Row,
    chained,
    decode_body,
    digest_of_row,
    digest_without_body,
    encode_body,
    excluded_ranges,
    is_excluded,
)

#: Marks the file as ours (the text "simS").
_APPLICATION_ID = 0x73696D53

#: Finds the items without reading every event. Logs of earlier versions get it when they are opened.
_ITEM_INDEX = (
    "CREATE INDEX IF NOT EXISTS item_events ON events (position) WHERE kind IN ('item', 'delete')"
)

_TABLES = f"""
CREATE TABLE events (
    position INTEGER PRIMARY KEY,
    at REAL NOT NULL,
    kind TEXT NOT NULL,
    subject TEXT,
    vector BLOB,
    body TEXT NOT NULL,
    digest BLOB,
    hash BLOB
);
CREATE INDEX control_events ON events (position) WHERE kind IN ('retract', 'rollback', 'pin');
{_ITEM_INDEX};
CREATE TABLE requests (
    key TEXT PRIMARY KEY,
    digest TEXT NOT NULL,
    first INTEGER NOT NULL,
    count INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
"""

#: Earlier versions cannot append events without digests to a log that has them.
_NEED_DIGESTS = """CREATE TRIGGER IF NOT EXISTS need_digests BEFORE INSERT ON events
WHEN NEW.digest IS NULL OR NEW.hash IS NULL
BEGIN SELECT RAISE(ABORT, 'this log needs a newer version of simstream'); END"""

_HEADER = "position, at, kind, subject, vector"
_COLUMNS = f"{_HEADER}, body"

_ITEM_EVENTS = "FROM events WHERE position > ? AND position <= ? AND kind IN ('item', 'delete')"


_LARGEST_POSITION = 2**62

#: Position, kind, id and encoded vector of an item's event, without the body, which may be large.
ItemChange = tuple[int, str, str, bytes | None]


class LogError(ValueError):
    """The files of a service are damaged, do not fit together, or come from a newer version."""


def lock_folder(folder: Path) -> contextlib.AbstractContextManager[Any]:
    """Lock the folder of a service now; leaving the returned context unlocks it.

    The operating system releases the lock when the process ends, however it ends.

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> with lock_folder(folder):
    ...     lock_folder(folder)
    Traceback (most recent call last):
    ...
    simstream.serve.log.LogError: ...: another service uses this folder; stop it first
    """
    from filelock import FileLock, Timeout

    # Any thread may unlock: a server closes its service in a thread of a pool.
    lock = FileLock(folder / "lock", mode=0o600, thread_local=False)
    try:
        return lock.acquire(timeout=0)
    except Timeout:
        raise LogError(f"{folder}: another service uses this folder; stop it first") from None


class Log:
    """The events of a service in a SQLite file.

    Any thread may read; only the writer appends. Whoever holds the lock of the folder opens it with
    `is_owner`: the file is created if it does not exist, and brought up to the newest version. All others
    only read, logs of earlier versions too, whose events have no digests.

    Examples
    --------
    >>> import tempfile
    >>> log = Log(Path(tempfile.mkdtemp()) / "log.sqlite", is_owner=True)
    >>> with log.transaction():
    ...     log.append([Event(1, 0.0, "delete", "shoe", None, {})])
    >>> [event.subject for event in log.read(0)], log.last
    (['shoe'], 1)
    >>> log.close()
    """

    def __init__(self, path: str | Path, *, is_owner: bool = False) -> None:
        self.path, self._is_owner = Path(path), is_owner
        #: Whether events have digests: not those of an earlier version that no service has opened since.
        self.has_digests = True
        if not self.path.exists():
            if not is_owner:
                raise LogError(f"{path}: no such log")
            # SQLite gives its other files the mode of this one: only the owner may read texts and vectors. A
            # file that is there is never opened here: closing it would drop SQLite's locks of this process.
            with contextlib.suppress(FileExistsError):
                os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        self._local = threading.local()
        self._connected: weakref.WeakSet[_Connected] = weakref.WeakSet()
        self._lock = threading.Lock()
        try:
            with damage_told(self.path):
                self._check_or_create(self.connection)
        except LogError:
            self.close()
            raise
        except sqlite3.DatabaseError as error:
            self.close()
            raise LogError(f"{path}: expected a simstream log, got {error}") from None

    def _check_or_create(self, connection: sqlite3.Connection) -> None:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        mark = connection.execute("PRAGMA application_id").fetchone()[0]
        tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if not tables:
            if not self._is_owner:
                raise LogError(f"{self.path}: expected a simstream log, got an empty file")
            connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {FORMAT_VERSION}")
            identity = f"INSERT INTO settings VALUES ('identity', '\"{secrets.token_hex(16)}\"');"
            connection.executescript(
                f"BEGIN IMMEDIATE; {_TABLES} {_NEED_DIGESTS}; {identity} COMMIT;"
            )
        elif mark != _APPLICATION_ID:
            raise LogError(f"{self.path}: expected a simstream log, got another SQLite file")
        elif version > FORMAT_VERSION:
            raise LogError(
                f"{self.path}: expected log version {FORMAT_VERSION} or older, got {version}; "
                "upgrade simstream"
            )
        elif self._is_owner:
            with contextlib.suppress(sqlite3.OperationalError):  # a full disk: it only saves time
                connection.execute(_ITEM_INDEX)
            if version < FORMAT_VERSION:
                self._upgrade(connection)
        else:
            self.has_digests = version >= 2

    def _upgrade(self, connection: sqlite3.Connection) -> None:
        """Give the events of an earlier version their digests, all of them or none."""
        identity = secrets.token_hex(16)
        with self.transaction():
            for column in ("digest", "hash"):
                connection.execute(f"ALTER TABLE events ADD COLUMN {column} BLOB")
            before, last = bytes.fromhex(identity), 0
            while rows := connection.execute(
                f"SELECT {_COLUMNS} FROM events WHERE position > ? ORDER BY position LIMIT 1000",
                (last,),
            ).fetchall():
                digests = []
                for row in rows:
                    digest = digest_of_row(row)
                    before, last = chained(before, digest), row[0]
                    digests.append((digest, before, last))
                connection.executemany(
                    "UPDATE events SET digest = ?, hash = ? WHERE position = ?", digests
                )
            values = [("identity", json.dumps(identity)), ("upgraded_at", json.dumps(last))]
            connection.executemany("INSERT INTO settings VALUES (?, ?)", values)
            connection.execute(_NEED_DIGESTS)
            connection.execute(f"PRAGMA user_version = {FORMAT_VERSION}")

    @property
    def connection(self) -> sqlite3.Connection:
        """The connection of the calling thread."""
        return self._mine().connection

    def _mine(self) -> _Connected:
        found: _Connected | None = getattr(self._local, "connected", None)
        if found is None:
            found = self._local.connected = _Connected(self.path, self._is_owner)
            with self._lock:
                self._connected.add(found)
            found.prepare()
        return found

    def close(self) -> None:
        """Close the connections of all threads."""
        with self._lock:
            for connected in list(self._connected):
                connected.connection.close()
            self._connected.clear()
        self._local = threading.local()

    # -- reading ------------------------------------------------------------------------------

    @property
    def last(self) -> int:
        """Position of the last event; 0 if there is none."""
        return int(self.connection.execute("SELECT max(position) FROM events").fetchone()[0] or 0)

    def read(
        self,
        after: int,
        until: int | None = None,
        *,
        kinds: Iterable[str] | None = None,
        limit: int | None = None,
    ) -> Iterator[Event]:
        """Events at positions from ``after + 1`` to ``until``, in order."""
        query = f"SELECT {_COLUMNS}, {self._digest} FROM events WHERE position > ?"
        values: list[Any] = [after]
        if until is not None:
            query, values = f"{query} AND position <= ?", [*values, until]
        if kinds is not None:
            # Literals, not bound values: only then can SQLite use the partial index of these kinds.
            names = ", ".join(f"'{EventKind(kind)}'" for kind in kinds)
            query = f"{query} AND kind IN ({names})"
        mine = self._mine()  # kept open until everything is read, even by another thread
        rows = mine.connection.execute(
            f"{query} ORDER BY position LIMIT ?", [*values, -1 if limit is None else limit]
        )
        for position, at, kind, subject, vector, body, digest in rows:
            row = (position, at, kind, subject, vector, body)
            if self.has_digests and not is_intact(row, digest):
                raise self._damaged(position)
            yield Event(position, at, kind, subject, vector, decode_body(body))

    @property
    def _digest(self) -> str:
        return "digest" if self.has_digests else "NULL"

    def _check(self, header: Any, digest: bytes | None) -> None:
        """Raise unless an event is what was written, but for its body, which was not read."""
        if self.has_digests and (digest is None or digest_without_body(*header) != digest[:16]):
            raise self._damaged(header[0])

    def _damaged(self, position: int) -> LogError:
        return LogError(
            f"{self.path}: the event at position {position} is damaged; stop the service, and restore a "
            f"backup or copy what is whole with: simstream check {self.path.parent} --salvage NEW_FOLDER"
        )

    def controls(self, until: int) -> list[Event]:
        """Retractions, rollbacks and pins up to a position."""
        return list(self.read(0, until, kinds=CONTROL_KINDS))

    def read_counting(self, after: int, until: int, kinds: Iterable[str]) -> Iterator[Event]:
        """Events after one position that still count after the other, in order."""
        ranges = excluded_ranges(self.controls(until), until)
        for event in self.read(after, until, kinds=kinds):
            if not is_excluded(ranges, event.position):
                yield event

    def count_items(self, until: int, after: int = 0) -> int:
        """Number of item events (added, replaced, deleted) up to a position: at least the number of items."""
        span = after, until
        found = self.connection.execute(f"SELECT count(*) {_ITEM_EVENTS}", span).fetchone()
        return int(found[0])

    def read_items(self, until: int, size: int, after: int = 0) -> Iterator[list[ItemChange]]:
        """Item events after one position and up to another, in batches of `size`."""
        rows = self.connection.execute(
            f"SELECT {_HEADER}, {self._digest} {_ITEM_EVENTS} ORDER BY position", (after, until)
        )
        while some := rows.fetchmany(size):
            for *header, digest in some:
                self._check(header, digest)
            yield [(row[0], row[2], row[3], row[4]) for row in some]

    def get(self, position: int) -> Event | None:
        """The event at a position."""
        return next(self.read(position - 1, position), None)

    def vectors(self, positions: Iterable[int]) -> dict[int, bytes]:
        """Encoded vectors of events by position."""
        found = {}
        for position in positions:
            row = self.connection.execute(
                f"SELECT {_HEADER}, {self._digest} FROM events WHERE position = ?", (position,)
            ).fetchone()
            if row is not None and row[4] is not None:
                self._check(row[:5], row[5])
                found[position] = row[4]
        return found

    def hash_at(self, position: int) -> str:
        """The hash of the log up to a position, as text; at 0 it is the log's identity.

        A log of an earlier version has none: it is empty.
        """
        if not self.has_digests:
            return ""
        row = self.connection.execute(
            "SELECT hash FROM events WHERE position <= ? ORDER BY position DESC LIMIT 1",
            (position,),
        ).fetchone()
        return self.setting("identity") if row is None else bytes(row[0] or b"").hex()

    def rows(self, after: int, until: int | None = None) -> Iterator[tuple[Row, bytes, bytes]]:
        """Stored events with digest and hash, as they are, unverified; see `simstream.serve.upkeep`.

        All up to a position, or the next thousand.
        """
        columns = "digest, hash" if self.has_digests else "NULL, NULL"
        until, limit = (_LARGEST_POSITION, 1000) if until is None else (until, -1)
        found = self.connection.execute(
            f"SELECT {_COLUMNS}, {columns} FROM events WHERE position > ? AND position <= ? "
            "ORDER BY position LIMIT ?",
            (after, until, limit),
        )
        for *row, digest, link in found:
            yield tuple(row), digest, link  # type: ignore[misc]

    # -- the last acknowledged event ----------------------------------------------------------

    @property
    def _head_path(self) -> Path:
        return self.path.with_name("head")

    def note_head(self, position: int) -> None:
        """Remember what was acknowledged, in a file of its own."""
        with contextlib.suppress(OSError, sqlite3.Error):  # it only helps to notice damage
            record = f"{position:020d} {self.hash_at(position)}\n".encode()
            handle = os.open(self._head_path, os.O_WRONLY | os.O_CREAT, 0o600)
            try:
                os.pwrite(handle, record, 0)  # in place: there is never a moment without it
            finally:
                os.close(handle)

    @property
    def lost_path(self) -> Path:
        """Where the head is kept once events are missing, until an operator removes it."""
        return self.path.with_name("head.lost")

    def keep_lost(self) -> None:
        """Keep what says that events are missing: the next acknowledged event overwrites the head."""
        if not self.lost_path.exists():
            shutil.copyfile(self._head_path, self.lost_path)

    def head(self, path: Path | None = None) -> tuple[int, str] | None:
        """Position and hash of the last acknowledged event; None where the file does not say."""
        try:
            text, link = (path or self._head_path).read_text().split()
            return int(text), link
        except (OSError, ValueError):
            return None

    def lost_after(self) -> tuple[int, int] | None:
        """Where the log ends, and where acknowledged events end; None if none of them is missing."""
        noted = self.head()
        if noted is None or not self.has_digests:
            return None
        position, link = noted
        if position <= self.last and self.hash_at(position) == link:
            return None
        return self.last, position

    def request(self, key: str) -> tuple[str, int, int] | None:
        """Digest, first position and number of events of the earlier request with this key, if any."""
        row = self.connection.execute(
            "SELECT digest, first, count FROM requests WHERE key = ?", (key,)
        ).fetchone()
        return None if row is None else (row[0], row[1], row[2])

    # -- writing ------------------------------------------------------------------------------

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """A block whose changes become durable together, or not at all."""
        connection = self.connection
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

    def append(self, events: Iterable[Event]) -> None:
        """Add events, inside a transaction."""
        before, rows = bytes.fromhex(self.hash_at(_LARGEST_POSITION)), []
        for event in events:
            row: Row = (*event[:5], encode_body(event.body))
            digest = digest_of_row(row)
            before = chained(before, digest)
            rows.append((*row, digest, before))
        self.connection.executemany(
            f"INSERT INTO events ({_COLUMNS}, digest, hash) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows
        )

    def remember(self, key: str, digest: str, first: int, count: int) -> None:
        """Record which events an idempotency key led to, inside a transaction."""
        self.connection.execute(
            "INSERT INTO requests VALUES (?, ?, ?, ?)", (key, digest, first, count)
        )

    # -- settings -----------------------------------------------------------------------------

    def setting(self, name: str) -> Any:
        """A JSON value stored beside the events; None if there is none."""
        row = self.connection.execute(
            "SELECT value FROM settings WHERE name = ?", (name,)
        ).fetchone()
        return None if row is None else json.loads(row[0])

    def set_setting(self, name: str, value: Any) -> None:
        """Store a JSON value beside the events."""
        with self.transaction():
            self.connection.execute(
                "INSERT INTO settings VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
                (name, json.dumps(value)),
            )


def is_intact(row: Row, digest: bytes | None) -> bool:
    """Whether a stored event is what was written, or what erasing left of it.

    Examples
    --------
    >>> row = (1, 0.0, "delete", "shoe", None, "{}")
    >>> is_intact(row, digest_of_row(row)), is_intact((2, *row[1:]), digest_of_row(row))
    (True, False)
    """
    if digest is None or not isinstance(row[5], str):
        return False
    found = digest_of_row(row)
    return found == digest or (row[5] == ERASED and found[:16] == digest[:16])


@contextlib.contextmanager
def damage_told(path: Path) -> Iterator[None]:
    """Name the damaged log where SQLite notices the damage only while reading."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        # The lowest byte is the primary error code. Texts that are no texts have none.
        is_corrupt = getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_CORRUPT
        if not is_corrupt and "Could not decode" not in str(error):
            raise
        raise LogError(
            f"{path}: the log is damaged ({error}); stop the service, and restore a backup or copy what is "
            f"whole with: simstream check {path.parent} --salvage NEW_FOLDER"
        ) from error


class _Connected:
    """A connection that is closed once its thread has ended and nobody reads from it any more."""

    def __init__(self, path: Path, is_owner: bool) -> None:
        self._is_owner = is_owner
        self.connection = self._connect(path, "rw" if is_owner else "ro")
        if not is_owner:
            try:
                self.connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            except sqlite3.OperationalError as error:
                if "unable to open" not in str(error) and "readonly" not in str(error):
                    return  # damage is told where it is read
                self.connection.close()  # a medium that nobody can write to: nothing changes there
                self.connection = self._connect(path, "ro&immutable=1")

    @staticmethod
    def _connect(path: Path, mode: str) -> sqlite3.Connection:
        # isolation_level=None: statements run one by one, `transaction` begins and ends explicitly.
        return sqlite3.connect(
            f"file:{quote(str(path.absolute()))}?mode={mode}",
            uri=True,
            timeout=30,
            isolation_level=None,
            check_same_thread=False,
        )

    def prepare(self) -> None:
        """Make commits durable: with FULL, a commit returns only after the data was synced to disk."""
        pragmas = ("journal_mode = WAL", "synchronous = FULL") if self._is_owner else ()
        for pragma in (*pragmas, "cache_size = -4096"):
            self.connection.execute(f"PRAGMA {pragma}")

    def __del__(self) -> None:
        self.connection.close()
