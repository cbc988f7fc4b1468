"""The cost of learning and querying: losses on the way, training time beside textbook NumPy, query time.

The data, the division and the choice of parameters are those of `retrieval`.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import scipy.sparse as sp

from simstream import SDCA, metrics

from .. import reference
from ..clock import working_seconds
from ..records import Cell
from . import retrieval
from .common import (
    Curves,
    add_point,
    digest,
    extrapolated_seconds,
    make,
    record,
    teach,
    triplet_stream,
)
from .retrieval import RetrievalSettings, parts

#: Parameters are chosen as there.
tune = retrieval.tune

# -- losses -----------------------------------------------------------------------------------------------


class OnlineLossSettings(RetrievalSettings, frozen=True, kw_only=True):
    """Settings of `online_loss`."""

    #: Number of steps, in units of `n_triplets`.
    n_epochs: int


def run_losses(cell: Cell, settings: OnlineLossSettings) -> dict[str, Any]:
    """Loss and mistakes while learning, against the number of steps.

    Every step draws one of `n_triplets` fixed triplets with replacement, in the same order for all online
    learners (SDCA draws its own). Curves are means over all steps so far, each taken before its update:
    ``hinge`` loss, ``squared hinge`` (SDCA's own loss) and ``mistake rate``.
    """
    train, _ = parts(cell, settings, cell.seed)
    n, n_epochs = settings.n_triplets, settings.n_epochs
    triplets = triplet_stream(train.labels, n, cell.seed)
    curves: Curves = {}
    if cell.learner == SDCA.__name__:
        model = make(cell, n_epochs=n_epochs)
        seconds = teach(model, train, triplets)
        steps = n * np.arange(1, n_epochs + 1)
        for name in ("hinge", "squared_hinge", "mistake_rate"):
            so_far = np.cumsum(model.history_[name]) / np.arange(1, n_epochs + 1)
            curves[name.replace("_", " ")] = {"x": steps.tolist(), "y": so_far.tolist()}
    else:
        draws = np.random.default_rng(cell.seed).integers(n, size=n * n_epochs)

        def at_stop(step: int, learner: Any) -> None:
            add_point(curves, "hinge", step, float(learner.average_loss_))
            add_point(curves, "mistake rate", step, float(learner.mistake_rate_))

        stops = [n * epoch for epoch in range(1, n_epochs + 1)]
        seconds = teach(make(cell), train, triplets[draws], stops=stops, at_stop=at_stop)
    measures = {name: curve["y"][-1] for name, curve in curves.items()} | {"seconds": seconds}
    return record(cell, measures, curves, seconds, stream=digest(triplets))


# -- training beside textbook NumPy -----------------------------------------------------------------------


class PlainNumpySettings(RetrievalSettings, frozen=True, kw_only=True):
    """Settings of `plain_numpy`."""

    #: Number of textbook steps that are timed.
    eager_steps: int


#: Learner -> its textbook version, and the parameters that it takes.
_TEXTBOOK: dict[str, tuple[Any, tuple[str, ...]]] = {
    "OASIS": (reference.oasis, ("C", "variant")),
    "SORS": (reference.sors, ("lam", "eta", "off_diagonal")),
    "AdaSORS": (reference.adasors, ("lam", "eta", "delta", "off_diagonal")),
    "AROMA": (reference.aroma_diagonal, ("r",)),
}


def run_plain(cell: Cell, settings: PlainNumpySettings) -> dict[str, Any]:
    """Training time beside that of the same steps in textbook NumPy, on this machine.

    The textbook's time for the whole stream follows from that of its first steps, which change M more often
    than later ones do.
    """
    train, _ = parts(cell, settings, cell.seed)
    triplets = triplet_stream(train.labels, settings.n_triplets, cell.seed)
    model = make(cell)
    seconds = teach(model, train, triplets)
    method, names = _TEXTBOOK[cell.learner]
    options = {name: getattr(model, name) for name in names}
    if getattr(model, "covariance", "") == "diagonal-drop":
        options["drop"] = True

    def learn(n_steps: int) -> None:
        stream = reference.triplet_vectors(train.items, triplets[:n_steps])
        method.last(np.eye(train.items.shape[1]), stream, **options)

    plain = extrapolated_seconds(learn, settings.eager_steps, settings.n_triplets)
    measures = {"seconds": seconds, "eager seconds": plain, "speed-up": plain / seconds}
    return record(cell, measures, {}, seconds, stream=digest(triplets))


# -- queries ----------------------------------------------------------------------------------------------

_QUERIES_AT_A_TIME = 1000


class QueryTimeSettings(RetrievalSettings, frozen=True, kw_only=True):
    """Settings of `query_time`."""

    #: Numbers of queries.
    n_queries: tuple[int, ...]
    #: Whether a sparse M is used with sums in dense rows too (`add_rows`).
    accumulated: bool = False


@numba.njit(cache=True)
def add_rows(
    query_starts: np.ndarray,
    query_columns: np.ndarray,
    query_values: np.ndarray,
    starts: np.ndarray,
    columns: np.ndarray,
    values: np.ndarray,
    sums: np.ndarray,
) -> None:  # pragma: no cover
    """Add Q M to dense sums, both in CSR form: for each entry of a query, a row of M."""
    for i in range(len(query_starts) - 1):
        for place in range(query_starts[i], query_starts[i + 1]):
            row, weight = query_columns[place], query_values[place]
            for entry in range(starts[row], starts[row + 1]):
                sums[i, columns[entry]] += weight * values[entry]


def transform_by_rows(queries: Any, matrix: Any) -> np.ndarray:
    """Q M as an array, of a CSR matrix of queries and one of M.

    Examples
    --------
    >>> queries, matrix = sp.csr_matrix([[0.0, 2.0]]), sp.csr_matrix([[1.0, 0.0], [3.0, 4.0]])
    >>> transform_by_rows(queries, matrix)
    array([[6., 8.]])
    """
    sums = np.zeros((queries.shape[0], matrix.shape[1]), matrix.dtype)
    add_rows(
        queries.indptr,
        queries.indices,
        queries.data,
        matrix.indptr,
        matrix.indices,
        matrix.data,
        sums,
    )
    return sums


def run_queries(cell: Cell, settings: QueryTimeSettings) -> dict[str, Any]:
    """How long queries (test items, repeated) against the pool of test items take with a learnt M.

    M is used in the form that suits it: CSR if more than half of it is zero, else dense.
    """
    train, test = parts(cell, settings, cell.seed)
    triplets = triplet_stream(train.labels, settings.n_triplets, cell.seed)
    model = make(cell)
    seconds = teach(model, train, triplets)
    matrix = model.get_bilinear_matrix()
    zeros = metrics.sparsity(matrix)
    dense_matrix = matrix.toarray() if sp.issparse(matrix) else matrix
    forms = {"dense M": lambda queries: queries @ dense_matrix}
    if zeros > 0.5:
        sparse_matrix = sp.csr_matrix(matrix)
        forms["sparse M"] = lambda queries: queries @ sparse_matrix
        if settings.accumulated and sp.issparse(test.items):
            forms["sparse M, dense sums"] = lambda queries: transform_by_rows(
                queries, sparse_matrix
            )
    rng = np.random.default_rng(cell.seed)
    curves: Curves = {}
    for name, transform in forms.items():
        transform(test.items[:1]) @ test.items.T  # loads what is compiled
        for n in settings.n_queries:
            rows = rng.integers(len(test.labels), size=n)
            begin = working_seconds()
            for start in range(0, n, _QUERIES_AT_A_TIME):
                queries = test.items[rows[start : start + _QUERIES_AT_A_TIME]]
                transform(queries) @ test.items.T
            add_point(curves, f"query seconds, {name}", n, working_seconds() - begin)
    best = "query seconds, " + ("sparse M" if "sparse M" in forms else "dense M")
    curves["query seconds"] = curves[best]
    measures = {name: curve["y"][-1] for name, curve in curves.items()}
    measures["query seconds, fastest form"] = min(
        measures[f"query seconds, {one}"] for one in forms
    )
    measures |= {"sparsity": zeros, "seconds": seconds}
    if zeros > 0.5:  # of the rows that queries use, each as often as it is used
        uses = np.asarray((test.items != 0).sum(axis=0)).ravel()
        filled = np.diff(sparse_matrix.indptr) / sparse_matrix.shape[1]
        measures["sparsity of used rows"] = 1 - float(uses @ filled / uses.sum())
    return record(cell, measures, curves, seconds, stream=digest(triplets))
