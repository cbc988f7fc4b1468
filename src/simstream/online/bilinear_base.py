"""What all learners of a bilinear similarity share: the first matrix, the engine, reading M."""

from __future__ import annotations

from typing import Any

from sklearn.exceptions import NotFittedError

from .._engines import Engine, default_block_size, entrywise_engine, first_matrix
from .._engines.store import DEFAULT_HEAD_BYTES
from ..data.comparisons import Comparisons
from ..similarity.bilinear import BilinearEstimator
from ..validation import Items, check_choice, check_integer
from .base import TripletLearner


class BilinearLearner(BilinearEstimator, TripletLearner):
    """Base of the learners of s(q, x) = q' M x that change M entry by entry.

    Subclasses provide `_rule` (an entry rule of `kernels.rules`) and `_step`.
    """

    init: Any
    block_size: Any
    head_bytes: Any
    average_from: Any = None
    _has_aux = False
    _engine_kinds: tuple[str, ...] = ("dense", "sparse", "factored", "identity")

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if isinstance(self.init, str):
            check_choice("init", self.init, ("identity", "zeros"))
        if self.block_size is not None:
            check_integer("block_size", self.block_size)
        if self.head_bytes is not None:
            check_integer("head_bytes", self.head_bytes)
        if self.average_from is not None:
            check_integer("average_from", self.average_from)

    def _rule(self) -> Any:
        """The entry rule of the kernels."""
        raise NotFittedError("provided by the learner")

    def _needs_diagonal(self) -> str | None:
        """The parameter that only makes sense for a square matrix, if one is set."""
        return "init='identity'" if isinstance(self.init, str) and self.init == "identity" else None

    def _start(self, left: Items, right: Items) -> Any:
        """The first matrix: CSR for sparse items, else an array."""
        shape, dtype = (left.shape[1], right.shape[1]), left.dtype
        needs_diagonal = self._needs_diagonal()
        if needs_diagonal and shape[0] != shape[1]:
            raise ValueError(
                f"{needs_diagonal}: expected one feature space, got {shape[0]} features on the left and "
                f"{shape[1]} on the right; there is no diagonal (start from init='zeros' or a matrix)"
            )
        return first_matrix(self.init, shape, dtype, left.is_sparse or right.is_sparse)

    def _new_engine(self, tuples: Comparisons) -> Engine:
        start = self._start(tuples.left, tuples.right)
        return entrywise_engine(
            self._rule(), self.average_from, start, tuples, self._has_aux, self.head_bytes
        )

    def _storage_options(self) -> dict[str, Any]:
        return {"has_aux": self._has_aux, "head_bytes": self.head_bytes or DEFAULT_HEAD_BYTES}

    def _advance(self, engine: Any, tuples: Comparisons) -> None:
        rule = self._rule()
        same_rule = rule == engine.rule
        if not same_rule or engine.average_from != self.average_from:
            raise ValueError(
                "parameters: those that say how M is stored (average_from, off_diagonal, delta, r, "
                "covariance, and whether lam is zero) cannot change in the middle of a stream; expected "
                f"{engine.rule} and average_from={engine.average_from}, got {rule} and "
                f"average_from={self.average_from}"
            )
        super()._advance(engine, tuples)

    def _block_size(self, engine: Any) -> int:
        from .._kernels.rules import PLAIN

        if engine.rule.kind != PLAIN:
            return 1
        return self.block_size or default_block_size(max(engine.shape))

    # -- reading the matrix -------------------------------------------------------------------

    def _matrix(self) -> Any:
        engine = self._fitted()
        key = (self.n_rounds_, *self._reading())
        if self._read_cache is None or self._read_cache[0] != key:
            self._read_cache = (key, self._finish(engine.matrix()))
        return self._read_cache[1]

    def _reading(self) -> tuple[Any, ...]:
        """Parameters that change what is read without changing what is learnt."""
        return ()

    def _finish(self, matrix: Any) -> Any:
        return matrix
