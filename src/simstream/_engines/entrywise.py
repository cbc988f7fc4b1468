"""Matrices learnt entry by entry, as full arrays; `sparse` has the form for sparse items.

The entry rule (`_kernels.rules`) says what a stored number means. AROMA with a factored covariance is here
too: its matrix is averaged and read like the others.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import scipy.sparse as sp

from .._kernels.blocked import Blas, Block, learn_block, learn_factored_block, learn_factored_singly
from .._kernels.dispatch import compiled
from .._kernels.entrywise import (
    DIVERGED,
    DONE,
    Dense,
    DenseRows,
    Gathered,
    gather,
    learn_one_at_a_time,
)
from .._kernels.rules import ADAPTIVE, CONFIDENT, PLAIN, Rule
from .._kernels.steps import ROUNDS, SHIFT
from ..data.comparisons import Comparisons
from ..validation import check_integer, check_items
from .base import (
    ENTRIES_PER_CALL,
    Engine,
    State,
    aligned_copy,
    aligned_zeros,
    new_scratch,
    saved_array,
)
from .device import OnDevice
from .quadruplets import AT_A_TIME, learn_quadruplet_block
from .single import DenseSingle, Single

#: Dense rows that are copied together: they stay in the cache until they are used.
_GATHERED_BYTES = 2**18


class EntrywiseEngine(Engine):
    """What these engines share: the entry rule, and the average of the iterates from some round on.

    Parameters
    ----------
    rule : an entry rule of `_kernels.rules`
    average_from : int, optional
        First round of the average.
    start : array or CSR matrix of shape (d, d'), the first matrix
    """

    def __init__(self, rule: Any, average_from: int | None, start: Any) -> None:
        super().__init__(start.shape, start.dtype)
        self.rule = rule
        self.average_from = average_from

    def _scalars(self) -> dict[str, Any]:
        return {"rule": self.rule.to_header(), "average_from": self.average_from}

    @classmethod
    def _restored(
        cls,
        scalars: dict[str, Any],
        arrays: dict[str, np.ndarray],
        shape: tuple[int, ...],
        dtype: Any,
    ) -> Self:
        """An engine with the saved rule, average and clock."""
        self = cls._blank(shape, dtype, arrays)
        self.rule, self.average_from = Rule.from_header(scalars["rule"]), scalars["average_from"]
        if self.average_from is not None:
            check_integer("average_from", self.average_from)
        return self

    @property
    def _has_aux(self) -> bool:
        """Whether every entry has a second number: H of AdaGrad, or the precision of AROMA."""
        return self.rule.kind in (ADAPTIVE, CONFIDENT)

    @property
    def _averages(self) -> bool:
        return self.average_from is not None

    def _averaged_rounds(self) -> float:
        """How many rounds the average that is read has; 0 where the last matrix is read."""
        if self.average_from is None:
            return 0.0
        return max(0.0, float(self.clock[ROUNDS]) - self.average_from + 1)

    def _decode(self, u: Any, aux: Any, acc: Any, on_diagonal: Any) -> np.ndarray:
        """Values of entries from their raw numbers (see `_kernels.rules`)."""
        if self.rule.kind in (PLAIN, CONFIDENT):
            rounds = self._averaged_rounds()
            return u - acc / u.dtype.type(rounds) if rounds else u
        value = _shrunk(u, self.clock[SHIFT])
        if self.rule.off_diagonal:
            value[on_diagonal] = u[on_diagonal]
        if self.rule.kind == ADAPTIVE:
            value /= u.dtype.type(self.rule.delta) + aux
        return value


def _shrunk(u: np.ndarray, shift: float) -> np.ndarray:
    """Soft-thresholded copy: `_kernels.rules.shrink` for a whole array."""
    return np.copysign(np.maximum(np.abs(u) - u.dtype.type(shift), 0), u)


class DenseEngine(EntrywiseEngine):
    """Full arrays, for dense items: one triplet at a time, or exact blocks where the rule allows."""

    kind = "dense"
    #: Where the arrays are while they are learnt elsewhere than on the CPU.
    _on_device: OnDevice | None = None

    def __init__(self, rule: Any, average_from: int | None, start: np.ndarray) -> None:
        super().__init__(rule, average_from, start)
        rows, columns = start.shape
        self._host = Dense(
            u=aligned_copy(start, start.dtype),
            aux=aligned_zeros((rows, columns if self._has_aux else 0), start.dtype),
            acc=aligned_zeros((rows, columns if self._averages else 0), start.dtype),
        )
        if rule.kind == ADAPTIVE:
            self._host.u[...] *= rule.delta

    @property
    def has_devices(self) -> bool:
        """Whether the rule has a blocked form: one tuple at a time would not pay elsewhere."""
        return self.rule.kind == PLAIN

    @property
    def arrays(self) -> Dense:
        """The numbers, on the host."""
        if self._on_device is not None:
            self._on_device.copy_to(self._host)
        return self._host

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_host": self.arrays, "_on_device": None, "device": None}

    def place(self, device: Any, precision: str) -> None:
        here = self._on_device
        if here is not None and (here.device, here.precision) == (device, precision):
            return
        arrays = self.arrays
        self._on_device = None if device is None else OnDevice(device, precision, arrays)
        self.device = device

    @property
    def there(self) -> OnDevice:
        """The arrays on the device that it is on."""
        assert self._on_device is not None
        return self._on_device

    def learn(self, step: Any, tuples: Comparisons, block_size: int) -> None:
        tuples = tuples.densified()
        device = self._on_device
        if tuples.is_quadruplets:
            self._learn_quadruplets(step, tuples, block_size if block_size > 1 else AT_A_TIME)
            return
        if device is not None:

            def learn_there(begin: int, end: int) -> tuple[int, int]:
                part = tuples.part(begin, end)
                status, learnt = device.learn(step, part, block_size, self.clock)
                return status, begin + learnt

            self._drive(learn_there, len(tuples), device.chunk(block_size))
            return
        if block_size > 1:
            self._drive_blocks(step, tuples, block_size, self.arrays.u.size)
            return

        def learn(first: int, n: int, readers: Any, gathered: Any, scratch: Any) -> tuple[int, int]:
            return learn_one_at_a_time(
                self.rule, self.arrays, step, *readers, gathered, 0, n, scratch, self.clock
            )

        self.drive_gathered(learn, tuples)

    def single(self, step: Any, size: int) -> Single | None:
        if self._on_device is not None:
            return None

        def bind(x: np.ndarray, z: np.ndarray, sign: np.ndarray) -> Any:
            readers = DenseRows(x), DenseRows(z), Gathered(sign)
            scratch = new_scratch(*self.shape, self.dtype)
            what = self.rule, self._host, step, *readers, 0, 1, scratch, self.clock
            run = compiled(learn_one_at_a_time, what)
            return lambda: run(*what)[0]

        return DenseSingle(self, size, bind)

    def _learn_quadruplets(self, step: Any, tuples: Comparisons, block_size: int) -> None:
        arrays = self._host

        def learn(begin: int, end: int) -> tuple[int, int]:
            part = tuples.part(begin, end)
            learnt = learn_quadruplet_block(step, arrays.u, arrays.acc, part, self.clock)
            return (DONE if learnt == len(part) else DIVERGED), begin + learnt

        self._drive(learn, len(tuples), block_size)

    def drive_gathered(self, learn: Any, tuples: Comparisons) -> None:
        """Call ``learn(first, n, readers, gathered, scratch) -> (status, how many)`` until all are learnt.

        The rows of the n tuples from `first` on are copied side by side before: copies wait for memory
        together, steps would wait for their rows one after the other.
        """
        few = max(1, _GATHERED_BYTES // (sum(self.shape) * self.dtype.itemsize))
        few = min(few, len(tuples))
        scratch = new_scratch(*self.shape, self.dtype)
        left, right = tuples.left.values, tuples.right.values
        index, sign = tuples.index, tuples.sign
        x = aligned_zeros((few, left.shape[1]), left.dtype)
        z = x if tuples.is_pairs else aligned_zeros((few, right.shape[1]), right.dtype)
        readers = DenseRows(x), DenseRows(z)

        def learn_pieces(begin: int, end: int) -> tuple[int, int]:
            for first in range(begin, end, few):
                last = min(end, first + few)
                gather(left, right, index[first:last], x, z)
                gathered = Gathered(sign[first:last])
                status, learnt = learn(first, last - first, readers, gathered, scratch)
                if status != DONE:
                    return status, first + learnt
            return DONE, end

        chunk = max(1, int(ENTRIES_PER_CALL / (self.shape[0] * self.shape[1])))
        self._drive(learn_pieces, len(tuples), chunk)

    def block(self, ops: Any, step: Any, tuples: Comparisons, first: int, last: int) -> Block:
        assert self.rule.kind == PLAIN, self.rule  # no other rule has a blocked form
        where = self.arrays.u, self.arrays.acc, *tuples.rows(first, last)
        return learn_block(ops, step, *where, tuples.sign[first:last], self.clock)

    def _rebase(self) -> None:
        u = self.arrays.u
        diagonal = u.diagonal().copy()
        u[...] = _shrunk(u, self.clock[SHIFT])
        if self.rule.off_diagonal:
            np.fill_diagonal(u, diagonal)

    def matrix(self) -> np.ndarray:
        """The current matrix, or the average (a view of the live array where nothing is decoded)."""
        a = self.arrays
        return self._decode(a.u, a.aux, a.acc, np.diag_indices(min(self.shape)))

    def state(self) -> State:
        return self._scalars(), {"clock": self.clock, **self.arrays._asdict()}

    @classmethod
    def from_state(cls, scalars: dict[str, Any], arrays: dict[str, np.ndarray]) -> DenseEngine:
        u = saved_array(arrays, "u", (None, None), None)
        rows, columns = u.shape
        self = cls._restored(scalars, arrays, u.shape, u.dtype)
        self._host = Dense(
            u=u,
            aux=saved_array(arrays, "aux", (rows, columns if self._has_aux else 0), u.dtype),
            acc=saved_array(arrays, "acc", (rows, columns if self._averages else 0), u.dtype),
        )
        return self


class FactoredEngine(EntrywiseEngine):
    """AROMA with covariance Lambda (x) Omega: full arrays, exact blocks (of one for sparse items)."""

    kind = "factored"

    def __init__(self, rule: Any, average_from: int | None, start: np.ndarray) -> None:
        super().__init__(rule, average_from, start)
        self.u = np.array(start, order="C")
        self.acc = np.zeros((len(start), start.shape[1] if self._averages else 0), start.dtype)
        self.covariance_x = np.eye(start.shape[0], dtype=start.dtype)
        self.covariance_z = np.eye(start.shape[1], dtype=start.dtype)

    def learn(self, step: Any, tuples: Comparisons, block_size: int) -> None:
        singly = block_size == 1 or tuples.is_sparse
        ops = Blas(self.dtype)
        arrays = self.u, self.acc, self.covariance_x, self.covariance_z

        def learn(begin: int, end: int) -> tuple[int, int]:
            x, z = tuples.rows(begin, end)
            if singly:
                learnt = learn_factored_singly(step, *arrays, x, z, self.clock)
            else:
                learnt = learn_factored_block(ops, step, *arrays, x, z, self.clock)
            return (DONE if learnt == len(x) else DIVERGED), begin + learnt

        self._drive(learn, len(tuples), 256 if singly else block_size)

    def matrix(self) -> np.ndarray:
        return self._decode(self.u, None, self.acc, None)

    def state(self) -> State:
        names = ("clock", "u", "acc", "covariance_x", "covariance_z")
        return self._scalars(), {name: getattr(self, name) for name in names}

    @classmethod
    def from_state(cls, scalars: dict[str, Any], arrays: dict[str, np.ndarray]) -> FactoredEngine:
        u = saved_array(arrays, "u", (None, None), None)
        (rows, columns), dtype = u.shape, u.dtype
        self = cls._restored(scalars, arrays, u.shape, dtype)
        self.u = u
        self.acc = saved_array(arrays, "acc", (rows, columns if self._averages else 0), dtype)
        self.covariance_x = saved_array(arrays, "covariance_x", (rows, rows), dtype)
        self.covariance_z = saved_array(arrays, "covariance_z", (columns, columns), dtype)
        return self


def first_matrix(
    init: Any,
    shape: tuple[int, int],
    dtype: Any,
    as_sparse: bool,
    columns: slice = slice(None),
) -> Any:
    """The start matrix given by ``init`` ("identity", "zeros" or a matrix), as CSR or as an array.

    `columns` are those that are wanted.
    """
    if isinstance(init, str):
        matrix = sp.csr_matrix(shape, dtype=dtype)
        if init == "identity":
            matrix = sp.identity(shape[0], dtype, "csr")
    else:
        matrix = check_items(init, "init", dtype=dtype).values
        if matrix.shape != shape:
            raise ValueError(f"init: expected a matrix of shape {shape}, got {matrix.shape}")
    if as_sparse:
        return sp.csr_matrix(matrix)
    return matrix[:, columns].toarray() if sp.issparse(matrix) else matrix[:, columns]


def default_block_size(n_features: int) -> int:
    """Block size near the best measured one: large enough for fast products, small Gram matrices."""
    if n_features < 96:
        return 1
    return int(np.clip(2 ** round(np.log2(n_features / 3.0)), 64, 512))
