"""OSLLR-GS: W = X X' kept as lazily updated rows of X, or as W itself with its average."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np

from .._kernels import osllrgs as kernels
from .._kernels.entrywise import DenseRows
from .._kernels.steps import SHIFT
from ..data.comparisons import Comparisons
from ..validation import check_integer
from .base import (
    ENTRIES_PER_CALL,
    LowRankEngine,
    State,
    check_array,
    new_scratch,
    saved_dtype,
    saved_number,
)
from .entrywise import csr_readers


class _GroupEngine(LowRankEngine):
    """What both forms share: reading triplets, the bound on row norms, the precision of items."""

    learns_blocks = False
    sums: np.ndarray

    def __init__(self, beta: float, dtype: Any, clock: np.ndarray | None = None) -> None:
        super().__init__(clock)
        #: Largest norm of a row: each was cut to it when it was last touched.
        self.beta = beta
        self._dtype = np.dtype(dtype)

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._dtype

    @abstractmethod
    def _arrays(self) -> Any:
        """The record that the kernel takes."""

    def _learn(self, kernel: Any, step: Any, tuples: Comparisons) -> None:
        arrays = self._arrays()
        d, width = arrays.values.shape
        if tuples.is_sparse:
            (left, right), (longest_x, longest), _ = csr_readers(tuples, None)
            longest_z = 2 * longest
        else:
            left, right = DenseRows(tuples.left.values), DenseRows(tuples.right.values)
            longest_x = longest_z = d
        most = min(d, longest_x + longest_z)
        scratch = new_scratch(longest_x, longest_z, tuples.left.dtype)
        work = kernels.Workspace(
            feature=np.empty(most, np.int32),
            b=np.empty(most),
            a=np.empty(most),
            place=np.empty(most, np.int64),
            on_b=np.empty(d),
            on_a=np.empty(d),
            u=np.empty(width),
            w=np.empty(width),
            more=np.empty((6, d)),
        )

        def learn(begin: int, end: int) -> tuple[int, int]:
            return kernel(
                step, arrays, self.sums, left, right, tuples.index, begin, end, scratch, work,
                self.clock,
            )  # fmt: skip

        chunk = max(1, int(ENTRIES_PER_CALL / (max(1, most) * width)))
        self._drive(learn, len(tuples), chunk)

    def state(self) -> State:
        arrays = {"clock": self.clock, "sums": self.sums, **self._arrays()._asdict()}
        return {"beta": self.beta, "dtype": str(self.dtype)}, arrays

    def _restore(self, scalars: dict[str, Any], arrays: dict[str, np.ndarray], n_sums: int) -> None:
        """Check and take over what both forms keep."""
        check_array("sums", arrays["sums"], np.float64, (n_sums,))
        check_array("values", arrays["values"], np.float64, (None, None))
        check_array("raw", arrays["raw"], np.float64, (len(arrays["values"]),))
        beta = float(saved_number(scalars, "beta"))
        if not (arrays["raw"] >= 0).all() or beta == 0:
            raise ValueError("raw, beta: expected norms, and a positive bound")
        _GroupEngine.__init__(self, beta, saved_dtype(scalars), arrays["clock"])
        self.sums = arrays["sums"]


class GroupRowsEngine(_GroupEngine):
    """X of shape (d, m) in float64; a round costs the rows it touches, one without loss touches none.

    Parameters
    ----------
    start : array (d, m), the first X; rows longer than `beta` are cut
    beta : float
    averages : bool
        Whether to keep the sum of eta_t X_t.
    dtype : precision of the items, and of the matrix that is read
    """

    kind = "group-rows"

    def __init__(self, start: np.ndarray, beta: float, averages: bool, dtype: Any) -> None:
        super().__init__(beta, dtype)
        values, norms = _inside_ball(start, beta)
        self.rows = kernels.LazyRows(
            values=values,
            total=np.zeros((len(values), values.shape[1] if averages else 0)),
            raw=norms,
            key=norms.copy(),
            stamp=np.zeros((2, len(values))),
            history=np.zeros((3, kernels.HISTORY if averages else 0)),
        )
        self.sums = np.zeros(3)

    @property
    def shape(self) -> tuple[int, int]:
        return (len(self.rows.values),) * 2

    @property
    def output(self) -> str:
        """What is read, as the parameter of OSLLR-GS calls it."""
        return "avg_x" if self.averages else "last"

    @property
    def averages(self) -> bool:
        """Whether the average is read."""
        return self.rows.total.shape[1] > 0

    @property
    def n_columns(self) -> int:
        """Columns m of X."""
        return self.rows.values.shape[1]

    def _arrays(self) -> Any:
        return self.rows

    def learn(self, step: Any, tuples: Comparisons, block_size: int) -> None:
        self._learn(kernels.learn_rows, step, tuples)

    def factor(self) -> np.ndarray:
        """X now, or the average of X."""
        rows = self.rows
        inverse = np.divide(1.0, rows.raw, out=np.zeros_like(rows.raw), where=rows.raw > 0)
        if not self.averages or self.sums[kernels.TOTAL] == 0:
            return rows.values * (np.maximum(rows.key - self.clock[SHIFT], 0) * inverse)[:, None]
        total, shifted = (
            np.full(len(rows.key), self.sums[k]) for k in (kernels.TOTAL, kernels.SHIFTED)
        )
        # Rows that have died since they were last touched: up to the last round in which they were not zero.
        dead = np.flatnonzero((rows.raw > 0) & (rows.key <= self.clock[SHIFT]))
        history = rows.history[:, : int(self.sums[kernels.FILLED])]
        last = np.searchsorted(history[0], rows.key[dead]) - 1
        total[dead], shifted[dead] = history[1, last], history[2, last]
        run = rows.key * (total - rows.stamp[0]) - (shifted - rows.stamp[1])
        return (rows.total + rows.values * (run * inverse)[:, None]) / self.sums[kernels.TOTAL]

    def full(self) -> None:
        return None

    def factors(self, full: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        factor = self.factor()
        return factor, factor

    def matrix(self) -> np.ndarray:
        factor = self.factor()
        return (factor @ factor.T).astype(self.dtype)

    @classmethod
    def from_state(cls, scalars: dict[str, Any], arrays: dict[str, np.ndarray]) -> GroupRowsEngine:
        self = cls.__new__(cls)
        self._restore(scalars, arrays, 3)
        d, m = arrays["values"].shape
        self.rows = kernels.LazyRows(*(arrays[name] for name in kernels.LazyRows._fields))
        check_array("total", self.rows.total, np.float64, (d, m if self.averages else 0))
        check_array("key", self.rows.key, np.float64, (d,))
        check_array("stamp", self.rows.stamp, np.float64, (2, d))
        check_array(
            "history", self.rows.history, np.float64, (3, kernels.HISTORY if self.averages else 0)
        )
        if not 0 <= arrays["sums"][kernels.FILLED] < max(1, self.rows.history.shape[1]):
            raise ValueError("sums: expected a place in the history")
        return self


class GroupGramEngine(_GroupEngine):
    """W = X X' of shape (d, d) in float64 with the sum of eta_t W_t; O(d^2) for a violated triplet.

    Parameters
    ----------
    start : array (d, m), the first X; rows longer than `beta` are cut
    beta : float
    dtype : precision of the items, and of the matrix that is read
    """

    kind = "group-gram"
    output = "avg_w"

    def __init__(self, start: np.ndarray, beta: float, dtype: Any) -> None:
        super().__init__(beta, dtype)
        values, norms = _inside_ball(start, beta)
        gram = values @ values.T
        self.gram = kernels.Gram(gram, np.zeros_like(gram), norms, norms.copy())
        self.sums = np.zeros(6)
        #: Columns m of X, which W does not show.
        self.n_columns = start.shape[1]

    @property
    def shape(self) -> tuple[int, int]:
        return self.gram.values.shape

    def _arrays(self) -> Any:
        return self.gram

    def learn(self, step: Any, tuples: Comparisons, block_size: int) -> None:
        self._learn(kernels.learn_gram, step, tuples)

    def average(self) -> np.ndarray:
        """The average of W, exactly symmetric, in float64."""
        gram, sums = self.gram, self.sums
        inverse = np.divide(1.0, gram.raw, out=np.zeros_like(gram.raw), where=gram.raw > 0)
        if sums[kernels.TOTAL] == 0:
            scale = (gram.norm - sums[kernels.PENDING]) * inverse
            result = gram.values * np.outer(scale, scale)
        else:
            norms = np.add.outer(gram.norm, gram.norm)
            run = (
                np.outer(gram.norm, gram.norm) * sums[kernels.RUN_0]
                - norms * sums[kernels.RUN_1]
                + sums[kernels.RUN_2]
            )
            result = gram.total + gram.values * run * np.outer(inverse, inverse)
            result /= sums[kernels.TOTAL]
        return (result + result.T) / 2

    def full(self) -> np.ndarray:
        return self.average()

    def factors(self, full: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        assert full is not None
        values, vectors = np.linalg.eigh(full)
        factor = vectors[:, ::-1] * np.sqrt(np.maximum(values[::-1], 0.0))
        return factor, factor

    def matrix(self) -> np.ndarray:
        return self.average().astype(self.dtype)

    def state(self) -> State:
        scalars, arrays = super().state()
        return {**scalars, "n_columns": self.n_columns}, arrays

    @classmethod
    def from_state(cls, scalars: dict[str, Any], arrays: dict[str, np.ndarray]) -> GroupGramEngine:
        self = cls.__new__(cls)
        self._restore(scalars, arrays, 6)
        d = len(arrays["values"])
        self.gram = kernels.Gram(*(arrays[name] for name in kernels.Gram._fields))
        check_array("values", self.gram.values, np.float64, (d, d))
        check_array("total", self.gram.total, np.float64, (d, d))
        check_array("norm", self.gram.norm, np.float64, (d,))
        self.n_columns = check_integer("n_columns", scalars["n_columns"])
        return self


def _inside_ball(start: np.ndarray, beta: float) -> tuple[np.ndarray, np.ndarray]:
    """A copy with no row longer than beta, and the norms of its rows."""
    values = np.array(start, np.float64, order="C")
    norms = np.linalg.norm(values, axis=1)
    long = norms > beta
    values[long] *= (beta / norms[long])[:, None]
    norms[long] = beta
    return values, norms
