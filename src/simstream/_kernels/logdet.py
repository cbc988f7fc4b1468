"""LogDet learners: a step adds a multiple of z z' to the inverse of A.

A' = A - beta (A z)(A z)' with beta = c / (1 + c z'Az) is the matrix whose inverse is A^{-1} + c z z'.

In a block all z'A z come from two products, what earlier pairs change for later ones from the Gram matrix
Z A Z' as it stands after each step, and the vectors A_t z_t of the whole block from one triangular system.
"""

from __future__ import annotations

import math

import numpy as np

from .blocked import add_outer, eliminate, product_into, unmix
from .dispatch import driver, helper
from .steps import HOPELESS, LOSS, MISTAKES, ROUNDS, SKIPPED, UPDATES, VIOLATIONS

#: Online ITML keeps the trace of C = A (I - A)^{-1} below this, and A so far below the identity.
_LARGEST_TRACE = 1e4


@helper
def _target(sign, targets):
    """Similar pairs (sign -1) belong below the lower target, dissimilar ones above the upper."""
    return targets[0] if sign < 0.0 else targets[1]


@helper
def _calls_for_step(always, sign, target, q, squared_norm):
    return squared_norm > 0.0 and (always or sign * (target - q) > 0.0)


@helper
def _count(clock, sign, targets, q, updated, squared_norm):
    """Count a round: the loss is half the squared violation, a mistake the wrong side of the middle."""
    violation = max(0.0, sign * (_target(sign, targets) - q))
    clock[ROUNDS] += 1.0
    clock[UPDATES] += updated
    clock[SKIPPED] += squared_norm == 0.0
    clock[LOSS] += 0.5 * violation * violation
    clock[MISTAKES] += sign * (q - 0.5 * (targets[0] + targets[1])) <= 0.0
    clock[VIOLATIONS] += violation > 0.0


@helper
def _squared_norm(z, t):
    total = 0.0
    for j in range(z.shape[1]):
        total += z[t, j] * z[t, j]
    return total


# -- LEGO ------------------------------------------------------------------------------------------


@helper
def _lego_change(eta, target, q):
    """c with c = eta (q' - target), q' = q / (1 + c q) the distance after the step: no cancellation."""
    k = 1.0 - eta * target * q
    root = math.hypot(k, 2.0 * math.sqrt(eta) * q)
    return 2.0 * eta * (q - target) / (1.0 + eta * target * q + root)


@driver
def lego_singly(eta, always, a, z, signs, targets, clock):
    """Rows of z one after the other; return how many were learnt."""
    az = np.empty_like(z[0])
    for t in range(len(z)):
        q = product_into(a, z[t], az)
        squared_norm = _squared_norm(z, t)
        target = _target(signs[t], targets)
        c = 0.0
        if _calls_for_step(always, signs[t], target, q, squared_norm):
            c = _lego_change(eta, target, q)
        beta = c / (1.0 + c * q)
        if not abs(q) + abs(beta) < HOPELESS:
            return t
        if c != 0.0:
            add_outer(a, -beta, az, az)
        _count(clock, signs[t], targets, q, c != 0.0, squared_norm)
    return len(z)


@driver
def _lego_recursion(eta, always, gram, squared_norms, signs, targets, clock, betas, mix):
    for t in range(len(signs)):
        q = gram[t, t]
        target = _target(signs[t], targets)
        c = 0.0
        if _calls_for_step(always, signs[t], target, q, squared_norms[t]):
            c = _lego_change(eta, target, q)
        beta = c / (1.0 + c * q)
        if not abs(q) + abs(beta) < HOPELESS:
            return t
        if c != 0.0:
            betas[t] = beta
            eliminate(gram, t, beta, mix)
        _count(clock, signs[t], targets, q, c != 0.0, squared_norms[t])
    return len(signs)


def lego_block(ops, eta, always, a, z, signs, targets, clock):
    """The same for one block of rows z."""
    n = len(z)
    rows = ops.product(z, a)
    gram = ops.product_transposed(rows, z)
    betas, mix = np.zeros(n), np.zeros((n, n))
    squared_norms = np.einsum("ij,ij->i", z, z)
    learnt = _lego_recursion(eta, always, gram, squared_norms, signs, targets, clock, betas, mix)
    _take_steps(ops, a, rows, betas, mix)
    return learnt


def _take_steps(ops, a, rows, betas, mix):
    """Subtract all steps of a block; `rows` are A_0 z_t, `mix` as `eliminate` left it."""
    active = np.flatnonzero(betas)
    if len(active):
        unmixed = unmix(mix, active, rows)
        ops.add_product(a, unmixed, -betas[active], unmixed)


# -- online ITML -------------------------------------------------------------------------------------
#
# Its step needs z'(I - A)^{-1} z = z'z + z'Cz with C = A (I - A)^{-1}. Since C^{-1} = A^{-1} - I, the matrix
# C takes steps of the very same form, with the same c.


@helper
def _itml_change(eta, target, q, p, squared_norm, trace, length):
    """c of a step; p = z'Cz, trace that of C, length = ||Cz||^2."""
    if q >= target:
        return 2.0 * eta * (q - target)
    c = -min(2.0 * eta * (target - q), 1.0 / (p + squared_norm))
    # C gains k (Cz)(Cz)' with k = -c / (1 + c p): no more than its trace has room for.
    room = max(0.0, _LARGEST_TRACE - trace) / length if length > 0.0 else 0.0
    return max(c, -room / (1.0 + room * p))


@driver
def online_itml_singly(eta, always, a, companion, z, signs, targets, clock):
    """Rows of z one after the other; `companion` is C. Returns how many were learnt."""
    az, cz = np.empty_like(z[0]), np.empty_like(z[0])
    for t in range(len(z)):
        q, p = product_into(a, z[t], az), product_into(companion, z[t], cz)
        squared_norm = _squared_norm(z, t)
        if not abs(q) + abs(p) < HOPELESS:
            return t
        target = _target(signs[t], targets)
        c = 0.0
        if _calls_for_step(always, signs[t], target, q, squared_norm):
            length, trace = 0.0, 0.0
            for j in range(len(cz)):
                length += cz[j] * cz[j]
                trace += companion[j, j]
            c = _itml_change(eta, target, q, p, squared_norm, trace, length)
        if c != 0.0:
            add_outer(a, -c / (1.0 + c * q), az, az)
            add_outer(companion, -c / (1.0 + c * p), cz, cz)
        _count(clock, signs[t], targets, q, c != 0.0, squared_norm)
    return len(z)


# -- batch ITML ----------------------------------------------------------------------------------------


@driver
def itml_sweep_singly(a, v, signs, bounds, dual, gamma, step):
    """One sweep of batch ITML over the pairs v, in order; A, the bounds and the dual numbers change."""
    av = np.empty_like(v[0])
    for t in range(len(v)):
        q = product_into(a, v[t], av)
        beta = _itml_step(t, q, signs, bounds, dual, gamma, step)
        if beta != 0.0:
            add_outer(a, beta, av, av)


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
        _take_steps(ops, a, rows, betas, mix)
