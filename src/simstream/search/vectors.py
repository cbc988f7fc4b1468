"""Searching an index with a learnt similarity: what to index, what to ask, how much is found."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..similarity.base import row_products
from .exact import ExactIndex, ExactView
from .protocol import Index, as_dense


def item_vectors(model: Any, items: Any) -> Any:
    """Vectors of items for an inner-product index.

    For a bilinear similarity they are the items themselves, whatever is learnt later. For one of low rank
    they are ``model.transform_items(items)``, for a distance d(q, x) = |Lq - Lx|^2 they are
    (Lx, -|Lx|^2 / 2): an index of these is valid for one state of the model.

    Parameters
    ----------
    model : fitted estimator
    items : array or CSR matrix of shape (n, n_features)

    Examples
    --------
    >>> import numpy as np
    >>> from simstream import Mahalanobis
    >>> from simstream.search import item_vectors, query_vectors
    >>> model = Mahalanobis(np.diag([4.0, 1.0]))
    >>> item_vectors(model, [[1.0, 1.0]]), query_vectors(model, [[0.0, 1.0]])
    (array([[ 2. ,  1. , -2.5]]), array([[0., 1., 1.]]))
    """
    learner = _learner(model)
    if hasattr(learner, "transform_items"):
        return learner.transform_items(items)
    if not hasattr(learner, "pair_distance"):
        return items
    mapped = as_dense(learner.transform(items))
    half_norms = np.einsum("ij,ij->i", mapped, mapped) / 2
    return np.column_stack([mapped, -half_norms])


def query_vectors(model: Any, queries: Any) -> Any:
    """Vectors of queries whose inner products with `item_vectors` rank items as the model does.

    For a bilinear similarity: ``model.transform_query(queries)``; inner products are the similarity.
    For a distance: (Lq, 1); inner products are (|Lq|^2 - d(q, x)) / 2, largest for the nearest item. If items
    are far from zero compared with their distances, subtract their mean from items and queries first: this
    changes no distance and loses fewer digits in float32.
    """
    learner = _learner(model)
    if not hasattr(learner, "pair_distance"):
        return learner.transform_query(queries)
    mapped = as_dense(learner.transform(queries))
    return np.column_stack([mapped, np.ones(len(mapped), mapped.dtype)])


def _learner(model: Any) -> Any:
    """The learner inside ``FromLabels``, or the model itself."""
    return getattr(model, "learner_", model)


def recall(
    model: Any, index: Index, exact: ExactIndex | ExactView, queries: Any, k: int = 10
) -> float:
    """Recall@k: share of the k best items under the learnt similarity that an index finds.

    An item that scores as high as the last of the exact answer counts as found, so that ties (copies of an
    item) cost nothing.

    Parameters
    ----------
    model : fitted estimator
        Its similarity ranks the items.
    index : Index
        The index to measure.
    exact : ExactIndex or its view
        An exact index of the same items.
    queries : array or CSR matrix of shape (n_queries, n_features)
    k : int

    Returns
    -------
    float
        Mean over the queries.

    Examples
    --------
    >>> import numpy as np
    >>> from simstream import Bilinear
    >>> from simstream.search import ExactIndex, recall
    >>> items = np.random.default_rng(0).normal(size=(50, 4))
    >>> exact = ExactIndex()
    >>> exact.add(range(50), items)
    >>> recall(Bilinear(np.diag([3.0, 2.0, 1.0, 0.0])), exact, exact, items[:5])
    1.0
    """
    view = exact.view() if isinstance(exact, ExactIndex) else exact
    if len(index) != len(view):
        raise ValueError(
            f"index: expected the same {len(view)} items as in the exact index, got {len(index)}"
        )
    if len(view) == 0:
        raise ValueError("index: expected at least one item, got none")
    asked = query_vectors(model, queries)
    wanted, found = view.search(asked, k).ids, index.search(asked, k).ids
    n_hits = 0
    for query, best, names in zip(asked, wanted, found, strict=True):
        least = _scores(view, query, best.tolist()).min()
        present = [name for name in names if name is not None]
        n_hits += int((_scores(view, query, present) >= least).sum())
    return n_hits / wanted.size


def _scores(view: ExactView, query: Any, names: list[Any]) -> np.ndarray:
    """Inner products in double precision, row by row, so that equal vectors have equal scores."""
    rows = view.vectors(names).astype(np.float64)
    one = query if query.ndim == 2 else query[None]
    return row_products(rows, one[np.zeros(len(names), np.int64)].astype(np.float64))
