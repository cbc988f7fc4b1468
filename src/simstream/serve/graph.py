"""An approximate index of a service's items: usearch's graph of neighbours, beside the exact index.

The graph proposes candidates, and the exact index of the published version scores them: whatever the graph
holds, only recall can be lost. A thread of its own follows the published versions. Until an item is in the
graph it is a candidate of every search; while there are many such items, and where a product with all items
takes less time than the graph, searches are exact. So nothing waits for the graph: neither readers, nor the
learner, nor the start of the service.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..search import ExactView, HnswIndex
from ..search.hnsw import graph_class
from .engine import Version, hits_of
from .log import Log
from .logs import in_context
from .saved_items import remove_unfinished
from .searching import Hits, exactly

logger = logging.getLogger("simstream.serve")

#: How the graph is built: for vectors without any structure, the hardest there are. bfloat16 has the range of
#: float32 and half its size, and what it rounds is scored again.
_OPTIONS: dict[str, Any] = {"connectivity": 32, "expansion_add": 256, "dtype": "bf16"}

#: A product with this many items takes about as long as a candidate of the graph; and up to so many queries
#: together hardly take longer than one, while the graph searches them one by one.
_ITEMS_PER_CANDIDATE, _SHARING = 40, 8

#: With more items than this that are not in the graph yet, searches are exact.
_MOST_LATE = 2048

#: Items added at a time: while they are, searches of the graph wait.
_FEW, _MANY = 32, 1024

#: Seconds between two looks at what is published.
_PAUSE = 0.05

#: The graph is saved once this share of it, and so many items, have changed; and when the service ends.
_MOST_UNSAVED, _FEWEST_UNSAVED = 0.2, 1000

_NAME = re.compile(r"usearch-(\d{12})-([0-9a-f]+)\.safetensors")


class GraphIndex:
    """Searches by a graph that follows the published versions of a service.

    Parameters
    ----------
    folder : holds the file of the graph, so that the next start need not build it
    log : names the file: a graph of another log is not used
    newest : returns the newest published version
    candidates : items that the graph proposes for a search
    is_mine : whether files may be written: not those of a service that is followed
    """

    def __init__(
        self,
        folder: Path,
        log: Log,
        newest: Callable[[], Version],
        candidates: int,
        *,
        is_mine: bool = True,
    ) -> None:
        graph_class()  # raises if usearch is not installed
        self._folder, self._log, self._newest = folder, log, newest
        self._candidates, self._is_mine = candidates, is_mine
        self._graph = HnswIndex(**_OPTIONS)
        #: usearch serves one call at a time. Who waits for the lock holds the turn, so that the thread that
        #: adds items cannot take the lock again before them.
        self._lock, self._turn = threading.Lock(), threading.Lock()
        #: The newest view whose items all are in the graph.
        self._covered: ExactView | None = None
        self._n_unsaved = 0
        if is_mine:
            remove_unfinished(folder)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=in_context(self._run), name="index", daemon=True)
        self._thread.start()

    @property
    def n_late(self) -> int:
        """Items that are not in the graph yet."""
        view = self._newest().view
        late = self._late(view)
        return len(view) if late is None else len(late)

    def search(
        self, version: Version, rows: Any, k: int, task: Hashable = None, *, learnt: bool = True
    ) -> list[Hits]:
        """Positions and scores of the most similar items; see `Version.search_many`."""
        queries, view = version.asked(rows, task, learnt=learnt)
        n_proposed, late = max(self._candidates, 2 * k), self._late(version.view)
        few = max(1, _ITEMS_PER_CANDIDATE * min(rows.shape[0], _SHARING)) * n_proposed
        if late is None or len(late) > _MOST_LATE or len(view) <= few:
            return version.search_many(rows, k, task, learnt=learnt)
        with self._held():
            proposed = self._graph.search(queries, n_proposed).ids
        known = set(late)
        candidates = [
            [*late, *(name for name in names if name is not None and name not in known)]
            for names in proposed.tolist()
        ]
        found = hits_of(view.best_of(queries, candidates, k))
        if min(map(len, found)) < min(k, len(view)):  # most proposed ones have just been deleted
            return version.search_many(rows, k, task, learnt=learnt)
        return found

    #: The vectors are in this process.
    exact = staticmethod(exactly)

    def close(self) -> None:
        """Stop following, and save the graph."""
        self._ending.set()
        self._thread.join()

    def _late(self, view: ExactView) -> list[Any] | None:
        """Items of a view that are not in the graph yet; None if that is not known."""
        covered = self._covered
        changes = None if covered is None else view.changes_since(covered)
        return None if changes is None else changes[0]

    @contextmanager
    def _held(self) -> Iterator[None]:
        with self._turn:
            self._lock.acquire()
        try:
            yield
        finally:
            self._lock.release()

    # -- following ----------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._load()
            is_ending = False
            while not is_ending:
                is_ending = self._ending.wait(_PAUSE)
                version = self._newest()
                if version.view is not self._covered and not is_ending:
                    self._follow(version.view)
                most = 0 if is_ending else max(_FEWEST_UNSAVED, _MOST_UNSAVED * len(self._graph))
                if self._n_unsaved > most:
                    self._save(version.position)
        except Exception:  # what is not in the graph is searched exactly
            logger.exception("the index is not kept up to date any more; searches become exact")

    def _follow(self, view: ExactView) -> None:
        """Add and remove what has changed, in parts."""
        changes = None if self._covered is None else view.changes_since(self._covered)
        if changes is None:
            names = view.ids
            wanted = set(names)
            changes = (
                [name for name in names if name not in self._graph],
                [name for name in self._graph.ids if name not in wanted],
            )
        added, removed = changes
        size = _MANY if len(added) > _MOST_LATE else _FEW
        for begin in range(0, len(added), size):
            part = added[begin : begin + size]
            vectors = view.vectors(part)
            with self._held():
                self._graph.add(part, vectors)
            self._n_unsaved += len(part)
            if self._ending.is_set():  # what is missing is noticed at the next start
                return
        self._covered = view
        if removed:  # only now: readers have a version without them
            with self._held():
                self._graph.remove(removed)
            self._n_unsaved += len(removed)

    # -- the file -----------------------------------------------------------------------------

    def _files(self) -> list[tuple[int, str, Path]]:
        """Position, hash of the log and path of each file, newest first."""
        paths = list(self._folder.iterdir()) if self._folder.is_dir() else []
        found = ((_NAME.fullmatch(path.name), path) for path in paths)
        return sorted(((int(m[1]), m[2], path) for m, path in found if m), reverse=True)

    def _load(self) -> None:
        """Read the newest graph of this log, if there is one."""
        for position, link, path in self._files():
            try:
                if position <= self._log.last and self._log.hash_at(position) == link:
                    self._graph = HnswIndex.load(path)
                    return
            except Exception as error:  # damage has many names, and the log may be away
                logger.warning("index file refused: %s", error)

    def _save(self, position: int) -> None:
        if not self._is_mine or not self._log.has_digests:
            return
        try:
            older, link = self._files(), self._log.hash_at(position)
            path = self._folder / f"usearch-{position:012d}-{link}.safetensors"
            self._folder.mkdir(mode=0o700, exist_ok=True)
            self._graph.save(path)  # searches only read, too
            for *_, other in older:
                if other != path:
                    other.unlink(missing_ok=True)
        except Exception as error:  # a full disk has many names, and none may stop the thread
            logger.warning("the index could not be saved: %s", error)
        self._n_unsaved = 0
