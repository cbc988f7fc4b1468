"""Exact search over the rows of a file, which may be larger than memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..metrics.sweep import DEFAULT_MEMORY, Runner, pool_of, ranked_queries
from ..similarity.base import SearchResult
from ..validation import check_integer


def search_rows(
    model: Any,
    queries: Any,
    items: Any,
    k: int = 10,
    *,
    memory: int = DEFAULT_MEMORY,
    runner: Runner | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> SearchResult:
    """Most similar items of each query, best first; ties go to the lower row number.

    Items are read and scored block by block, once. What is found does not depend on `memory` nor on the
    number of processes.

    Parameters
    ----------
    model : fitted estimator or similarity
    queries : array or CSR matrix of shape (n_queries, d)
    items : array, CSR matrix, a file opened by `simstream.data.open_rows`, or `Items` of any of these
    k : int
        Number of items wanted; all of them if there are fewer.
    memory : int, default 512 MB
        Bytes of arrays that are held at a time, in each process, besides the queries and what is found.
    runner : default None
        Where items are scored: in this process, or by `simstream.distributed.EvaluationWorkers`.
    progress : function, optional
        Called with the number of items that are done and that of all.

    Returns
    -------
    SearchResult
        ``indices`` and ``scores``, both of shape (n_queries, k); and ``ids`` if the items have ids.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> import numpy as np
    >>> from simstream import Bilinear
    >>> from simstream.data import open_rows
    >>> from simstream.search import search_rows
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "items.npy"
    >>> np.save(path, np.array([[1.0, 0.0], [0.0, 5.0], [2.0, 1.0]]))
    >>> search_rows(Bilinear(np.eye(2)), [[1.0, 0.1]], open_rows(path), k=2).indices.tolist()
    [[2, 0]]
    """
    k = check_integer("k", k)
    pool = pool_of(model, queries, items, None, memory)
    options: Any = {"runner": runner, "progress": progress}
    parts = ranked_queries(pool, None, n_nearest=min(k, len(pool.items)), **options)
    found, scores = zip(*((part.nearest.items, part.nearest.scores) for part in parts), strict=True)
    return SearchResult(np.concatenate(found), np.concatenate(scores)).named(items)
