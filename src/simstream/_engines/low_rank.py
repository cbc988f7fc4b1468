"""OSLLR-GS: W = X X' in rows of X that rest until they are touched, or in W itself with its average."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..data.comparisons import Comparisons
from .base import ENTRIES_PER_CALL, Engine, check_array, check_floats, new_scratch
from .sparse import csr_readers


class _GroupEngine(Engine):
    """What both forms share: the triplets as the kernels read them, the ball, the precision of items."""

    learns_blocks = False
    sums: np.ndarray

    def __init__(self, beta: float, dtype: Any, clock: np.ndarray | None = None) -> None:
        super().__init__(None, None, clock)
        #: Largest norm of a row: rows that rest were cut to it when they were last touched.
        self.beta = beta
        self._dtype = np.dtype(dtype)

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._dtype

    def _arrays(self) -> Any:
        """The record that the kernel takes."""
        raise AttributeError("provided by the engine")

    def _learn(self, kernel: Any, step: Any, tuples: Comparisons) -> None:
        from .._kernels.entrywise import DenseRows
        from .._kernels.osllrgs import Workspace

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
        work = Workspace(
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
        self._drive(learn, len(tuples), chunk, None, None)

    def state(self) -> dict[str, np.ndarray]:
        return {
            "clock": self.clock,
            "sums": self.sums,
            "beta": np.array([self.beta]),
            "one": np.ones(1, self.dtype),
            **self._arrays()._asdict(),
        }

    @staticmethod
    def _checked(arrays: dict[str, np.ndarray], n_sums: int) -> tuple[float, np.dtype[Any]]:
        """Check what both forms keep; return the ball and the precision."""
        check_array("sums", arrays["sums"], np.float64, (n_sums,))
        check_array("beta", arrays["beta"], np.float64, (1,))
        check_array("values", arrays["values"], np.float64, (None, None))
        check_array("raw", arrays["raw"], np.float64, (len(arrays["values"]),))
        if not (arrays["raw"] >= 0).all() or not arrays["beta"][0] > 0:
            raise ValueError("raw, beta: expected norms, and a positive bound")
        return float(arrays["beta"][0]), _precision(arrays["one"])


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
        from .._kernels.osllrgs import HISTORY, LazyRows

        super().__init__(beta, dtype)
        values, norms = _inside_ball(start, beta)
        self.rows = LazyRows(
            values=values,
            total=np.zeros((len(values), values.shape[1] if averages else 0)),
            raw=norms,
            key=norms.copy(),
            stamp=np.zeros((2, len(values))),
            history=np.zeros((3, HISTORY if averages else 0)),
        )
        self.sums = np.zeros(3)

    @property
    def shape(self) -> tuple[int, int]:
        return (len(self.rows.values),) * 2

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
        from .._kernels.osllrgs import learn_rows

        self._learn(learn_rows, step, tuples)

    def factor(self) -> np.ndarray:
        """X now, or the average of X."""
        from .._kernels.osllrgs import FILLED, SHIFTED, TOTAL
        from .._kernels.steps import SHIFT

        rows = self.rows
        inverse = np.divide(1.0, rows.raw, out=np.zeros_like(rows.raw), where=rows.raw > 0)
        if not self.averages or self.sums[TOTAL] == 0:
            return rows.values * (np.maximum(rows.key - self.clock[SHIFT], 0) * inverse)[:, None]
        total, shifted = (np.full(len(rows.key), self.sums[k]) for k in (TOTAL, SHIFTED))
        # Rows that have died since they were last touched: up to the last round in which they were not zero.
        dead = np.flatnonzero((rows.raw > 0) & (rows.key <= self.clock[SHIFT]))
        history = rows.history[:, : int(self.sums[FILLED])]
        last = np.searchsorted(history[0], rows.key[dead]) - 1
        total[dead], shifted[dead] = history[1, last], history[2, last]
        run = rows.key * (total - rows.stamp[0]) - (shifted - rows.stamp[1])
        return (rows.total + rows.values * (run * inverse)[:, None]) / self.sums[TOTAL]

    def matrix(self) -> np.ndarray:
        factor = self.factor()
        return (factor @ factor.T).astype(self.dtype)

    @classmethod
    def from_state(
        cls, rule: Any, average_from: int | None, arrays: dict[str, np.ndarray], **_: Any
    ) -> GroupRowsEngine:
        from .._kernels.osllrgs import FILLED, HISTORY, LazyRows

        beta, dtype = cls._checked(arrays, 3)
        d, m = arrays["values"].shape
        self = cls.__new__(cls)
        _GroupEngine.__init__(self, beta, dtype, arrays["clock"])
        self.rows = LazyRows(*(arrays[name] for name in LazyRows._fields))
        check_array("total", self.rows.total, np.float64, (d, m if self.averages else 0))
        check_array("key", self.rows.key, np.float64, (d,))
        check_array("stamp", self.rows.stamp, np.float64, (2, d))
        check_array("history", self.rows.history, np.float64, (3, HISTORY if self.averages else 0))
        if not 0 <= arrays["sums"][FILLED] < max(1, self.rows.history.shape[1]):
            raise ValueError("sums: expected a place in the history")
        self.sums = arrays["sums"]
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

    def __init__(self, start: np.ndarray, beta: float, dtype: Any) -> None:
        from .._kernels.osllrgs import Gram

        super().__init__(beta, dtype)
        values, norms = _inside_ball(start, beta)
        gram = values @ values.T
        self.gram = Gram(gram, np.zeros_like(gram), norms, norms.copy())
        self.sums = np.zeros(6)
        #: Columns m of X, which W does not show.
        self.n_columns = start.shape[1]

    @property
    def shape(self) -> tuple[int, int]:
        return self.gram.values.shape

    def _arrays(self) -> Any:
        return self.gram

    def learn(self, step: Any, tuples: Comparisons, block_size: int) -> None:
        from .._kernels.osllrgs import learn_gram

        self._learn(learn_gram, step, tuples)

    def average(self) -> np.ndarray:
        """The average of W, exactly symmetric, in float64."""
        from .._kernels.osllrgs import PENDING, RUN_0, RUN_1, RUN_2, TOTAL

        gram, sums = self.gram, self.sums
        inverse = np.divide(1.0, gram.raw, out=np.zeros_like(gram.raw), where=gram.raw > 0)
        if sums[TOTAL] == 0:
            scale = (gram.norm - sums[PENDING]) * inverse
            result = gram.values * np.outer(scale, scale)
        else:
            norms = np.add.outer(gram.norm, gram.norm)
            run = np.outer(gram.norm, gram.norm) * sums[RUN_0] - norms * sums[RUN_1] + sums[RUN_2]
            result = gram.total + gram.values * run * np.outer(inverse, inverse)
            result /= sums[TOTAL]
        return (result + result.T) / 2

    def matrix(self) -> np.ndarray:
        return self.average().astype(self.dtype)

    def state(self) -> dict[str, np.ndarray]:
        return {**super().state(), "n_columns": np.array([self.n_columns])}

    @classmethod
    def from_state(
        cls, rule: Any, average_from: int | None, arrays: dict[str, np.ndarray], **_: Any
    ) -> GroupGramEngine:
        from .._kernels.osllrgs import Gram

        beta, dtype = cls._checked(arrays, 6)
        d = len(arrays["values"])
        self = cls.__new__(cls)
        _GroupEngine.__init__(self, beta, dtype, arrays["clock"])
        self.gram = Gram(*(arrays[name] for name in Gram._fields))
        check_array("values", self.gram.values, np.float64, (d, d))
        check_array("total", self.gram.total, np.float64, (d, d))
        check_array("norm", self.gram.norm, np.float64, (d,))
        check_array("n_columns", arrays["n_columns"], np.int64, (1,))
        self.n_columns = int(arrays["n_columns"][0])
        self.sums = arrays["sums"]
        return self


def _precision(one: np.ndarray) -> np.dtype[Any]:
    dtype = check_floats("one", one)
    check_array("one", one, dtype, (1,))
    return dtype


def _inside_ball(start: np.ndarray, beta: float) -> tuple[np.ndarray, np.ndarray]:
    """A copy with no row longer than beta, and the norms of its rows."""
    values = np.array(start, np.float64, order="C")
    norms = np.linalg.norm(values, axis=1)
    long = norms > beta
    values[long] *= (beta / norms[long])[:, None]
    norms[long] = beta
    return values, norms
