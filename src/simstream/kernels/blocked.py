"""Exact blocked form of learners whose steps are rank one: a block of B tuples costs BLAS-3 products.

All margins of a block against the block's first matrix come from one product; what earlier tuples of
the block change for later ones comes from B x B Gram matrices; a scalar recursion then gives the very
step lengths of one-at-a-time processing (to rounding), and one rank-B update applies them.

The functions that touch large arrays are collected in `Blas`; the recursions only see B x B arrays.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import blas

from .dispatch import driver
from .steps import (
    HOPELESS,
    THRESHOLD,
    average_weight,
    count_round,
    current_eta,
    is_active,
    signed_loss,
    step_length,
)


class Blas:
    """The large products, on C-contiguous arrays of one dtype, through one BLAS library.

    A row-major matrix is its own transpose in column-major order, hence the transposed operands.
    """

    def __init__(self, dtype: np.dtype) -> None:
        prefix = "s" if dtype == np.float32 else "d"
        self._gemm = getattr(blas, prefix + "gemm")
        self._syrk = getattr(blas, prefix + "syrk")

    def product(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Return a b."""
        return self._gemm(1.0, b.T, a.T).T

    def product_transposed(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Return a b'."""
        return self._gemm(1.0, b.T, a.T, trans_a=1).T

    def gram(self, a: np.ndarray) -> np.ndarray:
        """Return the upper triangle (diagonal included) of a a'."""
        return self._syrk(1.0, a.T, trans=1, lower=1).T

    def add_product(self, m: np.ndarray, a: np.ndarray, c: np.ndarray, b: np.ndarray) -> None:
        """Add a' diag(c) b to m, in place."""
        scaled = a * c.astype(a.dtype)[:, None]
        done = self._gemm(1.0, b.T, scaled.T, beta=1.0, c=m.T, trans_b=1, overwrite_c=1)
        if done.base is not m and not np.shares_memory(done, m):
            m[...] = done.T  # m was not contiguous: BLAS worked on a copy


@driver
def row_dots(a, b):
    """Sums over rows of a * b in float64: the recursion adds many small changes to them."""
    out = np.empty(len(a))
    for t in range(len(a)):
        s = 0.0
        for j in range(a.shape[1]):
            s += float(a[t, j]) * float(b[t, j])
        out[t] = s
    return out


@driver
def _rank_one_recursion(step, value, sign, gram_x, gram_z, clock, coefficient, weighted):
    """Steps of one-at-a-time processing; returns how many tuples had finite values."""
    n = len(value)
    largest = np.finfo(gram_x.dtype).max
    for t in range(n):
        if not abs(value[t]) < HOPELESS:
            return t
        loss = signed_loss(sign[t], value[t], clock)
        squared_norm = float(gram_x[t, t]) * float(gram_z[t, t])
        c = 0.0
        if is_active(step, loss) and squared_norm > 0.0:
            eta = current_eta(step, clock)
            c = sign[t] * step_length(step, loss, squared_norm + step.bias, 0.0, eta)
            if not abs(c) < largest:
                return t
            if abs(c) < step.tolerance:
                c = 0.0
        if c != 0.0:
            for s in range(t + 1, n):
                value[s] += c * (float(gram_x[t, s]) * float(gram_z[t, s]))
            clock[THRESHOLD] -= c * step.bias
        coefficient[t] = c
        weighted[t] = c * average_weight(step, clock)
        count_round(clock, loss, c != 0.0, squared_norm == 0.0)
    return n


def learn_block(ops, step, m, acc, x, z, sign, clock):
    """Learn from one block of rows x and z (the same array for pairs); return how many were learnt.

    ``acc`` is the average's accumulator, or has no columns.
    """
    value = row_dots(ops.product(x, m), z)
    coefficient, weighted = np.zeros(len(x)), np.zeros(len(x))
    gram_x = ops.gram(x)
    gram_z = gram_x if z is x else ops.gram(z)
    learnt = _rank_one_recursion(step, value, sign, gram_x, gram_z, clock, coefficient, weighted)
    active = np.flatnonzero(coefficient)
    if len(active):
        xa, za = (x, z) if len(active) == len(x) else (x[active], z[active])
        ops.add_product(m, xa, coefficient[active], za)
        if acc.shape[1]:
            ops.add_product(acc, xa, weighted[active], za)
    return learnt
