"""LogDet learners: a step adds a multiple of z z' to the inverse of A; one pair at a time, or exact blocks.

A' = A - beta (A z)(A z)' with beta = c / (1 + c z'Az) is the matrix whose inverse is A^{-1} + c z z'. Online
ITML also needs (I - A)^{-1} = I + C with C = A (I - A)^{-1}: since C^{-1} = A^{-1} - I, the matrix C takes
steps of the very same form, with the same c. So a learner here has one matrix or two, and a rule for c.

In a block all z'A z come from two products, what earlier pairs change for later ones from the Gram matrix
Z A Z' as it stands after each step, and the vectors A_t z_t of the whole block from one triangular system.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy.linalg import solve_triangular

from .dispatch import by_component, driver, helper
from .steps import HOPELESS, count_outcome


class ExactGradient(NamedTuple):
    """LEGO: the exact minimiser of D_ld(A, A_t) + eta/2 (z'Az - target)^2."""

    eta: float
    always: bool  # update also where the distance is on the right side of its target


class ClippedGradient(NamedTuple):
    """Online ITML: gradient taken at A_t, clipped so that A stays below the identity."""

    eta: float
    always: bool


def _exact_change(rule, target, q, p, squared_norm):
    """c of LEGO; q = z'Az."""
    k = 1.0 - rule.eta * target * q
    root = math.sqrt(k * k + 4.0 * rule.eta * q * q)
    # Two forms of the same root: without cancellation on either side.
    reached = 2.0 * q / (k + root) if k > 0.0 else (root - k) / (2.0 * rule.eta * q)
    return rule.eta * (reached - target)


def _clipped_change(rule, target, q, p, squared_norm):
    """c of online ITML; q = z'Az, p = z'Cz."""
    eta = rule.eta
    if q < target:
        if p > _AT_THE_IDENTITY * squared_norm:
            return 0.0
        eta = min(eta, 0.5 / ((target - q) * (p + squared_norm)))
    return 2.0 * eta * (q - target)


#: Where z'Cz is so many times z'z, A is within 1e-4 of the identity along z: it grows no further there.
_AT_THE_IDENTITY = 1e4

#: Where it is so many times z'z, C has lost digits in the step: it is to be made anew from A.
_CLOSE_TO_THE_IDENTITY = 1e2

_change = by_component({ExactGradient: _exact_change, ClippedGradient: _clipped_change})


@helper
def _decide(rule, sign, targets, q, p, squared_norm, clock):
    """How much of z z' the inverse of A gains (0 for no step); counts the round."""
    target = targets[0] if sign < 0.0 else targets[1]  # similar pairs belong below the lower target
    violation = max(0.0, sign * (target - q))
    c = 0.0
    if squared_norm > 0.0 and (violation > 0.0 or rule.always):
        c = _change(rule, target, q, p, squared_norm)
    mistaken = sign * (q - 0.5 * (targets[0] + targets[1])) <= 0.0
    count_outcome(clock, 0.5 * violation * violation, mistaken, c != 0.0, squared_norm == 0.0)
    return c


@helper
def product_into(matrix, vector, out):
    """out = matrix vector; returns vector' out."""
    total = 0.0
    for i in range(len(matrix)):
        row = matrix[i]
        s = 0.0
        for j in range(len(vector)):
            s += row[j] * vector[j]
        out[i] = s
        total += vector[i] * s
    return total


@helper
def add_outer(matrix, c, a):
    """matrix += c a a'."""
    for i in range(len(a)):
        row = matrix[i]
        ca = c * a[i]
        for j in range(len(a)):
            row[j] += ca * a[j]


@helper
def _has_worn(c, p, squared_norm):
    """Whether the second matrix has lost digits in a step."""
    return c < 0.0 and p > _CLOSE_TO_THE_IDENTITY * squared_norm


@driver
def learn_logdet_singly(rule, matrices, z, signs, targets, clock):
    """Rows of z one after the other; return how many were learnt, and whether the second matrix has worn."""
    has_second = len(matrices) > 1
    first, second = matrices[0], matrices[-1]
    az, cz = np.empty_like(z[0]), np.empty_like(z[0])
    for t in range(len(z)):
        q = product_into(first, z[t], az)
        p = product_into(second, z[t], cz) if has_second else 0.0
        if not abs(q) + abs(p) < HOPELESS:
            return t, False
        squared_norm = 0.0
        for j in range(z.shape[1]):
            squared_norm += z[t, j] * z[t, j]
        c = _decide(rule, signs[t], targets, q, p, squared_norm, clock)
        if c != 0.0:
            add_outer(first, -c / (1.0 + c * q), az)
            if has_second:
                add_outer(second, -c / (1.0 + c * p), cz)
                if _has_worn(c, p, squared_norm):
                    return t + 1, True
    return len(z), False


@helper
def eliminate(gram, t, beta, mix):
    """Take the step of pair t out of the Gram matrix of the later ones, and note how it mixes in.

    Only the upper triangle is kept: row t holds the products with the later pairs.
    """
    n = len(gram)
    for s in range(t + 1, n):
        g = beta * gram[t, s]
        mix[t, s] = g
        for j in range(s, n):
            gram[s, j] -= g * gram[t, j]


@driver
def _logdet_recursion(rule, grams, squared_norms, signs, targets, clock, betas, mixes):
    """Steps of one-at-a-time processing; returns what `learn_logdet_singly` does."""
    n = len(signs)
    last = len(grams) - 1
    for t in range(n):
        q = grams[0, t, t]
        p = grams[last, t, t]
        if not abs(q) + abs(p) < HOPELESS:
            return t, False
        c = _decide(rule, signs[t], targets, q, p, squared_norms[t], clock)
        if c != 0.0:
            for m in range(last + 1):
                betas[m, t] = c / (1.0 + c * grams[m, t, t])
                eliminate(grams[m], t, betas[m, t], mixes[m])
            if last > 0 and _has_worn(c, p, squared_norms[t]):
                return t + 1, True
    return n, False


def learn_logdet_block(ops, rule, matrices, z, signs, targets, clock):
    """One block of rows z; returns what `learn_logdet_singly` does."""
    n = len(z)
    products = [ops.product(z, matrix) for matrix in matrices]
    grams = np.stack([ops.product_transposed(rows, z) for rows in products])
    betas, mixes = np.zeros((len(matrices), n)), np.zeros((len(matrices), n, n))
    squared_norms = np.einsum("ij,ij->i", z, z)
    outcome = _logdet_recursion(rule, grams, squared_norms, signs, targets, clock, betas, mixes)
    for matrix, rows, beta, mix in zip(matrices, products, betas, mixes, strict=True):
        take_steps(ops, matrix, rows, beta, mix)
    return outcome


def take_steps(ops, matrix, rows, beta, mix):
    """Subtract all steps of a block from the matrix; `rows` are A_0 z_t, `mix` as `eliminate` left it."""
    active = np.flatnonzero(beta)
    if len(active):
        a = unmix(mix, active, rows)
        ops.add_product(matrix, a, -beta[active], a)


def unmix(mix: np.ndarray, active: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Rows a_t = A_t z_t of the active tuples from the rows A_0 z_t (inactive ones never mix in)."""
    triangle = mix[np.ix_(active, active)].astype(rows.dtype)
    np.fill_diagonal(triangle, 1)
    solved = solve_triangular(
        triangle, rows[active], trans="T", unit_diagonal=True, check_finite=False
    )
    return np.ascontiguousarray(solved)


@driver
def itml_sweep_singly(a, v, signs, bounds, dual, gamma, step):
    """One sweep of batch ITML over the pairs v, in order; A, the bounds and the dual numbers change."""
    av = np.empty_like(v[0])
    for t in range(len(v)):
        q = product_into(a, v[t], av)
        beta = _itml_step(t, q, signs, bounds, dual, gamma, step)
        if beta != 0.0:
            add_outer(a, beta, av)


@helper
def _itml_step(t, q, signs, bounds, dual, gamma, step):
    """Bregman projection on the constraint of pair t, relaxed by gamma; returns beta of A + beta a a'."""
    s = signs[t]
    alpha = min(dual[t], step * s * (1.0 / q - 1.0 / bounds[t]))
    if alpha == 0.0:
        return 0.0
    dual[t] -= alpha
    bounds[t] = 1.0 / (1.0 / bounds[t] + s * alpha / gamma)
    return s * alpha / (1.0 - s * alpha * q)


@driver
def _itml_recursion(gram, begin, signs, bounds, dual, gamma, step, betas, mix):
    for t in range(len(gram)):
        beta = -_itml_step(begin + t, gram[t, t], signs, bounds, dual, gamma, step)
        betas[t] = beta
        if beta != 0.0:
            eliminate(gram, t, beta, mix)


def itml_sweep_blocked(ops, a, v, signs, bounds, dual, gamma, step, block):
    """The same sweep in exact blocks."""
    for begin in range(0, len(v), block):
        z = v[begin : begin + block]
        rows = ops.product(z, a)
        gram = ops.product_transposed(rows, z)
        betas, mix = np.zeros(len(z)), np.zeros((len(z), len(z)))
        _itml_recursion(gram, begin, signs, bounds, dual, gamma, step, betas, mix)
        take_steps(ops, a, rows, betas, mix)
