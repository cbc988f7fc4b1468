"""The one consumer: reads the log, folds it, and publishes immutable versions."""

from __future__ import annotations

import contextlib
import copy
import logging
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import scipy.sparse as sp

from .. import DivergedError, ModelFileError
from ..index import ExactIndex
from .errors import LogError
from .events import CONTROL_KINDS, ITEM_KINDS, LEARNER_KINDS, PIN, Event
from .exclusions import can_start_from, excluded_ranges, is_excluded
from .fold import Fold
from .items import ItemStore
from .log import Log
from .settings import Settings
from .snapshots import Snapshots
from .version import Model, Version, model_of

logger = logging.getLogger("simstream.serve")

#: Events read and folded at a time, so that a long stream is published on the way.
_BATCH = 512

#: Publishing may take this share of the time while there is more to learn.
_PUBLISHING_SHARE = 0.2


class Engine:
    """Keeps a model up to date with a log, in a thread of its own.

    Parameters
    ----------
    settings, log : what to fold, and how
    """

    def __init__(self, settings: Settings, log: Log) -> None:
        self._settings, self._log = settings, log
        self._check_settings()
        self.items = ItemStore(log, settings.n_features)
        self.snapshots = Snapshots(settings.snapshot_folder, settings.learning)
        self._controls: list[Event] = list(log.read(0, kinds=CONTROL_KINDS))
        self._condition = threading.Condition()
        self._known = log.last
        self._is_closing = False
        self._failure: BaseException | None = None
        self._last_snapshot = 0
        self._snapshot_seconds = self._snapshot_time = 0.0
        self._publish_seconds = self._publish_time = 0.0
        self._pinned: Model | None = None
        self._newest = Model(0, None, {})
        self.restart_seconds = self._start()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def _check_settings(self) -> None:
        """A log is bound to how it is learnt from, and to the kind of its vectors."""
        mine = {
            "learning": self._settings.learning.as_json(),
            "n_features": self._settings.n_features,
        }
        kept = self._log.setting("service")
        if kept is None:
            self._settings.learning.new_learner()  # raises if that is impossible
            self._log.set_setting("service", mine)
        elif kept != mine:
            raise LogError(
                f"{self._log.path}: was begun with {kept}, got {mine}; use the same settings, or "
                "simstream replay to change them"
            )

    # -- where it stands ----------------------------------------------------------------------

    @property
    def failure(self) -> BaseException | None:
        """What stopped the engine, if something did."""
        return self._failure

    @property
    def lag(self) -> int:
        """Events that are durable and not yet published."""
        return max(0, self._known - self.version.position)

    def wait_for(self, position: int, timeout: float) -> bool:
        """Wait until a position is published; False if it takes too long."""
        with self._condition:
            return self._condition.wait_for(
                lambda: self.version.position >= position or self._failure is not None, timeout
            ) and (self._failure is None)

    def notify(self, last: int) -> None:
        """The log has events up to this position."""
        with self._condition:
            self._known = max(self._known, last)
            self._condition.notify_all()

    def close(self) -> None:
        """Fold what is there, save a snapshot, stop."""
        with self._condition:
            self._is_closing = True
            self._condition.notify_all()
        self._thread.join()

    # -- folding ------------------------------------------------------------------------------

    def _start(self) -> float:
        started = time.perf_counter()
        warm_up(self._settings)
        last = self._known
        self.items.apply(self._log.read_items(0, last))
        self._fold = self.state_at(last)
        self._last_snapshot = max([p for p in self.snapshots.positions() if p <= last], default=0)
        self._set_pin()
        self._publish()
        return time.perf_counter() - started

    def state_at(self, position: int) -> Fold:
        """The state after a position: the newest snapshot that leads there, and the rest of the log."""
        for start in reversed(self.snapshots.positions()):
            if start <= position and can_start_from(self._controls, start, position):
                kept = self.snapshots.load(start)
                if kept is not None:
                    fold = self._new_fold(kept.learner, kept.tally, kept.position)
                    return self._advanced(fold, position)
        return self._advanced(self._new_fold(), position)

    def _new_fold(self, *start: Any) -> Fold:
        return Fold(self._settings.learning, self.items, self._log, *start)

    def _advanced(self, fold: Fold, position: int) -> Fold:
        ranges = excluded_ranges(self._controls, position)
        events = self._log.read(fold.position, position, kinds=LEARNER_KINDS)
        counting = (event for event in events if not is_excluded(ranges, event.position))
        for batch in _batches(counting, _BATCH):
            fold.advance(batch, batch[-1].position)
        fold.advance([], position)
        return fold

    def _run(self) -> None:
        try:
            while self._wait_for_work():
                self._step()
            self._save_snapshot()
        except BaseException as error:  # readers go on with what is published; writers are told
            logger.exception("the engine stopped")
            self._failure = error
            with self._condition:
                self._condition.notify_all()

    def _wait_for_work(self) -> bool:
        with self._condition:
            self._condition.wait_for(lambda: self._is_closing or self._known > self._fold.position)
            return self._known > self._fold.position

    def _next_stop(self) -> int:
        """How far to read: when a snapshot is due, to the end of a block, where nothing is half done."""
        block = self._settings.learning.block
        stop = self._known // block * block
        is_due = self._known - self._last_snapshot >= self._settings.snapshot_every
        return stop if is_due and stop > self._fold.position else self._known

    def _step(self) -> None:
        """Fold the next events of the log."""
        events = list(self._log.read(self._fold.position, self._next_stop(), limit=_BATCH))
        last = events[-1].position
        self.items.apply(event for event in events if event.kind in ITEM_KINDS)
        controls = [event for event in events if event.kind in CONTROL_KINDS]
        if controls:
            self._controls += controls
            if can_start_from(self._controls, self._fold.position, last):
                self._advanced(self._fold, last)
            else:
                self._fold = self.state_at(last)
            self._set_pin()
        else:
            self._fold.advance([e for e in events if e.kind in LEARNER_KINDS], last)
        is_behind = last < self._known
        since = time.perf_counter() - self._publish_time
        if controls or not is_behind or since > self._publish_seconds / _PUBLISHING_SHARE:
            self._publish()
        self._maybe_save_snapshot()

    # -- publishing ---------------------------------------------------------------------------

    def _publish(self) -> None:
        started = time.perf_counter()
        fold = self._fold
        newest = model_of(fold.position, fold.learner, self._settings.learning.has_tasks)
        has_diverged = not newest.is_finite()
        if has_diverged:
            newest = self._newest
        self._newest = newest
        self.version = Version(
            fold.position,
            self._pinned or newest,
            self._pinned is not None,
            has_diverged,
            self.items.view,
            copy.deepcopy(fold.tally),
            _statistics(fold.learner),
        )
        self._publish_time = time.perf_counter()
        self._publish_seconds = self._publish_time - started
        with self._condition:
            self._condition.notify_all()

    def _set_pin(self) -> None:
        """Find the model that the last pin names."""
        ranges = excluded_ranges(self._controls, self._fold.position)
        pins = [
            event
            for event in self._controls
            if event.kind == PIN and not is_excluded(ranges, event.position)
        ]
        position = pins[-1].body["position"] if pins else None
        if position is None:
            self._pinned = None
        elif self._pinned is None or self._pinned.position != position:
            fold = self.state_at(position)
            if fold.learner is not None and fold.is_whole:
                self.snapshots.save(position, fold.learner, fold.tally)
            self._pinned = model_of(position, fold.learner, self._settings.learning.has_tasks)

    # -- snapshots ----------------------------------------------------------------------------

    def _maybe_save_snapshot(self) -> None:
        """Save now and then, and never spend most of the time on it."""
        events = self._fold.position - self._last_snapshot
        rested = time.perf_counter() - self._snapshot_time > 10 * self._snapshot_seconds
        if events >= self._settings.snapshot_every and rested:
            self._save_snapshot()

    def _save_snapshot(self) -> None:
        fold = self._fold
        if fold.learner is None or not fold.is_whole or fold.position == self._last_snapshot:
            return
        started = time.perf_counter()
        try:
            self.snapshots.save(fold.position, fold.learner, fold.tally)
            pinned = set() if self._pinned is None else {self._pinned.position}
            self.snapshots.thin_out(pinned)
        except (OSError, ModelFileError, ValueError) as error:
            # The log has everything: a restart will only take longer.
            logger.warning("no snapshot at position %d: %s", fold.position, error)
        self._last_snapshot = fold.position
        self._snapshot_time = time.perf_counter()
        self._snapshot_seconds = self._snapshot_time - started


def warm_up(settings: Settings) -> None:
    """Compile what learning and searching need, so that the first request does not wait for it."""
    rows: Any = np.eye(3, 4, dtype=np.float32)
    if settings.n_features is not None:
        rows = sp.csr_matrix(rows)
    learner = settings.learning.new_learner().set_params(preprocessor=rows)
    with contextlib.suppress(DivergedError):
        for _ in range(2):
            learner.partial_fit(np.array([[0, 1, 2]]))
    index = ExactIndex()
    index.add([1, 2, 3], rows)
    index.search(rows[:1], 2)


def _statistics(learner: Any) -> dict[str, Any]:
    if learner is None:
        return {}
    return {
        "triplets": learner.n_rounds_,
        "updates": learner.n_updates_,
        "average_loss": learner.average_loss_,
        "mistake_rate": learner.mistake_rate_,
    }


def _batches(events: Iterator[Event], size: int) -> Iterator[list[Event]]:
    batch: list[Event] = []
    for event in events:
        batch.append(event)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch
