"""Vectors of texts, as lists of numbers, mapped for a store that searches by inner product."""

from __future__ import annotations

from typing import Any

from ..search.base import as_dense, item_vectors, learner_of, query_vectors


class MappedVectors:
    """Vectors of queries and of documents as a model wants them; see `simstream.search.query_vectors`.

    The model is looked at in every call: when it learns on, the next query is mapped by what it has learnt.

    Parameters
    ----------
    model : fitted similarity or learner

    Examples
    --------
    >>> import numpy as np
    >>> from simstream import Bilinear
    >>> mapped = MappedVectors(Bilinear(np.diag([2.0, 1.0])))
    >>> mapped.query([1.0, 1.0]), mapped.documents([[1.0, 3.0]])
    ([2.0, 1.0], [[1.0, 3.0]])
    """

    def __init__(self, model: Any) -> None:
        is_fitted = getattr(learner_of(model), "__sklearn_is_fitted__", None)
        if is_fitted is None or not is_fitted():
            raise TypeError(f"model: expected a fitted similarity or learner, got {model!r}")
        self.model = model

    def query(self, vector: list[float]) -> list[float]:
        """The vector of one query."""
        return as_dense(query_vectors(self.model, [vector]))[0].tolist()

    def documents(self, vectors: list[list[float]]) -> list[list[float]]:
        """Vectors of documents: the same list for a bilinear similarity, whose items stay as they are."""
        mapped = item_vectors(self.model, vectors) if len(vectors) else vectors
        return vectors if mapped is vectors else as_dense(mapped).tolist()
