"""What every online learner does the same way: learning from tuples, counting, saving."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.exceptions import NotFittedError

from .._engines import Engine
from ..data.comparisons import Comparisons
from ..similarity.base import SimilarityEstimator, TripletDecisions, one_row
from ..validation import Items, check_items


class OnlineLearner(SimilarityEstimator):
    """Base of the learners that see one tuple after the other.

    Subclasses store their parameters and provide `_check_parameters`, `_read`, `_new_engine` and `_step`.
    """

    _engine: Any = None
    _read_cache: tuple[Any, Any] | None = None

    #: Kind of tuples that `FromLabels` draws for it.
    natural_tuples = "triplets"
    #: Engines that its files may hold.
    _engine_kinds: tuple[str, ...] = ()

    def _learnt(self) -> Any:
        return self._engine

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        state.pop("_read_cache", None)
        return state

    # -- learning -----------------------------------------------------------------------------

    def _read(self, tuples: Any, y: Any, dtype: Any) -> Comparisons:
        """Checked tuples of the kind the learner learns from."""
        raise NotFittedError("provided by the learner")

    def fit(self, tuples: Any, y: Any = None) -> Any:
        """Forget what was learnt and learn from these tuples, in order.

        Parameters
        ----------
        tuples : (n, 3) integers, rows of `preprocessor`, or (n, 3, d) numbers
            Anchor, positive, negative: the anchor is more like the positive than the negative. Learners
            from pairs also take (n, 2) integers or (n, 2, d) numbers.
        y : array of +1 (similar) and -1 (dissimilar)
            One for each pair; ignored for triplets.

        Returns
        -------
        self
        """
        self._check_parameters()
        read = self._read(tuples, y, self.dtype)
        engine = self._new_engine(read)
        self._forget(engine)
        return self._learn(read)

    def partial_fit(self, tuples: Any, y: Any = None) -> Any:
        """Go on learning from these tuples, in order. Same input as `fit`."""
        self._check_parameters()
        return self._learn(self._read(tuples, y, self._target_dtype()))

    def _learn(self, tuples: Comparisons) -> Any:
        """Learn from checked tuples."""
        engine = self._engine
        if engine is None:
            engine = self._new_engine(tuples)
            self._forget(engine)
        self._check_features(tuples.left, tuples.right)
        self._advance(engine, tuples)
        return self

    def _read_vectors(self, names: tuple[str, ...], x: Any, *others: Any) -> tuple[Items, Items]:
        """One vector as an item, and the others as items of a second space; names are for errors."""
        dtype = self._target_dtype()
        left = check_items(one_row(x), names[0], dtype=dtype)
        rows = [one_row(other) for other in others]
        for name, row in zip(names[2:], rows[1:], strict=True):
            if row.shape[1] != rows[0].shape[1]:
                raise ValueError(
                    f"{name}: expected as many features as the {names[1]} ({rows[0].shape[1]}), "
                    f"got {row.shape[1]}"
                )
        stacked = sp.vstack(rows, "csr") if any(map(sp.issparse, rows)) else np.concatenate(rows)
        right = check_items(stacked, " and ".join(names[1:]), dtype=dtype or left.dtype)
        return left, right

    def _advance(self, engine: Any, tuples: Comparisons) -> None:
        self._read_cache = None
        engine.learn(self._step(), tuples, self._block_size(engine))

    def _forget(self, engine: Engine) -> None:
        self._engine = engine
        self._read_cache = None
        self.n_features_in_ = engine.shape[0]  # type: ignore[attr-defined]

    def prepare(self) -> int:
        """Get ready for a stream over the items of `preprocessor`; return the tuples learnt together.

        A stream cut at multiples of that number, or anywhere if it is 1, gives the very same model.
        """
        self._check_parameters()
        left, right = self._preprocessed(self._target_dtype())
        if self._engine is None:
            self._forget(self._new_engine(Comparisons(left, right, np.empty((0, 3), np.int64))))
        self._check_features(left, right)
        return self._block_size(self._engine) if self._engine.learns_blocks else 1

    def _block_size(self, engine: Any) -> int:
        """How many tuples the engine takes together."""
        return 1

    def _new_engine(self, tuples: Comparisons) -> Engine:
        """An engine for these items, nothing learnt yet. Raises before anything is changed."""
        raise NotFittedError("provided by the learner")

    def _step(self) -> Any:
        """The step record of the kernels, from the current parameters."""
        return None

    # -- what was counted ---------------------------------------------------------------------

    def _count(self, field: str) -> float:
        from .._kernels import steps

        return float(self._fitted().clock[getattr(steps, field)])

    @property
    def n_rounds_(self) -> int:
        """Tuples seen: triplets, or pairs."""
        return int(self._count("ROUNDS"))

    @property
    def n_updates_(self) -> int:
        """Tuples that changed the matrix."""
        return int(self._count("UPDATES"))

    @property
    def n_skipped_(self) -> int:
        """Tuples without a direction (a zero anchor, or equal rows): counted as rounds, no step."""
        return int(self._count("SKIPPED"))

    @property
    def average_loss_(self) -> float:
        """Mean hinge loss of all rounds, each before its own update."""
        return self._count("LOSS") / max(1.0, self._count("ROUNDS"))

    @property
    def mistake_rate_(self) -> float:
        """Share of rounds whose margin was not positive before the update."""
        return self._count("MISTAKES") / max(1.0, self._count("ROUNDS"))

    @property
    def violation_rate_(self) -> float:
        """Share of rounds with a positive hinge loss before the update."""
        return self._count("VIOLATIONS") / max(1.0, self._count("ROUNDS"))

    # -- saving -------------------------------------------------------------------------------

    def _get_state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        engine = self._fitted()
        header = {"engine": engine.kind, "average_from": engine.average_from, "rule": None}
        if engine.rule is not None:
            header["rule"] = engine.rule.to_header()
        return header, engine.state()

    def _set_state(self, header: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        from .._engines import ENGINES

        self._check_parameters()
        # The stream's own rule and average, which parameters set since then do not change.
        rule = header["rule"]
        if rule is not None:
            from .._kernels.rules import Rule

            rule = Rule.from_header(rule)
        options = self._storage_options()
        if header["engine"] not in self._engine_kinds:
            raise ValueError(
                f"engine: expected one of {self._engine_kinds}, got {header['engine']!r}"
            )
        kind = ENGINES[header["engine"]]
        self._forget(kind.from_state(rule, header["average_from"], arrays, **options))

    def _storage_options(self) -> dict[str, Any]:
        """What engines need to know besides the rule when they are restored."""
        return {}


class TripletLearner(TripletDecisions, OnlineLearner):
    """Base of the learners from triplets (anchor, positive, negative)."""

    def _read(self, tuples: Any, y: Any, dtype: Any) -> Comparisons:
        return self._read_tuples(tuples, 3, dtype)

    def learn_one(self, x: Any, positive: Any, negative: Any) -> Any:
        """Learn from one triplet of vectors: 1-d arrays, or CSR matrices of one row."""
        self._check_parameters()
        left, right = self._read_vectors(("x", "positive", "negative"), x, positive, negative)
        return self._learn(Comparisons(left, right, np.array([[0, 0, 1]])))
