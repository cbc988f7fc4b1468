"""The service without HTTP: its settings, and log, writer and engine together."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import math
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from ..asking import Asking, bring_near, choose_triplet, draw_triplets
from .access import (
    BadRequestError,
    BusyError,
    NotFoundError,
    ReadOnlyError,
    ServiceError,
    StorageError,
)
from .clicks import MOST_RANDOMISED
from .engine import LearningEngine, Version, margins, similarities
from .events import Vector, decode_vector
from .evidence import Publishing
from .graph import GraphIndex
from .item_stores import (
    IndexUnavailableError,
    Store,
    StoreIndex,
    can_be_learnt,
    check_index,
    is_store,
    open_store,
    vectors_of,
)
from .log import LogError, lock_folder, open_log
from .logs import in_context
from .searching import Hits, Recall, Searches
from .state import Learning
from .store import LostError, NoLogError
from .workers import Readers
from .writer import Judgement, Ledger, NewItem, Question, Receipt, Write, Writer, public

logger = logging.getLogger("simstream.serve")

#: Items read from the user's own database at the first start, by which a learner measures centre and scale.
_SAMPLE = 1000

#: Searches at the same time in a database, which mostly wait for it.
_STORE_THREADS = 8

#: Matrices of float32 in memory: what is learnt, what is published, and one of both being replaced.
_COPIES_OF_M = 3


@dataclass(frozen=True)
class Limits:
    """How much a request, a caller and the queues may hold.

    Parameters
    ----------
    body_bytes, vectors, k, batch, pairs : int
        Per request: largest body, most vectors in it, most items found, most judgements, most pairs that
        these become, to learn or to measure.
    rate, burst : float
        Requests per second of one key or address, and how many it may send at once; a rate of 0 means no
        limit.
    waiting : int
        Requests that may wait to be written, and searches that may wait for others.
    lag : int
        Events that may wait to be learnt from, and triplets in them.
    model_bytes : int, optional
        Memory that similarities may take; half of the machine's by default.
    body_seconds : float
        Time in which the headers, and then the body of a request must arrive.
    """

    body_bytes: int = 8 * 2**20
    vectors: int = 10_000
    k: int = 1000
    batch: int = 10_000
    pairs: int = 200_000
    rate: float = 0.0
    burst: float = 100.0
    waiting: int = 1024
    lag: int = 200_000
    model_bytes: int | None = None
    body_seconds: float = 30.0

    def check_model(self, n_features: int) -> None:
        """Refuse items whose similarity would not fit: a log that cannot be learnt from cannot be opened.

        Examples
        --------
        >>> Limits(model_bytes=2**30).check_model(100_000)
        Traceback (most recent call last):
        ...
        simstream.serve.access.BadRequestError: vector: expected at most 9459 numbers, got 100000: ...
        """
        room = self.model_bytes
        if room is None:
            room = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
        most = math.isqrt(room // (4 * _COPIES_OF_M))
        if n_features > most:
            raise BadRequestError(
                f"vector: expected at most {most} numbers, got {n_features}: a similarity of dense vectors "
                f"takes {4 * _COPIES_OF_M * n_features**2 / 2**30:.1f} GiB of memory; reduce their number, "
                "or serve sparse vectors"
            )


@dataclass(frozen=True)
class Settings:
    """Where a service keeps its files, how it learns, what it asks, and what it allows.

    Parameters
    ----------
    folder : holds the log, the snapshots and the keys
    learning, limits : see `Learning` and `Limits`
    publishing : Publishing, optional
        What is published. None is as the folder was begun, and the default for a new folder.
    randomise : float
        Share of searches that show two neighbouring results in random order; see `simstream.serve.clicks`.
    asking : how questions are chosen, see `simstream.asking`
    n_features : int, optional
        Length of sparse vectors. None means dense vectors, whose length the first item determines.
    snapshot_every : int
        Events between two snapshots; fewer if learning them again would take long.
    log : str, optional
        Address of a PostgreSQL database that holds the log; see `simstream.serve.postgres_store`. None is the
        SQLite file in the folder, or the address that was given when the folder was begun. To `follow`, also
        the address of a service, ``http://...``, whose log is copied; see `simstream.serve.mirror`.
    follow : bool
        Whether another service writes to this log: this one reads what it writes, and changes nothing.
    measure : function, optional
        Extra status of a demo: takes the served `Model`, returns JSON values.
    opening : three ids, optional
        An anchor and two candidates to ask about first, so that the first answer is clear.
    search_threads : int, optional
        Searches at the same time; as many as this process has CPUs by default.
    shared : Path, optional
        Folder in which the processes of one service count together; see `simstream.serve.workers`.
    index : str
        What searches: ``exact``, ``usearch`` (a graph in this process), or the address of a database that
        holds the items; see `simstream.serve.item_stores`.
    move_index : bool
        Whether items that were in one database may be in another one now.
    candidates : int
        Items that an approximate index examines for a search, at least.
    recall_share : float
        Share of searches of an approximate index that are compared with the exact answer.
    """

    folder: Path
    learning: Learning = field(default_factory=Learning)
    asking: Asking = field(default_factory=Asking)
    limits: Limits = field(default_factory=Limits)
    n_features: int | None = None
    snapshot_every: int = 2000
    measure: Callable[[Any], dict[str, Any]] | None = None
    publishing: Publishing | None = None
    randomise: float = 0.0
    follow: bool = False
    opening: tuple[str, str, str] | None = None
    search_threads: int | None = None
    shared: Path | None = None
    log: str | None = None
    index: str = "exact"
    move_index: bool = False
    candidates: int = 512
    recall_share: float = 0.01


#: Changes of items, which are refused if they are in a database.
_ITEM_CHANGES = (Ledger.add_items, Ledger.add_missing, Ledger.put_item, Ledger.delete_item)


def digest_of(value: Any) -> str:
    """A short digest of JSON values or Pydantic models, to detect a key used for two different requests.

    Examples
    --------
    >>> digest_of({"a": 1, "b": 2}) == digest_of({"b": 2, "a": 1})
    True
    """
    text = json.dumps(value, sort_keys=True, default=lambda model: model.model_dump(mode="json"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


class Service:
    """A search that learns.

    Writing returns a future that is done once the events are durable; reading uses the current version.

    Parameters
    ----------
    settings : Settings

    Examples
    --------
    >>> import tempfile
    >>> from simstream.serve.writer import Judgement, NewItem
    >>> learning = Learning("oasis", {"C": 10.0})
    >>> publishing = Publishing("always")
    >>> service = Service(Settings(Path(tempfile.mkdtemp()), learning, publishing=publishing))
    >>> rows = {"a": [1.0, 0.0], "b": [0.9, 0.1], "c": [0.8, 0.6]}
    >>> items = [NewItem(name, np.array(row), {}) for name, row in rows.items()]
    >>> judgement = Judgement("a", [("c", "b")])
    >>> add = Write(Ledger.add_items, (items,))
    >>> judge = Write(Ledger.judge, (judgement,))
    >>> added, judged = service.submit([add, judge]).result()
    >>> service.wait_for(judged)
    True
    >>> [name for name, _ in service.search("a", k=2)]
    ['c', 'b']
    >>> service.close()
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        check_index(settings.index)
        if settings.index != "exact" and settings.n_features is not None:
            raise ValueError(
                f"index: expected exact for sparse vectors, got {settings.index.partition(':')[0]}"
            )
        if settings.follow:
            try:
                open_log(settings.folder, settings.log).close()
            except NoLogError as error:
                raise LogError(f"expected the log of a service to follow: {error}") from error
        settings.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.ExitStack() as opened:
            # Searches run side by side, and many are one product: BLAS threads would only get in their way.
            # And what is learnt in blocks depends on their number, in the last bits.
            opened.enter_context(threadpool_limits(1, user_api="blas"))
            if not settings.follow:
                opened.enter_context(lock_folder(settings.folder))
            self.log = open_log(settings.folder, settings.log, is_owner=not settings.follow)
            opened.callback(self.log.close)
            #: Whether the folder is written by this service: a follower may have one of its own.
            self._is_mine = self.log.is_copy or not settings.follow
            self.engine = LearningEngine(
                self.log,
                settings.learning,
                settings.folder / "snapshots",
                settings.n_features,
                settings.snapshot_every,
                settings.publishing,
                is_follower=not self._is_mine,
            )
            opened.callback(self.engine.close)
            self.index = self._open_index()
            if self.index is not None:
                opened.callback(self.index.close)
            self._opened = opened.pop_all()  # nothing failed: `close` closes them
        items = self.engine.items
        ledger = Ledger(
            self.log,
            {} if settings.follow else items.positions,
            items.n_features,
            is_sparse=settings.n_features is not None,
            has_tasks=self.has_tasks,
            check_model=settings.limits.check_model,
        )
        #: Other processes that answer searches, if there are any.
        self.readers: Readers | None = None
        self.writer = Writer(self.log, ledger, self._tell_committed, settings.limits.waiting)
        n_threads = settings.search_threads if self.store is None else _STORE_THREADS
        if self.index is None:
            self.searches = Searches(n_threads, settings.limits.waiting)
        else:
            recall = Recall(self.index.exact, settings.recall_share)
            self.searches = Searches(n_threads, settings.limits.waiting, self.index.search, recall)
        self._rng = np.random.default_rng(settings.asking.seed)
        self._coin = np.random.default_rng(settings.asking.seed)
        self._lock = threading.Lock()
        self._throughput = (time.monotonic(), self.writer.last, 0.0)
        self._is_ending, self._news = False, threading.Event()
        #: Why the log is not followed any more, if so.
        self.follow_failure: Exception | None = None
        self._follower = threading.Thread(
            target=in_context(self._follow), name="follower", daemon=True
        )
        if settings.follow:
            self._follower.start()
        elif self.store is not None and not len(items):
            self._read_sample()

    # -- the index ----------------------------------------------------------------------------

    @property
    def store(self) -> Store | None:
        """The user's own database, if it holds the items."""
        return self.index.store if isinstance(self.index, StoreIndex) else None

    def _open_index(self) -> GraphIndex | StoreIndex | None:
        """What searches, unless that is the exact index of the published versions."""
        settings, items, kept = self.settings, self.engine.items, self.log.setting("index")
        if not is_store(settings.index):
            if kept is not None:
                raise LogError(
                    f"{settings.folder}: its items are in {kept}; start it with --index and that address"
                )
            if settings.index == "exact":
                return None
            folder, candidates = settings.folder / "index", settings.candidates
            return GraphIndex(
                folder, self.log, lambda: self.version, candidates, is_mine=self._is_mine
            )
        try:
            store = open_store(settings.index)
        except IndexUnavailableError as error:
            raise ConnectionError(str(error)) from error
        try:
            if items.n_features not in (None, store.n_features):
                raise LogError(
                    f"index: {store.address}: expected vectors of {items.n_features} numbers, as in "
                    f"{settings.folder}, got {store.n_features}"
                )
            if kept is None and len(items):
                raise LogError(
                    f"{settings.folder}: has items of its own; choose another folder (--data)"
                )
            is_moved = not settings.follow and kept not in (None, store.address)
            if is_moved and not settings.move_index:
                raise LogError(
                    f"{settings.folder}: its items are in {kept}, not in {store.address}; choose another "
                    "folder (--data), or say that the same items are there now (--move-index)"
                )
            settings.limits.check_model(store.n_features)
        except ServiceError as error:
            store.close()
            raise ValueError(f"index: {store.address}: {error}") from error
        except LogError:
            store.close()
            raise
        if not settings.follow and kept != store.address:
            self.log.set_setting("index", store.address)
        items.n_features = store.n_features
        return StoreIndex(store, settings.candidates)

    def _read_sample(self) -> None:
        """Write some items of the database to the log, before the first feedback."""
        assert self.store is not None
        try:
            found = self.store.sample(_SAMPLE)
        except IndexUnavailableError as error:
            self.close()
            raise ConnectionError(str(error)) from error
        items = [
            NewItem(name, vector, {}) for name, vector in found.items() if can_be_learnt(vector)
        ]
        if items:
            (receipt,) = self.writer.submit([Write(Ledger.add_items, (items,))]).result()
            self.wait_for(receipt)

    def read_items(self, judgements: Sequence[Judgement]) -> Write:
        """Read the items of judgements from the database: what is to be written to the log before these."""
        assert self.store is not None
        names = dict.fromkeys(name for one in judgements for name in one.names)
        most = self.settings.limits.vectors
        if len(names) > most:
            raise BadRequestError(
                f"feedback: expected at most {most} different items, got {len(names)}"
            )
        return Write(Ledger.follow_items, (vectors_of(self.store, list(names)),))

    def _follow(self) -> None:
        """Tell the engine what the other service has written, as long as it is the same log."""
        while not self._is_ending:
            try:
                self.log.wait(self._news)
                self._news.clear()
                self.writer.last = self.log.look()
            except LostError:
                continue  # `stopped` says so, until it is back
            except (OSError, sqlite3.Error, LogError) as error:
                logger.error("following has stopped: %s", error)
                self.follow_failure = error
                return
            self.engine.notify(self.writer.last)
            if not self._is_mine:
                self.engine.look_for_items()

    def look(self) -> None:
        """Look at once whether the service that is followed has written something."""
        self._news.set()

    def stopped(self) -> str | None:
        """What has stopped, if something has."""
        if self.engine.failure is not None:
            return "learning has stopped"
        if self.writer.failure is not None:
            return "writing has stopped"
        if self.follow_failure is not None:
            return "following has stopped"
        return "the log cannot be reached" if self.log.is_lost else None

    def close(self) -> None:
        """Write and learn what is left, save a snapshot, close the files. May be called twice."""
        if self.writer.is_closed:
            return
        self._is_ending = True
        if self.settings.follow:
            self._news.set()
            self._follower.join()
        self.writer.close()
        self.searches.close()
        self._opened.close()

    # -- writing ------------------------------------------------------------------------------

    def submit(self, writes: Sequence[Write]) -> Future[list[Receipt]]:
        """Hand a request to the writer: all of its writes are kept, or none."""
        if self.settings.follow:
            raise ReadOnlyError(
                "this service follows another one and only reads: send changes there"
            )
        if self.store is not None and any(write.change in _ITEM_CHANGES for write in writes):
            raise ReadOnlyError(f"items are in {self.store.address}: change them there")
        if self.engine.failure is not None:
            raise StorageError(f"learning has stopped: {public(self.engine.failure)}")
        limit = self.settings.limits.lag
        if self.engine.lag > limit or self.engine.n_triplets_waiting > limit:
            raise BusyError("too many events are waiting to be learnt")
        return self.writer.submit(writes)

    def _tell_committed(self, last: int, n_triplets: int) -> None:
        self.engine.notify(last, n_triplets)
        if self.readers is not None:
            self.readers.notify(last)

    def seen_by_all(self, position: int) -> list[Future[bool]]:
        """Futures that are done once whoever answers searches has published a position."""
        readers = [] if self.readers is None else [self.readers.published(position)]
        return [self.engine.published(position), *readers]

    def is_seen(self, position: int) -> bool:
        """Whether all that answer searches have published a position."""
        return self.version.position >= position and (
            self.readers is None or self.readers.has_seen(position)
        )

    def wait_for(self, receipt: Receipt, timeout: float = 10.0) -> bool:
        """Wait until readers can see the events of a receipt; False if it takes too long."""
        return self.engine.wait_for(receipt.last, timeout)

    # -- reading ------------------------------------------------------------------------------

    @property
    def has_tasks(self) -> bool:
        """Whether every task has a similarity of its own."""
        return self.settings.learning.has_tasks

    @property
    def version(self) -> Version:
        """What is published now; it never changes."""
        return self.engine.version

    def choose_question(self, task: str | None) -> Question:
        """Choose three of the searchable items to ask about; see `simstream.asking`."""
        items, asking, rng = self.engine.items, self.settings.asking, self._rng
        version = self.version
        model, view = version.model.learnt, version.view  # what the learner is unsure about
        if len(view) < 3:
            raise NotFoundError("question: there are fewer than three items to ask about")
        opening = self.settings.opening
        if opening is not None and not version.tally.questions:
            known = (items.position_in(view, name) for name in opening)
            if None not in known:
                return Question(opening[0], opening[1:], task, False, 1)
        positions = np.array(view.ids)

        def rows(numbers: np.ndarray) -> Any:
            return items.vectors(positions[numbers].ravel().tolist())

        def similarity(anchors: np.ndarray, others: np.ndarray) -> np.ndarray:
            return similarities(model, rows(anchors), rows(others), task)

        with self._lock:
            chosen = choose_triplet(
                lambda size: draw_triplets(len(positions), size, rng),
                lambda triplets: margins(model, rows(triplets), task),
                asking,
                rng,
                nearer=lambda triplets: bring_near(
                    triplets, len(positions), asking.near, similarity, rng
                ),
            )
        anchor, first, second = (items.names[int(p)] for p in positions[chosen.triplet])
        return Question(anchor, (first, second), task, chosen.is_random, chosen.considered)

    def search_later(
        self,
        query: str | Vector,
        k: int = 10,
        task: str | None = None,
        *,
        learnt: bool = True,
        version: Version | None = None,
    ) -> Future[Hits]:
        """Positions and scores of the most similar items, best first; never the query item itself.

        Of items in a database, ids instead of positions; then a query item is read from there first.
        """
        version = version or self.version
        items = self.engine.items
        leave_out: Any = None
        if not isinstance(query, str):
            rows = items.rows_of([query])
        elif self.store is None:
            leave_out = self.position_of(query, version)
            rows = items.vectors([leave_out])
        else:
            leave_out = query
            rows = items.rows_of([self.item(query)[1]])
        return self.searches.submit(version, rows, k, task, learnt, leave_out)

    def named(self, hits: Hits) -> list[tuple[str, float]]:
        """Ids instead of positions."""
        if self.store is not None:
            return hits
        names = self.engine.items.names
        return [(names[position], score) for position, score in hits]

    def search(
        self, query: str | Vector, k: int = 10, task: str | None = None, **options: Any
    ) -> list[tuple[str, float]]:
        """Ids and scores of the most similar items; options as of `search_later`."""
        return self.named(self.search_later(query, k, task, **options).result())

    def randomise(self, hits: list[Any]) -> int | None:
        """Put two neighbours of a share of the searches in random order; return the rank of the first.

        One of the first `clicks.MOST_RANDOMISED` pairs of neighbours is chosen. None leaves the order.
        """
        share, n_pairs = self.settings.randomise, min(len(hits) - 1, MOST_RANDOMISED)
        if not share or n_pairs < 1:
            return None
        with self._lock:
            place, (chosen, coin) = int(self._coin.integers(n_pairs)), self._coin.random(2)
        if chosen >= share:
            return None
        if coin < 0.5:
            hits[place], hits[place + 1] = hits[place + 1], hits[place]
        return place + 1

    def position_of(self, name: str, version: Version) -> int:
        """Position of the event that added an item of a version."""
        position = self.engine.items.position_in(version.view, name)
        if position is None:
            raise NotFoundError(f"item: no item has the id {name!r}")
        return position

    def item(self, name: str) -> tuple[int, Vector, dict[str, Any]]:
        """Position, vector and payload of an item; in a database it has no position before it is judged."""
        if self.store is not None:
            vector = self.store.vectors([name]).get(name)
            if vector is None:
                raise NotFoundError(f"item: no item has the id {name!r}")
            return self.engine.items.positions.get(name, 0), vector, {}
        position = self.engine.items.positions.get(name)
        event = None if position is None else self.log.get(position)
        if position is None or event is None or event.vector is None:
            raise NotFoundError(f"item: no item has the id {name!r}")
        return position, decode_vector(event.vector), event.body

    def status(self) -> dict[str, Any]:
        """Items, events, losses and accuracy as JSON values."""
        version = self.version
        tally, learnt, measure = version.tally, version.model.common, self.settings.measure
        return {
            "algorithm": self.settings.learning.as_json(),
            "items": len(self.engine.items),
            "index": self.settings.index if self.store is None else self.store.address,
            "n_features": self.engine.items.n_features,
            "has_tasks": self.has_tasks,
            "tasks": [task for task in version.model.task_names if task is not None],
            "position": version.position,
            "served": version.model.position,
            "pinned": version.model.position if version.is_pinned else None,
            "lag": self.engine.lag,
            "triplets": tally.triplets,
            "diverged": tally.diverged,
            "feedback": tally.feedback,
            "questions": tally.questions,
            "answers": tally.answers,
            "skips": tally.skips,
            "query_ratio": tally.query_ratio(),
            "accuracy": tally.accuracy(),
            "published": self.published(),
            "losses": [
                {"triplets": (place + 1) * tally.stride, "loss": loss}
                for place, loss in enumerate(tally.losses)
            ],
            "learner": version.statistics,
            "sparsity": None if learnt is None else learnt.sparsity_,
            "throughput": self._events_per_second(),
            "demo": None if measure is None else measure(version.model),
        }

    def published(self) -> dict[str, Any]:
        """Which similarity is served and why, as JSON values."""
        version, promote = self.version, self.engine.publishing.promote
        model = version.model
        trust = 0.0 if model.common is None else model.trust
        serves = "trusted" if 0 < trust < 1 else "learnt" if trust else "baseline"
        told = {"promote": promote, "serves": serves}
        if version.evidence is None:
            return told | {"trust": trust, "why": "What was learnt is always served.", "rule": None}
        told |= version.evidence | {"trust": trust}
        if version.is_pinned:
            told["why"] = f"The version at log position {model.position} is pinned."
        return told

    def _events_per_second(self) -> float:
        """Events kept per second since the last call that was at least a second ago."""
        with self._lock:
            now, last = time.monotonic(), self.writer.last
            then, before, rate = self._throughput
            if now - then >= 1:
                rate = (last - before) / (now - then)
                self._throughput = (now, last, rate)
            return rate
