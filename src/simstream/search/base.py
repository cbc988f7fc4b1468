"""What indexes share: their protocol, the vectors of a learnt similarity, checks, and their files."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
import scipy.sparse as sp

from ..ids import Id, check_ids
from ..persistence import ModelFileError, read_file
from ..validation import check_items


class Found(NamedTuple):
    """Items found for each query, best first.

    Parameters
    ----------
    ids : array of objects of shape (n_queries, k')
        Ids as they were added; k' is k, or the number of items if there are fewer. An approximate index that
        finds fewer fills up with None.
    scores : float32 array of shape (n_queries, k')
        Inner products; -inf where the id is None.
    """

    ids: np.ndarray
    scores: np.ndarray


class Index(Protocol):
    """Items with ids, searched by inner product.

    The learnt similarity s(q, x) = q' M x is the inner product of ``model.transform_query(q)`` with the
    unchanged item, so an index need not be rebuilt when the model changes (see `query_vectors` for
    distances). Vectors are stored in float32.
    """

    def add(self, ids: Iterable[Id], vectors: Any) -> None:
        """Add items; if an id is already in the index, raise an error and add nothing."""

    def remove(self, ids: Iterable[Id]) -> None:
        """Remove items; if an id is not in the index, raise an error and remove nothing."""

    def search(self, queries: Any, k: int = 10) -> Found:
        """Find the k items with the largest inner product with each query."""

    def __len__(self) -> int:
        """Number of items."""

    def __contains__(self, name: object) -> bool:
        """Whether there is an item with that id."""

    def save(self, path: str | Path) -> None:
        """Write the index to one file, atomically."""

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read an index written by ``save``."""


def item_vectors(model: Any, items: Any) -> Any:
    """Vectors of items for an inner-product index.

    For a bilinear similarity they are the items themselves, whatever is learnt later. For one of low rank
    they are ``model.transform_items(items)``, for a distance d(q, x) = |Lq - Lx|^2 they are
    (Lx, -|Lx|^2 / 2): an index of these is valid for one state of the model. So is one of a model with
    ``normalise=True``, where they are ``model.unit_vectors(items)``; `ExactView.scaled` keeps one number
    beside each of the unchanged items instead.

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
    learner = learner_of(model)
    if getattr(learner, "normalise", False):
        return learner.unit_vectors(items)
    if hasattr(learner, "transform_items"):
        return learner.transform_items(items)
    if not hasattr(learner, "pair_distance"):
        return items
    mapped = as_dense(learner.transform(items))
    half_norms = np.einsum("ij,ij->i", mapped, mapped) / 2
    return np.column_stack([mapped, -half_norms])


def query_vectors(model: Any, queries: Any) -> Any:
    """Vectors of queries whose inner products with `item_vectors` rank items as the model does.

    For a bilinear similarity: ``model.transform_query(queries)``; inner products are the similarity, up to a
    number that is the same for all items of a query where the model has a centre.
    For a distance: (Lq, 1); inner products are (|Lq|^2 - d(q, x)) / 2, largest for the nearest item. If items
    are far from zero compared with their distances, subtract their mean from items and queries first: this
    changes no distance and loses fewer digits in float32. With ``normalise=True``: vectors whose inner
    products with `item_vectors` are the cosines.
    """
    learner = learner_of(model)
    if getattr(learner, "normalise", False):
        return learner.unit_vectors(queries, side="queries")
    if not hasattr(learner, "pair_distance"):
        return learner.transform_query(queries)
    mapped = as_dense(learner.transform(queries))
    return np.column_stack([mapped, np.ones(len(mapped), mapped.dtype)])


def learner_of(model: Any) -> Any:
    """The learner inside ``FromLabels``, or the model itself."""
    return getattr(model, "learner_", model)


# -- checks and files ----------------------------------------------------------------------------


def check_new_ids(ids: Iterable[Id], known: Any) -> list[Id]:
    """Check ids of items to be added: none is in the index yet."""
    names = check_ids(ids)
    for name in names:
        if name in known:
            raise ValueError(f"ids: expected new ids, got {name!r}, which is already in the index")
    return names


def check_known_ids(ids: Iterable[Id], known: Any) -> list[Id]:
    """Check ids of items that must be in the index."""
    names = check_ids(ids)
    for name in names:
        if name not in known:
            raise KeyError(f"ids: expected ids of items in the index, got {name!r}")
    return names


def check_rows(rows: Any, name: str, *, n_features: int | None, n_rows: int | None = None) -> Any:
    """Check vectors: a float32 array, or a CSR matrix if they are sparse."""
    values = check_items(rows, name, dtype=np.float32).values
    if n_rows is not None and values.shape[0] != n_rows:
        raise ValueError(f"{name}: expected one for each of {n_rows} ids, got {values.shape[0]}")
    if n_features is not None and values.shape[1] != n_features:
        raise ValueError(f"{name}: expected {n_features} features, got {values.shape[1]}")
    return values


def as_dense(rows: Any) -> np.ndarray:
    """Rows as an array."""
    return rows.toarray() if sp.issparse(rows) else rows


def encode_ids(names: list[Id]) -> np.ndarray:
    """Ids as bytes of JSON, which tells integers from strings."""
    return np.frombuffer(json.dumps(names).encode(), np.uint8)


def decode_ids(data: np.ndarray, n: int) -> list[Id]:
    """Ids from the bytes of `encode_ids`."""
    names = check_ids(json.loads(data.tobytes()))
    if len(names) != n:
        raise ModelFileError(f"damaged index file: {len(names)} ids for {n} items")
    return names


def read_index_file(path: str | Path, kind: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Header and arrays of an index file of that kind."""
    header, arrays = read_file(path, what="index")
    description = header["index"]
    if description.get("kind") != kind:
        raise ModelFileError(
            f"{path}: expected an index of kind {kind!r}, got {description.get('kind')!r}"
        )
    return description, arrays
