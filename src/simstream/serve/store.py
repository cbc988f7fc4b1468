"""Where the rows of a log are kept: what SQLite and PostgreSQL do in different ways.

Statements are written once, in `simstream.serve.log`, with ``?`` for values; tables, connections and commits
are the store's. There are three tables: ``events``, ``requests`` and ``settings``.
"""

from __future__ import annotations

import contextlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

#: Of the table of events.
COLUMNS = ("position", "at", "kind", "subject", "vector", "body", "digest", "hash")


class LogError(ValueError):
    """The files of a service are damaged, do not fit together, or come from a newer version.

    Callers of a service are told what is `public`: not where its database is.
    """

    def __init__(self, message: str, public: str | None = None) -> None:
        super().__init__(message)
        self.public = message if public is None else public


class NoLogError(LogError):
    """There is no log yet."""


class LostError(LogError):
    """The database of the log cannot be reached now."""


class OvertakenError(LogError):
    """The log is not what this service left: another one has written to it, or it was replaced."""


class EventStore(ABC):
    """The tables of a log.

    Any thread may read. One thread at a time writes, between `begin` and `commit` or `rollback`; what it
    reads meanwhile includes what it has written.
    """

    #: What messages call it.
    name: str
    #: Whether events have digests: not those of an earlier version that no service has opened since.
    has_digests = True
    #: Whether the last attempt to reach the database failed.
    is_lost = False

    @abstractmethod
    def fetch(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """All rows of a query."""

    @abstractmethod
    def append(self, rows: Sequence[Sequence[Any]]) -> None:
        """Add events, with all their `COLUMNS`, inside a transaction."""

    @abstractmethod
    def run(self, statement: str, rows: Sequence[Sequence[Any]]) -> None:
        """Do a statement for every row of values, inside a transaction."""

    @abstractmethod
    def begin(self) -> None:
        """Begin a transaction."""

    @abstractmethod
    def commit(self) -> None:
        """Make everything since `begin` durable."""

    @abstractmethod
    def rollback(self) -> None:
        """Undo everything since `begin`."""

    @abstractmethod
    def close(self) -> None:
        """Close the connections of all threads."""

    @abstractmethod
    def wait(self, ending: threading.Event) -> None:
        """Wait until there may be new events, or until `ending`, but never long."""

    @abstractmethod
    def scrubbing(self) -> contextlib.AbstractContextManager[None]:
        """A block after which what it overwrites is gone from the database's own files."""

    @abstractmethod
    def check_same(self) -> None:
        """Raise if there is another log of this name now, where its rows do not show it."""

    def problems(self) -> list[str]:
        """What the database finds wrong with its own files."""
        return []

    def patient(self, is_patient: Callable[[], bool]) -> contextlib.AbstractContextManager[None]:
        """A block in which reads of this thread wait for a database that is away, as long as it says."""
        return contextlib.nullcontext()
