"""The service without HTTP: log, writer and engine together."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

from . import admissions
from .admissions import Judgement
from .engine import Engine
from .errors import BusyError, NotFoundError, StorageError
from .events import ITEM, Vector, decode_vector
from .folder_lock import FolderLock
from .ledger import Ledger, Shape
from .log import Log
from .questions import choose_question
from .settings import Settings
from .version import Version
from .writer import Admission, Part, Receipt, Writer


def digest_of(value: Any) -> str:
    """A short name for JSON values, to notice a key that is used for two things.

    Examples
    --------
    >>> digest_of({"a": 1, "b": 2}) == digest_of({"b": 2, "a": 1})
    True
    """
    text = json.dumps(value, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


class Service:
    """A search that learns.

    Writing returns a future that is done when the events are durable; reading takes the current version.

    Parameters
    ----------
    settings : Settings

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from simstream.serve.admissions import NewItem
    >>> from simstream.serve.settings import Learning
    >>> learning = Learning("oasis", {"C": 10.0})
    >>> service = Service(Settings(Path(tempfile.mkdtemp()), learning))
    >>> rows = {"a": [1.0, 0.0], "b": [0.9, 0.1], "c": [0.8, 0.6]}
    >>> items = [NewItem(name, np.array(row), {}) for name, row in rows.items()]
    >>> receipt, = service.submit([Part(admissions.add_items(items))]).result()
    >>> service.wait_for(receipt)
    True
    >>> judgement = Judgement("a", [("c", "b")])
    >>> receipt, = service.submit([service.judgement(judgement)]).result()
    >>> service.wait_for(receipt)
    True
    >>> [name for name, _ in service.search("a", k=2)]
    ['c', 'b']
    >>> service.close()
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        settings.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder_lock = FolderLock(settings.folder)
        try:
            self.log = Log(settings.log_path)
            try:
                self.engine = Engine(settings, self.log)
            except BaseException:
                self.log.close()
                raise
        except BaseException:
            self._folder_lock.release()
            raise
        ledger = Ledger()
        ledger.items = dict(self.engine.items.positions)
        ledger.shape = Shape(self.engine.items.n_features, settings.n_features is not None)
        self.writer = Writer(self.log, ledger, self.engine.notify, settings.limits.waiting)
        self._rng = np.random.default_rng(settings.asking.seed)
        self._lock = threading.Lock()
        self._throughput = (time.monotonic(), self.writer.last, 0.0)

    def close(self) -> None:
        """Write and fold what waits, save a snapshot, close the files. May be called twice."""
        if self.writer.is_closed:
            return
        self.writer.close()
        self.engine.close()
        self.log.close()
        self._folder_lock.release()

    # -- writing ------------------------------------------------------------------------------

    def submit(self, parts: Sequence[Part]) -> Future[list[Receipt]]:
        """Hand a request to the writer; see `Writer.submit`."""
        if self.engine.failure is not None:
            raise StorageError(f"learning has stopped: {self.engine.failure}")
        if self.engine.lag > self.settings.limits.lag:
            raise BusyError("too many events wait to be learnt from")
        return self.writer.submit(parts)

    def wait_for(self, receipt: Receipt, timeout: float = 10.0) -> bool:
        """Wait until what a receipt is about can be seen by readers; False if it takes too long."""
        return self.engine.wait_for(receipt.last, timeout)

    def judgement(self, judgement: Judgement, key: str | None = None, digest: str = "") -> Part:
        """A part of a request that keeps comparisons."""
        admit = admissions.judge(judgement, has_tasks=self.has_tasks)
        return Part(admit, key, digest)

    def question(self, task: str | None) -> Admission:
        """Choose a question and keep that it is shown."""
        with self._lock:
            question = choose_question(
                self.version, self.engine.items, self.settings.asking, task, self._rng
            )
        return admissions.ask(question, has_tasks=self.has_tasks)

    # -- reading ------------------------------------------------------------------------------

    def throughput(self) -> float:
        """Events kept per second, over the time since the last call that was at least a second ago."""
        with self._lock:
            now, last = time.monotonic(), self.writer.last
            then, before, rate = self._throughput
            if now - then >= 1:
                rate = (last - before) / (now - then)
                self._throughput = (now, last, rate)
            return rate

    @property
    def has_tasks(self) -> bool:
        """Whether there is one similarity for each task."""
        return self.settings.learning.has_tasks

    @property
    def version(self) -> Version:
        """What is published now; it never changes."""
        return self.engine.version

    def search(
        self,
        query: str | Vector,
        k: int = 10,
        task: str | None = None,
        *,
        learnt: bool = True,
        version: Version | None = None,
    ) -> list[tuple[str, float]]:
        """Ids and scores of the most similar items, best first; an item is not similar to itself."""
        version = version or self.version
        items = self.engine.items
        leave_out = 0
        if isinstance(query, str):
            leave_out = self.position_of(query, version)
            rows = items.vectors([leave_out])
        else:
            rows = items.rows_of([query])
        hits = version.search(rows, k, task, learnt=learnt, leave_out=leave_out)
        return [(items.names[hit.position], hit.score) for hit in hits]

    def position_of(self, name: str, version: Version) -> int:
        """Position of the event that brought an item of a version."""
        position = self.engine.items.position_in(version.view, name)
        if position is None:
            raise NotFoundError(f"item: there is none with id {name!r}")
        return position

    def item(self, name: str) -> tuple[int, Vector, dict[str, Any]]:
        """Position, vector and payload of an item."""
        position = self.engine.items.positions.get(name)
        event = None if position is None else self.log.get(position)
        if position is None or event is None or event.kind != ITEM or event.vector is None:
            raise NotFoundError(f"item: there is none with id {name!r}")
        return position, decode_vector(event.vector), event.body
