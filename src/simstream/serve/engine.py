"""The one reader of the log that learns: brings the state up to date and publishes immutable versions."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from .. import DivergedError
from ..search import ExactIndex, ExactView, Found
from ..similarity.base import row_products
from ..similarity.bilinear import Bilinear
from ..similarity.tasks import Tasks
from .events import (
    CONTROL_KINDS,
    ITEM_KINDS,
    LEARNER_KINDS,
    EventKind,
    can_start_from,
    count_triplets,
)
from .evidence import Publishing
from .log import Log, LogError
from .logs import in_context, spoken_for
from .saved_items import ItemFiles, SavedItems
from .snapshots import Snapshots
from .state import ItemStore, Learning, State, Tally
from .tracing import span

logger = logging.getLogger("simstream.serve")

#: Events read and learnt at a time, so that versions are published during a long stream.
_BATCH = 512

#: Pause between two versions, as a multiple of the time it takes to publish one; shorter while a caller
#: waits. It decides when readers see what was learnt, never what is learnt.
_REST, _REST_WHILE_AWAITED = 10.0, 1.0

#: A snapshot is due once repeating the work since the last one would take this many seconds.
_LONGEST_REPLAY = 1.0

#: Items are saved once this many of them changed, and this share of those saved before.
_FEWEST_CHANGES, _CHANGED = 10_000, 1 / 8

#: Seconds to wait after a snapshot could not be written; each time twice as long.
_FIRST_RETRY, _LONGEST_RETRY = 1.0, 600.0


# -- what readers use -------------------------------------------------------------------------


class Model(NamedTuple):
    """Bilinear similarities after a position of the log: one for all, or one for each task.

    `common` is that of queries without a task. It is None, for the inner product, until something was
    learnt. `tasks` is what `freeze` of a multi-task learner returned. A query q that what was learnt maps to
    t is served as q + trust (t - q): with a trust of 0 by the inner product, with 1 by what was learnt.

    Examples
    --------
    >>> Model(0, Bilinear(np.diag([3.0, 1.0])), trust=0.5).transform(np.ones((1, 2)))
    array([[2., 1.]])
    """

    position: int
    common: Bilinear | None = None
    tasks: Tasks | None = None
    trust: float = 1.0

    @property
    def task_names(self) -> list[Hashable]:
        """Tasks with a similarity of their own."""
        return [] if self.tasks is None else self.tasks.tasks_

    @property
    def learnt(self) -> Model:
        """The same, fully trusted."""
        return self._replace(trust=1.0)

    def similarity(self, task: Hashable = None) -> Bilinear | None:
        """The similarity of a task, as it is trusted; the common one for an unknown task."""
        learnt = self.common if self.tasks is None else self.tasks.for_task(task)
        return learnt if learnt is None or self.trust == 1 else blended(learnt, self.trust)

    def is_finite(self) -> bool:
        """Whether the common M is finite, and with it those of all tasks, which are part of it."""
        if self.common is None:
            return True
        matrix = self.common.matrix
        parts = (
            matrix.data if sp.issparse(matrix) else matrix,
            self.common.item_term,
            self.common.folded,
        )
        return all(part is None or np.isfinite(part).all() for part in parts)

    def transform(self, rows: Any, task: Hashable = None) -> Any:
        """Queries as vectors whose inner products with items rank as the trusted similarity does."""
        if self.common is None or self.trust == 0:
            return rows
        tasks = self.tasks
        if self.is_normalised:
            return self.common.transform_query(rows)
        queries = (
            self.common._transform(rows) if tasks is None else tasks.transform_query(rows, task)
        )
        if self.trust != 1:
            queries = rows + queries.dtype.type(self.trust) * (queries - rows)
        return sp.csr_matrix(queries) if sp.issparse(queries) else queries

    @property
    def is_normalised(self) -> bool:
        """Whether the similarity is a cosine, and ranks only with a number for every item."""
        return self.common is not None and bool(self.common.normalise)


def blended(learnt: Bilinear, trust: float) -> Bilinear:
    """A share of what was learnt and the rest of the inner product, as one similarity.

    The plain inner product is (q - m)'(x - m) + m'(x - m), up to a number that depends on the query alone.

    Examples
    --------
    >>> blended(Bilinear(np.diag([3.0, 1.0])), 0.5).matrix
    array([[2., 0.],
           [0., 1.]])
    """
    matrix = learnt.matrix
    part = matrix.dtype.type(trust)
    identity = sp.identity(matrix.shape[0], matrix.dtype, "csr")
    if not sp.issparse(matrix):
        identity = identity.toarray()
    item_term = None if learnt.item_term is None else part * learnt.item_term
    if learnt.centre is not None:
        mean = learnt.centre[0] if isinstance(learnt.centre, tuple) else learnt.centre
        item_term = (1 - part) * mean + (0 if item_term is None else item_term)
    folded = None if learnt.folded is None else part * learnt.folded
    mixed = part * matrix + (1 - part) * identity
    return Bilinear(
        sp.csr_matrix(mixed) if sp.issparse(matrix) else mixed,
        centre=learnt.centre,
        item_term=item_term,
        folded=folded,
    )


def model_of(position: int, learner: Any, has_tasks: bool) -> Model:
    """The current similarities of a learner; the inner product if there is no learner yet."""
    if learner is None:
        return Model(position)
    if has_tasks:
        tasks = learner.freeze()
        return Model(position, Bilinear._of(tasks.common), tasks)
    similarity = getattr(learner, "similarity_", learner)
    if not isinstance(similarity, Bilinear):  # of low rank: its own space would need another index
        similarity = Bilinear._of(learner.get_bilinear_matrix())
        similarity.normalise = learner.normalise
    return Model(position, similarity)


class Version(NamedTuple):
    """One published version."""

    #: All events up to here are included.
    position: int
    #: What searches use: the newest model, or the pinned one.
    model: Model
    is_pinned: bool
    #: Whether the newest model overflowed, so that an older one is served.
    has_diverged: bool
    #: The items, and the same with the numbers that normalise the model, if it is normalised.
    view: ExactView
    scaled: ExactView | None
    tally: Tally
    #: The learner's own statistics.
    statistics: dict[str, Any]
    #: What the evidence says; None if what was learnt is always served.
    evidence: dict[str, Any] | None

    def asked(
        self, rows: Any, task: Hashable = None, *, learnt: bool = True
    ) -> tuple[Any, ExactView]:
        """The vectors of queries, and the items whose inner products with them rank.

        Without `learnt` they are those of the plain inner product.
        """
        queries = self.model.transform(rows, task) if learnt else rows
        return queries, self.scaled if learnt and self.scaled is not None else self.view

    def search_many(
        self, rows: Any, k: int, task: Hashable = None, *, learnt: bool = True
    ) -> list[list[tuple[int, float]]]:
        """Positions and scores of the k items most similar to each query, by the rows of the queries.

        Without `learnt` they are found by the plain inner product.
        """
        if not len(self.view):
            return [[] for _ in range(rows.shape[0])]
        queries, view = self.asked(rows, task, learnt=learnt)
        return hits_of(view.search(queries, k))


def hits_of(found: Found) -> list[list[tuple[Any, float]]]:
    """What was found for each query, as pairs of id and score.

    Examples
    --------
    >>> hits_of(Found(np.array([[7, None]], object), np.array([[0.5, -np.inf]])))
    [[(7, 0.5)]]
    """
    pairs = zip(found.ids.tolist(), found.scores.tolist(), strict=True)
    return [
        [(name, score) for name, score in zip(names, scores, strict=True) if name is not None]
        for names, scores in pairs
    ]


def similarities(model: Model, anchors: Any, others: Any, task: Hashable = None) -> np.ndarray:
    """Similarity of each anchor to its share of the others, which follow one another: one row per anchor.

    Examples
    --------
    >>> similarities(Model(0), np.array([[1.0, 0.0]]), np.array([[2.0, 5.0], [3.0, 5.0]]))
    array([[2., 3.]])
    """
    each = others.shape[0] // anchors.shape[0]
    rows = np.arange(anchors.shape[0]).repeat(each)
    if model.common is not None and model.is_normalised:
        return model.common._rows_scored(anchors[rows], others).reshape(-1, each)
    return row_products(model.transform(anchors, task)[rows], others).reshape(-1, each)


def margins(model: Model, rows: Any, task: Hashable = None) -> np.ndarray:
    """How much more similar each anchor is to its first candidate; rows hold all three in turn."""
    anchors, first, second = rows[0::3], rows[1::3], rows[2::3]
    if model.common is not None and model.is_normalised:
        score = model.common._rows_scored
        return score(anchors, first) - score(anchors, second)
    return row_products(model.transform(anchors, task), first - second)


# -- learning and publishing ------------------------------------------------------------------


class Pace:
    """Limits the share of time spent on something costly: rest for a multiple of what it took.

    The shorter of the last two durations counts, because a single one may have been slow for another reason,
    such as loading code or a busy machine.

    Parameters
    ----------
    cost : clock to measure with: computing time of this thread, or wall time if it waits for a disk
    clock : wall time in seconds

    Examples
    --------
    >>> now = [0.0]
    >>> pace = Pace(lambda: now[0], lambda: now[0])
    >>> for seconds in (2.0, 3.0):
    ...     with pace.measured():
    ...         now[0] += seconds
    >>> pace.rest(10)
    20.0
    >>> now[0] += 15
    >>> pace.rest(10), pace.rest(1)
    (5.0, 0.0)
    """

    def __init__(
        self, cost: Callable[[], float], clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._cost, self._clock = cost, clock
        self._last: deque[float] = deque(maxlen=2)
        self._ended = clock()

    @contextlib.contextmanager
    def measured(self) -> Iterator[None]:
        """Measure the block."""
        started = self._cost()
        yield
        self._last.append(self._cost() - started)
        self._ended = self._clock()

    def rest(self, times: float) -> float:
        """Seconds left to rest."""
        return max(0.0, self._ended + times * min(self._last, default=0.0) - self._clock())


def _told(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings that a log is bound to, by the names of their options.

    Examples
    --------
    >>> _told({"learning": {"algorithm": "oasis", "params": {"C": 0.5}, "block": 1}, "n_features": None})
    {'-p C': 0.5, '--algorithm': 'oasis', '--block': 1, '--promote': 'always', 'vectors': 'dense'}
    """
    learning = dict(settings["learning"])
    params = {f"-p {name}": value for name, value in learning.pop("params").items()}
    options = learning | Publishing.stored_in(settings).as_json()
    n_features = settings["n_features"]
    return {
        **params,
        **{f"--{name.replace('_', '-')}": value for name, value in options.items()},
        "vectors": "dense" if n_features is None else f"sparse of {n_features} features",
    }


def _default(settings: dict[str, Any], option: str) -> str:
    """The value of a parameter that settings do not name.

    Examples
    --------
    >>> _default({"learning": {"algorithm": "oasis"}}, "-p C")
    '0.1 (the default)'
    """
    values = Learning(settings["learning"]["algorithm"]).new_learner().get_params()
    name = option.removeprefix("-p ")
    return f"{values[name]} (the default)" if name in values else "the default"


class LearningEngine:
    """Keeps a state up to date with a log, in a thread of its own.

    Parameters
    ----------
    log, learning : what to learn from, and how
    folder : of the snapshots
    n_features : length of sparse vectors; None if vectors are dense
    publishing : what to publish; None is as the log was begun, or the default of a new log
    snapshot_every : events between two snapshots; fewer if learning them again would take long
    is_follower : whether another process writes the log and the snapshots
    """

    #: What is published now.
    version: Version

    def __init__(
        self,
        log: Log,
        learning: Learning,
        folder: Path,
        n_features: int | None = None,
        snapshot_every: int = 2000,
        publishing: Publishing | None = None,
        *,
        is_follower: bool = False,
    ) -> None:
        self._log, self._learning, self._snapshot_every = log, learning, snapshot_every
        self._is_follower = is_follower
        #: Whether acknowledged events are missing in the log.
        self.has_lost = False
        self.publishing = self._check_settings(n_features, publishing)
        self.items = ItemStore(log, n_features)
        self.snapshots = Snapshots(folder, learning, self.publishing, is_mine=not is_follower)
        self._item_files = ItemFiles(folder, is_mine=not is_follower)
        self._items_pace = Pace(time.perf_counter)
        #: A thread that saves and reads items, and what it has read.
        self._renewing = threading.Thread()
        self._renewed: SavedItems | None = None
        self._retry_items_at, self._items_tried = 0.0, 0
        self._condition = threading.Condition()
        #: Position of the last event in the log.
        self._known = log.last
        #: Durable triplets that were not learnt yet: one event may hold thousands.
        self.n_triplets_waiting = 0
        self._is_closing = False
        #: Called with the position of each version that is published.
        self.on_publish: Callable[[int], None] = lambda position: None
        #: What stopped the engine, if something did.
        self.failure: BaseException | None = None
        self._awaited: dict[Future[bool], int] = {}
        self._last_snapshot = 0
        self._snapshot_pace = Pace(time.perf_counter)
        #: Snapshots that could not be written, and when the next may be tried.
        self.n_unsaved = 0
        self._retry_after, self._retry_at = _FIRST_RETRY / 2, 0.0
        self._publishing_pace = Pace(time.thread_time)
        self._pinned: Model | None = None
        self._served = Model(0)
        #: The newest model (None if it overflowed), and the learner and round it was read from.
        self._newest: Model | None = self._served
        self._newest_of: tuple[Any, int] = (None, 0)
        #: The items with the numbers of the model that was served last.
        self._scaled: ExactView | None = None
        self.restart_seconds = self._start()
        self._thread = threading.Thread(target=in_context(self._run), name="engine", daemon=True)
        self._thread.start()

    def _check_settings(self, n_features: int | None, publishing: Publishing | None) -> Publishing:
        """A log is bound to how it is learnt from and published, and to the kind of its vectors."""
        stored = self._log.setting("service")
        if publishing is None and stored is not None:
            publishing = Publishing.stored_in(stored)
        publishing = Publishing.checked(publishing, self._learning.params)
        mine = {
            "learning": self._learning.as_json(),
            "n_features": n_features,
            "publishing": publishing.as_json(),
        }
        if stored is None and self._is_follower:
            raise LogError(f"{self._log.name}: expected a log that a service has begun")
        if stored is None:
            self._learning.new_learner()  # raises if that is impossible
            self._log.set_setting("service", mine)
        elif stored | {"publishing": Publishing.stored_in(stored).as_json()} != mine:
            before, given, absent = _told(stored), _told(mine), object()
            changes = [
                f"{name} {before[name] if name in before else _default(stored, name)}, "
                f"got {given[name] if name in given else _default(mine, name)}"
                for name in before | given
                if before.get(name, absent) != given.get(name, absent)
                and (name.startswith("-p ") or (name in before and name in given))
            ] or [f"{stored}, got {mine}"]
            raise LogError(
                f"{self._log.name}: was begun with {'; '.join(changes)}; use the same settings, or "
                "change them with simstream replay --adopt"
            )
        return publishing

    # -- progress -----------------------------------------------------------------------------

    @property
    def lag(self) -> int:
        """Events that are durable but not yet published."""
        return max(0, self._known - self.version.position)

    def published(self, position: int) -> Future[bool]:
        """Done once a position is published (True) or never will be (False). Cancel it to stop waiting."""
        seen: Future[bool] = Future()
        with self._condition:
            self._awaited[seen] = position
            self._condition.notify_all()  # the engine may rest less now
        seen.add_done_callback(self._forget)
        self._tell_waiting()
        return seen

    def _forget(self, seen: Future[bool]) -> None:
        with self._condition:
            self._awaited.pop(seen, None)

    def _tell_waiting(self) -> None:
        """Wake callers whose position is published, or all of them once the engine has stopped."""
        with self._condition:
            here, has_failed = self.version.position, self.failure is not None
            done = [one for one in self._awaited.items() if one[1] <= here or has_failed]
            for seen, _ in done:
                del self._awaited[seen]
            self._condition.notify_all()
        for seen, position in done:
            if seen.set_running_or_notify_cancel():
                seen.set_result(position <= here)

    def wait_for(self, position: int, timeout: float) -> bool:
        """Wait until a position is published; False if it takes longer than `timeout` seconds."""
        seen = self.published(position)
        try:
            return seen.result(timeout)
        except TimeoutError:
            return not seen.cancel() and seen.result()

    def notify(self, last: int, n_triplets: int = 0) -> None:
        """The log has events up to this position, with so many new triplets."""
        with self._condition:
            self._known = max(self._known, last)
            self.n_triplets_waiting += n_triplets
            self._condition.notify_all()

    def close(self) -> None:
        """Learn what is left, save a snapshot, stop."""
        with self._condition:
            self._is_closing = True
            self._condition.notify_all()
        self._thread.join()

    # -- learning -----------------------------------------------------------------------------

    def _start(self) -> float:
        started = time.perf_counter()
        _compile(self._learning, is_sparse=self.items.n_features is not None)
        last = self._known
        lost = self._log.lost_after()
        self.has_lost = lost is not None or self._log.lost_path.exists()
        if lost is not None:
            if self.snapshots.is_mine:
                self._log.keep_lost()
            logger.warning(
                "the log ends at position %d, but events up to position %d were acknowledged: it is damaged "
                "or an older copy; see simstream check",
                *lost,
            )
        if self.snapshots.is_mine:  # else there may be newer ones by now
            self.snapshots.refuse_after(last)
        self.items.catch_up(last, self._item_files.newest(self._log, last))
        self._state = self._state_at(last)
        self._last_snapshot = max([p for p in self.snapshots.positions() if p <= last], default=0)
        self._set_pin()
        self._publish()
        return time.perf_counter() - started

    def _state_at(self, position: int) -> State:
        """The state after a position, from the newest usable snapshot or from the beginning."""
        state = self.snapshots.resume(self.items, self._log, position)
        if state is None:
            evidence = self.publishing.new_evidence()
            state = State(self._learning, self.items, self._log, evidence=evidence)
            state.read_on(position)
        return state

    def _run(self) -> None:
        try:
            # A step that is begun is finished, once a database that is away has come back.
            with self._log.patient(lambda: not self._is_closing):
                self._save_snapshot_if_due()  # so that the next restart does not take as long
                while self._wait_for_work():
                    if self._known > self._state.position:
                        after = self._state.position
                        with span("learn", after=after, **spoken_for()) as traced:
                            self._step()
                            if traced is not None:
                                traced.set_attribute("simstream.position", self._state.position)
                    if self.version.position < self._state.position and not self._rest():
                        self._publish()
                    self._save_snapshot_if_due()
                    self._renew_items()
                self._save_snapshot()
                self._save_items_at_end()
        except (
            BaseException
        ) as error:  # readers continue with the last version; writers are refused
            logger.exception("the engine stopped")
            self.failure = error
            self._tell_waiting()

    def _wait_for_work(self) -> bool:
        """Wait until there is something to learn or to publish; False when closing and all is done."""
        with self._condition:
            while self._known <= self._state.position:
                is_published = self.version.position == self._state.position
                rest = self._rest_of_items() if is_published else self._rest()
                if rest == 0:
                    break
                if is_published and self._is_closing:
                    return False
                self._condition.wait(rest)
            return True

    def _next_stop(self) -> int:
        """How far to read: if a snapshot is due, to the end of a block, where the state is whole."""
        block = self._learning.block
        stop = self._known // block * block
        is_due = self._is_snapshot_due(self._known)
        return stop if is_due and stop > self._state.position else self._known

    def _step(self) -> None:
        """Learn the next events of the log."""
        events = list(self._log.read(self._state.position, self._next_stop(), limit=_BATCH))
        last, n_triplets = events[-1].position, count_triplets(events)
        self.items.apply(event for event in events if event.kind in ITEM_KINDS)
        if any(event.kind in CONTROL_KINDS for event in events):
            if can_start_from(self._log.controls(last), self._state.position, last):
                self._state.read_on(last)
            else:
                self._state = self._state_at(last)
            self._set_pin()
            self._publish()
        else:
            self._state.advance([e for e in events if e.kind in LEARNER_KINDS], last)
        with self._condition:
            self.n_triplets_waiting = max(0, self.n_triplets_waiting - n_triplets)

    # -- publishing ---------------------------------------------------------------------------

    def _rest(self) -> float:
        """Seconds until the next version may be published."""
        if self._is_closing:
            return 0.0
        with self._condition:
            here = self._state.position
            is_awaited = any(position <= here for position in self._awaited.values())
        return self._publishing_pace.rest(_REST_WHILE_AWAITED if is_awaited else _REST)

    def _publish(self) -> None:
        state, view = self._state, self.items.view
        newest = self._read_model()
        if newest is not None:
            self._served = newest._replace(position=state.position, trust=state.trust)
        model = self._pinned or self._served
        self._scaled = view.scaled(model.common, self._scaled) if model.is_normalised else None
        self.version = Version(
            state.position,
            model,
            self._pinned is not None,
            newest is None,
            view,
            self._scaled,
            state.tally.copy(),
            _statistics_of(state.learner),
            None if state.evidence is None else state.evidence.summary(),
        )
        self.on_publish(state.position)
        self._tell_waiting()

    def _read_model(self) -> Model | None:
        """What was learnt so far, read again only if it changed; None if it overflowed."""
        learner = self._state.learner
        rounds = 0 if learner is None else learner.n_rounds_
        if self._newest_of[0] is not learner or self._newest_of[1] != rounds:
            with self._publishing_pace.measured():
                model = model_of(self._state.position, learner, self._learning.has_tasks)
                self._newest = model if model.is_finite() else None
                if self._newest is not None and model.is_normalised and self._pinned is None:
                    self._scaled = self.items.view.scaled(model.common)  # the costly part
            self._newest_of = (learner, rounds)
        return self._newest

    def _set_pin(self) -> None:
        """Find the model that the last pin names."""
        controls = self._log.read_counting(0, self._state.position, CONTROL_KINDS)
        pins = [event for event in controls if event.kind == EventKind.PIN]
        position = pins[-1].body["position"] if pins else None
        if position is None:
            self._pinned = None
        elif self._pinned is None or self._pinned.position != position:
            state = self._state_at(position)
            self._try_to_save(state)
            pinned = model_of(position, state.learner, self._learning.has_tasks)
            self._pinned = pinned._replace(trust=state.trust)

    # -- saved items --------------------------------------------------------------------------

    def look_for_items(self) -> None:
        """Read items that the service which is followed has saved since."""
        if not self._renewing.is_alive() and self._renewed is None:
            newest = max(self._item_files.positions(), default=0)
            if newest > max(self.items.saved_at, self._items_tried):
                self._items_tried = newest
                self._renew_in_a_thread(lambda: None)

    def _are_items_due(self) -> bool:
        """Whether enough of the items changed to save them."""
        items = self.items
        return (
            self._item_files.is_mine
            and not items.is_sparse
            and items.n_since >= max(_FEWEST_CHANGES, _CHANGED * items.n_saved)
        )

    def _rest_of_items(self) -> float | None:
        """Seconds until saved items may be renewed; None if there is nothing to do."""
        if self._renewed is not None:
            return 0.0 if self._renewed.position <= self._state.position else None
        if self._renewing.is_alive() or self._is_closing or not self._are_items_due():
            return None
        return max(self._items_pace.rest(_REST), self._retry_items_at - time.perf_counter(), 0.0)

    def _renew_items(self) -> None:
        """Save the items in a thread if that is due; use what was saved or found."""
        if self._rest_of_items() != 0:
            return
        if self._renewed is not None:
            saved, self._renewed = self._renewed, None
            self.items.rest_on(saved)
            self._publish()
        else:
            content, position = self.items.content(), self._state.position
            self._renew_in_a_thread(lambda: self._item_files.save(content, self._log, position))

    def _renew_in_a_thread(self, save: Callable[[], None]) -> None:
        def renew() -> None:
            try:
                with self._items_pace.measured():
                    save()
                    found = self._item_files.newest(self._log, self._known)
                if found is not None and found.position > self.items.saved_at:
                    self._renewed = found
            except (
                Exception
            ) as error:  # the log has everything: without them a start only takes longer
                self._retry_items_at = time.perf_counter() + _LONGEST_RETRY
                logger.warning(
                    "items were not saved, next try in %.0f s: %s", _LONGEST_RETRY, error
                )
            with self._condition:
                self._condition.notify_all()

        self._renewing = threading.Thread(target=in_context(renew), name="items", daemon=True)
        self._renewing.start()

    def _save_items_at_end(self) -> None:
        if self._renewing.is_alive():
            self._renewing.join()
        if self._are_items_due():
            with contextlib.suppress(Exception):  # as above
                self._item_files.save(self.items.content(), self._log, self._state.position)

    # -- snapshots ----------------------------------------------------------------------------

    def _is_snapshot_due(self, position: int) -> bool:
        """Whether much happened since the last one; saving them never takes most of the time."""
        is_long = (
            position - self._last_snapshot >= self._snapshot_every
            or self._state.seconds >= _LONGEST_REPLAY
        )
        return (
            is_long and not self._snapshot_pace.rest(_REST) and time.monotonic() >= self._retry_at
        )

    def _save_snapshot_if_due(self) -> None:
        if self._is_snapshot_due(self._state.position):
            self._save_snapshot()

    def _save_snapshot(self) -> None:
        state = self._state
        if state.position == self._last_snapshot or not self._try_to_save(state):
            return
        self.snapshots.thin_out(set() if self._pinned is None else {self._pinned.position})
        self._last_snapshot, state.seconds = state.position, 0.0

    def _try_to_save(self, state: State) -> bool:
        """Save a state, if it can be: the log has everything, so without it a restart only takes longer."""
        if state.learner is None or not state.is_whole or not self.snapshots.is_mine:
            return False
        try:
            with self._snapshot_pace.measured():
                self.snapshots.save(state, self._log)
        except Exception as error:  # a full disk has many names, and none of them may stop learning
            self.n_unsaved += 1
            self._retry_after = min(2 * self._retry_after, _LONGEST_RETRY)
            self._retry_at = time.monotonic() + self._retry_after
            logger.warning(
                "no snapshot at position %d, next try in %.0f s: %s",
                state.position,
                self._retry_after,
                error,
            )
            return False
        self._retry_after = _FIRST_RETRY / 2
        return True


def _statistics_of(learner: Any) -> dict[str, Any]:
    if learner is None:
        return {}
    return {
        "triplets": learner.n_rounds_,
        "updates": learner.n_updates_,
        "average_loss": learner.average_loss_,
        "mistake_rate": learner.mistake_rate_,
    }


def _compile(learning: Learning, *, is_sparse: bool) -> None:
    """Learn and search once with tiny data, so that the first request does not wait for compilation."""
    rows: Any = np.eye(12, 4, dtype=np.float32)
    if is_sparse:
        rows = sp.csr_matrix(rows)
    learner = learning.new_learner().set_params(preprocessor=rows)
    with contextlib.suppress(DivergedError):
        for _ in range(2):
            learner.partial_fit(np.array([[0, 1, 2]]))
    index = ExactIndex()
    index.add(range(rows.shape[0]), rows)
    model = model_of(0, learner, learning.has_tasks)
    index.search(model.transform(rows[:1]), 2)
