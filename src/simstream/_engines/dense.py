"""Full arrays, for dense items."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..data.comparisons import Comparisons
from .base import ENTRIES_PER_CALL, Engine, check_array, check_floats, new_scratch, shrunk

#: Rows that are copied at a time: they stay in the cache until they are used.
_GATHERED_BYTES = 2**18


class DenseEngine(Engine):
    """Full arrays, for dense items: one triplet at a time, or exact blocks where the rule allows.

    Parameters
    ----------
    rule : an entry rule of `kernels.rules`
    start : array of shape (d, d'), the first matrix
    average_from : int, optional
        First round of the average.
    has_aux : bool
        Whether the rule needs the second array.
    """

    kind = "dense"

    def __init__(
        self, rule: Any, average_from: int | None, start: np.ndarray, has_aux: bool
    ) -> None:
        from .._kernels.entrywise import Dense
        from .._kernels.rules import ADAPTIVE

        super().__init__(rule, average_from)
        has_acc = average_from is not None
        u = np.array(start, order="C")
        if rule.kind == ADAPTIVE:
            u *= rule.delta
        self.arrays = Dense(
            u=u,
            aux=np.zeros((len(u), u.shape[1] if has_aux else 0), u.dtype),
            acc=np.zeros((len(u), u.shape[1] if has_acc else 0), u.dtype),
        )

    @property
    def shape(self) -> tuple[int, int]:
        return self.arrays.u.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.arrays.u.dtype

    def learn(self, step: Any, tuples: Comparisons, block_size: int) -> None:
        tuples = tuples.densified()
        if block_size > 1:
            self._learn_blocks(step, tuples, block_size)
        else:
            self._learn_singly(step, tuples)

    def _learn_singly(self, step: Any, tuples: Comparisons) -> None:
        from .._kernels.entrywise import learn_one_at_a_time

        def learn(first: int, n: int, readers: Any, gathered: Any, scratch: Any) -> tuple[int, int]:
            return learn_one_at_a_time(
                self.rule, self.arrays, step, *readers, gathered, 0, n, scratch, self.clock
            )

        self.drive_gathered(learn, tuples)

    def drive_gathered(self, learn: Any, tuples: Comparisons) -> None:
        """Call ``learn(first, n, readers, gathered, scratch) -> (status, how many)`` until all are learnt.

        The rows of the n tuples from `first` on are copied side by side before: copies wait for memory
        together, steps would wait for their rows one after the other.
        """
        from .._kernels.entrywise import DONE, DenseRows, Gathered, gather

        few = max(1, _GATHERED_BYTES // (sum(self.shape) * self.dtype.itemsize))
        few = min(few, len(tuples))
        scratch = new_scratch(*self.shape, self.dtype)
        left, right, index, sign = (
            tuples.left.values,
            tuples.right.values,
            tuples.index,
            tuples.sign,
        )
        x = np.empty((few, left.shape[1]), left.dtype)
        z = x if tuples.is_pairs else np.empty((few, right.shape[1]), right.dtype)
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
        self._drive(learn_pieces, len(tuples), chunk, None, self._rebase)

    def _learn_blocks(self, step: Any, tuples: Comparisons, block_size: int) -> None:
        from .._kernels.blocked import Blas, learn_block
        from .._kernels.entrywise import DIVERGED, DONE
        from .._kernels.rules import PLAIN

        assert self.rule.kind == PLAIN, self.rule  # no other rule has a blocked form
        ops = Blas(self.dtype)
        u, acc = self.arrays.u, self.arrays.acc
        sign = tuples.sign

        def learn(begin: int, end: int) -> tuple[int, int]:
            for first in range(begin, end, block_size):
                last = min(end, first + block_size)
                x, z = tuples.rows(first, last)
                learnt = learn_block(ops, step, u, acc, x, z, sign[first:last], self.clock)
                if learnt < last - first:
                    return DIVERGED, first + learnt
            return DONE, end

        # Several blocks between two moments at which Ctrl-C is noticed: looking for it costs too.
        blocks = max(1, int(ENTRIES_PER_CALL / self.arrays.u.size) // block_size)
        self._drive(learn, len(tuples), blocks * block_size, None, None)

    def _rebase(self, rule: Any, shift: float) -> None:
        u = self.arrays.u
        diagonal = u.diagonal().copy()
        u[...] = shrunk(u, shift)
        if rule.off_diagonal:
            np.fill_diagonal(u, diagonal)

    def matrix(self) -> np.ndarray:
        """The current matrix, or the average (a view of the live array where nothing is decoded)."""
        a = self.arrays
        return self._decode(a.u, a.aux, a.acc, np.diag_indices(min(self.shape)))

    def state(self) -> dict[str, np.ndarray]:
        return {"clock": self.clock, **self.arrays._asdict()}

    @classmethod
    def from_state(  # type: ignore[override]
        cls,
        rule: Any,
        average_from: int | None,
        arrays: dict[str, np.ndarray],
        *,
        has_aux: bool,
        **_: Any,
    ) -> DenseEngine:
        from .._kernels.entrywise import Dense

        self = cls.__new__(cls)
        Engine.__init__(self, rule, average_from, arrays["clock"])
        self.arrays = Dense(arrays["u"], arrays["aux"], arrays["acc"])
        u = self.arrays.u
        check_array("u", u, check_floats("u", u), (None, None))
        for name, present in (("aux", has_aux), ("acc", average_from is not None)):
            check_array(name, arrays[name], u.dtype, (len(u), u.shape[1] if present else 0))
        return self


def default_block_size(n_features: int) -> int:
    """Block size near the best measured one: products must be large, Gram matrices small beside them."""
    if n_features < 96:
        return 1
    return int(np.clip(2 ** round(np.log2(n_features / 3.0)), 64, 512))
