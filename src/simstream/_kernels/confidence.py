"""AROMA with a factored covariance Lambda (x) Omega: one triplet at a time, and in exact blocks.

A violated triplet moves M along (Lambda x)(Omega z)' and shrinks both factors by a rank-one matrix, so
the blocked form of `blocked` applies to all three matrices at once.
"""

from __future__ import annotations

import numpy as np

from .blocked import row_dots
from .dispatch import driver, helper
from .rank_one import add_outer, eliminate, product_into, unmix
from .steps import HOPELESS, average_weight, count_round, step_length


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
