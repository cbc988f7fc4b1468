"""Exact blocked form of learners whose steps are rank one: a block of B tuples costs BLAS-3 products.

All margins of a block against the block's first matrix come from one product; what earlier tuples of
the block change for later ones comes from B x B Gram matrices; a scalar recursion then gives the very
step lengths of one-at-a-time processing (to rounding), and one rank-B update applies them.

A block is a coroutine. It works out what is linear in the columns of z (margins, Gram matrices, which rows
are not zero), *yields* these parts, and is sent their sums over all who have some of the columns of M. Then
come the recursion, which all repeat, and the change of their own columns. Where all columns are in one
place, `alone` sends the parts back as they are.

Everything that touches large arrays is a method of `Blas`, the `ops` of a block; what its `grams` returns is
yielded, summed and given to its `triangles` without being looked at.

AROMA with a factored covariance Lambda (x) Omega is here too, one triplet at a time and in blocks: a violated
triplet moves M along (Lambda x)(Omega z)' and shrinks both factors by a rank-one matrix, so the blocked form
applies to all three matrices at once.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np
from scipy.linalg import blas, solve_triangular

from .dispatch import driver, helper
from .steps import (
    ASK_ALL,
    HOPELESS,
    LARGEST_NORM,
    THRESHOLD,
    average_weight,
    count_asked,
    count_round,
    current_eta,
    is_active,
    is_asked,
    signed_loss,
    step_length,
)

#: Up to this share of tuples that move M, single rows of the Gram matrices cost less than all of them.
_FEW_ACTIVE = 0.25

#: A block: yields (nested tuples of) arrays, is sent their sums, returns how many of its tuples were learnt.
Block = Generator[Any, Any, int]


class Blas:
    """The large products, on C-contiguous arrays of one dtype, through one BLAS library.

    A row-major matrix is its own transpose in column-major order, hence the transposed operands.
    """

    #: Whether all columns of M are here: the parts of a block are then their sums.
    has_all_columns = True

    def __init__(self, dtype: np.dtype) -> None:
        prefix = "s" if dtype == np.float32 else "d"
        self._gemm = getattr(blas, prefix + "gemm")
        self._syrk = getattr(blas, prefix + "syrk")
        self._trmm = getattr(blas, prefix + "trmm")

    def product(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Return a b."""
        return self._gemm(1.0, b.T, a.T).T

    def product_transposed(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Return a b'."""
        return self._gemm(1.0, b.T, a.T, trans_a=1).T

    def product_with_upper(self, a: np.ndarray, m: np.ndarray) -> np.ndarray:
        """Return a u with u the upper triangle (diagonal included) of m: half the work of `product`."""
        return self._trmm(1.0, m.T, a.T, lower=1).T

    def gram(self, a: np.ndarray) -> np.ndarray:
        """Return the upper triangle (diagonal included) of a a'."""
        return self._syrk(1.0, a.T, trans=1, lower=1).T

    def add_product(self, m: np.ndarray, a: np.ndarray, c: np.ndarray, b: np.ndarray) -> None:
        """Add a' diag(c) b to m, in place."""
        scaled = a * c.astype(a.dtype)[:, None]
        done = self._gemm(1.0, b.T, scaled.T, beta=1.0, c=m.T, trans_b=1, overwrite_c=1)
        if done.base is not m and not np.shares_memory(done, m):
            m[...] = done.T  # m was not contiguous: BLAS worked on a copy

    # -- the parts of a block -----------------------------------------------------------------

    def margins(self, x: np.ndarray, m: np.ndarray, z: np.ndarray) -> np.ndarray:
        """x_t' M z_t for the rows of x and z, in float64. If z is x, M is symmetric."""
        if z is x:
            return quadratic_forms(self.product_with_upper(x, m), m.diagonal().copy(), x)
        return row_dots(self.product(x, m), z)

    def is_directed(self, x: np.ndarray, z: np.ndarray) -> np.ndarray:
        """Numbers above zero where neither row of a tuple is zero; none where `recursion` can look itself."""
        return _UNKNOWN

    def grams(self, x: np.ndarray, z: np.ndarray) -> Any:
        """The Gram matrices of the rows of x and of z, in the form in which they are summed."""
        gram_x = self.gram(x)
        return gram_x, gram_x if z is x else self.gram(z)

    def grams_if_many(
        self, step: Any, value: Any, sign: Any, clock: Any, x: np.ndarray, z: np.ndarray
    ) -> Any:
        """`grams`, or empty ones where few tuples move M: single rows of them cost less than all."""
        if _share_active(step, value, sign, clock) > _FEW_ACTIVE:
            return self.grams(x, z)
        return _NO_GRAMS[x.dtype.char]

    def triangles(self, grams: Any) -> tuple[np.ndarray, np.ndarray]:
        """The upper triangles of both Gram matrices, from what `grams` returned or the sum of such."""
        return grams

    # -- what follows from their sums ----------------------------------------------------------

    def recursion(
        self,
        step: Any,
        value: np.ndarray,
        sign: np.ndarray,
        coins: np.ndarray,
        directed: np.ndarray,
        x: np.ndarray,
        z: np.ndarray,
        grams: tuple[np.ndarray, np.ndarray],
        clock: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray, int]:
        """Steps c of the tuples, c times the weight in the average, and how many had finite values."""
        coefficient, weighted = np.zeros(len(x)), np.zeros(len(x))
        learnt = rank_one_recursion(
            step, value, sign, coins, directed, x, z, *grams, clock, coefficient, weighted
        )
        return coefficient, weighted, learnt

    def update(
        self,
        m: np.ndarray,
        acc: np.ndarray,
        x: np.ndarray,
        z: np.ndarray,
        coefficient: np.ndarray,
        weighted: np.ndarray,
    ) -> None:
        """Add the steps c_t x_t z_t' to M, and weighted ones to the average's sum if it has columns."""
        active = np.flatnonzero(coefficient)
        if len(active):
            xa = x if len(active) == len(x) else x[active]
            za = xa if z is x else z[active]
            self.add_product(m, xa, coefficient[active], za)
            if acc.shape[1]:
                self.add_product(acc, xa, weighted[active], za)


#: What was not worked out: whether rows are zero, and Gram matrices.
_UNKNOWN = np.empty(0, np.float32)
_NO_GRAMS = {code: (np.empty((0, 0), code), np.empty((0, 0), code)) for code in "fd"}


def alone(block: Generator[Any, Any, Any]) -> Any:
    """Run a coroutine whose columns are all here: the sum of one part is the part."""
    try:
        parts = next(block)
        while True:
            parts = block.send(parts)
    except StopIteration as end:
        return end.value


@helper
def product_into(matrix, vector, out):
    """out = matrix vector; returns vector' out."""
    total = 0.0
    for i in range(len(matrix)):
        row = matrix[i]
        s = vector.dtype.type(0)
        for j in range(len(vector)):
            s += row[j] * vector[j]
        out[i] = s
    for i in range(len(matrix)):
        total += float(vector[i]) * float(out[i])
    return total


@helper
def add_outer(matrix, c, a, b):
    """matrix += c a b'."""
    for i in range(len(a)):
        row = matrix[i]
        ca = a.dtype.type(c) * a[i]
        for j in range(len(b)):
            row[j] += ca * b[j]


@helper
def eliminate(gram, t, beta, mix):
    """Take the step -beta a_t a_t' out of the Gram matrix of the later tuples; note how it mixes into them.

    Only the upper triangle is kept: row t holds the products with the later tuples.
    """
    n = len(gram)
    for s in range(t + 1, n):
        g = beta * gram[t, s]
        mix[t, s] = g
        for j in range(s, n):
            gram[s, j] -= g * gram[t, j]


def unmix(mix: np.ndarray, active: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Rows a_t = A_t z_t of the active tuples from the rows A_0 z_t (inactive ones never mix in)."""
    triangle = mix[np.ix_(active, active)].astype(rows.dtype)
    np.fill_diagonal(triangle, 1)
    solved = solve_triangular(
        triangle, rows[active], trans="T", unit_diagonal=True, check_finite=False
    )
    return np.ascontiguousarray(solved)


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
def quadratic_forms(half, diagonal, v):
    """v_t' M v_t for the rows of v, where half = v u, u the upper triangle of the symmetric M."""
    out = np.empty(len(v))
    for t in range(len(v)):
        s = 0.0
        for j in range(v.shape[1]):
            s += float(v[t, j]) * (2.0 * float(half[t, j]) - float(diagonal[j]) * float(v[t, j]))
        out[t] = s
    return out


@helper
def _dot(a, i, j):
    """Inner product of rows i and j."""
    s = 0.0
    for k in range(a.shape[1]):
        s += float(a[i, k]) * float(a[j, k])
    return s


@helper
def _is_zero(a, i):
    for k in range(a.shape[1]):  # noqa: SIM110 - compiled code has no generators
        if a[i, k] != 0:
            return False
    return True


@driver
def nonzero_rows(x, z):
    """1 where neither row of a tuple is zero, else 0."""
    out = np.empty(len(x), np.float32)
    for t in range(len(x)):
        out[t] = not (_is_zero(x, t) or _is_zero(z, t))
    return out


@driver
def rank_one_recursion(
    step, value, sign, coins, directed, x, z, gram_x, gram_z, clock, coefficient, weighted
):
    """Steps of one-at-a-time processing; returns how many tuples had finite values.

    ``directed[t]`` is above zero where neither x_t nor z_t is zero. That array and the Gram matrices may be
    empty: what is needed of them is then worked out from x and z. So may `coins`, the uniform numbers that
    decide whether to ask, where all answers are asked for.
    """
    n = len(value)
    has_gram, is_known = len(gram_x) > 0, len(directed) > 0
    largest = np.finfo(x.dtype).max
    for t in range(n):
        if not abs(value[t]) < HOPELESS:
            return t
        loss = signed_loss(sign[t], value[t], clock)
        if is_known:
            has_direction = directed[t] > 0
        else:
            has_direction = not (_is_zero(x, t) or _is_zero(z, t))
        c = 0.0
        asked = step.ask == ASK_ALL or is_asked(step, value[t], coins[t])
        if asked and is_active(step, loss) and has_direction:
            if has_gram:
                squared_norm = float(gram_x[t, t]) * float(gram_z[t, t])
            else:
                squared_norm = _dot(x, t, t) * _dot(z, t, t)
            if not squared_norm < LARGEST_NORM:
                return t
            has_direction = squared_norm > 0.0  # not where it underflows
            if has_direction:
                eta = current_eta(step, clock)
                c = sign[t] * step_length(step, loss, squared_norm + step.bias, 0.0, eta)
            if not abs(c) < largest:
                return t
            if abs(c) < step.tolerance:
                c = 0.0
        if c != 0.0:
            if has_gram:
                for s in range(t + 1, n):
                    value[s] += c * (float(gram_x[t, s]) * float(gram_z[t, s]))
            else:
                for s in range(t + 1, n):
                    value[s] += c * (_dot(x, t, s) * _dot(z, t, s))
            clock[THRESHOLD] -= c * step.bias
        coefficient[t] = c
        weighted[t] = c * average_weight(step, clock)
        count_asked(clock, step, asked)
        count_round(clock, loss, c != 0.0, not has_direction)
    return n


@driver
def _share_active(step, value, sign, clock):
    """Share of the tuples that call for a step before any of them has moved M."""
    active = 0
    for t in range(len(value)):
        active += is_active(step, signed_loss(sign[t], value[t], clock))
    return active / len(value)


def learn_block(
    ops: Any, step: Any, m: Any, acc: Any, x: Any, z: Any, sign: Any, clock: Any
) -> Block:
    """Learn from one block of rows x and z (the same array for pairs); return how many were learnt.

    ``acc`` is the average's accumulator, or has no columns. All are arrays, or whatever `ops` works on.
    """
    value = ops.margins(x, m, z)
    grams = ops.grams_if_many(step, value, sign, clock, x, z)
    value, directed, grams = yield value, ops.is_directed(x, z), grams
    grams, coins = ops.triangles(grams), np.empty(0)
    *changes, learnt = ops.recursion(step, value, sign, coins, directed, x, z, grams, clock)
    ops.update(m, acc, x, z, *changes)
    return learnt


# -- AROMA with a factored covariance ---------------------------------------------------------------


@helper
def _shrink_factors(step, qx, qz, width_x, width_z):
    """How much Lambda and Omega lose along (Lambda x)(Lambda x)' and (Omega z)(Omega z)'.

    With q = x' Lambda x and q' = z' Omega z, Lambda^{-1} gains (q'/(r d')) x x': Sherman-Morrison.
    """
    kx, kz = qz / (step.r * width_z), qx / (step.r * width_x)
    return kx / (1.0 + kx * qx), kz / (1.0 + kz * qz)


@driver
def learn_factored_singly(step, m, acc, covariance_x, covariance_z, x, z, clock):
    """Rows of x and z one after the other; return how many were learnt."""
    lx, lz = np.empty_like(x[0]), np.empty_like(z[0])
    for t in range(len(x)):
        margin = 0.0
        for i in range(len(lx)):
            if x[t, i] != 0:
                row = m[i]
                s = x.dtype.type(0)
                for j in range(len(lz)):
                    s += row[j] * z[t, j]
                margin += float(x[t, i]) * float(s)
        if not abs(margin) < HOPELESS:
            return t
        qx = product_into(covariance_x, x[t], lx)
        qz = product_into(covariance_z, z[t], lz)
        violated = margin < 1.0 and qx * qz > 0.0
        if violated:
            alpha = step_length(step, 1.0 - margin, 0.0, qx * qz, 0.0)
            bx, bz = _shrink_factors(step, qx, qz, len(lx), len(lz))
            add_outer(m, alpha, lx, lz)
            if acc.shape[1] > 0:
                add_outer(acc, alpha * average_weight(step, clock), lx, lz)
            add_outer(covariance_x, -bx, lx, lx)
            add_outer(covariance_z, -bz, lz, lz)
        count_round(clock, 1.0 - margin, violated, qx * qz == 0.0)
    return len(x)


@driver
def _confidence_recursion(
    step,
    margin,
    gram_x,
    gram_z,
    width_x,
    width_z,
    clock,
    alpha,
    weighted,
    beta_x,
    beta_z,
    mix_x,
    mix_z,
):
    """The same for factored AROMA; gram_x = X Lambda X', gram_z = Z Omega Z' are used up.

    Columns a_t = Lambda_t x_t of the whole block follow from A (I + mix) = Lambda X'.
    """
    n = len(margin)
    for t in range(n):
        if not abs(margin[t]) < HOPELESS:
            return t
        qx, qz = gram_x[t, t], gram_z[t, t]
        violated = margin[t] < 1.0 and qx * qz > 0.0
        if violated:
            a = step_length(step, 1.0 - margin[t], 0.0, qx * qz, 0.0)
            bx, bz = _shrink_factors(step, qx, qz, width_x, width_z)
            alpha[t], beta_x[t], beta_z[t] = a, bx, bz
            weighted[t] = a * average_weight(step, clock)
            for s in range(t + 1, n):
                margin[s] += a * gram_x[t, s] * gram_z[t, s]
            eliminate(gram_x, t, bx, mix_x)
            eliminate(gram_z, t, bz, mix_z)
        count_round(clock, 1.0 - margin[t], violated, qx * qz == 0.0)
    return n


def learn_factored_block(ops, step, m, acc, covariance_x, covariance_z, x, z, clock):
    """One block of AROMA with covariance Lambda (x) Omega; return how many triplets were learnt."""
    n = len(x)
    lx, lz = ops.product(x, covariance_x), ops.product(z, covariance_z)
    margin = row_dots(ops.product(x, m), z)
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
        ax = unmix(mix_x, active, lx)
        az = unmix(mix_z, active, lz)
        ops.add_product(m, ax, alpha[active], az)
        if acc.shape[1]:
            ops.add_product(acc, ax, weighted[active], az)
        ops.add_product(covariance_x, ax, -beta_x[active], ax)
        ops.add_product(covariance_z, az, -beta_z[active], az)
    return learnt
