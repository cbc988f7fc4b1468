"""One bilinear similarity for each task (or user), the sum of a common part and one of its own."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import replace
from operator import is_
from typing import Any

import numpy as np

from ..data.comparisons import Comparisons
from ..metrics import sparsity
from ..validation import check_answers, check_items, check_tasks
from .base import ScoreFunction, SearchResult, Similarity
from .bilinear import Bilinear


class Tasks(Similarity):
    """Bilinear similarities s_k(q, x) = q' M_k x of tasks k, with M_k = common + own[k]: nothing is learnt.

    A task that is not in `own` has the common part alone.

    Parameters
    ----------
    common : array or CSR matrix of shape (d, d')
    own : mapping of tasks (hashable values) to matrices of that shape
        Do not change them in place.
    dtype : "float32" or "float64", optional
    preprocessor : array, CSR matrix or pair of them, optional
        Items that row numbers refer to.

    Examples
    --------
    >>> import numpy as np
    >>> from simstream import Tasks
    >>> model = Tasks(np.eye(2), {"ann": np.diag([1.0, 0.0])})
    >>> model.matrix("ann")
    array([[2., 0.],
           [0., 1.]])
    >>> model.pair_score([[[1.0, 1.0], [1.0, 1.0]]], task="bob")
    array([2.])
    """

    def __init__(
        self,
        common: Any,
        own: Mapping[Hashable, Any],
        *,
        dtype: Any = None,
        preprocessor: Any = None,
    ) -> None:
        self.common = common
        self.own = own
        self.dtype = dtype
        self.preprocessor = preprocessor

    @property
    def shape_(self) -> tuple[int, int]:
        """Features of queries and of items."""
        return self.common.shape

    @property
    def dtype_(self) -> np.dtype[Any]:
        """Precision of the matrices, and of the items when they are scored."""
        return np.dtype(self.dtype or self.common.dtype)

    @property
    def tasks_(self) -> list[Hashable]:
        """Tasks with a similarity of their own."""
        return list(self.own)

    def _key(self, task: Hashable) -> tuple[Any, ...]:
        """What tells the matrix of one task from that of another; unknown tasks share theirs."""
        return (task in self.own, task if task in self.own else None)

    def matrix(self, task: Hashable = None) -> Any:
        """M of a task; what all have in common for an unknown task. Do not change it."""
        return self.common + self.own[task] if task in self.own else self.common

    def for_task(self, task: Hashable = None) -> Bilinear:
        """The similarity of a task as a model of its own; the common part for an unknown task."""
        key, parts, kept = self._key(task), (self.common, self.own), self._kept
        if kept is None or kept[0] != key or not all(map(is_, parts, kept[1])):
            self._kept = None  # one matrix at a time
            kept = self._kept = (key, parts, self.matrix(task))
        return Bilinear._of(kept[2])._with_items(self.preprocessor, self._item_cache())

    # -- the similarity of one task --------------------------------------------------------------

    def get_bilinear_matrix(self, task: Hashable = None) -> Any:
        """Copy of a task's M in s(q, x) = q' M x."""
        return self.for_task(task).get_bilinear_matrix()

    def transform_query(self, queries: Any, task: Hashable = None) -> Any:
        """Map queries q to M'q of a task, so that inner products with items are its similarity.

        It takes two products: M itself is not built.
        """
        rows = self._read_rows(queries, "queries", 0)
        asked = rows @ self.common
        if task not in self.own:
            return asked
        if isinstance(self.own, OwnParts):
            return asked + self.own.transform(rows, task)
        return asked + rows @ self.own[task]

    def pair_score(self, pairs: Any, task: Hashable = None) -> np.ndarray:
        """Similarity of each pair by a task; higher is more similar."""
        return self.for_task(task).pair_score(pairs)

    def score_items(self, queries: Any, items: Any, task: Hashable = None) -> np.ndarray:
        """Similarity of every query with every item by a task."""
        return self.for_task(task).score_items(queries, items)

    def search(self, queries: Any, items: Any, k: int = 10, task: Hashable = None) -> SearchResult:
        """Most similar items of each query by a task, best first."""
        return self.for_task(task).search(queries, items, k)

    def get_metric(self, task: Hashable = None) -> ScoreFunction:
        """A function (u, v) of two vectors that returns their similarity by a task, frozen as it is now."""
        return self.for_task(task).get_metric()

    def _score_rows(self, queries: Any, items: Any) -> np.ndarray:
        return self.for_task()._score_rows(queries, items)

    def _score_all(self, queries: Any, items: Any) -> np.ndarray:
        return self.for_task()._score_all(queries, items)

    @property
    def sparsity_(self) -> float:
        """Share of zeros of the matrix that all tasks have in common."""
        return sparsity(self.common)

    # -- triplets of many tasks ------------------------------------------------------------------

    def triplet_margin(self, triplets: Any, tasks: Any = None) -> np.ndarray:
        """How much more similar the anchor is to the first candidate than to the second, by its task.

        Parameters
        ----------
        triplets : (n, 3) integers, rows of `preprocessor`, or (n, 3, d) numbers
        tasks : array of n hashable values, optional
            Task of each triplet; None is the task of triplets given without one.
        """
        read = self._read_tuples(triplets, 3)
        return self._task_margins(read, [None] * len(read) if tasks is None else tasks)

    def _task_margins(self, triplets: Comparisons, tasks: Any) -> np.ndarray:
        names, margins = check_tasks(tasks, len(triplets), "triplet"), np.empty(len(triplets))
        rows: dict[tuple[Any, ...], list[int]] = {}
        for row, name in enumerate(names):
            rows.setdefault(self._key(name), []).append(row)
        for where in rows.values():
            part = replace(triplets, index=triplets.index[where])
            margins[where] = self.for_task(names[where[0]])._margins(part)
        return margins

    def decision_function(self, triplets: Any, tasks: Any = None) -> np.ndarray:
        """The same as `triplet_margin`."""
        return self.triplet_margin(triplets, tasks)

    def predict(self, triplets: Any, tasks: Any = None) -> np.ndarray:
        """+1 where the anchor is more similar to the first candidate, else -1."""
        return np.where(self.triplet_margin(triplets, tasks) > 0, 1, -1)

    def score(self, triplets: Any, y: Any = None, tasks: Any = None) -> float:
        """Share of triplets decided as `y` says (+1 for all if None)."""
        said = self.predict(triplets, tasks)
        expected = 1 if y is None else check_answers(y, len(said))
        return float(np.mean(said == expected))

    def _set_state(self, header: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        for name, matrix in (("common", self.common), *self.own.items()):
            if matrix.shape != self.common.shape or matrix.dtype != self.common.dtype:
                raise ValueError(
                    f"{name}: expected {self.common.dtype} of shape {self.common.shape}"
                )
            check_items(matrix, str(name))


class OwnParts(Mapping[Hashable, Any]):
    """What tasks learnt on their own, by name; a matrix is multiplied out when it is asked for.

    Parameters
    ----------
    numbers : number of each task by its name
    parts : with `matrix(number)` and `transform(rows, number)`
    weight : NumPy scalar that both are multiplied with
    """

    def __init__(self, numbers: Mapping[Hashable, int], parts: Any, weight: Any) -> None:
        self._numbers, self._parts, self._weight = numbers, parts, weight

    def __len__(self) -> int:
        return len(self._numbers)

    def __iter__(self) -> Iterator[Hashable]:
        return iter(self._numbers)

    def __contains__(self, task: object) -> bool:
        return task in self._numbers

    def __getitem__(self, task: Hashable) -> Any:
        return self._parts.matrix(self._numbers[task]) * self._weight

    def transform(self, rows: Any, task: Hashable) -> Any:
        """D'q of rows q and the matrix D of a task, which is not built where it is a sum of few terms."""
        return self._parts.transform(rows, self._numbers[task]) * self._weight
