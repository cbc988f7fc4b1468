"""Exact blocked form of learners whose steps are rank one: a block of B triplets costs BLAS-3 products.

All margins of a block against the block's first matrix come from one product; what earlier triplets of
the block change for later ones comes from B x B Gram matrices; a scalar recursion then gives the very
step lengths of one-at-a-time processing (to rounding), and one rank-B update applies them.

The functions that touch large arrays are collected in `Blas`; the recursions only see B x B arrays.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy.linalg import blas, solve_triangular

from .dispatch import driver
from .steps import average_weight, count_round, current_eta, step_length


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


class Block(NamedTuple):
    """What a recursion found: how many triplets were learnt, and each one's coefficient."""

    learnt: int
    coefficient: np.ndarray
    weighted: np.ndarray  # coefficient times the weight of its round in the average


@driver
def _row_dots(a, b):
    """Sums over rows of a * b in float64: the recursion adds many small changes to them."""
    out = np.empty(len(a))
    for t in range(len(a)):
        s = 0.0
        for j in range(a.shape[1]):
            s += float(a[t, j]) * float(b[t, j])
        out[t] = s
    return out


@driver
def _rank_one_recursion(step, margin, gram_x, gram_z, clock, coefficient, weighted):
    """Steps of one-at-a-time processing; returns how many triplets had finite margins."""
    n = len(margin)
    for t in range(n):
        if not math.isfinite(margin[t]):
            return t
        squared_norm = float(gram_x[t, t]) * float(gram_z[t, t])
        c = 0.0
        if margin[t] < 1.0 and squared_norm > 0.0:
            eta = current_eta(step, clock)
            c = step_length(step, 1.0 - margin[t], squared_norm, 0.0, eta)
            for s in range(t + 1, n):
                margin[s] += c * (float(gram_x[t, s]) * float(gram_z[t, s]))
        coefficient[t] = c
        weighted[t] = c * average_weight(step, clock)
        count_round(clock, margin[t], c > 0.0, squared_norm == 0.0)
    return n


def learn_block(ops, step, m, acc, x, z, clock):
    """Learn from one block of anchors x and differences z (rows); return how many were learnt.

    ``acc`` is the average's accumulator, or has no columns.
    """
    margin = _row_dots(ops.product(x, m), z)
    coefficient, weighted = np.zeros(len(x)), np.zeros(len(x))
    learnt = _rank_one_recursion(step, margin, ops.gram(x), ops.gram(z), clock, coefficient, weighted)
    active = np.flatnonzero(coefficient)
    if len(active):
        xa, za = (x, z) if len(active) == len(x) else (x[active], z[active])
        ops.add_product(m, xa, coefficient[active], za)
        if acc.shape[1]:
            ops.add_product(acc, xa, weighted[active], za)
    return learnt


@driver
def _confidence_recursion(
    step, margin, gram_x, gram_z, width_x, width_z, clock, alpha, weighted, beta_x, beta_z, mix_x, mix_z
):
    """The same for factored AROMA; gram_x = X Lambda X', gram_z = Z Omega Z' are used up.

    Columns a_t = Lambda_t x_t of the whole block follow from A (I + mix) = Lambda X'.
    """
    n = len(margin)
    for t in range(n):
        if not math.isfinite(margin[t]):
            return t
        qx, qz = gram_x[t, t], gram_z[t, t]
        violated = margin[t] < 1.0 and qx * qz > 0.0
        if violated:
            a = step_length(step, 1.0 - margin[t], 0.0, qx * qz, 0.0)
            kx, kz = qz / (step.r * width_z), qx / (step.r * width_x)
            bx, bz = kx / (1.0 + kx * qx), kz / (1.0 + kz * qz)
            alpha[t], beta_x[t], beta_z[t] = a, bx, bz
            weighted[t] = a * average_weight(step, clock)
            for s in range(t + 1, n):
                gx, gz = gram_x[t, s], gram_z[t, s]
                margin[s] += a * gx * gz
                mix_x[t, s] = bx * gx
                mix_z[t, s] = bz * gz
                for j in range(s, n):
                    gram_x[s, j] -= bx * gx * gram_x[t, j]
                    gram_z[s, j] -= bz * gz * gram_z[t, j]
        count_round(clock, margin[t], violated, qx * qz == 0.0)
    return n


def learn_factored_block(ops, step, m, acc, covariance_x, covariance_z, x, z, clock):
    """One block of AROMA with covariance Lambda (x) Omega; return how many triplets were learnt."""
    n = len(x)
    lx, lz = ops.product(x, covariance_x), ops.product(z, covariance_z)
    margin = _row_dots(ops.product(x, m), z)
    gram_x = ops.product_transposed(lx, x).astype(np.float64)
    gram_z = ops.product_transposed(lz, z).astype(np.float64)
    alpha, weighted, beta_x, beta_z = np.zeros((4, n))
    mix_x, mix_z = np.zeros((2, n, n))
    learnt = _confidence_recursion(
        step, margin, gram_x, gram_z, x.shape[1], z.shape[1], clock, alpha, weighted, beta_x, beta_z,
        mix_x, mix_z,
    )  # fmt: skip
    active = np.flatnonzero(alpha)
    if len(active):
        ax = _unmix(mix_x, active, lx)
        az = _unmix(mix_z, active, lz)
        ops.add_product(m, ax, alpha[active], az)
        if acc.shape[1]:
            ops.add_product(acc, ax, weighted[active], az)
        ops.add_product(covariance_x, ax, -beta_x[active], ax)
        ops.add_product(covariance_z, az, -beta_z[active], az)
    return learnt


def _unmix(mix: np.ndarray, active: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Rows a_t of the active triplets from the rows Lambda_0 x_t (inactive ones never mix in)."""
    triangle = mix[np.ix_(active, active)].astype(rows.dtype)
    np.fill_diagonal(triangle, 1)
    solved = solve_triangular(triangle, rows[active], trans="T", unit_diagonal=True, check_finite=False)
    return np.ascontiguousarray(solved)
