"""The log: one SQLite file, only ever appended to. What it holds is what happened."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import threading
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from .errors import LogError
from .events import FORMAT_VERSION, KINDS, Event

#: Marks the file as ours (the text "simS").
_APPLICATION_ID = 0x73696D53

#: Finds the items without looking at every event. Logs of earlier versions get it when they are opened.
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


#: Position, kind, id and encoded vector of an event of an item: not the body, which may be large.
ItemChange = tuple[int, str, str, bytes | None]


class Log:
    """The events of a service in a SQLite file. Any thread may read; one may append (see `writer`).

    Parameters
    ----------
    path : file name; made if there is none

    Examples
    --------
    >>> import tempfile
    >>> log = Log(Path(tempfile.mkdtemp()) / "log.sqlite")
    >>> with log.transaction() as connection:
    ...     log.append(connection, [Event(1, 0.0, "delete", "shoe", None, {})])
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
            self._check_or_create(self.connection)
        except sqlite3.DatabaseError as error:
            self.close()
            if _is_damage(error):
                raise _damaged(self.path, error) from error
            raise LogError(f"{path}: expected a log of simstream, got {error}") from None
        except LogError:
            self.close()
            raise

    def _check_or_create(self, connection: sqlite3.Connection) -> None:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        mark = connection.execute("PRAGMA application_id").fetchone()[0]
        tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if not tables:
            connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {FORMAT_VERSION}")
            connection.executescript(f"BEGIN IMMEDIATE; {_TABLES} COMMIT;")
        elif mark != _APPLICATION_ID:
            raise LogError(f"{self.path}: expected a log of simstream, got another SQLite file")
        elif version > FORMAT_VERSION:
            raise LogError(
                f"{self.path}: expected a log of version {FORMAT_VERSION} or older, got {version}; "
                "upgrade simstream"
            )
        else:
            with contextlib.suppress(sqlite3.OperationalError):  # a full disk: it is only for speed
                connection.execute(_ITEM_INDEX)

    @property
    def connection(self) -> sqlite3.Connection:
        """The calling thread's own connection."""
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
        """Position of the last event, 0 if there is none."""
        return int(self.connection.execute("SELECT max(position) FROM events").fetchone()[0] or 0)

    def read(
        self,
        after: int,
        until: int | None = None,
        *,
        kinds: Iterable[str] | None = None,
        limit: int | None = None,
    ) -> Iterator[Event]:
        """Events after a position, in order.

        Parameters
        ----------
        after, until : int
            Positions from ``after + 1`` to ``until``.
        kinds : only events of these kinds
        limit : at most so many
        """
        query = f"SELECT {_COLUMNS} FROM events WHERE position > ?"
        values: list[Any] = [after]
        if until is not None:
            query, values = f"{query} AND position <= ?", [*values, until]
        if kinds is not None:
            # Written out, not bound: SQLite then sees that the index of a few kinds is enough.
            names = ", ".join(f"'{KINDS[KINDS.index(kind)]}'" for kind in kinds)
            query = f"{query} AND kind IN ({names})"
        mine = self._mine()  # held until all is read, even if another thread reads on
        rows = mine.connection.execute(
            f"{query} ORDER BY position LIMIT ?", [*values, -1 if limit is None else limit]
        )
        for position, at, kind, subject, vector, body in rows:
            yield Event(position, at, kind, subject, vector, json.loads(body))

    def count_items(self, until: int) -> int:
        """Additions and replacements of items up to a position, and deletions: no fewer than items."""
        found = self.connection.execute(f"SELECT count(*) {_ITEM_EVENTS}", (0, until)).fetchone()
        return int(found[0])

    def read_items(self, until: int, size: int) -> Iterator[list[ItemChange]]:
        """Additions and deletions of items up to a position, so many at a time."""
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
        """Digest, first position and number of events of an earlier request with that key."""
        row = self.connection.execute(
            "SELECT digest, first, count FROM requests WHERE key = ?", (key,)
        ).fetchone()
        return None if row is None else (row[0], row[1], row[2])

    # -- writing ------------------------------------------------------------------------------

    def transaction(self) -> _Transaction:
        """A block whose changes become durable together, or not at all."""
        return _Transaction(self.connection)

    @staticmethod
    def append(connection: sqlite3.Connection, events: Iterable[Event]) -> None:
        """Add events inside a transaction."""
        connection.executemany(
            f"INSERT INTO events ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)",
            [(*event[:5], json.dumps(event.body, separators=(",", ":"))) for event in events],
        )

    @staticmethod
    def remember(
        connection: sqlite3.Connection, key: str, digest: str, first: int, count: int
    ) -> None:
        """Note inside a transaction what a request with an idempotency key led to."""
        connection.execute("INSERT INTO requests VALUES (?, ?, ?, ?)", (key, digest, first, count))

    # -- settings -----------------------------------------------------------------------------

    def setting(self, name: str) -> Any:
        """A JSON value kept beside the events, None if there is none."""
        row = self.connection.execute(
            "SELECT value FROM settings WHERE name = ?", (name,)
        ).fetchone()
        return None if row is None else json.loads(row[0])

    def set_setting(self, name: str, value: Any) -> None:
        """Keep a JSON value beside the events."""
        with self.transaction() as connection:
            connection.execute(
                "INSERT INTO settings VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
                (name, json.dumps(value)),
            )


@contextlib.contextmanager
def damage_told(path: Path) -> Iterator[None]:
    """Say which log is damaged where SQLite notices only while it is read."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        if not _is_damage(error):
            raise
        raise _damaged(path, error) from error


def _is_damage(error: sqlite3.DatabaseError) -> bool:
    # The lowest byte is the kind of error, the others tell it more exactly.
    return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_CORRUPT


def _damaged(path: Path, error: sqlite3.DatabaseError) -> LogError:
    return LogError(
        f"{path}: the log is damaged ({error}); put a copy of it from a backup in its place, with the "
        "service stopped, and remove log.sqlite-wal, log.sqlite-shm and snapshots of the damaged one"
    )


class _Connected:
    """A connection that is closed when its thread has ended and nobody reads from it any more."""

    def __init__(self, path: Path) -> None:
        # Statements run one by one and transactions are begun by hand: isolation_level=None.
        self.connection = sqlite3.connect(
            path, timeout=30, isolation_level=None, check_same_thread=False
        )

    def prepare(self) -> None:
        """Set how it is written: a commit returns only after the disk is said to have it (FULL)."""
        for pragma in ("journal_mode = WAL", "synchronous = FULL", "cache_size = -4096"):
            self.connection.execute(f"PRAGMA {pragma}")

    def __del__(self) -> None:
        self.connection.close()


class _Transaction:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def __enter__(self) -> sqlite3.Connection:
        self._connection.execute("BEGIN IMMEDIATE")
        return self._connection

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is None:
            try:
                self._connection.execute("COMMIT")
                return
            except BaseException:
                self._roll_back()
                raise
        self._roll_back()

    def _roll_back(self) -> None:
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")
