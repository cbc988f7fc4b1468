"""The log in SQLite: one file, which is only ever appended to."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import sqlite3
import threading
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from .events import FORMAT_VERSION, chained, digest_of_row
from .store import COLUMNS, EventStore, LogError, NoLogError

#: Marks the file as ours (the text "simS").
_APPLICATION_ID = 0x73696D53

#: Time between two looks at the log of a service that is followed.
_POLL_SECONDS = 0.05

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


class SqliteStore(EventStore):
    """The tables of a log in a SQLite file.

    Whoever holds the lock of the folder opens it with `is_owner`: the file is created if it does not exist,
    and brought up to the newest version. All others only read, logs of earlier versions too, whose events
    have no digests.
    """

    def __init__(self, path: Path, *, is_owner: bool = False) -> None:
        self.path, self.name, self._is_owner = path, str(path), is_owner
        if not path.exists():
            if not is_owner:
                raise NoLogError(f"{path}: no such log")
            # SQLite gives its other files the mode of this one: only the owner may read texts and vectors. A
            # file that is there is never opened here: closing it would drop SQLite's locks of this process.
            with contextlib.suppress(FileExistsError):
                os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        self._file = path.stat().st_ino
        self._local = threading.local()
        self._connected: weakref.WeakSet[_Connected] = weakref.WeakSet()
        self._lock = threading.Lock()
        try:
            with damage_told(path):
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
        self.begin()
        try:
            for column in ("digest", "hash"):
                connection.execute(f"ALTER TABLE events ADD COLUMN {column} BLOB")
            before, last = bytes.fromhex(identity), 0
            while rows := connection.execute(
                "SELECT position, at, kind, subject, vector, body FROM events WHERE position > ? "
                "ORDER BY position LIMIT 1000",
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
            self.commit()
        except BaseException:
            self.rollback()
            raise

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

    # -- rows ---------------------------------------------------------------------------------

    def fetch(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """All rows of a query."""
        return self.connection.execute(statement, values).fetchall()

    def append(self, rows: Sequence[Sequence[Any]]) -> None:
        """Add events, inside a transaction."""
        self.run(f"INSERT INTO events ({', '.join(COLUMNS)}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)

    def run(self, statement: str, rows: Sequence[Sequence[Any]]) -> None:
        """Do a statement for every row of values, inside a transaction."""
        self.connection.executemany(statement, rows)

    def begin(self) -> None:
        """Begin a transaction."""
        self.connection.execute("BEGIN IMMEDIATE")

    def commit(self) -> None:
        """Make everything since `begin` durable."""
        self.connection.execute("COMMIT")

    def rollback(self) -> None:
        """Undo everything since `begin`."""
        if self.connection.in_transaction:
            self.connection.execute("ROLLBACK")

    # -- the file -----------------------------------------------------------------------------

    def check_same(self) -> None:
        """Raise if there is another file of this name."""
        if self.path.stat().st_ino != self._file:
            raise LogError(f"{self.path}: was replaced; start this service again")

    def wait(self, ending: threading.Event) -> None:
        """Wait until there may be new events, or until `ending`."""
        ending.wait(_POLL_SECONDS)

    def problems(self) -> list[str]:
        """What SQLite finds wrong with its file."""
        try:
            found = [row[0] for row in self.fetch("PRAGMA quick_check(20)")]
        except sqlite3.DatabaseError as error:
            return [str(error)]
        return [] if found == ["ok"] else found

    @contextlib.contextmanager
    def scrubbing(self) -> Iterator[None]:
        """A block after which what it overwrites is gone, from the write-ahead log too."""
        self.connection.execute("PRAGMA secure_delete = ON")
        yield
        ((busy, _, _),) = self.fetch("PRAGMA wal_checkpoint(TRUNCATE)")
        if busy:
            raise LogError(
                f"{self.path}: erased, but another process reads the log and the texts stay in "
                f"{self.path.name}-wal until it ends; run the command again then"
            )

    def copy_file(self, path: Path) -> None:
        """Copy the log as it is at one moment to a new file."""
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        with damage_told(self.path), contextlib.closing(sqlite3.connect(path)) as copy:
            self.connection.backup(copy)


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
