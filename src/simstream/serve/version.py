"""What readers use: a published version never changes, so any number of them may read it at the same time."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from ..asking import Asking, bring_near, choose_triplet, draw_triplets
from ..search import ExactView
from ..similarity.tasks import Tasks
from .access import NotFoundError
from .items import ItemStore
from .state import Tally
from .writer import Question


class Model(NamedTuple):
    """Similarities s(q, x) = q'Mx after a position of the log: one for all, or one for each task.

    `common` is the M of queries without a task. It is None, for the inner product, until something was
    learnt. `tasks` is what `freeze` of a multi-task learner returned.
    """

    position: int
    common: Any = None
    tasks: Tasks | None = None

    @property
    def task_names(self) -> list[Hashable]:
        """Tasks with a similarity of their own."""
        return [] if self.tasks is None else list(self.tasks.own)

    def matrix(self, task: Hashable = None) -> Any:
        """M of a task; the common M for an unknown task."""
        return self.common if self.tasks is None else self.tasks.matrix(task)

    def is_finite(self) -> bool:
        """Whether the common M is finite, and with it those of all tasks, which are part of it."""
        matrix = self.common
        if matrix is None:
            return True
        return bool(np.isfinite(matrix.data if sp.issparse(matrix) else matrix).all())

    def transform(self, rows: Any, task: Hashable = None) -> Any:
        """Queries q as M'q."""
        if self.common is None:
            return rows
        tasks = self.tasks
        queries = rows @ self.common if tasks is None else tasks.transform_query(rows, task)
        return sp.csr_matrix(queries) if sp.issparse(queries) else queries


def model_of(position: int, learner: Any, has_tasks: bool) -> Model:
    """The current similarities of a learner; the inner product if there is no learner yet."""
    if learner is None:
        return Model(position)
    if not has_tasks:
        return Model(position, learner.get_bilinear_matrix())
    tasks = learner.freeze()
    return Model(position, tasks.common, tasks)


class Version(NamedTuple):
    """One published version."""

    #: All events up to here are included.
    position: int
    #: What searches use: the newest model, or the pinned one.
    model: Model
    is_pinned: bool
    #: Whether the newest model overflowed, so that an older one is served.
    has_diverged: bool
    view: ExactView | None
    tally: Tally
    #: The learner's own statistics.
    statistics: dict[str, Any]

    def search(
        self, rows: Any, k: int, task: Hashable = None, *, learnt: bool = True, leave_out: int = 0
    ) -> list[tuple[int, float]]:
        """Positions and scores of the items most similar to one query.

        Parameters
        ----------
        rows : the query, one row
        k : how many
        task : whose similarity
        learnt : False searches by the plain inner product
        leave_out : position of an item to leave out; 0 leaves out none
        """
        if self.view is None or len(self.view) == 0:
            return []
        query = self.model.transform(rows, task) if learnt else rows
        found = self.view.search(query, k + (leave_out > 0))
        pairs = zip(found.ids[0].tolist(), found.scores[0].tolist(), strict=True)
        return [pair for pair in pairs if pair[0] != leave_out][:k]

    def margins(self, rows: Any, task: Hashable = None) -> np.ndarray:
        """How much more similar each anchor is to its first candidate; rows hold all three in turn."""
        anchors, first, second = (rows[i::3] for i in range(3))
        return _products(self.model.transform(anchors, task), first - second)

    def choose_question(
        self, items: ItemStore, asking: Asking, task: str | None, rng: np.random.Generator
    ) -> Question:
        """Choose three of the searchable items to ask about; see `simstream.asking`."""
        view = self.view
        if view is None or len(view) < 3:
            raise NotFoundError("question: there are fewer than three items to ask about")
        positions = np.array(view.ids)

        def rows(numbers: np.ndarray) -> Any:
            return items.vectors(positions[numbers].ravel().tolist())

        def similarity(anchors: np.ndarray, others: np.ndarray) -> np.ndarray:
            return similarities(self.model, rows(anchors), rows(others), task)

        chosen = choose_triplet(
            lambda size: draw_triplets(len(positions), size, rng),
            lambda triplets: self.margins(rows(triplets), task),
            asking,
            rng,
            nearer=lambda triplets: bring_near(
                triplets, len(positions), asking.near, similarity, rng
            ),
        )
        anchor, first, second = (items.names[int(p)] for p in positions[chosen.triplet])
        return Question(anchor, (first, second), task, chosen.is_random, chosen.considered)


def similarities(model: Model, anchors: Any, others: Any, task: Hashable = None) -> np.ndarray:
    """Similarity of each anchor to its share of the others, which follow one another: one row per anchor.

    Examples
    --------
    >>> similarities(Model(0), np.array([[1.0, 0.0]]), np.array([[2.0, 5.0], [3.0, 5.0]]))
    array([[2., 3.]])
    """
    each = others.shape[0] // anchors.shape[0]
    queries = model.transform(anchors, task)[np.arange(anchors.shape[0]).repeat(each)]
    return _products(queries, others).reshape(-1, each)


def _products(first: Any, second: Any) -> np.ndarray:
    """Inner products row by row, dense or sparse."""
    if sp.issparse(first) or sp.issparse(second):
        return np.asarray(sp.csr_matrix(first).multiply(second).sum(axis=1)).ravel()
    return np.einsum("ij,ij->i", first, second)
