"""The one way into the log: requests are checked in order, and become durable in order.

A request is a list of `Write`s, and each of them calls one method of the `Ledger`. Requests wait in a bounded
queue. The thread of the `Writer` takes what is waiting, lets the ledger check each request against everything
before it, and commits the accepted ones together. So what was checked still holds when it is written, and an
answer is given only once the events are on the disk.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

from .access import BadRequestError, BusyError, ConflictError, NotFoundError, StorageError
from .events import (
    ITEM_KINDS,
    Event,
    EventKind,
    SparseVector,
    Vector,
    count_triplets,
    decode_vector,
    encode_vector,
    excluded_ranges,
    is_excluded,
)
from .log import Log, LogError
from .logs import in_context
from .store import OvertakenError

logger = logging.getLogger("simstream.serve")

#: Comparisons that one list of shown items may become.
MOST_TRIPLETS = 2500

#: Time between two looks whether a log that is away is back, while there is nothing to write.
_RETRY_SECONDS = 1.0

#: Requests committed together at most: bounds how long the first of them waits.
_LARGEST_GROUP = 256


class NewItem(NamedTuple):
    """An item to be added."""

    name: str
    vector: Vector
    #: Text or picture, as JSON values.
    payload: dict[str, Any]


class Judgement(NamedTuple):
    """The anchor (an item or a vector) is more similar to the first than to the second of each pair."""

    anchor: str | Vector
    pairs: Sequence[tuple[str, str]]
    task: str | None = None
    #: How it was given: "triplet", "clicks" or "thumbs".
    source: str = "triplet"
    #: Of clicks: what a similarity is measured by, if not by the pairs that it learns from, and where the
    #: first of each of these was shown, from 1.
    compared: Sequence[tuple[str, str]] | None = None
    ranks: Sequence[int] | None = None
    #: The first of two neighbouring ranks whose results were shown in random order, and all clicked ranks.
    randomised: int | None = None
    clicked: Sequence[int] = ()

    @property
    def names(self) -> list[str]:
        """Ids of the items that it is about."""
        pairs = (*self.pairs, *(self.compared or ()))
        named = [name for pair in pairs for name in pair]
        return [self.anchor, *named] if isinstance(self.anchor, str) else named


class Question(NamedTuple):
    """Three items: which of the two candidates is more similar to the anchor?"""

    anchor: str
    candidates: tuple[str, str]
    task: str | None
    #: Whether it was drawn at random, to measure the model.
    is_random: bool
    #: Number of triplets considered before this one was chosen.
    considered: int


class Ledger:
    """What can be written: every method checks a change against what is there, then adds its events.

    It knows the items and the last position, including events that are not committed yet; `restore` undoes
    these. It is ahead of what readers see: an item can be compared as soon as its addition was acknowledged.

    Parameters
    ----------
    log : the log so far
    items : id -> position of the event that added the item, for all items there are
    n_features : length of vectors; None before the first item
    is_sparse, has_tasks : whether vectors are sparse; whether judgements may name a task
    check_model : raises if a similarity of vectors of this length would be too large
    """

    def __init__(
        self,
        log: Log,
        items: Mapping[str, int] | None = None,
        n_features: int | None = None,
        *,
        is_sparse: bool = False,
        has_tasks: bool = False,
        check_model: Callable[[int], None] = lambda n_features: None,
    ) -> None:
        self._check_model = check_model
        self._log, self._items = log, dict(items or {})
        self._n_features, self._is_sparse, self._has_tasks = n_features, is_sparse, has_tasks
        self.last = log.last
        #: Events of the current request.
        self.events: list[Event] = []
        #: What to restore if the commit fails: id and position before each change.
        self._changes: list[tuple[str, int | None]] = []

    # -- items --------------------------------------------------------------------------------

    def add_items(self, items: Sequence[NewItem]) -> None:
        """Add items with new ids."""
        for item in items:
            if item.name in self._items:
                raise ConflictError(f"item: the id {item.name!r} already exists; PUT replaces it")
            self.put_item(item)

    def add_missing(self, items: Sequence[NewItem]) -> None:
        """Add the items with new ids; leave known ids as they are."""
        for item in items:
            if item.name not in self._items:
                self.put_item(item)

    def put_item(self, item: NewItem) -> None:
        """Add or replace an item."""
        self._check_vector(item.vector, is_item=True)
        self._add(EventKind.ITEM, subject=item.name, vector=item.vector, body=item.payload)

    def delete_item(self, name: str) -> None:
        """Delete an item. What was learnt with it stays."""
        self._find(name)
        self._add(EventKind.DELETE, subject=name)

    def follow_items(self, found: Mapping[str, Vector | None]) -> None:
        """Keep items as they are in the user's own database; None is one that is not there."""
        self._log.flush()  # some may be of requests that are committed together with this one
        kept = self._log.vectors(self._items[name] for name in found if name in self._items)
        for name, vector in found.items():
            known = self._items.get(name)
            if vector is None:
                if known is not None:
                    self.delete_item(name)
            elif known is None or kept.get(known) != encode_vector(vector):
                self.put_item(NewItem(name, vector, {}))

    # -- feedback -----------------------------------------------------------------------------

    def judge(self, *judgements: Judgement) -> None:
        """Keep comparisons: one event for each judgement."""
        for judgement in judgements:
            self._judge(judgement)

    def _judge(self, judgement: Judgement) -> None:
        anchor, pairs = judgement.anchor, judgement.pairs
        self._check_task(judgement.task)
        body: dict[str, Any] = {}
        if isinstance(anchor, str):
            start, vector = self._find(anchor), None
            body["anchor"] = anchor
        else:
            self._check_vector(anchor)
            start, vector = 0, anchor
        if len(pairs) > MOST_TRIPLETS:
            raise BadRequestError(
                f"feedback: expected at most {MOST_TRIPLETS} comparisons from one list, got {len(pairs)}"
            )
        triplets = [(start, self._find(better), self._find(worse)) for better, worse in pairs]
        for triplet, (better, worse) in zip(triplets, pairs, strict=True):
            if better == worse:
                raise BadRequestError(
                    f"feedback: expected two different items, got {better!r} twice"
                )
            if triplet[0] in triplet[1:]:
                raise BadRequestError(f"feedback: {anchor!r} is compared with itself")
        body |= {
            "pairs": [list(pair) for pair in pairs],
            "triplets": triplets,
            "task": judgement.task,
            "source": judgement.source,
        }
        if judgement.compared is not None and judgement.ranks is not None:
            # Items that are gone, and the anchor itself, are no comparison.
            kept = [
                (self._items[better], self._items[worse], rank)
                for (better, worse), rank in zip(judgement.compared, judgement.ranks, strict=True)
                if {better, worse} <= self._items.keys()
                and body.get("anchor") not in (better, worse)
            ][:MOST_TRIPLETS]
            body["compared"] = [(start, better, worse) for better, worse, _ in kept]
            body["ranks"] = [rank for _, _, rank in kept]
        if judgement.randomised is not None:
            body |= {"randomised": judgement.randomised, "clicked": list(judgement.clicked)}
        self._add(EventKind.FEEDBACK, vector=vector, body=body)

    def ask(self, question: Question) -> None:
        """Keep that a question is shown."""
        self._check_task(question.task)
        names = (question.anchor, *question.candidates)
        body = {
            "names": names,
            "items": [self._find(name) for name in names],
            "task": question.task,
            "random": question.is_random,
            "considered": question.considered,
        }
        self._add(EventKind.QUESTION, body=body)

    def answer(self, question: int, winner: int | None) -> None:
        """Keep the answer to a question: candidate 0 or 1, or None if it was skipped."""
        asked = self._event(question, (EventKind.QUESTION,), "question")
        self._add(EventKind.ANSWER, body=asked.body | {"question": question, "winner": winner})

    # -- going back ---------------------------------------------------------------------------

    def retract(self, position: int) -> None:
        """Undo feedback or an answer; the question of an undone answer is asked again."""
        event = self._event(position, (EventKind.FEEDBACK, EventKind.ANSWER), "feedback or answer")
        self._add(EventKind.RETRACT, body={"position": position})
        if event.kind == EventKind.ANSWER and all(
            name in self._items for name in event.body["names"]
        ):
            asked = {k: v for k, v in event.body.items() if k not in ("question", "winner")}
            self._add(EventKind.QUESTION, body=asked | {"considered": 0})

    def roll_back(self, position: int) -> None:
        """Return to what was learnt up to a position. Items stay as they are."""
        self._check_position(position)
        self._add(EventKind.ROLLBACK, body={"position": position})

    def pin(self, position: int | None) -> None:
        """Serve the model of a position, whatever is learnt later; None serves the newest again."""
        if position is not None:
            self._check_position(position)
        self._add(EventKind.PIN, body={"position": position})

    # -- undoing what was not committed -------------------------------------------------------

    def savepoint(self) -> tuple[int, int, int | None]:
        """Begin a request; return what `restore` needs to undo it."""
        self.events = []
        return self.last, len(self._changes), self._n_features

    def restore(self, savepoint: tuple[int, int, int | None]) -> None:
        """Undo everything since a savepoint."""
        self.last, n_changes, self._n_features = savepoint
        while len(self._changes) > n_changes:
            name, position = self._changes.pop()
            if position is None:
                del self._items[name]
            else:
                self._items[name] = position
        self.events = []

    def catch_up(self, last: int) -> None:
        """Take over committed events up to a position: of a commit whose answer was lost."""
        if last == self.last:
            return
        for event in self._log.read(self.last, last, kinds=ITEM_KINDS):
            self._note(event)
            if self._n_features is None and event.vector is not None:
                self._n_features = len(decode_vector(event.vector))
        self.last = last

    def commit(self) -> None:
        """The events are durable: nothing before can be undone any more."""
        self._changes = []

    # -- checks -------------------------------------------------------------------------------

    def _add(
        self,
        kind: str,
        *,
        subject: str | None = None,
        vector: Vector | None = None,
        body: dict[str, Any] | None = None,
    ) -> None:
        self.last += 1
        data = None if vector is None else encode_vector(vector)
        self.events.append(Event(self.last, time.time(), kind, subject, data, body or {}))
        self._note(self.events[-1])

    def _note(self, event: Event) -> None:
        """Know what an event does to the items."""
        if event.subject is not None:
            self._changes.append((event.subject, self._items.get(event.subject)))
            if event.kind == EventKind.ITEM:
                self._items[event.subject] = event.position
            else:
                del self._items[event.subject]

    def _find(self, name: str) -> int:
        """Position of the event that added an item."""
        if name not in self._items:
            raise NotFoundError(f"item: no item has the id {name!r}")
        return self._items[name]

    def _check_vector(self, vector: Vector, *, is_item: bool = False) -> None:
        """Raise if a vector does not fit the items; the first item determines the length of all."""
        is_sparse = isinstance(vector, SparseVector)
        if self._n_features is None:
            if not is_item:
                raise BadRequestError("vector: there are no items yet to compare it with")
            if is_sparse:
                raise BadRequestError(
                    "vector: the service must be started with the number of features to take sparse items"
                )
            self._check_model(len(vector))
            self._n_features = len(vector)
        check_shape(vector, self._n_features, self._is_sparse)

    def _check_task(self, task: str | None) -> None:
        if task is not None and not self._has_tasks:
            raise BadRequestError(
                "task: this service learns one similarity for all; start it with --algorithm omtrsl"
            )

    def _check_position(self, position: int) -> None:
        if not 0 <= position <= self.last:
            raise NotFoundError(f"position: expected 0 to {self.last}, got {position}")

    def _event(self, position: int, kinds: tuple[str, ...], what: str) -> Event:
        """An event of these kinds that still counts."""
        self._log.flush()  # it may be one that is committed together with this change
        event = self._log.get(position)
        if event is None or event.kind not in kinds:
            raise NotFoundError(f"position: there is no {what} at {position}")
        ranges = excluded_ranges(self._log.controls(self.last), self.last)
        if is_excluded(ranges, position):
            raise ConflictError(f"position: the {what} at {position} was already undone")
        return event


def check_shape(vector: Vector, n_features: int, expects_sparse: bool) -> None:
    """Raise if a vector is not of the kind and length of the items.

    Examples
    --------
    >>> import numpy as np
    >>> check_shape(np.zeros(2), 3, expects_sparse=False)
    Traceback (most recent call last):
    ...
    simstream.serve.access.BadRequestError: vector: expected 3 numbers, got 2
    """
    is_sparse = isinstance(vector, SparseVector)
    if is_sparse != expects_sparse:
        kinds = ("dense (a list)", "sparse (indices and values)")
        raise BadRequestError(
            f"vector: expected {kinds[expects_sparse]} like the items, got {kinds[is_sparse]}"
        )
    if isinstance(vector, SparseVector):
        if len(vector.indices) and vector.indices[-1] >= n_features:
            raise BadRequestError(
                f"vector: expected indices below {n_features}, got {vector.indices[-1]}"
            )
    elif len(vector) != n_features:
        raise BadRequestError(f"vector: expected {n_features} numbers, got {len(vector)}")


class Write(NamedTuple):
    """One change, done at most once under its idempotency key.

    Examples
    --------
    >>> write = Write(Ledger.delete_item, ("shoe-12",), key="a")
    """

    #: A method of the ledger, and its arguments.
    change: Callable[..., None]
    args: Sequence[Any] = ()
    key: str | None = None
    #: Digest of the request: the same key with another digest is an error.
    digest: str = ""


class Receipt(NamedTuple):
    """The events of a write: consecutive positions of the log."""

    first: int
    events: int
    #: Whether an earlier request with the same key wrote them.
    is_repeated: bool

    @property
    def last(self) -> int:
        """Position of the last event."""
        return self.first + self.events - 1


class _Request(NamedTuple):
    writes: Sequence[Write]
    done: Future[list[Receipt]]


def public(error: BaseException) -> str:
    """What callers may know of an error."""
    return error.public if isinstance(error, LogError) else str(error)


class Writer:
    """Appends to the log in a thread of its own. A future is done once its events are on the disk.

    It calls `on_commit` with the last position and the number of new triplets after every commit. `capacity`
    requests may wait.
    """

    def __init__(
        self, log: Log, ledger: Ledger, on_commit: Callable[[int, int], None], capacity: int = 1024
    ) -> None:
        self._log, self._ledger, self._on_commit = log, ledger, on_commit
        self._queue: queue.Queue[_Request | None] = queue.Queue(capacity)
        self._closing = threading.Lock()
        self.is_closed = False
        #: What stopped the thread, if something did.
        self.failure: BaseException | None = None
        #: Position of the last durable event.
        self.last = log.last
        self.n_commits = 0
        self._thread = threading.Thread(target=in_context(self._run), name="writer", daemon=True)
        self._thread.start()

    @property
    def n_waiting(self) -> int:
        """Requests in the queue."""
        return self._queue.qsize()

    def submit(self, writes: Sequence[Write]) -> Future[list[Receipt]]:
        """Queue a request: all of its writes are kept, or none. If the queue is full, it is refused."""
        request = _Request(writes, Future())
        with self._closing:  # nothing may follow the end mark
            if self.failure is not None:
                raise StorageError(f"writing has stopped: {public(self.failure)}")
            if self.is_closed:
                raise BusyError("the service is shutting down")
            try:
                self._queue.put_nowait(request)
            except queue.Full:
                raise BusyError("too many requests are waiting to be written") from None
        return request.done

    def close(self) -> None:
        """Write what is waiting, then stop."""
        with self._closing:
            if self.is_closed:
                return
            self.is_closed = True
        while self.failure is None:
            with contextlib.suppress(queue.Full):
                self._queue.put(None, timeout=0.1)
                break
        self._thread.join()

    def _run(self) -> None:
        try:
            self._run_until_closed()
        except BaseException as error:  # nobody may be left waiting
            logger.exception("the writer stopped")
            with self._closing:
                self.failure = error
                while not self._queue.empty():
                    request = self._queue.get_nowait()
                    if request is not None and request.done.set_running_or_notify_cancel():
                        request.done.set_exception(
                            StorageError(f"writing has stopped: {public(error)}")
                        )

    def _run_until_closed(self) -> None:
        while True:
            try:
                group = [self._queue.get(timeout=_RETRY_SECONDS)]
            except queue.Empty:
                self._write([])
                continue
            while len(group) < _LARGEST_GROUP and group[-1] is not None:
                try:
                    group.append(self._queue.get_nowait())
                except queue.Empty:
                    break
            self._write([request for request in group if request is not None])
            if group[-1] is None:
                return

    def _write(self, group: list[_Request]) -> None:
        """Commit what can be; without requests only see whether the log can be reached and how it ends."""
        # From here on it makes no difference whether a caller goes away.
        group = [one for one in group if one.done.set_running_or_notify_cancel()]
        is_unsure = self._log.is_owner and (self._log.is_lost or self._log.is_in_doubt)
        if not group and not is_unsure:
            return
        ledger, before = self._ledger, self._ledger.savepoint()
        accepted: list[tuple[_Request, list[Receipt]]] = []
        keyed: list[tuple[str, str, int, int]] = []
        n_triplets = 0
        try:
            with self._log.transaction():
                ledger.catch_up(self._log.end.position)
                writes = [write for request in group for write in request.writes]
                known = self._log.find_requests([w.key for w in writes if w.key is not None])
                for request in group:
                    savepoint = ledger.savepoint()
                    try:
                        receipts, new = self._check(request.writes, known)
                    except Exception as error:  # the other requests of the group are not affected
                        ledger.restore(savepoint)
                        request.done.set_exception(error)
                        continue
                    known |= new
                    keyed += [(key, *done) for key, done in new.items()]
                    self._log.append(ledger.events)
                    n_triplets += count_triplets(ledger.events)
                    accepted.append((request, receipts))
                self._log.remember(*keyed)
        except Exception as error:  # whatever it is, no caller may be left waiting
            ledger.restore(before)
            failure: Exception = error
            if isinstance(error, (sqlite3.Error, LogError)):
                failure = StorageError(f"the log cannot be written: {public(error)}")
            for request in group:
                if not request.done.done():
                    request.done.set_exception(failure)
            if isinstance(error, OvertakenError):
                raise
            return
        ledger.commit()
        self.last = ledger.last
        self._log.note_head(self.last)
        self.n_commits += 1
        try:
            self._on_commit(self.last, n_triplets)
        finally:  # they are durable
            for request, receipts in accepted:
                request.done.set_result(receipts)

    def _check(
        self, writes: Sequence[Write], known: Mapping[str, tuple[str, int, int]]
    ) -> tuple[list[Receipt], dict[str, tuple[str, int, int]]]:
        """Check one request and collect its events in the ledger; nothing is written yet.

        Takes earlier requests by their keys, and returns those that are new.
        """
        receipts: list[Receipt] = []
        new: dict[str, tuple[str, int, int]] = {}
        for write in writes:
            earlier = None
            if write.key is not None:
                earlier = new.get(write.key) or known.get(write.key)
            if earlier is not None:
                digest, first, count = earlier
                if digest != write.digest:
                    raise ConflictError(
                        f"idempotency key {write.key!r}: already used for a different request"
                    )
                receipts.append(Receipt(first, count, True))
                continue
            first = self._ledger.last + 1
            write.change(self._ledger, *write.args)
            count = self._ledger.last + 1 - first
            receipts.append(Receipt(first, count, False))
            if write.key is not None:
                new[write.key] = (write.digest, first, count)
        return receipts, new
