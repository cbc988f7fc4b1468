"""Blocks of tuples on a torch device: the tensors' side of `blocked`.

`TorchOps` does with torch what `Blas` does with NumPy; the recursion runs on the CPU, compiled. On a CUDA
device `cuda` has the faster form, where a block never waits for the host.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

import numpy as np
import torch

from .blocked import Blas, alone, learn_block

_PRECISION = Lock()


@contextmanager
def products(tf32: bool) -> Iterator[None]:
    """Whether products of float32 that are launched here may use TF32.

    That is a setting of the whole process: it is put back, and no two threads of ours change it at a time.
    """
    with _PRECISION:
        before = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = tf32
        try:
            yield
        finally:
            torch.backends.cuda.matmul.allow_tf32 = before


class TorchOps(Blas):
    """The operations of `blocked.learn_block` on tensors of one device."""

    def __init__(self) -> None:
        """Torch knows the precision of a tensor by itself."""

    def margins(self, x: Any, m: Any, z: Any) -> np.ndarray:
        """x_t' M z_t for the rows of x and z, in float64."""
        return ((x @ m).double() * z.double()).sum(1).cpu().numpy()

    def grams(self, x: Any, z: Any) -> Any:
        """The Gram matrices of the rows of x and of z."""
        gram_x = (x @ x.T).cpu().numpy()
        return gram_x, gram_x if z is x else (z @ z.T).cpu().numpy()

    def grams_if_many(self, step: Any, value: Any, sign: Any, clock: Any, x: Any, z: Any) -> Any:
        """The Gram matrices, however few tuples move M."""
        return self.grams(x, z)

    def recursion(
        self,
        step: Any,
        value: Any,
        sign: Any,
        coins: Any,
        directed: Any,
        x: Any,
        z: Any,
        *rest: Any,
    ) -> tuple[Any, Any, int]:
        """Steps of the tuples, the same weighted for the average, and how many had finite values."""
        rows = x.cpu().numpy(), z.cpu().numpy()
        *steps, learnt = super().recursion(step, value, sign, coins, directed, *rows, *rest)
        coefficient, weighted = (torch.from_numpy(c).to(x) for c in steps)
        return coefficient, weighted, learnt

    def add_product(self, m: Any, a: Any, c: np.ndarray, b: Any) -> None:
        """Add a' diag(c) b to m, in place."""
        m.addmm_((a * torch.from_numpy(c).to(a)[:, None]).T, b)

    def update(self, m: Any, acc: Any, x: Any, z: Any, coefficient: Any, weighted: Any) -> None:
        """Add the steps c_t x_t z_t' to M, and weighted ones to the average's sum if it has columns."""
        moved = coefficient[:, None] != 0  # others may be infinite, and would make all of M NaN
        x, z = torch.where(moved, x, 0), torch.where(moved, z, 0)
        m.addmm_((x * coefficient[:, None]).T, z)
        if acc.shape[1]:
            acc.addmm_((x * weighted[:, None]).T, z)


class TorchBlocks:
    """Learns from tuples of items on a device, block after block.

    Parameters
    ----------
    step : `steps.Step`
    m, acc : tensors, the matrix and the average's sum, which has no columns where there is none
    left, right : tensors of items
    block_size : int
    """

    def __init__(self, step: Any, m: Any, acc: Any, left: Any, right: Any, block_size: int) -> None:
        self._step, self._m, self._acc = step, m, acc
        self._left, self._right = left, right
        self._size = block_size
        self._ops = TorchOps()

    def learn(self, index: np.ndarray, sign: np.ndarray, clock: np.ndarray) -> int:
        """Learn from tuples of row numbers, in order; return how many were learnt."""
        rows = torch.from_numpy(np.ascontiguousarray(index)).to(self._m.device)
        for first in range(0, len(index), self._size):
            part = rows[first : first + self._size]
            x, z = rows_of(self._left, self._right, part)
            block = sign[first : first + len(part)]
            learnt = alone(
                learn_block(self._ops, self._step, self._m, self._acc, x, z, block, clock)
            )
            if learnt < len(part):
                return first + learnt
        return len(index)


def rows_of(left: Any, right: Any, index: Any) -> tuple[Any, Any]:
    """Rows x and z of tuples: anchor and difference; for pairs the difference is both."""
    if index.shape[1] == 2:
        v = left[index[:, 0]] - right[index[:, 1]]
        return v, v
    return left[index[:, 0]], right[index[:, 1]] - right[index[:, 2]]


def squared_hinges(left: Any, right: Any, index: Any, matrix: Any) -> float:
    """Sum of the squared hinge losses of triplets, in the precision of the matrix."""
    anchors, place = torch.unique(index[:, 0], return_inverse=True)
    products = left[anchors].to(matrix.dtype) @ matrix
    z = right[index[:, 1]].to(matrix.dtype) - right[index[:, 2]]
    losses = torch.clamp(1 - (products[place] * z).double().sum(1), min=0)
    return float(losses.square().sum())
