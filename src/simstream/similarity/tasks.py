"""One bilinear similarity for each task (or user), the sum of a common part and one of its own."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import scipy.sparse as sp

from ..data.comparisons import Comparisons
from ..metrics import sparsity
from ..validation import check_answers, check_items, check_tasks
from .base import ScoreFunction, SearchResult, Sides, Similarity
from .bilinear import Bilinear
from .cosine import Cosine


class Tasks(Similarity):
    """Bilinear similarities s_k(q, x) = q' M_k x of tasks k, with M_k = common + own[k]: nothing is learnt.

    A task that is not in `own` has the common part alone.

    Parameters
    ----------
    common : array or CSR matrix of shape (d, d')
    own : mapping of tasks (hashable values) to matrices of that shape
        Do not change them in place. If only some of all matrices are sparse, all are used as arrays.
    dtype : "float32" or "float64", optional
        By default float64, or float32 if all matrices are.
    normalise : bool
        Score by the cosine in the space of each task; see `Bilinear`.
    preprocessor : array, sparse matrix, table, `Items` or pair of them, optional
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

    #: The parts and the task that were used last, and the similarity of the two.
    _built: tuple[Any, ...] | None = None

    def __init__(
        self,
        common: Any,
        own: Mapping[Hashable, Any],
        *,
        dtype: Any = None,
        normalise: bool = False,
        preprocessor: Any = None,
    ) -> None:
        self.common = common
        self.own = own
        self.dtype = dtype
        self.normalise = normalise
        self.preprocessor = preprocessor

    @classmethod
    def _of(cls, common: Any, own: Mapping[Hashable, Any]) -> Tasks:
        """Of matrices that need no check."""
        self = cls(common, own)
        self._kept = ((common, own, None), (common, own))
        return self

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        state.pop("_built", None)
        return state

    def _parts(self) -> tuple[Any, Mapping[Hashable, Any]]:
        """The common matrix and those of the tasks: of one shape and precision, all arrays or all CSR."""
        return self._made(self._checked_parts, self.common, self.own, self.dtype)

    def _checked_parts(self) -> tuple[Any, Mapping[Hashable, Any]]:
        common = check_items(self.common, "common", dtype=self.dtype).values
        if not isinstance(self.own, Mapping):
            raise TypeError(
                f"own: expected a mapping of tasks to matrices, got {type(self.own).__name__}"
            )
        if isinstance(self.own, OwnParts):
            # One stands for all, which would take much memory if they were multiplied out.
            one = next(iter(self.own.values()), common)
            if _kind(one) == _kind(common):
                return common, self.own
        own = {}
        for task in self.own:
            name = f"own[{task!r}]"
            own[task] = check_items(self.own[task], name, dtype=self.dtype).values
            if own[task].shape != common.shape:
                raise ValueError(
                    f"{name}: expected shape {common.shape}, as common has, got {own[task].shape}"
                )
        matrices = [common, *own.values()]
        dtype = np.result_type(*{matrix.dtype for matrix in matrices})
        if not all(map(sp.issparse, matrices)):
            matrices = [m.toarray() if sp.issparse(m) else m for m in matrices]
        common, *rest = (matrix.astype(dtype, copy=False) for matrix in matrices)
        return common, dict(zip(own, rest, strict=True))

    @property
    def shape_(self) -> tuple[int, int]:
        """Features of queries and of items."""
        return self._parts()[0].shape

    @property
    def dtype_(self) -> np.dtype[Any]:
        """Precision of the matrices, and of the items when they are scored."""
        return self._parts()[0].dtype

    @property
    def tasks_(self) -> list[Hashable]:
        """Tasks with a similarity of their own."""
        return list(self._parts()[1])

    def _key(self, task: Hashable) -> tuple[Any, ...]:
        """What tells the matrix of one task from that of another; unknown tasks share theirs."""
        is_known = task in self._parts()[1]
        return (is_known, task if is_known else None)

    def matrix(self, task: Hashable = None) -> Any:
        """M of a task; what all have in common for an unknown task. Do not change it."""
        common, own = self._parts()
        return common + own[task] if task in own else common

    def for_task(self, task: Hashable = None) -> Bilinear:
        """The similarity of a task as a model of its own; the common part for an unknown task."""
        used = self._of_task(task)
        one = Bilinear._of(used._matrix())._with_items(self)
        one.normalise, one._cosine_kept = used.normalise, used._cosine_kept
        return one

    def _of_task(self, task: Hashable = None) -> Bilinear:
        """The similarity of a task for use in here: kept for the next call, with its cosine."""
        parts, key, built = self._parts(), self._key(task), self._built
        if built is None or built[0] is not parts or built[1] != key:
            built = self._built = None  # one matrix at a time
            built = self._built = (parts, key, self._bilinear(task))
        built[2].normalise = self.normalise
        return built[2]._with_items(self)

    def _bilinear(self, task: Hashable) -> Bilinear:
        return Bilinear._of(self.matrix(task))

    # -- the similarity of one task --------------------------------------------------------------

    def get_bilinear_matrix(self, task: Hashable = None) -> Any:
        """Copy of a task's M in s(q, x) = q' M x."""
        return self._of_task(task).get_bilinear_matrix()

    def transform_query(self, queries: Any, task: Hashable = None) -> Any:
        """Map queries q to M'q of a task, so that inner products with items are its similarity.

        It takes two products: M itself is not built. With `normalise`, see `Bilinear.transform_query`.
        """
        if self.normalise:
            return self._of_task(task).transform_query(queries)
        rows = self._read_rows(queries, "queries", 0)
        common, own = self._parts()
        asked = rows @ common
        if task not in own:
            return asked
        if isinstance(own, OwnParts):
            return asked + own.transform(rows, task)
        return asked + rows @ own[task]

    def item_scale(self, items: Any, task: Hashable = None) -> np.ndarray:
        """The number of each item that its inner products are multiplied by; see `Bilinear.item_scale`."""
        return self._of_task(task).item_scale(items)

    def pair_score(self, pairs: Any, task: Hashable = None) -> np.ndarray:
        """Similarity of each pair by a task; higher is more similar."""
        return self._of_task(task).pair_score(pairs)

    def score_items(self, queries: Any, items: Any, task: Hashable = None) -> np.ndarray:
        """Similarity of every query with every item by a task."""
        return self._of_task(task).score_items(queries, items)

    def sides(self, near: Any, task: Hashable = None) -> Sides:
        """The similarity of a task in three steps; see `Similarity.sides`."""
        return self._of_task(task).sides(near)

    def search(self, queries: Any, items: Any, k: int = 10, task: Hashable = None) -> SearchResult:
        """Most similar items of each query by a task, best first."""
        return self._of_task(task).search(queries, items, k)

    def get_metric(self, task: Hashable = None) -> ScoreFunction:
        """A function (u, v) of two vectors that returns their similarity by a task, frozen as it is now."""
        return self._of_task(task).get_metric()

    def _score_rows(self, queries: Any, items: Any) -> np.ndarray:
        return self._of_task()._score_rows(queries, items)

    def _own_sides(self, near: Any) -> tuple[Callable[..., Any], ...]:
        return self._of_task()._own_sides(near)

    def _cosine_parts(self) -> tuple[Any, ...]:
        return (self._parts(),)

    def _new_cosine(self, *parts: Any) -> Cosine:
        return self._of_task()._cosine()

    @property
    def sparsity_(self) -> float:
        """Share of zeros of the matrix that all tasks have in common."""
        return sparsity(self._parts()[0])

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
            margins[where] = self._of_task(names[where[0]])._margins(part)
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


def _kind(matrix: Any) -> tuple[Any, ...]:
    """What all matrices of a `Tasks` have the same of."""
    return matrix.shape, matrix.dtype, sp.issparse(matrix)


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
