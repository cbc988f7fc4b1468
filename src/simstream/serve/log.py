"""The log of a service, one SQLite file that is only ever appended to; and the lock of its folder."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import threading
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from .events import CONTROL_KINDS, FORMAT_VERSION, Event, EventKind, excluded_ranges, is_excluded

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
    body TEXT NOT NULL
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

_COLUMNS = "position, at, kind, subject, vector, body"

_ITEM_EVENTS = "FROM events WHERE position > ? AND position <= ? AND kind IN ('item', 'delete')"


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
    """The events of a service in a SQLite file, created if it does not exist.

    Any thread may read; only the writer appends.

    Examples
    --------
    >>> import tempfile
    >>> log = Log(Path(tempfile.mkdtemp()) / "log.sqlite")
    >>> with log.transaction():
    ...     log.append([Event(1, 0.0, "delete", "shoe", None, {})])
    >>> [event.subject for event in log.read(0)], log.last
    (['shoe'], 1)
    >>> log.close()
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
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
            connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {FORMAT_VERSION}")
            connection.executescript(f"BEGIN IMMEDIATE; {_TABLES} COMMIT;")
        elif mark != _APPLICATION_ID:
            raise LogError(f"{self.path}: expected a simstream log, got another SQLite file")
        elif version > FORMAT_VERSION:
            raise LogError(
                f"{self.path}: expected log version {FORMAT_VERSION} or older, got {version}; "
                "upgrade simstream"
            )
        else:
            with contextlib.suppress(sqlite3.OperationalError):  # a full disk: it only saves time
                connection.execute(_ITEM_INDEX)

    @property
    def connection(self) -> sqlite3.Connection:
        """The connection of the calling thread."""
        return self._mine().connection

    def _mine(self) -> _Connected:
        found: _Connected | None = getattr(self._local, "connected", None)
        if found is None:
            found = self._local.connected = _Connected(self.path)
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
        query = f"SELECT {_COLUMNS} FROM events WHERE position > ?"
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
        for position, at, kind, subject, vector, body in rows:
            yield Event(position, at, kind, subject, vector, json.loads(body))

    def controls(self, until: int) -> list[Event]:
        """Retractions, rollbacks and pins up to a position."""
        return list(self.read(0, until, kinds=CONTROL_KINDS))

    def read_counting(self, after: int, until: int, kinds: Iterable[str]) -> Iterator[Event]:
        """Events after one position that still count after the other, in order."""
        ranges = excluded_ranges(self.controls(until), until)
        for event in self.read(after, until, kinds=kinds):
            if not is_excluded(ranges, event.position):
                yield event

    def count_items(self, until: int) -> int:
        """Number of item events (added, replaced, deleted) up to a position: at least the number of items."""
        found = self.connection.execute(f"SELECT count(*) {_ITEM_EVENTS}", (0, until)).fetchone()
        return int(found[0])

    def read_items(self, until: int, size: int) -> Iterator[list[ItemChange]]:
        """Item events up to a position, in batches of `size`."""
        rows = self.connection.execute(
            f"SELECT position, kind, subject, vector {_ITEM_EVENTS} ORDER BY position", (0, until)
        )
        while some := rows.fetchmany(size):
            yield some

    def get(self, position: int) -> Event | None:
        """The event at a position."""
        return next(self.read(position - 1, position), None)

    def vectors(self, positions: Iterable[int]) -> dict[int, bytes]:
        """Encoded vectors of events by position."""
        found = {}
        for position in positions:
            row = self.connection.execute(
                "SELECT vector FROM events WHERE position = ?", (position,)
            ).fetchone()
            if row is not None and row[0] is not None:
                found[position] = row[0]
        return found

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
        self.connection.executemany(
            f"INSERT INTO events ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)",
            [(*event[:5], json.dumps(event.body, separators=(",", ":"))) for event in events],
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


@contextlib.contextmanager
def damage_told(path: Path) -> Iterator[None]:
    """Name the damaged log where SQLite notices the damage only while reading."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        # The lowest byte is the primary error code.
        if getattr(error, "sqlite_errorcode", 0) & 0xFF != sqlite3.SQLITE_CORRUPT:
            raise
        raise LogError(
            f"{path}: the log is damaged ({error}); stop the service, replace the log with a backup, and "
            "remove log.sqlite-wal, log.sqlite-shm and snapshots/"
        ) from error


class _Connected:
    """A connection that is closed once its thread has ended and nobody reads from it any more."""

    def __init__(self, path: Path) -> None:
        # isolation_level=None: statements run one by one, `transaction` begins and ends explicitly.
        self.connection = sqlite3.connect(
            path, timeout=30, isolation_level=None, check_same_thread=False
        )

    def prepare(self) -> None:
        """Make commits durable: with FULL, a commit returns only after the data was synced to disk."""
        for pragma in ("journal_mode = WAL", "synchronous = FULL", "cache_size = -4096"):
            self.connection.execute(f"PRAGMA {pragma}")

    def __del__(self) -> None:
        self.connection.close()
