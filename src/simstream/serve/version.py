"""What is published: a model and items that never change, for any number of readers at a time."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from ..index import ExactView
from .tally import Tally


class Hit(NamedTuple):
    """An item found."""

    position: int
    score: float


class Model(NamedTuple):
    """Matrices of s(q, x) = q'Mx after a position of the log: of each task, and for whoever has none.

    `common` is None while nothing was learnt: the inner product.
    """

    position: int
    common: Any
    of_task: dict[Hashable, Any]

    def matrix(self, task: Hashable = None) -> Any:
        """M of a task; what all have in common for a task never seen."""
        return self.of_task.get(task, self.common)

    def is_finite(self) -> bool:
        """Whether all numbers can be used."""
        matrices = [
            matrix for matrix in (self.common, *self.of_task.values()) if matrix is not None
        ]
        return all(
            np.isfinite(matrix.data if sp.issparse(matrix) else matrix).all() for matrix in matrices
        )

    def transform(self, rows: Any, task: Hashable = None) -> Any:
        """Queries q as M'q."""
        matrix = self.matrix(task)
        if matrix is None:
            return rows
        if sp.issparse(rows):
            return sp.csr_matrix(rows @ matrix) if sp.issparse(matrix) else rows @ matrix
        return rows @ matrix


def model_of(position: int, learner: Any, has_tasks: bool) -> Model:
    """The matrices of a learner, copied; of no learner, the inner product."""
    if learner is None:
        return Model(position, None, {})
    if not has_tasks:
        return Model(position, learner.get_bilinear_matrix(), {})
    # A name that no request can have: what a task never seen gets.
    stranger = learner.get_bilinear_matrix(_Stranger())
    return Model(
        position, stranger, {task: learner.get_bilinear_matrix(task) for task in learner.tasks_}
    )


class _Stranger:
    """A task that nobody has."""


class Version(NamedTuple):
    """One published version."""

    #: Events up to here are in it.
    position: int
    #: What is searched with: the newest, or the pinned one.
    model: Model
    is_pinned: bool
    #: Whether what was learnt last is of no use, and something older is served.
    has_diverged: bool
    view: ExactView | None
    tally: Tally
    #: What the learner says of itself.
    statistics: dict[str, Any]

    def search(
        self, rows: Any, k: int, task: Hashable = None, *, learnt: bool = True, leave_out: int = 0
    ) -> list[Hit]:
        """The most similar items of one query.

        Parameters
        ----------
        rows : one row
        k : how many
        task : whose similarity
        learnt : False searches by the plain inner product
        leave_out : position of an item that is no answer; 0 is none
        """
        if self.view is None or len(self.view) == 0:
            return []
        asked = self.model.transform(rows, task) if learnt else rows
        found = self.view.search(asked, k + (leave_out > 0))
        pairs = zip(found.ids[0].tolist(), found.scores[0].tolist(), strict=True)
        return [Hit(name, score) for name, score in pairs if name != leave_out][:k]

    def margins(self, rows: Any, task: Hashable = None) -> np.ndarray:
        """How much more similar each anchor is to the first candidate; rows of all three in turn."""
        anchors, first, second = (rows[i::3] for i in range(3))
        asked = self.model.transform(anchors, task)
        difference = first - second
        if sp.issparse(asked) or sp.issparse(difference):
            return np.asarray(sp.csr_matrix(asked).multiply(difference).sum(axis=1)).ravel()
        return np.einsum("ij,ij->i", asked, difference)
