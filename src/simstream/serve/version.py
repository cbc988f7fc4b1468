"""What is published: a model and items that never change, for any number of readers at a time."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from ..search import ExactView
from ..similarity.tasks import Tasks
from .tally import Tally


class Hit(NamedTuple):
    """An item found."""

    position: int
    score: float


class Model(NamedTuple):
    """Similarities s(q, x) = q'Mx after a position of the log: one for all, or one for each task.

    `common` is M of whoever has no task; it is None while nothing was learnt: the inner product.
    """

    position: int
    common: Any = None
    tasks: Tasks | None = None

    @property
    def of_task(self) -> Mapping[Hashable, Any]:
        """Tasks with a similarity of their own, by name."""
        return {} if self.tasks is None else self.tasks.own

    def matrix(self, task: Hashable = None) -> Any:
        """M of a task; what all have in common for a task never seen."""
        return self.common if self.tasks is None else self.tasks.matrix(task)

    def is_finite(self) -> bool:
        """Whether what all have in common can be used; what a task learnt is in there too."""
        matrix = self.common
        if matrix is None:
            return True
        return bool(np.isfinite(matrix.data if sp.issparse(matrix) else matrix).all())

    def transform(self, rows: Any, task: Hashable = None) -> Any:
        """Queries q as M'q."""
        if self.common is None:
            return rows
        similar = self.tasks
        asked = rows @ self.common if similar is None else similar.transform_query(rows, task)
        return sp.csr_matrix(asked) if sp.issparse(asked) else asked


def model_of(position: int, learner: Any, has_tasks: bool) -> Model:
    """The similarities of a learner as they are now; of no learner, the inner product."""
    if learner is None:
        return Model(position)
    if not has_tasks:
        return Model(position, learner.get_bilinear_matrix())
    tasks = learner.freeze()
    return Model(position, tasks.common, tasks)


def statistics_of(learner: Any) -> dict[str, Any]:
    """What a learner says of itself."""
    if learner is None:
        return {}
    return {
        "triplets": learner.n_rounds_,
        "updates": learner.n_updates_,
        "average_loss": learner.average_loss_,
        "mistake_rate": learner.mistake_rate_,
    }


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
