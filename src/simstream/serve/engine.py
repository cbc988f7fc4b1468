"""The one consumer: reads the log, folds it, and publishes immutable versions."""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import Future
from typing import Any

from .. import ModelFileError
from .errors import LogError
from .events import CONTROL_KINDS, ITEM_KINDS, LEARNER_KINDS, PIN, Event
from .exclusions import can_start_from, excluded_ranges, is_excluded
from .fold import Fold
from .items import ItemStore
from .log import Log
from .pacing import Pace
from .settings import Settings
from .snapshots import Snapshots
from .version import Model, Version, model_of, statistics_of
from .warm_up import warm_up

logger = logging.getLogger("simstream.serve")

#: Events read and folded at a time, so that a long stream is published on the way.
_BATCH = 512

#: Between two versions there is a rest of so many times what publishing one takes, and of less while
#: somebody waits to see one. When readers see what was learnt depends on it; what is learnt never does.
_REST, _REST_WHILE_AWAITED = 10.0, 1.0

#: A snapshot is due when folding again what came after the last one would take so many seconds.
_LONGEST_REPLAY = 1.0


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
        self._awaited: dict[Future[bool], int] = {}
        self._last_snapshot = 0
        self._snapshot_pace = Pace(time.perf_counter)
        self._publishing_pace = Pace(time.thread_time)
        self._pinned: Model | None = None
        self._served = Model(0)
        self._read: Model | None = self._served
        self._read_of: tuple[Any, int] = (None, 0)
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

    def published(self, position: int) -> Future[bool]:
        """Done when a position is published (True) or never will be (False). Cancel it to wait no more."""
        seen: Future[bool] = Future()
        with self._condition:
            self._awaited[seen] = position
            self._condition.notify_all()  # the engine may rest less
        seen.add_done_callback(self._forget)
        self._tell_waiting()
        return seen

    def _forget(self, seen: Future[bool]) -> None:
        with self._condition:
            self._awaited.pop(seen, None)

    def _tell_waiting(self) -> None:
        """Tell those who wait for what is published by now, or all of them once the engine stopped."""
        with self._condition:
            here, has_failed = self.version.position, self._failure is not None
            done = [one for one in self._awaited.items() if one[1] <= here or has_failed]
            for seen, _ in done:
                del self._awaited[seen]
            self._condition.notify_all()
        for seen, position in done:
            if seen.set_running_or_notify_cancel():
                seen.set_result(position <= here)

    def wait_for(self, position: int, timeout: float) -> bool:
        """Wait until a position is published; False if it takes too long."""
        seen = self.published(position)
        try:
            return seen.result(timeout)
        except TimeoutError:
            return not seen.cancel() and seen.result()

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
        self.items.catch_up(last)
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
                    return fold.read_on(self._controls, position)
        return self._new_fold().read_on(self._controls, position)

    def _new_fold(self, *start: Any) -> Fold:
        return Fold(self._settings.learning, self.items, self._log, *start)

    def _run(self) -> None:
        try:
            self._maybe_save_snapshot()  # starting again must not take as long as it did
            while self._wait_for_work():
                if self._known > self._fold.position:
                    self._step()
                if self.version.position < self._fold.position and not self._rest():
                    self._publish()
                self._maybe_save_snapshot()
            self._save_snapshot()
        except BaseException as error:  # readers go on with what is published; writers are told
            logger.exception("the engine stopped")
            self._failure = error
            self._tell_waiting()

    def _wait_for_work(self) -> bool:
        """Wait until there is something to fold or to publish; False when there will be no more."""
        with self._condition:
            while self._known <= self._fold.position:
                is_published = self.version.position == self._fold.position
                rest = None if is_published else self._rest()
                if rest == 0:
                    break
                if is_published and self._is_closing:
                    return False
                self._condition.wait(rest)
            return True

    def _next_stop(self) -> int:
        """How far to read: when a snapshot is due, to the end of a block, where nothing is half done."""
        block = self._settings.learning.block
        stop = self._known // block * block
        is_due = self._is_snapshot_due(self._known)
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
                self._fold.read_on(self._controls, last)
            else:
                self._fold = self.state_at(last)
            self._set_pin()
            self._publish()
        else:
            self._fold.advance([e for e in events if e.kind in LEARNER_KINDS], last)

    # -- publishing ---------------------------------------------------------------------------

    def _rest(self) -> float:
        """Seconds until the next version may be published."""
        if self._is_closing:
            return 0.0
        with self._condition:
            here = self._fold.position
            is_awaited = any(position <= here for position in self._awaited.values())
        return self._publishing_pace.rest(_REST_WHILE_AWAITED if is_awaited else _REST)

    def _publish(self) -> None:
        fold = self._fold
        newest = self._model()
        has_diverged = newest is None
        if newest is not None:
            self._served = newest._replace(position=fold.position)
        self.version = Version(
            fold.position,
            self._pinned or self._served,
            self._pinned is not None,
            has_diverged,
            self.items.view,
            fold.tally.copy(),
            statistics_of(fold.learner),
        )
        self._tell_waiting()

    def _model(self) -> Model | None:
        """What was learnt up to now, read again only if there is more; None if it is of no use."""
        learner = self._fold.learner
        rounds = 0 if learner is None else learner.n_rounds_
        if self._read_of[0] is not learner or self._read_of[1] != rounds:
            with self._publishing_pace.measured():
                model = model_of(self._fold.position, learner, self._settings.learning.has_tasks)
                self._read = model if model.is_finite() else None
            self._read_of = (learner, rounds)
        return self._read

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

    def _is_snapshot_due(self, position: int) -> bool:
        """Whether there is much to fold after the last one; never spends most of the time on them."""
        is_long = (
            position - self._last_snapshot >= self._settings.snapshot_every
            or self._fold.seconds >= _LONGEST_REPLAY
        )
        return is_long and not self._snapshot_pace.rest(_REST)

    def _maybe_save_snapshot(self) -> None:
        if self._is_snapshot_due(self._fold.position):
            self._save_snapshot()

    def _save_snapshot(self) -> None:
        fold = self._fold
        if fold.learner is None or not fold.is_whole or fold.position == self._last_snapshot:
            return
        with self._snapshot_pace.measured():
            try:
                self.snapshots.save(fold.position, fold.learner, fold.tally)
                pinned = set() if self._pinned is None else {self._pinned.position}
                self.snapshots.thin_out(pinned)
            except (OSError, ModelFileError, ValueError) as error:
                # The log has everything: a restart will only take longer.
                logger.warning("no snapshot at position %d: %s", fold.position, error)
        self._last_snapshot, fold.seconds = fold.position, 0.0
