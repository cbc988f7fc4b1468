"""What every learner from triplets does the same way: reading tuples, learning, scoring, saving."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError

from .engines import Engine
from .persistence import Savable
from .similarity import ScoreFunction, SearchResult, chunks, top_k
from .validation import (
    Items,
    check_choice,
    check_index_tuples,
    check_integer,
    check_items,
)

_ROLES = ("anchor", "positive", "negative")


class TripletLearner(Savable, BaseEstimator):
    """Base of all learners from triplets (anchor, positive, negative).

    Subclasses store their parameters and provide `_check_parameters`, `_new_engine` and `_step`.
    """

    preprocessor: Any
    dtype: Any
    _engine: Any = None
    _items_cache: tuple[Any, Any, Items, Items] | None = None
    _read_cache: tuple[Any, Any] | None = None

    # -- learning -----------------------------------------------------------------------------

    def fit(self, triplets: Any, y: Any = None) -> Any:
        """Forget what was learnt and learn from these triplets, in order.

        Parameters
        ----------
        triplets : (n, 3) integers, rows of `preprocessor`, or (n, 3, d) numbers
            Anchor, positive, negative: the anchor is more like the positive than the negative.
        y : ignored

        Returns
        -------
        self
        """
        self._check_parameters()
        left, right, index = self._read_tuples(triplets, 3, self.dtype)
        engine = self._new_engine(left, right)
        self._forget(engine)
        return self._learn(left, right, index)

    def partial_fit(self, triplets: Any, y: Any = None) -> Any:
        """Go on learning from these triplets, in order. Same input as `fit`."""
        self._check_parameters()
        left, right, index = self._read_tuples(triplets, 3, self._target_dtype())
        return self._learn(left, right, index)

    def learn_one(self, x: Any, positive: Any, negative: Any) -> Any:
        """Learn from one triplet of vectors: 1-d arrays, or CSR matrices of one row."""
        self._check_parameters()
        dtype = self._target_dtype()
        left = check_items(_one_row(x), "x", dtype=dtype)
        pair = [_one_row(positive), _one_row(negative)]
        if pair[0].shape[1] != pair[1].shape[1]:
            raise ValueError(
                "negative: expected as many features as the positive "
                f"({pair[0].shape[1]}), got {pair[1].shape[1]}"
            )
        stacked = sp.vstack(pair, "csr") if any(map(sp.issparse, pair)) else np.concatenate(pair)
        right = check_items(stacked, "positive and negative", dtype=dtype or left.dtype)
        return self._learn(left, right, np.array([[0, 0, 1]]))

    def _learn(self, left: Items, right: Items, triplets: np.ndarray) -> Any:
        """Learn from checked triplets of row numbers."""
        engine = self._engine
        if engine is None:
            engine = self._new_engine(left, right)
            self._forget(engine)
        self._check_features(left, right)
        self._advance(engine, left, right, triplets)
        return self

    def _advance(self, engine: Any, left: Items, right: Items, triplets: np.ndarray) -> None:
        self._read_cache = None
        engine.learn(self._step(), left, right, triplets, self._block_size(engine, left, right))

    def _forget(self, engine: Engine) -> None:
        self._engine = engine
        self._read_cache = None
        self.n_features_in_ = engine.shape[0]  # type: ignore[attr-defined]

    def _block_size(self, engine: Any, left: Items, right: Items) -> int:
        return 1

    def _check_parameters(self) -> None:
        """Raise if a parameter of the constructor is not legal."""
        if self.dtype is not None:
            check_choice("dtype", str(np.dtype(self.dtype)), ("float32", "float64"))

    def _new_engine(self, left: Items, right: Items) -> Engine:
        """An engine for these items, nothing learnt yet. Raises before anything is changed."""
        raise NotFittedError("provided by the learner")

    def _step(self) -> Any:
        """The step record of the kernels, from the current parameters."""
        return None

    # -- reading input ------------------------------------------------------------------------

    def _target_dtype(self) -> Any:
        """Precision that items must have: that of the model, or what the parameter says."""
        return self._engine.dtype if self._engine is not None else self.dtype

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

    def _read_tuples(self, tuples: Any, size: int, dtype: Any) -> tuple[Items, Items, np.ndarray]:
        """Items and checked row numbers of tuples given as row numbers or as vectors."""
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
            return items, items, np.arange(len(flat)).reshape(-1, size)
        left, right = self._preprocessed(dtype)
        sizes = (left.shape[0], *[right.shape[0]] * (size - 1))
        roles = _ROLES if size == 3 else ("first item", "second item")
        return left, right, check_index_tuples(array, sizes, roles)

    def _check_features(self, left: Any, right: Any) -> None:
        expected = self._fitted().shape
        got = left.shape[1], right.shape[1]
        if got != expected:
            raise ValueError(
                f"items: expected {expected[0]} features on the left and {expected[1]} on the right, "
                f"as the model was first given, got {got[0]} and {got[1]}"
            )

    def _fitted(self) -> Any:
        if self._engine is None:
            raise NotFittedError(
                f"this {type(self).__name__} has not learnt anything yet: call fit, partial_fit or "
                "learn_one first"
            )
        return self._engine

    def __sklearn_is_fitted__(self) -> bool:
        return self._engine is not None

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        state.pop("_items_cache", None)
        state.pop("_read_cache", None)
        return state

    # -- what was counted ---------------------------------------------------------------------

    def _count(self, field: str) -> float:
        from .kernels import steps

        return float(self._fitted().clock[getattr(steps, field)])

    @property
    def n_rounds_(self) -> int:
        """Triplets seen."""
        return int(self._count("ROUNDS"))

    @property
    def n_updates_(self) -> int:
        """Triplets that violated the margin and changed the matrix."""
        return int(self._count("UPDATES"))

    @property
    def n_skipped_(self) -> int:
        """Triplets without a direction (a zero anchor, or equal rows): counted as rounds, no step."""
        return int(self._count("SKIPPED"))

    @property
    def average_loss_(self) -> float:
        """Mean hinge loss of all rounds, each before its own update."""
        return self._count("LOSS") / max(1.0, self._count("ROUNDS"))

    @property
    def mistake_rate_(self) -> float:
        """Share of rounds whose margin was not positive before the update."""
        return self._count("MISTAKES") / max(1.0, self._count("ROUNDS"))

    # -- using the similarity -----------------------------------------------------------------

    def _score_rows(self, queries: Any, items: Any) -> np.ndarray:
        raise NotFittedError("provided by the model")

    def _score_all(self, queries: Any, items: Any) -> np.ndarray:
        raise NotFittedError("provided by the model")

    def _rows_in_chunks(self, left: Items, index: np.ndarray) -> list[slice]:
        width = max(self._fitted().shape)
        return chunks(len(index), width * left.dtype.itemsize)

    def pair_score(self, pairs: Any) -> np.ndarray:
        """Similarity of each pair; higher is more similar.

        Parameters
        ----------
        pairs : (n, 2) integers, rows of `preprocessor`, or (n, 2, d) numbers

        Returns
        -------
        array of shape (n,)
        """
        left, right, index = self._read_tuples(pairs, 2, self._fitted().dtype)
        self._check_features(left, right)
        return np.concatenate(
            [
                self._score_rows(left.rows(index[s, 0]), right.rows(index[s, 1]))
                for s in self._rows_in_chunks(left, index)
            ]
        )

    def decision_function(self, triplets: Any) -> np.ndarray:
        """How much more similar the anchor is to the positive than to the negative."""
        left, right, index = self._read_tuples(triplets, 3, self._fitted().dtype)
        self._check_features(left, right)
        return self._margins(left, right, index)

    def _margins(self, left: Items, right: Items, index: np.ndarray) -> np.ndarray:
        parts = []
        for s in self._rows_in_chunks(left, index):
            anchors = left.rows(index[s, 0])
            positive = self._score_rows(anchors, right.rows(index[s, 1]))
            parts.append(positive - self._score_rows(anchors, right.rows(index[s, 2])))
        return np.concatenate(parts)

    def predict(self, triplets: Any) -> np.ndarray:
        """+1 where the anchor is more similar to the positive, else -1."""
        return np.where(self.decision_function(triplets) > 0, 1, -1)

    def score(self, triplets: Any, y: Any = None) -> float:
        """Triplet accuracy: the share of triplets whose order the model gets right."""
        return float(np.mean(self.decision_function(triplets) > 0))

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
            a, b = check_items(_one_row(u), "u").values, check_items(_one_row(v), "v").values
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

    def _get_state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        engine = self._fitted()
        header = {"engine": engine.kind, "average_from": engine.average_from, "rule": None}
        if engine.rule is not None:
            header["rule"] = {"name": type(engine.rule).__name__, "fields": list(engine.rule)}
        return header, engine.state()

    def _set_state(self, header: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        from .engines import ENGINES

        self._check_parameters()
        # The stream's own rule and average, which parameters set since then do not change.
        rule = header["rule"]
        if rule is not None:
            from .kernels.rules import RULES

            rule = RULES[rule["name"]](*rule["fields"])
        options = self._storage_options()
        kind = ENGINES[header["engine"]]
        self._forget(kind.from_state(rule, header["average_from"], arrays, **options))

    def _storage_options(self) -> dict[str, Any]:
        """What engines need to know besides the rule when they are restored."""
        return {}


def _one_row(vector: Any) -> Any:
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
