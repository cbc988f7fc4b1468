"""The service without HTTP: log, writer and engine together."""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

from ..metrics import sparsity
from .access import BusyError, NotFoundError, StorageError
from .engine import Engine
from .events import Vector, decode_vector
from .log import Log, lock_folder
from .settings import Settings
from .version import Version
from .writer import Ledger, Question, Receipt, Write, Writer


def digest_of(value: Any) -> str:
    """A short digest of JSON values, to detect a key that is used for two different requests.

    Examples
    --------
    >>> digest_of({"a": 1, "b": 2}) == digest_of({"b": 2, "a": 1})
    True
    """
    text = json.dumps(value, sort_keys=True)
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
    >>> from pathlib import Path
    >>> from simstream.serve.settings import Learning
    >>> from simstream.serve.writer import Judgement, NewItem
    >>> learning = Learning("oasis", {"C": 10.0})
    >>> service = Service(Settings(Path(tempfile.mkdtemp()), learning))
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
        settings.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.ExitStack() as opened:
            opened.enter_context(lock_folder(settings.folder))
            self.log = Log(settings.log_path)
            opened.callback(self.log.close)
            self.engine = Engine(settings, self.log)
            self._opened = opened.pop_all()  # nothing failed: `close` closes them
        items = self.engine.items
        ledger = Ledger(
            self.log,
            items.positions,
            items.n_features,
            is_sparse=settings.n_features is not None,
            has_tasks=self.has_tasks,
        )
        self.writer = Writer(self.log, ledger, self.engine.notify, settings.limits.waiting)
        self._rng = np.random.default_rng(settings.asking.seed)
        self._lock = threading.Lock()
        self._throughput = (time.monotonic(), self.writer.last, 0.0)

    def close(self) -> None:
        """Write and learn what is left, save a snapshot, close the files. May be called twice."""
        if self.writer.is_closed:
            return
        self.writer.close()
        self.engine.close()
        self._opened.close()

    # -- writing ------------------------------------------------------------------------------

    def submit(self, writes: Sequence[Write]) -> Future[list[Receipt]]:
        """Hand a request to the writer: all of its writes are kept, or none."""
        if self.engine.failure is not None:
            raise StorageError(f"learning has stopped: {self.engine.failure}")
        if self.engine.lag > self.settings.limits.lag:
            raise BusyError("too many events are waiting to be learnt")
        return self.writer.submit(writes)

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
        """Choose a question to ask."""
        with self._lock:
            return self.version.choose_question(
                self.engine.items, self.settings.asking, task, self._rng
            )

    def search(
        self,
        query: str | Vector,
        k: int = 10,
        task: str | None = None,
        *,
        learnt: bool = True,
        version: Version | None = None,
    ) -> list[tuple[str, float]]:
        """Ids and scores of the most similar items, best first; never the query item itself."""
        version = version or self.version
        items = self.engine.items
        leave_out = 0
        if isinstance(query, str):
            leave_out = self.position_of(query, version)
            rows = items.vectors([leave_out])
        else:
            rows = items.rows_of([query])
        hits = version.search(rows, k, task, learnt=learnt, leave_out=leave_out)
        return [(items.names[position], score) for position, score in hits]

    def position_of(self, name: str, version: Version) -> int:
        """Position of the event that added an item of a version."""
        position = self.engine.items.position_in(version.view, name)
        if position is None:
            raise NotFoundError(f"item: no item has the id {name!r}")
        return position

    def item(self, name: str) -> tuple[int, Vector, dict[str, Any]]:
        """Position, vector and payload of an item."""
        position = self.engine.items.positions.get(name)
        event = None if position is None else self.log.get(position)
        if position is None or event is None or event.vector is None:
            raise NotFoundError(f"item: no item has the id {name!r}")
        return position, decode_vector(event.vector), event.body

    def status(self) -> dict[str, Any]:
        """Items, events, losses and accuracy as JSON values."""
        version, tally = self.version, self.version.tally
        matrix, measure = version.model.common, self.settings.measure
        return {
            "algorithm": self.settings.learning.as_json(),
            "items": len(self.engine.items),
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
            "losses": [
                {"triplets": (place + 1) * tally.stride, "loss": loss}
                for place, loss in enumerate(tally.losses)
            ],
            "learner": version.statistics,
            "sparsity": None if matrix is None else sparsity(matrix),
            "throughput": self._events_per_second(),
            "demo": None if measure is None else measure(version.model),
        }

    def _events_per_second(self) -> float:
        """Events kept per second since the last call that was at least a second ago."""
        with self._lock:
            now, last = time.monotonic(), self.writer.last
            then, before, rate = self._throughput
            if now - then >= 1:
                rate = (last - before) / (now - then)
                self._throughput = (now, last, rate)
            return rate
