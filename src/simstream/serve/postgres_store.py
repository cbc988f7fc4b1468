"""The log in PostgreSQL: ``pip install 'simstream[postgres]'``.

One connection writes. Its session holds an advisory lock, so there is one writer, and what was begun over a
connection that is lost is decided before another one gets the lock. All threads share a second connection to
read: every read is one short query. A follower has one to read and one that waits for notifications.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import re
import secrets
import select
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ..extras import MissingExtraError
from .events import FORMAT_VERSION
from .postgres_address import Address
from .store import COLUMNS, EventStore, LogError, LostError, NoLogError

try:
    import psycopg
except ImportError:
    raise MissingExtraError("a log in PostgreSQL", "psycopg", "postgres") from None

logger = logging.getLogger("simstream.serve")

_TABLES = """
CREATE TABLE events (
    position BIGINT PRIMARY KEY,
    at DOUBLE PRECISION NOT NULL,
    kind TEXT NOT NULL,
    subject TEXT,
    vector BYTEA,
    body TEXT NOT NULL,
    digest BYTEA NOT NULL,
    hash BYTEA NOT NULL
);
CREATE INDEX control_events ON events (position) WHERE kind IN ('retract', 'rollback', 'pin');
CREATE INDEX item_events ON events (position) WHERE kind IN ('item', 'delete');
CREATE TABLE requests (
    key TEXT PRIMARY KEY, digest TEXT NOT NULL, first BIGINT NOT NULL, count BIGINT NOT NULL
);
CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL);
"""

#: Of the columns of events, for `COPY`, and the fewest rows that are worth it.
_TYPES = ("int8", "float8", "text", "text", "bytea", "text", "bytea", "bytea")
_FEWEST_COPIED = 20

#: Longest time until a follower looks at the log again, whether or not it was notified.
_POLL_SECONDS = 0.5

#: How long to wait for the advisory lock: a server may need a moment to notice that a process was killed.
_LOCK_MILLISECONDS = 3000

#: Time between two attempts to reach a database that is away.
_RETRY_SECONDS = 0.5

#: What callers are told.
_AWAY = "its database cannot be reached"

_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,62}")


def address_of(text: str) -> Address:
    """Read ``postgresql://[user@]host[:port]/database[?schema=name&...]``.

    Examples
    --------
    >>> address_of("postgresql://me:secret@db.example.org/service?schema=shoes").shown
    'postgresql://me@db.example.org/service?schema=shoes'
    """
    try:
        address = Address.parsed(text, {"schema": "simstream"}, what="log")
    except ValueError as error:
        raise LogError(str(error)) from None
    schema = address.own["schema"]
    if not _SCHEMA.fullmatch(schema):
        raise LogError(
            f"log: expected a schema of lower case letters, digits and _, got {schema!r}"
        )
    return address


class PostgresStore(EventStore):
    """The tables of a log in a schema of a PostgreSQL database.

    The owner creates schema and tables if they do not exist. A connection that was lost is made anew when it
    is needed.
    """

    def __init__(self, address: str, *, is_owner: bool = False) -> None:
        self._address, self._is_owner = address_of(address), is_owner
        self.name, self._schema = self._address.shown, self._address.own["schema"]
        digest = hashlib.blake2b(self._schema.encode(), digest_size=8).digest()
        #: Number of the advisory lock, and name of the channel: one for each schema of a database.
        self._key = int.from_bytes(digest, "big", signed=True)
        self._channel = f"simstream_{digest.hex()}"
        self._locks = {role: threading.Lock() for role in ("write", "read", "listen")}
        self._connections: dict[str, psycopg.Connection[Any]] = {}
        #: Those of the connections that could not be made when they were last needed.
        self._lost: set[str] = set()
        #: The thread that is in a transaction, and whether it has changed something.
        self._writing_thread: int | None = None
        self._has_changed = False
        self._local = threading.local()
        #: Whether it has been reached: an error before that is told by whoever opens it.
        self._is_open = False
        try:
            if is_owner:
                self._create_if_missing()
            self._check()
            self._is_open = True
        except BaseException:
            self.close()
            raise

    # -- connections --------------------------------------------------------------------------

    @property
    def is_lost(self) -> bool:  # type: ignore[override]
        """Whether a connection could not be made when last needed, or the one that writes has ended since.

        That a server is silent is known once the system has given the connection up: see `postgres_address`.
        """
        if self._lost:
            return True
        try:
            writing = self._connections["write"].fileno()
        except KeyError:  # who follows writes nothing, and reads often
            return False
        except psycopg.OperationalError:
            return True
        if not hasattr(select, "poll"):  # Windows: it is known when the connection is needed
            return False
        poll = select.poll()
        # That both sides have closed it is told anyway; that the other side has, not by all systems.
        poll.register(writing, getattr(select, "POLLRDHUP", 0))
        return bool(poll.poll(0))

    def _connection(self, role: str) -> psycopg.Connection[Any]:
        """The connection to "write", "read" or "listen"; made anew if it was lost."""
        with self._locks[role]:
            found = self._connections.get(role)
            if found is None or found.closed:
                try:
                    found = self._connections[role] = self._connect(role)
                except LostError as error:
                    if self._is_open and not self._lost:  # each outage once
                        logger.warning("the log cannot be reached to %s: %s", role, error)
                    self._lost.add(role)
                    raise
                was_lost = bool(self._lost)
                self._lost -= {role, "read"}  # which is as good, and may not be needed for long
                if was_lost and not self._lost:
                    logger.warning("the log can be reached again")
            return found

    def _connect(self, role: str) -> psycopg.Connection[Any]:
        options: dict[str, Any] = {}
        if self._is_owner and "target_session_attrs" not in self._address.conninfo:
            options["target_session_attrs"] = "read-write"  # never a standby
        with self._told(None):
            new = psycopg.connect(
                self._address.conninfo, autocommit=True, client_encoding="utf8", **options
            )
        try:
            with self._told(new):
                new.execute(f'SET search_path TO "{self._schema}"')
                if role == "write":
                    self._take_lock(new)
                elif role == "listen":
                    self._listen(new)
        except BaseException:
            new.close()
            raise
        return new

    def _listen(self, connection: psycopg.Connection[Any]) -> None:
        try:
            connection.execute(f'LISTEN "{self._channel}"')
        except psycopg.Error:  # a standby refuses: there, nothing ever ends `wait` before its time
            if connection.closed:
                raise

    def _take_lock(self, connection: psycopg.Connection[Any]) -> None:
        connection.execute(f"SET lock_timeout TO {_LOCK_MILLISECONDS}")
        try:
            connection.execute("SELECT pg_advisory_lock(%s)", (self._key,))
        except psycopg.errors.LockNotAvailable:
            text = "another service writes to this log; stop it first"
            raise LostError(f"{self.name}: {text}", text) from None
        connection.execute("SET lock_timeout TO 0")
        (synced, fsync) = (
            connection.execute(f"SHOW {name}").fetchone()[0]  # type: ignore[index]
            for name in ("synchronous_commit", "fsync")
        )
        if synced in ("off", "local"):  # what is acknowledged must be durable
            connection.execute("SET synchronous_commit TO on")
        if fsync != "on":
            logger.warning(
                "%s: the server runs with fsync=%s and may lose what was acknowledged",
                self.name,
                fsync,
            )

    @contextlib.contextmanager
    def _told(self, connection: psycopg.Connection[Any] | None) -> Iterator[None]:
        """Errors of psycopg as errors of the log; a connection that failed is lost."""
        try:
            yield
        except psycopg.Error as error:
            is_lost = connection is None or connection.closed
            text = " ".join(str(error).split())
            if is_lost:
                raise LostError(f"{self.name}: {text}", _AWAY) from error
            raise LogError(f"{self.name}: {text}", text) from error

    def close(self) -> None:
        """Close all connections."""
        while self._connections:
            self._connections.popitem()[1].close()

    # -- tables -------------------------------------------------------------------------------

    def _create_if_missing(self) -> None:
        connection, schema = self._connection("write"), self._schema
        with self._told(connection), connection.transaction():
            ((encoding, is_there),) = connection.execute(
                "SELECT current_setting('server_encoding'), to_regnamespace(%s) IS NOT NULL",
                (schema,),
            )
            if encoding != "UTF8":
                raise LogError(f"{self.name}: expected a database in UTF8, got {encoding}")
            if not is_there:
                connection.execute(f'CREATE SCHEMA "{schema}"')
            if not self._tables(connection):
                connection.execute(_TABLES)
                values = {"format": FORMAT_VERSION, "identity": secrets.token_hex(16)}
                for name, value in values.items():
                    row = (name, json.dumps(value))
                    connection.execute("INSERT INTO settings VALUES (%s, %s)", row)

    @staticmethod
    def _tables(connection: psycopg.Connection[Any]) -> set[str]:
        """Those of our tables that are there."""
        rows = connection.execute(
            "SELECT tablename FROM pg_tables WHERE schemaname = current_schema() "
            "AND tablename IN ('events', 'requests', 'settings')"
        )
        return {name for (name,) in rows}

    def _check(self) -> None:
        connection = self._connection("read")
        with self._told(connection):
            tables = self._tables(connection)
            if not tables:
                raise NoLogError(f"{self.name}: no such log")
            version = None
            if len(tables) == 3:
                with contextlib.suppress(psycopg.errors.UndefinedColumn):
                    row = connection.execute(
                        "SELECT value FROM settings WHERE name = 'format'"
                    ).fetchone()
                    version = None if row is None else int(row[0])
        if version is None:
            raise LogError(f"{self.name}: expected a simstream log, got other tables")
        if version > FORMAT_VERSION:
            raise LogError(
                f"{self.name}: expected log version {FORMAT_VERSION} or older, got {version}; "
                "upgrade simstream"
            )

    # -- rows ---------------------------------------------------------------------------------

    def fetch(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """All rows of a query."""
        query = statement.replace("?", "%s")
        if self._writing_thread == threading.get_ident():
            return self._fetched(self._connections["write"], query, values)
        is_patient = getattr(self._local, "is_patient", lambda: False)
        with contextlib.suppress(LostError):  # what was begun before may be lost: try it anew
            return self._fetched(self._connection("read"), query, values)
        while True:
            try:
                return self._fetched(self._connection("read"), query, values)
            except LostError:
                if not is_patient():
                    raise
                time.sleep(_RETRY_SECONDS)

    def _fetched(
        self, connection: psycopg.Connection[Any], query: str, values: Sequence[Any]
    ) -> list[tuple[Any, ...]]:
        with self._told(connection):
            return connection.execute(query, values, binary=True).fetchall()  # type: ignore[arg-type]

    @contextlib.contextmanager
    def patient(self, is_patient: Callable[[], bool]) -> Iterator[None]:
        """A block in which reads of this thread wait for a database that is away, as long as it says."""
        self._local.is_patient = is_patient
        try:
            yield
        finally:
            del self._local.is_patient

    def append(self, rows: Sequence[Sequence[Any]]) -> None:
        """Add events, inside a transaction; many at a time are sent as they are stored, which is faster."""
        columns = ", ".join(COLUMNS)
        if len(rows) < _FEWEST_COPIED:
            self.run(f"INSERT INTO events ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)
            return
        connection = self._connections["write"]
        command = f"COPY events ({columns}) FROM STDIN (FORMAT BINARY)"
        with self._told(connection), connection.cursor().copy(command) as copy:
            copy.set_types(_TYPES)
            for row in rows:
                copy.write_row(row)
        self._has_changed = True

    def run(self, statement: str, rows: Sequence[Sequence[Any]]) -> None:
        """Do a statement for every row of values, inside a transaction."""
        connection = self._connections["write"]
        with self._told(connection), connection.cursor() as cursor:
            cursor.executemany(statement.replace("?", "%s"), rows)
        self._has_changed = True

    def begin(self) -> None:
        """Begin a transaction, over a new connection if the last one was lost."""
        for is_last in (False, True):
            connection = self._connection("write")
            try:
                with self._told(connection):
                    connection.execute("BEGIN")
                break
            except LostError:  # since the last transaction: nothing depends on it
                if is_last:
                    raise
        self._writing_thread, self._has_changed = threading.get_ident(), False

    def commit(self) -> None:
        """Make everything since `begin` durable, and wake the followers."""
        connection = self._connections["write"]
        try:
            with self._told(connection):
                wake = f'NOTIFY "{self._channel}"; ' if self._has_changed else ""
                answer = connection.execute(f"{wake}COMMIT")
                while answer.nextset():
                    pass
                done = answer.statusmessage
            if done != "COMMIT":  # the server answers so if a statement has failed
                text = f"expected a commit, got {done}: nothing was kept"
                raise LogError(f"{self.name}: {text}", text)
        except LostError as error:
            unknown = (
                "whether the last changes were kept is not known: send them again with the same "
                "idempotency key"
            )
            raise LostError(f"{error}; {unknown}", f"{error.public}; {unknown}") from error
        self._writing_thread = None

    def rollback(self) -> None:
        """Undo everything since `begin`; a lost connection has done so itself."""
        self._writing_thread = None
        with contextlib.suppress(psycopg.Error, KeyError):
            self._connections["write"].execute("ROLLBACK")

    # -- the database -------------------------------------------------------------------------

    def check_same(self) -> None:
        """Nothing: the rows of another database are others."""

    def wait(self, ending: threading.Event) -> None:
        """Wait for a notification, but never long."""
        try:
            connection = self._connection("listen")
            with self._told(connection):
                for _ in connection.notifies(timeout=_POLL_SECONDS, stop_after=1):
                    pass
        except LostError:
            ending.wait(_POLL_SECONDS)

    @contextlib.contextmanager
    def scrubbing(self) -> Iterator[None]:
        """A block after which what it overwrites is gone from the table; not from the server's WAL."""
        yield
        connection = self._connection("write")
        with self._told(connection):
            connection.execute("VACUUM FULL events")
