"""A similarity of two items: it scores pairs, decides triplets and searches, however it was learnt."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from copy import deepcopy
from operator import is_
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
import scipy.sparse as sp
from sklearn.base import BaseEstimator, clone

from .._kernels.ranking import nearest
from ..data.comparisons import Comparisons, ItemCache
from ..persistence import save_model
from ..validation import (
    check_choice,
    check_feature_names,
    check_features,
    check_integer,
    check_items,
)

if TYPE_CHECKING:
    from .cosine import Cosine

ScoreFunction = Callable[[Any, Any], float]

#: Bytes of scores (or transformed rows) kept at a time.
_CHUNK_BYTES = 64 * 2**20

#: Up to this many neighbours, inserting into a short list beats sorting everything.
_FEW = 128


class Sides(NamedTuple):
    """A similarity in three steps, so that many queries and many items are each prepared once.

    ``scores(queries(q), items(x))`` are the similarities of all rows q with all rows x. The functions take
    checked rows of `shape` and `dtype`, and may be called by several threads.
    """

    #: Features of queries and of items.
    shape: tuple[int, int]
    dtype: np.dtype[Any]
    queries: Callable[[Any], Any]
    items: Callable[[Any], Any]
    scores: Callable[[Any, Any], np.ndarray]


#: Longer lists are not shown: they are items.
_LONG = 8


class _Best(NamedTuple):
    indices: np.ndarray
    scores: np.ndarray


def are_quadruplets(tuples: Any) -> bool:
    """Whether tuples have four items each; errors are left to those who read them."""
    shape = np.shape(tuples)
    return len(shape) in (2, 3) and shape[1] == 4


class SearchResult(_Best):
    """Best items of each query, best first: a pair of arrays of shape (n_queries, k), and maybe ids.

    Attributes
    ----------
    indices : array of row numbers
    scores : array of similarities
    ids : array of objects, or None
        Where the items have ids (`simstream.Items`); not part of the pair.
    """

    ids: np.ndarray | None = None

    def named(self, items: Any) -> SearchResult:
        """The same with the ids of the items searched, if they have ids."""
        if getattr(items, "has_ids", False):
            ids = np.empty(len(items), object)
            ids[:] = items.ids
            self.ids = ids[self.indices]
        return self


def short_repr(estimator: Any) -> str:
    """The parameters of an estimator that differ from their defaults; of arrays only the shape and type.

    Examples
    --------
    >>> import numpy as np
    >>> from simstream import OASIS
    >>> OASIS(C=0.5, preprocessor=np.ones((100, 8)))
    OASIS(C=0.5, preprocessor=<100 x 8 ndarray of float64>)
    """
    defaults = inspect.signature(type(estimator)).parameters
    shown = []
    for name, value in estimator.get_params(deep=False).items():
        default = defaults[name].default
        is_plain = value is None or isinstance(value, (bool, int, float, str))
        if value is default or (is_plain and type(value) is type(default) and value == default):
            continue
        shown.append(f"{name}={_short(value)}")
    return f"{type(estimator).__name__}({', '.join(shown)})"


def _short(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(map(_short, value))})"
    if getattr(value, "shape", ()):
        size = " x ".join(map(str, value.shape))
        kind = f" of {value.dtype}" if hasattr(value, "dtype") else ""  # tables have several
        return f"<{size} {type(value).__name__}{kind}>"
    if isinstance(value, Mapping) or (isinstance(value, list) and len(value) > _LONG):
        return f"<{type(value).__name__} of {len(value)}>"
    return repr(value)


def clone_sharing_items(estimator: Any) -> Any:
    """A new estimator with the same parameters: `__sklearn_clone__` of everything that has a `preprocessor`.

    The items are shared, all other parameters are cloned as scikit-learn does: a grid search over a million
    items would copy them for every candidate and fold.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.base import clone
    >>> from simstream import OASIS
    >>> model = OASIS(C=0.5, preprocessor=np.ones((100, 8)))
    >>> clone(model).preprocessor is model.preprocessor
    True
    """
    parameters = {
        name: value if name == "preprocessor" else clone(value, safe=False)
        for name, value in estimator.get_params(deep=False).items()
    }
    cloned = type(estimator)(**parameters)
    for name in ("_metadata_request", "_sklearn_output_config"):  # set_output, set_fit_request
        if name in vars(estimator):
            setattr(cloned, name, deepcopy(vars(estimator)[name]))
    return cloned


class Similarity(BaseEstimator, ABC):
    """Base of all similarities: what they need to know is how to score rows of items."""

    dtype: Any = None
    normalise: Any = False
    preprocessor: Any = None
    _items: ItemCache | None = None
    #: What the cosine was made of when it was last used, and the cosine.
    _cosine_kept: tuple[Any, ...] | None = None
    #: The parameters that were used last, and what was made of them.
    _kept: tuple[Any, ...] | None = None

    __repr__ = short_repr
    __sklearn_clone__ = clone_sharing_items

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        state.pop("_kept", None)
        state.pop("_cosine_kept", None)
        return state

    def _made(self, make: Callable[[], Any], *parameters: Any) -> Any:
        """What `make` returns, kept until one of the parameters is another object.

        By identity: an id may be given to another array once this one is gone.
        """
        kept = self._kept
        if kept is None or not all(map(is_, parameters, kept[0])):
            self.check_parameters()
            kept = self._kept = (parameters, make())
        return kept[1]

    @property
    @abstractmethod
    def shape_(self) -> tuple[int, int]:
        """Features of queries and of items."""

    @property
    @abstractmethod
    def dtype_(self) -> np.dtype[Any]:
        """Precision of the similarity's numbers, and of the items when they are scored."""

    @abstractmethod
    def _score_rows(self, queries: Any, items: Any) -> np.ndarray:
        """Similarity of corresponding rows, not normalised."""

    @abstractmethod
    def _own_sides(self, near: Any) -> tuple[Callable[..., Any], ...]:
        """What maps queries, what maps items, and what scores the two; not normalised.

        `near` are some dense rows; None if queries or items are sparse.
        """

    def _score_all(self, queries: Any, items: Any) -> np.ndarray:
        """Similarity of every query with every item, not normalised."""
        is_dense = not (sp.issparse(queries) or sp.issparse(items))
        of_queries, of_items, scores = self._own_sides(items if is_dense else None)
        return scores(of_queries(queries), of_items(items))

    def _cosine_parts(self) -> tuple[Any, ...]:
        """What `_new_cosine` makes the cosine of: the same objects as long as it stays the same."""
        return ()

    def _new_cosine(self, *parts: Any) -> Cosine:
        """The cosine that is the similarity if it is normalised; raises where there is none."""
        raise ValueError(f"normalise: expected False for {type(self).__name__}, got True")

    def _cosine(self) -> Cosine:
        """The cosine, made when it is first used."""
        check_choice("normalise", self.normalise, (False, True))
        if self.shape_[0] != self.shape_[1]:
            raise ValueError(
                "normalise: expected queries and items with the same features, got "
                f"{self.shape_[0]} and {self.shape_[1]}"
            )
        parts, kept = self._cosine_parts(), self._cosine_kept
        if kept is None or not all(map(is_, parts, kept[0])):
            kept = self._cosine_kept = (parts, self._new_cosine(*parts))
        return kept[1]

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def check_parameters(self) -> None:
        """Raise if a parameter of the constructor is not legal."""
        if self.dtype is not None:
            check_choice("dtype", str(np.dtype(self.dtype)), ("float32", "float64"))
        check_choice("normalise", self.normalise, (False, True))

    @property
    def _feature_names(self) -> np.ndarray | None:
        """Names of the features learnt from, None if they had none."""
        return getattr(self, "feature_names_in_", None)

    def _with_items(self, owner: Any) -> Self:
        """Look up row numbers in the items of a learner or similarity, and expect its features."""
        self.preprocessor, self._items = owner.preprocessor, owner._item_cache()
        if owner._feature_names is not None:
            self.feature_names_in_ = owner._feature_names
        else:
            self.__dict__.pop("feature_names_in_", None)
        return self

    def _frozen(self) -> Similarity:
        """A similarity of a public class that shares nothing with a learner but its items."""
        return self

    def _freeze(self) -> Similarity:
        """The similarity as it is read now: it stays as it is when a learner goes on learning."""
        frozen = self._frozen()
        frozen.normalise = self.normalise
        return frozen

    # -- reading input ------------------------------------------------------------------------

    def _item_cache(self) -> ItemCache:
        if self._items is None:
            self._items = ItemCache()
        return self._items

    def _read_tuples(self, tuples: Any, size: int) -> Comparisons:
        read = self._item_cache().tuples(self.preprocessor, tuples, size, self.dtype_)
        check_features(self.shape_, read.left, read.right, self._feature_names)
        return read

    def _read_sides(self, queries: Any, items: Any) -> tuple[Any, Any]:
        left = check_items(queries, "queries", dtype=self.dtype_)
        right = check_items(items, "items", dtype=self.dtype_)
        check_features(self.shape_, left, right, self._feature_names)
        return left.values, right.values

    def _read_rows(self, rows: Any, name: str, side: int) -> Any:
        """Checked rows of one side: 0 for queries, 1 for items."""
        checked = check_items(rows, name, dtype=self.dtype_)
        if checked.shape[1] != self.shape_[side]:
            raise ValueError(
                f"{name}: expected {self.shape_[side]} features, got {checked.shape[1]}"
            )
        check_feature_names(self._feature_names, checked, name)
        return checked.values

    # -- scoring ------------------------------------------------------------------------------

    def _rows_scored(self, queries: Any, items: Any) -> np.ndarray:
        """Similarity of corresponding rows."""
        if self.normalise:
            return self._cosine().score_rows(queries, items)
        return self._score_rows(queries, items)

    def _scorer_of(self, items: Any) -> Callable[[Any], np.ndarray]:
        """A function of queries: their similarities with all these items."""
        if not self.normalise:
            return lambda queries: self._score_all(queries, items)
        cosine = self._cosine()
        scale = cosine.scale(items)
        return lambda queries: cosine.score_all(queries, items, scale)

    def sides(self, near: Any) -> Sides:
        """The similarity in three steps: what maps queries, what maps items, what scores all pairs of them.

        Evaluation and search over many items map each query and each item once, however often they meet.

        Parameters
        ----------
        near : array or None
            Some queries or items: distances are computed around them, which changes no more than rounding.
            None if queries or items are sparse.

        Returns
        -------
        Sides

        Examples
        --------
        >>> import numpy as np
        >>> from simstream import Bilinear
        >>> rows = np.array([[1.0, 0.0], [1.0, 1.0]])
        >>> shape, dtype, queries, items, scores = Bilinear(np.diag([2.0, 1.0])).sides(rows)
        >>> scores(queries(rows), items(rows))
        array([[2., 2.],
               [2., 3.]])
        """
        steps = self._cosine().sides() if self.normalise else self._own_sides(near)
        return Sides(self.shape_, self.dtype_, *steps)

    def item_scale(self, items: Any) -> np.ndarray:
        """The number of each item that its inner products are multiplied by with `normalise`.

        It is 1 / sqrt(x'Px), and 0 for an item whose length is zero; all are 1 if `normalise` is off. Store
        these numbers beside an index of the unchanged items: ``transform_query(q) @ x * item_scale(x)``
        ranks, and an index is never rebuilt.

        Parameters
        ----------
        items : array or CSR matrix of shape (n_items, d)

        Returns
        -------
        array of shape (n_items,)

        Examples
        --------
        >>> import numpy as np
        >>> from simstream import Bilinear
        >>> model = Bilinear(np.diag([4.0, 1.0]), normalise=True)
        >>> items = np.array([[1.0, 0.0], [3.0, 8.0]])
        >>> model.item_scale(items)
        array([0.5, 0.1])
        >>> products = model.transform_query([[0.0, 2.0]]) @ items.T
        >>> bool(np.allclose(products * model.item_scale(items), model.score_items([[0.0, 2.0]], items)))
        True
        """
        rows = self._read_rows(items, "items", 1)
        return self._cosine().scale(rows) if self.normalise else np.ones(rows.shape[0], rows.dtype)

    def unit_vectors(self, rows: Any, side: str = "items") -> Any:
        """Vectors of items or queries whose plain inner products are the cosines; only with `normalise`.

        They have length one and live in the learnt space: any index finds neighbours among them, but it is
        valid for one state of the model only. See `item_scale` for one that keeps its items. For a sparse
        matrix of more than 2,000 features they are items multiplied by their numbers and transformed queries.

        Parameters
        ----------
        rows : array or CSR matrix of shape (n, d)
        side : "items" or "queries"

        Examples
        --------
        >>> import numpy as np
        >>> from simstream import Bilinear
        >>> model = Bilinear(np.diag([4.0, 1.0]), normalise=True)
        >>> unit = model.unit_vectors([[1.0, 0.0], [3.0, 8.0]])
        >>> np.round(unit @ unit.T, 12)
        array([[1. , 0.6],
               [0.6, 1. ]])
        """
        check_choice("side", side, ("items", "queries"))
        if not self.normalise:
            raise ValueError("unit_vectors: expected a similarity with normalise=True, got False")
        return self._cosine().unit(self._read_rows(rows, side, int(side == "items")), side)

    def pair_score(self, pairs: Any) -> np.ndarray:
        """Similarity of each pair; higher is more similar.

        Parameters
        ----------
        pairs : (n, 2) rows of `preprocessor`, or ids if it has ids, or (n, 2, d) numbers

        Returns
        -------
        array of shape (n,)
        """
        read = self._read_tuples(pairs, 2)
        left, right, index = read.left, read.right, read.index
        return np.concatenate(
            [
                self._rows_scored(left.rows(index[s, 0]), right.rows(index[s, 1]))
                for s in self._row_chunks(read)
            ]
        )

    def triplet_margin(self, triplets: Any) -> np.ndarray:
        """How much more similar the anchor is to the positive than to the negative.

        Parameters
        ----------
        triplets : (n, 3) rows of `preprocessor`, or ids if it has ids, or (n, 3, d) numbers

        Returns
        -------
        array of shape (n,)
        """
        return self._margins(self._read_tuples(triplets, 3))

    def _margins(self, triplets: Comparisons) -> np.ndarray:
        left, right, index = triplets.left, triplets.right, triplets.index
        parts = []
        for s in self._row_chunks(triplets):
            anchors = left.rows(index[s, 0])
            positive = self._rows_scored(anchors, right.rows(index[s, 1]))
            parts.append(positive - self._rows_scored(anchors, right.rows(index[s, 2])))
        return np.concatenate(parts)

    def quadruplet_margin(self, quadruplets: Any) -> np.ndarray:
        """How much more similar the first item is to the second than the third is to the fourth.

        Parameters
        ----------
        quadruplets : (n, 4) integers, rows of `preprocessor`, or (n, 4, d) numbers

        Returns
        -------
        array of shape (n,)

        Examples
        --------
        >>> from simstream import Bilinear
        >>> Bilinear([[2.0, 0.0], [0.0, 1.0]]).quadruplet_margin([[[1, 0], [3, 0], [0, 1], [0, 2]]])
        array([4.])
        """
        read = self._read_tuples(quadruplets, 4)
        left, right, index = read.left, read.right, read.index
        return np.concatenate(
            [
                self._rows_scored(left.rows(index[s, 0]), right.rows(index[s, 1]))
                - self._rows_scored(left.rows(index[s, 2]), right.rows(index[s, 3]))
                for s in self._row_chunks(read)
            ]
        )

    def _tuple_margin(self, tuples: Any) -> np.ndarray:
        """The margin of each triplet, or quadruplet."""
        return (
            self.quadruplet_margin(tuples)
            if are_quadruplets(tuples)
            else self.triplet_margin(tuples)
        )

    def _row_chunks(self, tuples: Comparisons) -> list[slice]:
        return chunks(len(tuples), max(tuples.shape) * tuples.left.dtype.itemsize)

    def score_items(self, queries: Any, items: Any) -> np.ndarray:
        """Similarity of every query with every item, an array of shape (n_queries, n_items).

        `search` and `simstream.metrics` work in chunks and never build the whole array.
        """
        left, right = self._read_sides(queries, items)
        return self._scorer_of(right)(left)

    def search(self, queries: Any, items: Any, k: int = 10) -> SearchResult:
        """Most similar items of each query, best first; ties go to the lower row number.

        Parameters
        ----------
        queries, items : arrays or sparse matrices, tables, or `Items`
        k : int
            Number of items wanted; all of them if there are fewer.

        Returns
        -------
        SearchResult
            ``indices`` and ``scores``, both of shape (n_queries, k); and ``ids`` if the items have ids.
        """
        k = check_integer("k", k)
        left, right = self._read_sides(queries, items)
        n_items, score = right.shape[0], self._scorer_of(right)
        parts = [
            top_k(score(left[s]), min(k, n_items))
            for s in chunks(left.shape[0], 4 * n_items * self.dtype_.itemsize)
        ]
        found = SearchResult(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))
        return found.named(items)

    def get_metric(self) -> ScoreFunction:
        """A function (u, v) of two vectors that returns their similarity, frozen as it is now.

        Higher is more similar, as in `pair_score`; where scikit-learn wants a distance, negate it.
        """
        frozen = self._freeze()
        shape = frozen.shape_

        def metric(u: Any, v: Any) -> float:
            a, b = check_items(one_row(u), "u").values, check_items(one_row(v), "v").values
            check_features(shape, a, b)
            return float(frozen._rows_scored(a, b)[0])

        return metric

    # -- deciding triplets --------------------------------------------------------------------

    def decision_function(self, triplets: Any) -> np.ndarray:
        """How much more similar the anchor is to the positive than to the negative: `triplet_margin`.

        Quadruplets work too: `quadruplet_margin`.
        """
        return self._tuple_margin(triplets)

    def predict(self, triplets: Any) -> np.ndarray:
        """+1 where the anchor is more similar to the positive, else -1."""
        return np.where(self.decision_function(triplets) > 0, 1, -1)

    def score(self, triplets: Any, y: Any = None) -> float:
        """Triplet accuracy: the share of triplets whose order the model gets right."""
        return float(np.mean(self.decision_function(triplets) > 0))

    # -- saving -------------------------------------------------------------------------------

    def save(self, path: str | Path, *, extra: dict[str, Any] | None = None) -> None:
        """Write the similarity to a safetensors file, atomically; `simstream.load` reads it back.

        The items (`preprocessor`) are not saved.

        Parameters
        ----------
        path : file name
        extra : dict of JSON values kept with the model, for the caller's own use
        """
        save_model(self, path, extra)

    def _get_state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """What is saved besides the parameters: JSON values, and arrays by name."""
        return {}, {}

    def _set_state(self, header: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        """Take over what `_get_state` gave; raises if the parameters do not make a similarity."""
        self.shape_  # noqa: B018


def one_row(vector: Any) -> Any:
    """A vector, or a matrix of one row, as a matrix of one row."""
    if sp.issparse(vector):
        if vector.ndim == 1:  # a row of a csr_array
            vector = vector.reshape(1, -1).tocsr()
        if vector.ndim != 2 or vector.shape[0] != 1:
            raise ValueError(f"vector: expected a CSR matrix of one row, got shape {vector.shape}")
        return vector
    array = np.asarray(vector)
    if array.ndim == 2 and len(array) == 1:
        return array
    if array.ndim != 1:
        raise ValueError(f"vector: expected one dimension, got shape {array.shape}")
    return array[None, :]


def chunks(n: int, bytes_per_row: int) -> list[slice]:
    """Cut n rows into slices of bounded memory."""
    size = max(1, _CHUNK_BYTES // max(1, bytes_per_row))
    return [slice(begin, min(n, begin + size)) for begin in range(0, n, size)]


def row_products(a: Any, b: Any) -> np.ndarray:
    """Inner products of corresponding rows, dense or sparse."""
    if sp.issparse(a):
        return np.asarray(a.multiply(b).sum(axis=1)).ravel()
    if sp.issparse(b):
        return np.asarray(b.multiply(a).sum(axis=1)).ravel()
    return np.einsum("ij,ij->i", a, b)


def same_rows(rows: Any) -> Any:
    """The step of a side that needs none."""
    return rows


def all_products(a: Any, b: Any) -> np.ndarray:
    """Inner products of all rows of a with all rows of b, as an array."""
    scores = a @ b.T
    return scores.toarray() if sp.issparse(scores) else np.asarray(scores)


def top_k(scores: np.ndarray, k: int) -> SearchResult:
    """Best k columns of each row, best first, ties by the lower index."""
    if k <= _FEW:
        indices = nearest(scores, np.full(len(scores), -1), k)
    else:
        indices = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return SearchResult(indices, np.take_along_axis(scores, indices, axis=1))
