"""What every similarity can do, however it was learnt: read tuples, score pairs, decide triplets, search."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError

from ..data.comparisons import Comparisons
from ..persistence import Savable
from ..validation import Items, check_choice, check_index_tuples, check_integer, check_items
from .scoring import ScoreFunction, SearchResult, chunks, top_k

_ROLES = ("anchor", "positive", "negative")


class SimilarityEstimator(Savable, BaseEstimator):
    """Base of all estimators of a similarity of two items.

    Subclasses provide `_learnt` (something with a `shape` and a `dtype`, or None before learning),
    `_score_rows` and `_score_all`.
    """

    preprocessor: Any
    dtype: Any
    _items_cache: tuple[Any, Any, Items, Items] | None = None

    #: What must be called before the estimator can be used.
    _to_be_called = "fit, partial_fit or learn_one"

    def _learnt(self) -> Any:
        """What was learnt, with a `shape` and a `dtype`; None if nothing was."""
        raise NotFittedError("provided by the estimator")

    def _fitted(self) -> Any:
        learnt = self._learnt()
        if learnt is None:
            raise NotFittedError(
                f"this {type(self).__name__} has not learnt anything yet: call {self._to_be_called} first"
            )
        return learnt

    @property
    def shape_(self) -> tuple[int, int]:
        """Features of queries and of items."""
        rows, columns = self._fitted().shape
        return int(rows), int(columns)

    @property
    def dtype_(self) -> np.dtype[Any]:
        """Precision of the learnt numbers, and of the items as they are used."""
        return np.dtype(self._fitted().dtype)

    def __sklearn_is_fitted__(self) -> bool:
        return self._learnt() is not None

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        state.pop("_items_cache", None)
        return state

    def check_parameters(self) -> None:
        """Raise if a parameter of the constructor is not legal; `fit` does so too."""
        self._check_parameters()

    def _check_parameters(self) -> None:
        if self.dtype is not None:
            check_choice("dtype", str(np.dtype(self.dtype)), ("float32", "float64"))

    # -- reading input ------------------------------------------------------------------------

    def _target_dtype(self) -> Any:
        """Precision that items must have: that of the model, or what the parameter says."""
        learnt = self._learnt()
        return learnt.dtype if learnt is not None else self.dtype

    def _preprocessed(self, dtype: Any) -> tuple[Items, Items]:
        """The items behind row numbers: (left, right), the same object in one item space.

        They are checked once for each object given as `preprocessor`: do not change it in place.
        """
        source = self.preprocessor
        if source is None:
            raise ValueError(
                "preprocessor: expected items (an array, a CSR matrix, or a pair of them) to look up "
                "row numbers, got None"
            )
        cached = self._items_cache
        if cached is None or cached[0] is not source or cached[1] != dtype:
            if isinstance(source, tuple):
                if len(source) != 2:
                    raise ValueError(
                        f"preprocessor: expected a pair (queries, items), got {len(source)} parts"
                    )
                left = check_items(source[0], "preprocessor[0]", dtype=dtype)
                right = check_items(source[1], "preprocessor[1]", dtype=dtype or left.dtype)
            else:
                left = right = check_items(source, "preprocessor", dtype=dtype)
            cached = self._items_cache = (source, dtype, left, right)
        return cached[2], cached[3]

    def _read_tuples(self, tuples: Any, size: int, dtype: Any) -> Comparisons:
        """Checked tuples of so many items, given as row numbers or as vectors; labels are not looked at."""
        what = "triplets" if size == 3 else "pairs"
        if sp.issparse(tuples):
            raise TypeError(
                f"{what}: expected an array, got a sparse matrix; pass it as preprocessor"
            )
        array = np.asarray(tuples)
        if array.ndim == 3:
            if array.shape[1] != size:
                raise ValueError(f"{what}: expected shape (n, {size}, d), got {array.shape}")
            if len(array) == 0:
                raise ValueError(f"{what}: expected at least one, got none")
            flat = array.reshape(-1, array.shape[2])
            items = check_items(flat, what, dtype=dtype)
            return Comparisons(items, items, np.arange(len(flat)).reshape(-1, size))
        is_index = array.ndim == 2 and array.shape[1] == size and array.dtype.kind in "iu"
        if self.preprocessor is None and not is_index:
            raise ValueError(
                f"{what}: expected row numbers of shape (n, {size}), or vectors of shape (n, {size}, d), got "
                f"{array.dtype} of shape {array.shape}"
            )
        left, right = self._preprocessed(dtype)
        sizes = (left.shape[0], *[right.shape[0]] * (size - 1))
        roles = _ROLES if size == 3 else ("first item", "second item")
        return Comparisons(left, right, check_index_tuples(array, sizes, roles))

    def _check_features(self, left: Any, right: Any) -> None:
        expected = self._fitted().shape
        got = left.shape[1], right.shape[1]
        if got != expected:
            if expected[0] == expected[1] and got[0] == got[1]:
                raise ValueError(
                    f"items: expected {expected[0]} features, as the model was first given, got {got[0]}"
                )
            raise ValueError(
                f"items: expected {expected[0]} features on the left and {expected[1]} on the right, "
                f"as the model was first given, got {got[0]} and {got[1]}"
            )

    # -- using the similarity -----------------------------------------------------------------

    def _score_rows(self, queries: Any, items: Any) -> np.ndarray:
        raise NotFittedError("provided by the model")

    def _score_all(self, queries: Any, items: Any) -> np.ndarray:
        raise NotFittedError("provided by the model")

    def _rows_in_chunks(self, tuples: Comparisons) -> list[slice]:
        width = max(self._fitted().shape)
        return chunks(len(tuples), width * tuples.left.dtype.itemsize)

    def pair_score(self, pairs: Any) -> np.ndarray:
        """Similarity of each pair; higher is more similar.

        Parameters
        ----------
        pairs : (n, 2) integers, rows of `preprocessor`, or (n, 2, d) numbers

        Returns
        -------
        array of shape (n,)
        """
        read = self._read_tuples(pairs, 2, self._fitted().dtype)
        self._check_features(read.left, read.right)
        return self._pair_scores(read)

    def _pair_scores(self, pairs: Comparisons) -> np.ndarray:
        left, right, index = pairs.left, pairs.right, pairs.index
        return np.concatenate(
            [
                self._score_rows(left.rows(index[s, 0]), right.rows(index[s, 1]))
                for s in self._rows_in_chunks(pairs)
            ]
        )

    def triplet_margin(self, triplets: Any) -> np.ndarray:
        """How much more similar the anchor is to the positive than to the negative.

        Parameters
        ----------
        triplets : (n, 3) integers, rows of `preprocessor`, or (n, 3, d) numbers

        Returns
        -------
        array of shape (n,)
        """
        read = self._read_tuples(triplets, 3, self._fitted().dtype)
        self._check_features(read.left, read.right)
        return self._margins(read)

    def _margins(self, triplets: Comparisons) -> np.ndarray:
        left, right, index = triplets.left, triplets.right, triplets.index
        parts = []
        for s in self._rows_in_chunks(triplets):
            anchors = left.rows(index[s, 0])
            positive = self._score_rows(anchors, right.rows(index[s, 1]))
            parts.append(positive - self._score_rows(anchors, right.rows(index[s, 2])))
        return np.concatenate(parts)

    def score_items(self, queries: Any, items: Any) -> np.ndarray:
        """Similarity of every query with every item, an array of shape (n_queries, n_items).

        `search` and `simstream.metrics` work in chunks and never build the whole array.
        """
        engine = self._fitted()
        left = check_items(queries, "queries", dtype=engine.dtype)
        right = check_items(items, "items", dtype=engine.dtype)
        self._check_features(left, right)
        return self._score_all(left.values, right.values)

    def search(self, queries: Any, items: Any, k: int = 10) -> SearchResult:
        """Most similar items of each query, best first; ties go to the lower row number.

        Parameters
        ----------
        queries, items : arrays or CSR matrices
        k : int
            Number of items wanted; all of them if there are fewer.

        Returns
        -------
        SearchResult
            ``indices`` and ``scores``, both of shape (n_queries, k).
        """
        engine = self._fitted()
        k = check_integer("k", k)
        left = check_items(queries, "queries", dtype=engine.dtype)
        right = check_items(items, "items", dtype=engine.dtype)
        self._check_features(left, right)
        parts = [
            top_k(self._score_all(left.values[s], right.values), min(k, right.shape[0]))
            for s in chunks(left.shape[0], 4 * right.shape[0] * engine.dtype.itemsize)
        ]
        return SearchResult(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))

    def get_metric(self) -> ScoreFunction:
        """A function (u, v) of two vectors that returns their similarity, frozen as it is now.

        Higher is more similar, as in `pair_score`; where scikit-learn wants a distance, negate it.
        """
        frozen = self._frozen_score()

        def metric(u: Any, v: Any) -> float:
            a, b = check_items(one_row(u), "u").values, check_items(one_row(v), "v").values
            return float(frozen(a, b)[0])

        return metric

    def _frozen_score(self) -> Any:
        self._fitted()
        return self._score_rows

    # -- saving -------------------------------------------------------------------------------

    def save(self, path: str | Path, *, extra: dict[str, Any] | None = None) -> None:
        """Write the model to a safetensors file, atomically; `simstream.load` reads it back.

        The items (`preprocessor`) are not saved.

        Parameters
        ----------
        path : file name
        extra : dict of JSON values kept with the model, for the caller's own use
        """
        self._fitted()
        super().save(path, extra=extra)


class TripletDecisions:
    """Deciding triplets, for estimators that learn from them."""

    def decision_function(self, triplets: Any) -> np.ndarray:
        """How much more similar the anchor is to the positive than to the negative: `triplet_margin`."""
        return self.triplet_margin(triplets)  # type: ignore[attr-defined]

    def predict(self, triplets: Any) -> np.ndarray:
        """+1 where the anchor is more similar to the positive, else -1."""
        return np.where(self.decision_function(triplets) > 0, 1, -1)

    def score(self, triplets: Any, y: Any = None) -> float:
        """Triplet accuracy: the share of triplets whose order the model gets right."""
        return float(np.mean(self.decision_function(triplets) > 0))


def one_row(vector: Any) -> Any:
    """A vector as a matrix of one row."""
    if sp.issparse(vector):
        if vector.ndim == 1:  # a row of a csr_array
            vector = vector.reshape(1, -1).tocsr()
        if vector.ndim != 2 or vector.shape[0] != 1:
            raise ValueError(f"vector: expected a CSR matrix of one row, got shape {vector.shape}")
        return vector
    array = np.asarray(vector)
    if array.ndim != 1:
        raise ValueError(f"vector: expected one dimension, got shape {array.shape}")
    return array[None, :]
