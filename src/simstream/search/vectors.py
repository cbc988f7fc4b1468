"""Learnt similarities and distances as inner products: what to index, and what to ask."""

from __future__ import annotations

from typing import Any

import numpy as np

from .protocol import as_dense


def item_vectors(model: Any, items: Any) -> Any:
    """Vectors of items for an index of inner products.

    Of a bilinear similarity they are the items as they are, whatever is learnt later. Of a distance
    d(q, x) = |Lq - Lx|^2 they are (Lx, -|Lx|^2 / 2): an index of these belongs to one state of the model.

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
    if not hasattr(learner, "pair_distance"):
        return items
    mapped = as_dense(learner.transform(items))
    half_norms = np.einsum("ij,ij->i", mapped, mapped) / 2
    return np.column_stack([mapped, -half_norms])


def query_vectors(model: Any, queries: Any) -> Any:
    """Vectors of queries, so that inner products with `item_vectors` rank as the model does.

    Of a bilinear similarity: ``model.transform_query(queries)``, and the inner products are the similarity.
    Of a distance: (Lq, 1), and the inner product is (|Lq|^2 - d(q, x)) / 2, largest for the nearest.
    Where items lie far from zero compared with their distances, subtract their mean from items and
    queries first: it changes no distance, and in float32 less cancels.
    """
    learner = _learner(model)
    if not hasattr(learner, "pair_distance"):
        return learner.transform_query(queries)
    mapped = as_dense(learner.transform(queries))
    return np.column_stack([mapped, np.ones(len(mapped), mapped.dtype)])


def _learner(model: Any) -> Any:
    """The learner inside ``FromLabels``, or the model itself."""
    return getattr(model, "learner_", model)
