"""The one writer: requests wait in a bounded queue and are made durable together."""

from __future__ import annotations

import queue
import sqlite3
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import NamedTuple

from .errors import BusyError, ConflictError, StorageError
from .ledger import Draft, Ledger
from .log import Log

#: Checks a request against what there is and adds its events to the draft.
Admission = Callable[[Draft], None]


class Part(NamedTuple):
    """What is kept or refused under one idempotency key."""

    admit: Admission
    key: str | None = None
    #: Of what was asked for: the same key with something else is an error.
    digest: str = ""


class Receipt(NamedTuple):
    """What a part of a request led to."""

    first: int
    #: How many, one after the other.
    events: int
    #: Whether it was done by an earlier request with the same key.
    is_repeated: bool

    @property
    def last(self) -> int:
        """Position of the last of them."""
        return self.first + self.events - 1


class _Submission(NamedTuple):
    parts: Sequence[Part]
    done: Future[list[Receipt]]


#: Requests committed together at most: bounds how long the first of them waits.
_LARGEST_GROUP = 256


class Writer:
    """Appends to the log in a thread of its own. A future is done when its events are on the disk.

    Parameters
    ----------
    log, ledger : where to write, and what is there
    on_commit : called with the last position after every commit
    capacity : requests that may wait; one more is refused
    """

    def __init__(
        self,
        log: Log,
        ledger: Ledger,
        on_commit: Callable[[int], None],
        capacity: int = 1024,
    ) -> None:
        self._log, self.ledger, self._on_commit = log, ledger, on_commit
        self._queue: queue.Queue[_Submission | None] = queue.Queue(capacity)
        self._closing = threading.Lock()
        self._is_closed = False
        self.last = log.last
        self.n_commits = 0
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
        self._thread.start()

    @property
    def is_closed(self) -> bool:
        """Whether it takes no more requests."""
        return self._is_closed

    @property
    def n_waiting(self) -> int:
        """Requests in the queue."""
        return self._queue.qsize()

    def submit(self, parts: Sequence[Part]) -> Future[list[Receipt]]:
        """Hand over a request: all of its parts are kept, or none.

        Raises
        ------
        BusyError
            If too many wait already, or the service is going down. Nothing was kept.
        """
        submission = _Submission(parts, Future())
        with self._closing:  # nothing is put behind the end mark
            if self._is_closed:
                raise BusyError("the service is going down")
            try:
                self._queue.put_nowait(submission)
            except queue.Full:
                raise BusyError("too many requests wait to be written") from None
        return submission.done

    def close(self) -> None:
        """Write what waits, then stop."""
        with self._closing:
            if self._is_closed:
                return
            self._is_closed = True
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while True:
            group = [self._queue.get()]
            while len(group) < _LARGEST_GROUP and group[-1] is not None:
                try:
                    group.append(self._queue.get_nowait())
                except queue.Empty:
                    break
            self._write([submission for submission in group if submission is not None])
            if group[-1] is None:
                return

    def _write(self, group: list[_Submission]) -> None:
        # From here on a caller that goes away changes nothing.
        group = [one for one in group if one.done.set_running_or_notify_cancel()]
        if not group:
            return
        undo: list[Callable[[], None]] = []
        accepted: list[tuple[_Submission, list[Receipt]]] = []
        last = self.last
        try:
            with self._log.transaction() as connection:
                for submission in group:
                    draft = Draft(self.ledger, self._log, last + 1)
                    try:
                        receipts = self._admit(draft, submission.parts)
                    except Exception as error:  # the others in the group are not to blame
                        submission.done.set_exception(error)
                        continue
                    self._insert(connection, draft, submission.parts, receipts)
                    undo.append(draft.accept())
                    accepted.append((submission, receipts))
                    last += len(draft.events)
        except Exception as error:  # whatever it is, nobody may be left waiting
            for revert in reversed(undo):
                revert()
            failure: Exception = error
            if isinstance(error, sqlite3.Error):
                failure = StorageError(f"the log cannot be written: {error}")
            for submission in group:
                if not submission.done.done():
                    submission.done.set_exception(failure)
            return
        self.last = last
        self.n_commits += 1
        for submission, receipts in accepted:
            submission.done.set_result(receipts)
        self._on_commit(last)

    def _admit(self, draft: Draft, parts: Sequence[Part]) -> list[Receipt]:
        """Check one request; nothing is written yet."""
        receipts: list[Receipt] = []
        here: dict[str, tuple[str, int, int]] = {}
        for part in parts:
            known = None
            if part.key is not None:
                known = here.get(part.key) or self._log.request(part.key)
            if known is not None:
                digest, first, count = known
                if digest != part.digest:
                    raise ConflictError(
                        f"idempotency key {part.key!r}: used before for a different request"
                    )
                receipts.append(Receipt(first, count, True))
                continue
            first = draft.next_position
            part.admit(draft)
            receipts.append(Receipt(first, draft.next_position - first, False))
            if part.key is not None:
                here[part.key] = (part.digest, *receipts[-1][:2])
        return receipts

    def _insert(
        self,
        connection: sqlite3.Connection,
        draft: Draft,
        parts: Sequence[Part],
        receipts: Sequence[Receipt],
    ) -> None:
        """Write one request into the open transaction."""
        for part, receipt in zip(parts, receipts, strict=True):
            if part.key is not None and not receipt.is_repeated:
                self._log.remember(connection, part.key, part.digest, receipt.first, receipt.events)
        self._log.append(connection, draft.events)
