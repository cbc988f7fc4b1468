"""Full arrays, for dense items."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..validation import Items
from .base import (
    ENTRIES_PER_CALL,
    Engine,
    anchors_and_differences,
    check_array,
    check_floats,
    new_scratch,
    shrunk,
)


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
        from ..kernels.entrywise import Dense
        from ..kernels.rules import AdaptiveThreshold

        super().__init__(rule, average_from)
        has_acc = average_from is not None
        u = np.array(start, order="C")
        if isinstance(rule, AdaptiveThreshold):
            u *= rule.parameter
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

    def learn(
        self, step: Any, left: Items, right: Items, triplets: np.ndarray, block_size: int
    ) -> None:
        left, right, triplets = _used_rows_dense(left, right, triplets)
        if block_size > 1:
            self._learn_blocks(step, left, right, triplets, block_size)
        else:
            self._learn_singly(step, left, right, triplets)

    def _learn_singly(self, step: Any, left: Items, right: Items, triplets: np.ndarray) -> None:
        from ..kernels.entrywise import learn_one_at_a_time
        from ..kernels.rows import DenseRows

        rows = DenseRows(left.values), DenseRows(right.values)
        scratch = new_scratch(*self.shape, self.dtype)

        def learn(begin: int, end: int) -> tuple[int, int]:
            return learn_one_at_a_time(
                self.rule, self.arrays, step, *rows, triplets[:end], begin, scratch, self.clock
            )

        chunk = max(1, int(ENTRIES_PER_CALL / (self.shape[0] * self.shape[1])))
        self._drive(learn, len(triplets), chunk, None, self._rebase)

    def _learn_blocks(
        self, step: Any, left: Items, right: Items, triplets: np.ndarray, block_size: int
    ) -> None:
        from ..kernels.blocked import Blas, learn_block
        from ..kernels.entrywise import DIVERGED, DONE
        from ..kernels.rules import Plain

        assert isinstance(self.rule, Plain), self.rule  # no other rule has a blocked form
        ops = Blas(self.dtype)

        def learn(begin: int, end: int) -> tuple[int, int]:
            x, z = anchors_and_differences(left, right, triplets[begin:end])
            learnt = learn_block(ops, step, self.arrays.u, self.arrays.acc, x, z, self.clock)
            return (DONE if learnt == len(x) else DIVERGED), begin + learnt

        self._drive(learn, len(triplets), block_size, None, None)

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
        from ..kernels.entrywise import Dense

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


def _used_rows_dense(
    left: Items, right: Items, triplets: np.ndarray
) -> tuple[Items, Items, np.ndarray]:
    """Sparse items as dense rows, but only those the triplets name."""
    if not (left.is_sparse or right.is_sparse):
        return left, right, triplets
    anchors, a = np.unique(triplets[:, 0], return_inverse=True)
    candidates, c = np.unique(triplets[:, 1:], return_inverse=True)
    renumbered = np.column_stack([a, c.reshape(-1, 2)])
    return Items(left.dense_rows(anchors)), Items(right.dense_rows(candidates)), renumbered
