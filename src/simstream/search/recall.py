"""How much of what exact search finds an approximate index finds too."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..similarity.scoring import row_products
from .exact import ExactIndex, ExactView
from .protocol import Index
from .vectors import query_vectors


def recall(
    model: Any, index: Index, exact: ExactIndex | ExactView, queries: Any, k: int = 10
) -> float:
    """Share of the k best items under the learnt similarity that an index finds: recall@k.

    An item that is as good as the last of the exact answer counts as found, so that ties (copies of an
    item) cost nothing.

    Parameters
    ----------
    model : fitted estimator
        Its similarity asks; `query_vectors` makes the vectors.
    index : Index
        The index to be measured.
    exact : ExactIndex or its view
        The same items.
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
    """Inner products in double precision, one by one: equal vectors have equal scores."""
    rows = view.vectors(names).astype(np.float64)
    one = query if query.ndim == 2 else query[None]
    return row_products(rows, one[np.zeros(len(names), np.int64)].astype(np.float64))
