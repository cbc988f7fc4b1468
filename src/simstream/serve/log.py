"""The log of a service, which is only ever appended to; and the lock of its folder.

Its rows are in a store: a SQLite file in the folder, or a PostgreSQL database. Whatever is read is compared
with its digest: a damaged event is an error that says where.
In the folder, the file ``head`` holds the position and hash of the last event that was acknowledged. It is
not synced, so it may be behind the log after a power cut, but it is never ahead of a log that is whole.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .events import (
    CONTROL_KINDS,
    ERASED,
    ITEM_KINDS,
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
from .sqlite_store import SqliteStore
from .sqlite_store import damage_told as damage_told
from .store import EventStore, NoLogError, OvertakenError
from .store import LogError as LogError

_HEADER = "position, at, kind, subject, vector"
_COLUMNS = f"{_HEADER}, body"

_LARGEST_POSITION = 2**62

#: Events read together.
_PAGE = 512

#: Position, kind, id and encoded vector of an item's event, without the body, which may be large.
ItemChange = tuple[int, str, str, bytes | None]


class End(NamedTuple):
    """The last event of a log: its position and hash; 0 and the log's identity if there is none."""

    position: int
    hash: bytes


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
    simstream.serve.store.LogError: ...: another service uses this folder; stop it first
    """
    from filelock import FileLock, Timeout

    # Any thread may unlock: a server closes its service in a thread of a pool.
    lock = FileLock(folder / "lock", mode=0o600, thread_local=False)
    try:
        return lock.acquire(timeout=0)
    except Timeout:
        raise LogError(f"{folder}: another service uses this folder; stop it first") from None
    except OSError as error:
        raise LogError(f"{folder}: cannot be locked ({error.strerror})") from error


def open_log(folder: Path, address: str | None = None, *, is_owner: bool = False) -> Log:
    """The log of a service's folder: the SQLite file in it, or that at an address.

    It is in PostgreSQL, or that of a service (``http://...``), which is copied to the SQLite file. The owner
    notes an address of PostgreSQL in the folder, without a password: others need not know it.

    Examples
    --------
    >>> import tempfile
    >>> open_log(Path(tempfile.mkdtemp()))
    Traceback (most recent call last):
    ...
    simstream.serve.store.NoLogError: ...: expected the folder of a service, got one without log.sqlite
    """
    if address is not None and address.startswith(("http://", "https://")):
        from .mirror import MirrorLog

        if is_owner:
            raise LogError("log: expected postgresql://..., got the address of a service to follow")
        return MirrorLog(folder, address)
    file, note = folder / "log.sqlite", folder / "log.address"
    noted = note.read_text().strip() if note.exists() else None
    address = address or noted
    if address is None:
        if not is_owner and not file.exists():
            raise NoLogError(
                f"{folder}: expected the folder of a service, got one without {file.name}"
            )
        return Log(file, is_owner=is_owner)
    if file.exists() and _has_events(file):  # else it was left by a start that failed
        raise LogError(
            f"{folder}: has a log of its own, {file.name}; copy it to a database with: "
            f"simstream restore {folder} NEW_FOLDER --log ADDRESS"
        )
    if is_owner and noted is not None:
        _refuse_another(folder, noted, address)
    log = Log(address, is_owner=is_owner, folder=folder)
    if is_owner and log.name != noted:
        note.write_text(f"{log.name}\n")
    return log


def _has_events(file: Path) -> bool:
    with contextlib.closing(Log(file)) as log:
        return bool(log.last)


def _refuse_another(folder: Path, noted: str, address: str) -> None:
    """Raise if an address is not where the log of a folder was, and lacks what was acknowledged there."""
    from .postgres_store import address_of

    if address_of(address).shown == noted:
        return
    is_missing = (folder / "head").exists()
    with contextlib.suppress(NoLogError), contextlib.closing(Log(address, folder=folder)) as log:
        is_missing = log.lost_after() is not None
    if is_missing:
        raise LogError(
            f"{folder}: its log is at {noted}; events that were acknowledged there are missing at the other "
            "address (--log): copy them with simstream restore, or choose another folder (--data)"
        )


class Log:
    """The events of a service.

    Any thread may read; only the writer appends. Whoever holds the lock of the folder opens it with
    `is_owner`: the log is created if there is none.

    Parameters
    ----------
    place : Path or str
        A SQLite file, or the address of a PostgreSQL database.
    is_owner : bool
        Whether to write.
    folder : Path, optional
        Where the head is kept; that of the SQLite file by default.

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

    #: Whether it is the copy of another one, in a folder of its own; see `simstream.serve.mirror`.
    is_copy = False

    def __init__(
        self, place: Path | str, *, is_owner: bool = False, folder: Path | None = None
    ) -> None:
        self.is_owner = is_owner
        self.folder = Path(place).parent if folder is None else folder
        self.store: EventStore
        if isinstance(place, Path):
            self.store = SqliteStore(place, is_owner=is_owner)
        else:
            from .postgres_store import PostgresStore

            self.store = PostgresStore(place, is_owner=is_owner)
        self.name = self.store.name
        self.has_digests = self.store.has_digests
        try:
            with damage_told(self.folder / "log.sqlite"):
                #: Where the log ends, as far as this process has committed or seen it.
                self.end = self._stored_end()
        except BaseException:
            self.close()
            raise
        #: Where it ends if the last commit, of which no answer came, was done.
        self._doubtful = self._tail = self.end
        #: Rows that were appended, but not sent to the store yet.
        self._pending: list[tuple[Any, ...]] = []

    def close(self) -> None:
        """Close the connections of all threads."""
        self.store.close()

    @property
    def is_lost(self) -> bool:
        """Whether the database of the log is known to be away."""
        return self.store.is_lost

    @property
    def is_in_doubt(self) -> bool:
        """Whether it is not known yet if the last commit, of which no answer came, was done."""
        return self._doubtful != self.end

    def patient(self, is_patient: Callable[[], bool]) -> contextlib.AbstractContextManager[None]:
        """A block in which reads of this thread wait for a database that is away, as long as it says."""
        return self.store.patient(is_patient)

    # -- reading ------------------------------------------------------------------------------

    @property
    def last(self) -> int:
        """Position of the last event; 0 if there is none."""
        ((last,),) = self.store.fetch("SELECT max(position) FROM events")
        return int(last or 0)

    def _stored_end(self) -> End:
        link = "hash" if self.has_digests else "NULL"
        found = self.store.fetch(
            f"SELECT position, {link} FROM events ORDER BY position DESC LIMIT 1"
        )
        return End(found[0][0], bytes(found[0][1] or b"")) if found else self._beginning()

    def _beginning(self) -> End:
        return End(0, bytes.fromhex(self.hash_at(0)))

    def _pages(
        self,
        columns: str,
        after: int,
        until: int | None = None,
        *,
        kinds: Iterable[str] | None = None,
        limit: int | None = None,
        size: int = _PAGE,
    ) -> Iterator[list[tuple[Any, ...]]]:
        """Rows of events in order, some at a time; the first of the `columns` is the position.

        Every page is a query of its own: other queries, of other threads too, may come between.
        """
        query = "FROM events WHERE position > ? AND position <= ?"
        if kinds is not None:
            # Literals, not bound values: only then can the partial index of these kinds be used.
            names = ", ".join(f"'{EventKind(kind)}'" for kind in kinds)
            query = f"{query} AND kind IN ({names})"
        query = f"SELECT {columns} {query} ORDER BY position LIMIT ?"
        until, left = _LARGEST_POSITION if until is None else until, limit
        while left is None or left > 0:
            n_wanted = size if left is None else min(size, left)
            some = self.store.fetch(query, (after, until, n_wanted))
            if some:
                yield some
            if len(some) < n_wanted:
                return
            after, left = some[-1][0], None if left is None else left - n_wanted

    def read(
        self,
        after: int,
        until: int | None = None,
        *,
        kinds: Iterable[str] | None = None,
        limit: int | None = None,
    ) -> Iterator[Event]:
        """Events at positions from ``after + 1`` to ``until``, in order."""
        columns = f"{_COLUMNS}, {self._digest}"
        for some in self._pages(columns, after, until, kinds=kinds, limit=limit):
            for position, at, kind, subject, vector, body, digest in some:
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
        text = f"the event at position {position} is damaged"
        return LogError(
            f"{self.name}: {text}; stop the service, and restore a backup or copy what is whole with: "
            f"simstream check {self.folder} --salvage NEW_FOLDER",
            text,
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
        query = (
            "SELECT count(*) FROM events WHERE position > ? AND position <= ? "
            "AND kind IN ('item', 'delete')"
        )
        return int(self.store.fetch(query, (after, until))[0][0])

    def read_items(self, until: int, size: int, after: int = 0) -> Iterator[list[ItemChange]]:
        """Item events after one position and up to another, in batches of `size`."""
        columns = f"{_HEADER}, {self._digest}"
        for some in self._pages(columns, after, until, kinds=ITEM_KINDS, size=size):
            for *header, digest in some:
                self._check(header, digest)
            yield [(row[0], row[2], row[3], row[4]) for row in some]

    def get(self, position: int) -> Event | None:
        """The event at a position."""
        return next(self.read(position - 1, position), None)

    def vectors(self, positions: Iterable[int]) -> dict[int, bytes]:
        """Encoded vectors of events by position."""
        found, wanted = {}, list(positions)
        for begin in range(0, len(wanted), _PAGE):
            some = wanted[begin : begin + _PAGE]
            places = ", ".join("?" * len(some))
            for row in self.store.fetch(
                f"SELECT {_HEADER}, {self._digest} FROM events WHERE position IN ({places})", some
            ):
                if row[4] is not None:
                    self._check(row[:5], row[5])
                    found[row[0]] = row[4]
        return found

    def hash_at(self, position: int) -> str:
        """The hash of the log up to a position, as text; at 0 it is the log's identity.

        A log of an earlier version has none: it is empty.
        """
        if not self.has_digests:
            return ""
        found = self.store.fetch(
            "SELECT hash FROM events WHERE position <= ? ORDER BY position DESC LIMIT 1",
            (position,),
        )
        return bytes(found[0][0] or b"").hex() if found else self.setting("identity")

    def rows(self, after: int, until: int | None = None) -> Iterator[tuple[Row, bytes, bytes]]:
        """Stored events with digest and hash, as they are, unverified; see `simstream.serve.upkeep`.

        All up to a position, or the next thousand.
        """
        columns = f"{_COLUMNS}, {'digest, hash' if self.has_digests else 'NULL, NULL'}"
        for some in self._pages(columns, after, until, limit=1000 if until is None else None):
            for *row, digest, link in some:
                yield tuple(row), digest, link  # type: ignore[misc]

    def rows_within(self, after: int, n_rows: int, n_bytes: int) -> list[tuple[Row, bytes, bytes]]:
        """As `rows`: the next ones up to a number, and up to so many bytes, but at least one."""
        size = "coalesce(length(vector), 0) + length(body)"
        query = f"SELECT position, {size} FROM events WHERE position > ? ORDER BY position LIMIT ?"
        until = after
        for position, size_of_row in self.store.fetch(query, (after, n_rows)):
            n_bytes -= size_of_row
            if n_bytes < 0 and until > after:
                break
            until = position
        return list(self.rows(after, until))

    # -- following ----------------------------------------------------------------------------

    def look(self) -> int:
        """Position of the last event now, of a log that another service writes to.

        Raises `LogError` if it is not the log any more that was read before.
        """
        self.store.check_same()
        if bytes.fromhex(self.hash_at(self.end.position)) != self.end.hash:
            raise OvertakenError(f"{self.name}: was replaced; start this service again")
        self.end = self._stored_end()
        return self.end.position

    def wait(self, ending: threading.Event) -> None:
        """Wait until there may be new events, or until `ending`, but never long."""
        self.store.wait(ending)

    # -- the last acknowledged event ----------------------------------------------------------

    @property
    def _head_path(self) -> Path:
        return self.folder / "head"

    def note_head(self, position: int) -> None:
        """Remember what was acknowledged, in a file of its own."""
        # It only helps to notice damage.
        with contextlib.suppress(OSError, sqlite3.Error, LogError):
            is_end = position == self.end.position
            link = self.end.hash.hex() if is_end else self.hash_at(position)
            record = f"{position:020d} {link}\n".encode()
            handle = os.open(self._head_path, os.O_WRONLY | os.O_CREAT, 0o600)
            try:
                os.pwrite(handle, record, 0)  # in place: there is never a moment without it
            finally:
                os.close(handle)

    @property
    def lost_path(self) -> Path:
        """Where the head is kept once events are missing, until an operator removes it."""
        return self.folder / "head.lost"

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

    # -- requests -----------------------------------------------------------------------------

    def find_requests(self, keys: Sequence[str]) -> dict[str, tuple[str, int, int]]:
        """Digest, first position and number of events of earlier requests, by those keys that are known."""
        found = {}
        for begin in range(0, len(keys), _PAGE):
            some = keys[begin : begin + _PAGE]
            places = ", ".join("?" * len(some))
            for key, digest, first, count in self.store.fetch(
                f"SELECT key, digest, first, count FROM requests WHERE key IN ({places})", some
            ):
                found[key] = (digest, first, count)
        return found

    def requests(self, until: int = _LARGEST_POSITION) -> Iterator[tuple[str, str, int, int]]:
        """Key, digest, first position and number of events of all requests up to a position."""
        after, condition = "", "key > ? AND first + count - 1 <= ?"
        query = f"SELECT key, digest, first, count FROM requests WHERE {condition} ORDER BY key"
        while some := self.store.fetch(f"{query} LIMIT ?", (after, until, _PAGE)):
            yield from some  # type: ignore[misc]
            after = some[-1][0]

    # -- writing ------------------------------------------------------------------------------

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """A block whose changes become durable together, or not at all.

        It begins only where this log ended before. So after a lost connection nothing is written twice, and
        nothing after what another service has written.
        """
        if not self.is_owner:
            raise LogError(f"{self.name}: was opened to be read only")
        self.store.begin()
        try:
            found = self._stored_end()
            if found not in (self.end, self._doubtful):
                text = (
                    f"expected the log to end at position {self.end.position}, where this service left it, "
                    f"got another end at {found.position}; start the service again"
                )
                raise OvertakenError(f"{self.name}: {text}", text)
            self.end = self._doubtful = self._tail = found
            self._pending = []
            yield
            self.flush()
            self._doubtful = self._tail
            self.store.commit()
        except BaseException:
            self.store.rollback()
            raise
        self.end = self._tail

    def append(self, events: Iterable[Event]) -> None:
        """Add events, inside a transaction; they are sent to the store together."""
        before, rows = self._tail, []
        for event in events:
            row: Row = (*event[:5], encode_body(event.body))
            digest = digest_of_row(row)
            before = End(event.position, chained(before.hash, digest))
            rows.append((*row, digest, before.hash))
        self._pending += rows
        self._tail = before

    def flush(self) -> None:
        """Send the events that were appended to the store, so that this transaction can read them."""
        if self._pending:
            self.store.append(self._pending)
            self._pending = []

    def remember(self, *requests: tuple[str, str, int, int]) -> None:
        """Record which events idempotency keys led to, inside a transaction: rows as of `requests`."""
        if requests:
            self.store.run("INSERT INTO requests VALUES (?, ?, ?, ?)", requests)

    def copy_from(self, other: Log) -> None:
        """Become what another log is now, with its identity and hashes; this one must be empty.

        The other one may be in use.
        """
        if self.end.position:
            raise LogError(
                f"{self.name}: expected an empty log, got one with events up to {self.end.position}"
            )
        if not other.has_digests:
            raise LogError(
                f"{other.name}: is of an earlier version; start its service once, then copy it"
            )
        until = other.last
        with self.transaction():
            self.adopt(other.settings())
            for some in other._pages(f"{_COLUMNS}, digest, hash", 0, until):
                damaged = self.take(some)
                if damaged is not None:
                    raise other._damaged(damaged)
            requests = other.requests(until)
            while few := list(itertools.islice(requests, _PAGE)):
                self.remember(*few)

    def adopt(self, settings: Mapping[str, str]) -> None:
        """Have the settings of another log, with its identity, inside a transaction."""
        for name, value in settings.items():
            self._set(name, value)
        if not self._tail.position:
            self._tail = self._beginning()

    def take(self, rows: Sequence[tuple[Any, ...]]) -> int | None:
        """Add stored events of another log, with digest and hash, inside a transaction.

        They must continue this one: returns the position of the first that is damaged or does not.
        """
        for *row, digest, link in rows:
            self._tail = End(row[0], chained(self._tail.hash, digest))
            if not is_intact(tuple(row), digest) or self._tail.hash != link:  # type: ignore[arg-type]
                return self._tail.position
        self._pending += rows
        self.flush()
        return None

    def events_about(self, name: str) -> list[tuple[int, str, str]]:
        """Position, kind and body of all events of an item, in order."""
        query = "SELECT position, kind, body FROM events WHERE subject = ? AND kind IN ('item', 'delete')"
        return self.store.fetch(f"{query} ORDER BY position", (name,))  # type: ignore[return-value]

    def erase(self, positions: Sequence[int]) -> None:
        """Overwrite the bodies of events, inside a transaction; their digests stay."""
        statement = f"UPDATE events SET body = '{ERASED}' WHERE position = ?"
        self.store.run(statement, [(position,) for position in positions])

    # -- settings -----------------------------------------------------------------------------

    def setting(self, name: str) -> Any:
        """A JSON value stored beside the events; None if there is none."""
        found = self.store.fetch("SELECT value FROM settings WHERE name = ?", (name,))
        return json.loads(found[0][0]) if found else None

    def settings(self) -> dict[str, str]:
        """The text of all that is stored beside the events, but for the version of the tables."""
        return dict(self.store.fetch("SELECT name, value FROM settings WHERE name <> 'format'"))  # type: ignore[arg-type]

    def set_setting(self, name: str, value: Any) -> None:
        """Store a JSON value beside the events."""
        with self.transaction():
            self._set(name, json.dumps(value))

    def _set(self, name: str, text: str) -> None:
        self.store.run(
            "INSERT INTO settings VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            [(name, text)],
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
