"""Matrices of low rank: rows or a Gram matrix (OSLLR-GS), singular vectors (OMLLR), two factors (Loreta)."""

from __future__ import annotations

from abc import abstractmethod
from functools import cache
from typing import Any, ClassVar, Self

import numpy as np
from threadpoolctl import ThreadpoolController

from .._kernels import osllrgs as kernels
from .._kernels.entrywise import DIVERGED, DONE, DenseRows
from .._kernels.loreta import NEEDS_PRODUCTS, Factors, learn_retracted
from .._kernels.omllr import Triples, learn_nuclear
from .._kernels.steps import SHIFT
from ..data.comparisons import Comparisons
from ..validation import check_integer
from .base import (
    ENTRIES_PER_CALL,
    Engine,
    State,
    new_scratch,
    saved_array,
    saved_dtype,
    saved_flag,
    saved_number,
    saved_shape,
)
from .sparse import csr_readers


class LowRankEngine(Engine):
    """An engine whose matrix W is L R', or is averaged; in float64."""

    learns_blocks = False

    def full(self) -> np.ndarray | None:
        """W as it is read, where that is what is kept; None where its factors are."""
        return None

    @abstractmethod
    def factors(self, full: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """L and R of W as it is read; `full` is what the method of that name returned."""

    def singular_values(self) -> np.ndarray | None:
        """Singular values of W as it is read, if they are known; largest first."""
        return None

    def matrix(self) -> np.ndarray:
        full = self.full()
        if full is None:
            left, right = self.factors(None)
            full = left @ right.T
        return full.astype(self.dtype)


# -- OSLLR-GS: W = X X' -----------------------------------------------------------------------------------


class _GroupEngine(LowRankEngine):
    """What both forms share: reading triplets, and the bound on row norms."""

    _kernel: ClassVar[Any]
    #: The record that the kernel takes.
    arrays: Any

    #: Largest norm of a row: each was cut to it when it was last touched.
    beta: float
    #: Sums over the rounds: see `_kernels.osllrgs`.
    sums: np.ndarray

    def learn(self, step: Any, tuples: Comparisons, block_size: int) -> None:
        kernel, arrays = self._kernel, self.arrays
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
        arrays = {"clock": self.clock, "sums": self.sums, **self.arrays._asdict()}
        return {"beta": self.beta, "dtype": str(self.dtype)}, arrays

    @classmethod
    def _restored(cls, scalars: dict[str, Any], arrays: dict[str, np.ndarray], n_sums: int) -> Self:
        """An engine with what both forms keep."""
        d = len(saved_array(arrays, "values", (None, None)))
        self = cls._blank((d, d), saved_dtype(scalars), arrays)
        self.sums = saved_array(arrays, "sums", (n_sums,))
        self.beta = float(saved_number(scalars, "beta"))
        if not (saved_array(arrays, "raw", (d,)) >= 0).all() or self.beta == 0:
            raise ValueError("raw, beta: expected norms, and a positive bound")
        return self


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
    _kernel = staticmethod(kernels.learn_rows)

    def __init__(self, start: np.ndarray, beta: float, averages: bool, dtype: Any) -> None:
        super().__init__((len(start), len(start)), dtype)
        self.beta = beta
        values, norms = _inside_ball(start, beta)
        self.arrays = kernels.LazyRows(
            values=values,
            total=np.zeros((len(values), values.shape[1] if averages else 0)),
            raw=norms,
            key=norms.copy(),
            stamp=np.zeros((2, len(values))),
            history=np.zeros((3, kernels.HISTORY if averages else 0)),
        )
        self.sums = np.zeros(3)

    @property
    def output(self) -> str:
        """What is read, as the parameter of OSLLR-GS calls it."""
        return "avg_x" if self.averages else "last"

    @property
    def averages(self) -> bool:
        """Whether the average is read."""
        return self.arrays.total.shape[1] > 0

    @property
    def n_columns(self) -> int:
        """Columns m of X."""
        return self.arrays.values.shape[1]

    def factor(self) -> np.ndarray:
        """X now, or the average of X."""
        rows = self.arrays
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

    def factors(self, full: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        factor = self.factor()
        return factor, factor

    @classmethod
    def from_state(cls, scalars: dict[str, Any], arrays: dict[str, np.ndarray]) -> GroupRowsEngine:
        self = cls._restored(scalars, arrays, 3)
        self.arrays = kernels.LazyRows(*(arrays[name] for name in kernels.LazyRows._fields))
        d, m = self.arrays.values.shape
        saved_array(arrays, "total", (d, m if self.averages else 0))
        saved_array(arrays, "key", (d,))
        saved_array(arrays, "stamp", (2, d))
        saved_array(arrays, "history", (3, kernels.HISTORY if self.averages else 0))
        if not 0 <= arrays["sums"][kernels.FILLED] < max(1, self.arrays.history.shape[1]):
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
    _kernel = staticmethod(kernels.learn_gram)
    output = "avg_w"

    def __init__(self, start: np.ndarray, beta: float, dtype: Any) -> None:
        super().__init__((len(start), len(start)), dtype)
        self.beta = beta
        values, norms = _inside_ball(start, beta)
        gram = values @ values.T
        self.arrays = kernels.Gram(gram, np.zeros_like(gram), norms, norms.copy())
        self.sums = np.zeros(6)
        #: Columns m of X, which W does not show.
        self.n_columns = start.shape[1]

    def full(self) -> np.ndarray:
        """The average of W, exactly symmetric, in float64."""
        gram, sums = self.arrays, self.sums
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

    def factors(self, full: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        assert full is not None
        values, vectors = np.linalg.eigh(full)
        factor = vectors[:, ::-1] * np.sqrt(np.maximum(values[::-1], 0.0))
        return factor, factor

    def state(self) -> State:
        scalars, arrays = super().state()
        return {**scalars, "n_columns": self.n_columns}, arrays

    @classmethod
    def from_state(cls, scalars: dict[str, Any], arrays: dict[str, np.ndarray]) -> GroupGramEngine:
        self = cls._restored(scalars, arrays, 6)
        d = self.shape[0]
        self.arrays = kernels.Gram(
            values=saved_array(arrays, "values", (d, d)),
            total=saved_array(arrays, "total", (d, d)),
            raw=arrays["raw"],
            norm=saved_array(arrays, "norm", (d,)),
        )
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


# -- OMLLR: a threshold on the singular values ----------------------------------------------------------

#: Work (products in small problems) between two checks for Ctrl-C, and most triplets.
_PRODUCTS_PER_CALL = 2e9
_TRIPLETS_PER_CALL = 64

#: Singular values of an average below this share of the largest one are rounding, and no dimensions.
_ROUNDING = 1e-12


@cache
def _threads() -> Any:
    """Controller of BLAS threads: in problems this small, more than one only wait for each other."""
    return ThreadpoolController()


class NuclearEngine(LowRankEngine):
    """W = sum_i value_i left_i right_i' in float64, optionally with its average.

    A triplet costs O(d rank), one that is violated O(d rank^2 + rank^3). The average takes a full matrix
    more, and O(d^2) whenever a singular value becomes zero.

    Parameters
    ----------
    value, left, right : arrays (r,), (r, d), (r, d')
        First singular values, largest first and positive, and vectors (as rows).
    symmetric : bool
        Whether W stays symmetric positive semi-definite: `right` is not used.
    averages : bool
        Whether to keep the sum of eta_t W_t.
    dtype : precision of the items, and of the matrix that is read
    """

    kind = "nuclear"

    def __init__(
        self,
        value: np.ndarray,
        left: np.ndarray,
        right: np.ndarray,
        *,
        symmetric: bool,
        averages: bool,
        dtype: Any,
    ) -> None:
        super().__init__((left.shape[1], right.shape[1]), dtype)
        r = len(value)
        self.value = np.array(value, np.float64)
        self.left = np.array(left, np.float64, order="C")
        self.right = np.array(right[: 0 if symmetric else r], np.float64, order="C")
        self.mixed = np.zeros((r, r) if averages else (0, 0))
        self.total = np.zeros(self.shape if averages else (0, 0))
        #: Sum of eta_t.
        self.weight = np.zeros(1)
        self.symmetric = symmetric

    @property
    def averages(self) -> bool:
        """Whether the average is read."""
        return self.total.size > 0

    @property
    def rank(self) -> int:
        """Number of singular values of the last W."""
        return len(self.value)

    def learn(self, step: Any, tuples: Comparisons, block_size: int) -> None:
        most = min(*self.shape, self.rank + 2 * _TRIPLETS_PER_CALL)
        chunk = int(np.clip(_PRODUCTS_PER_CALL / (20.0 * most**3), 1, _TRIPLETS_PER_CALL))

        def learn(begin: int, end: int) -> tuple[int, int]:
            x, z = (v.astype(np.float64, copy=False) for v in tuples.rows(begin, end))
            triples = self._with_room(2 * len(x))
            with _threads().limit(limits=1):
                learnt, rank = learn_nuclear(
                    step, triples, self.rank, self.weight, x, z, self.clock
                )
            self._take(triples, rank)
            return (DONE if learnt == len(x) else DIVERGED), begin + learnt

        self._drive(learn, len(tuples), chunk)

    def _with_room(self, n: int) -> Any:
        """Arrays for the kernel, with room for n more vectors (there are never more than features)."""
        r, (d, others) = self.rank, self.shape
        capacity = min(max(self.shape), r + n) + 2
        triples = Triples(
            value=np.empty(capacity),
            left=np.empty((capacity, d)),
            right=np.empty((0 if self.symmetric else capacity, others)),
            mixed=np.zeros((capacity, capacity) if self.averages else (0, 0)),
            total=self.total,
        )
        triples.value[:r] = self.value
        triples.left[:r] = self.left
        if not self.symmetric:
            triples.right[:r] = self.right
        if self.averages:
            triples.mixed[:r, :r] = self.mixed
        return triples

    def _take(self, triples: Any, rank: int) -> None:
        self.value, self.left = triples.value[:rank].copy(), triples.left[:rank].copy()
        self.right = triples.right[: 0 if self.symmetric else rank].copy()
        if self.averages:
            self.mixed = triples.mixed[:rank, :rank].copy()

    def sides(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Singular values, and vectors (rows) on the left and on the right, of the last W."""
        return self.value, self.left, self.left if self.symmetric else self.right

    def read(self) -> np.ndarray:
        """The last W, or the average, in float64."""
        value, left, right = self.sides()
        if not self.averages or self.weight[0] == 0:
            return (left.T * value) @ right
        return (self.total + left.T @ self.mixed @ right) / self.weight[0]

    def full(self) -> np.ndarray | None:
        return self.read() if self.averages else None

    def factors(self, full: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        if full is None:
            value, left, right = self.sides()
        else:
            u, value, right = np.linalg.svd(full, full_matrices=False)
            kept = value > _ROUNDING * value.max(initial=0.0)
            value, left, right = value[kept], u.T[kept], right[kept]
        roots = np.sqrt(value)
        return left.T * roots, right.T * roots

    def singular_values(self) -> np.ndarray | None:
        return None if self.averages else self.value

    def matrix(self) -> np.ndarray:
        return self.read().astype(self.dtype)

    def state(self) -> State:
        names = ("clock", "value", "left", "right", "mixed", "total")
        scalars = {
            "symmetric": self.symmetric,
            "shape": list(self.shape),
            "weight": float(self.weight[0]),
            "dtype": str(self.dtype),
        }
        return scalars, {name: getattr(self, name) for name in names}

    @classmethod
    def from_state(cls, scalars: dict[str, Any], arrays: dict[str, np.ndarray]) -> NuclearEngine:
        symmetric, (d, others) = saved_flag(scalars, "symmetric"), saved_shape(scalars)
        self = cls._blank((d, others), saved_dtype(scalars), arrays)
        self.symmetric = symmetric
        self.left = left = saved_array(arrays, "left", (None, d))
        r = len(left)
        self.value = value = saved_array(arrays, "value", (r,))
        self.right = right = saved_array(arrays, "right", (0 if symmetric else r, others))
        if r > min(d, others) or not ((value > 0) & np.isfinite(value)).all():
            raise ValueError("value: expected at most one positive singular value per feature")
        for name, vectors in (("left", left), ("right", right)):
            if not np.allclose(vectors @ vectors.T, np.eye(len(vectors)), rtol=0, atol=1e-8):
                raise ValueError(f"{name}: expected orthonormal rows")
        averages = arrays["total"].size > 0
        self.total = saved_array(arrays, "total", (d, others) if averages else (0, 0))
        self.mixed = saved_array(arrays, "mixed", (r, r) if averages else (0, 0))
        self.weight = np.array([saved_number(scalars, "weight")], np.float64)
        return self


# -- Loreta: two factors of a fixed rank -------------------------------------------------------------------


class RetractionEngine(LowRankEngine):
    """W = A B' in float64, and the inverses of A'A and B'B; O((d + d') k) for a triplet.

    Parameters
    ----------
    a, b : arrays (d, k) and (d', k) of full column rank
    dtype : precision of the items, and of the matrix that is read
    """

    kind = "retraction"

    def __init__(self, a: np.ndarray, b: np.ndarray, dtype: Any) -> None:
        super().__init__((len(a), len(b)), dtype)
        a, b = (np.array(m, np.float64, order="C") for m in (a, b))
        self.pair = Factors(a, b, _inverse(a), _inverse(b))

    def learn(self, step: Any, tuples: Comparisons, block_size: int) -> None:
        k = self.pair.a.shape[1]
        work = np.empty((8, k))
        sizes = self._sizes()
        # Rows are read as full vectors: not too many at a time.
        chunk = int(np.clip(ENTRIES_PER_CALL / (4 * sum(self.shape) * k), 1, 256))

        def learn(begin: int, end: int) -> tuple[int, int]:
            x, z = tuples.rows(begin, end)
            what = step, self.pair, sizes, work
            status, learnt = learn_retracted(*what, False, x, z, 0, len(x), self.clock)
            if status == NEEDS_PRODUCTS:
                for row, factor, v in zip(
                    work, self.pair[:2], (x[learnt], z[learnt]), strict=False
                ):
                    row[...] = _pseudo_inverse_times(factor, v)
                last = learnt + 1
                status, learnt = learn_retracted(*what, True, x, z, learnt, last, self.clock)
                self._rebase()
                sizes[...] = self._sizes()
            return status, begin + learnt

        self._drive(learn, len(tuples), chunk)

    def _sizes(self) -> np.ndarray:
        """Squared norms of both factors."""
        return np.array([np.vdot(factor, factor) for factor in self.pair[:2]])

    def _rebase(self) -> None:
        """Compute the inverses afresh."""
        a, b, inverse_a, inverse_b = self.pair
        inverse_a[...], inverse_b[...] = _inverse(a), _inverse(b)

    def factors(self, full: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        return self.pair.a.copy(), self.pair.b.copy()

    def state(self) -> State:
        return {"dtype": str(self.dtype)}, {"clock": self.clock, **self.pair._asdict()}

    @classmethod
    def from_state(cls, scalars: dict[str, Any], arrays: dict[str, np.ndarray]) -> RetractionEngine:
        a = saved_array(arrays, "a", (None, None))
        k = a.shape[1]
        b = saved_array(arrays, "b", (None, k))
        inverses = (saved_array(arrays, name, (k, k)) for name in ("inverse_a", "inverse_b"))
        self = cls._blank((len(a), len(b)), saved_dtype(scalars), arrays)
        self.pair = Factors(a, b, *inverses)
        return self


def _inverse(factor: np.ndarray) -> np.ndarray:
    """The inverse of factor' factor, symmetric and C-contiguous; infinite where there is none."""
    try:
        inverse = np.linalg.inv(factor.T @ factor)
    except np.linalg.LinAlgError:
        inverse = np.full((factor.shape[1],) * 2, np.inf)
    return np.ascontiguousarray((inverse + inverse.T) / 2)


def _pseudo_inverse_times(factor: np.ndarray, v: np.ndarray) -> np.ndarray:
    """pinv(factor) v, from the factor itself: the product with its transpose has half of its digits."""
    return np.linalg.lstsq(factor, v.astype(np.float64), rcond=None)[0]
