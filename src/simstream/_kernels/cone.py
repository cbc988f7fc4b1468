"""The same steps on a full matrix, for matrices of high rank: M, and P = (M + sigma I)^{-1}, in float64.

A step up (M + c v v') costs two rank-one updates. A step down, M - t v v', has at most one negative
eigenvalue, the root of t v'(M - x I)^{-1} v = 1 below zero, and its eigenvector is (M - x I)^{-1} v. Both lie
in the Krylov space of P and v, where the resolvent is that of a small tridiagonal matrix; with sigma near the
size of the root a few products with P are enough. Whether they were is checked with M itself: P may be worn,
the result is not.
"""

from __future__ import annotations

import math

import numpy as np

from .dispatch import driver, helper
from .rank_one import add_outer
from .steps import HOPELESS, LARGEST_NORM, THRESHOLD, count_round, pair_step, signed_loss

# What the driver found when it returned: all done, no finite number, P worn, a projection left to the
# caller because too few products with P were allowed.
DONE, HOPELESS_PAIR, WORN, LEFT = 0, 1, 2, 3

# Numbers kept beside the matrices: sigma, steps since P was made, sum of the logarithms of the eigenvalues
# projected away since then and their number, the step left to the caller.
SIGMA, STEPS, ROOTS, N_ROOTS, LEFT_STEP, N_NUMBERS = 0, 1, 2, 3, 4, 5

#: Steps after which P is made anew from M.
_STEPS_OF_P = 128
_FIRST_LOOK, _LOOK_EVERY, MOST_PRODUCTS = 6, 4, 100
#: Residual of the eigenpair, relative to the size of M, that counts as exact.
_EXACT = 1e-12
#: A root closer to zero than this share of M's size is no negative eigenvalue.
_ZERO = 1e-14


@helper
def _resolvent(alpha, beta, k, s, y, w):
    """w = T (1 - s T)^{-1} e_1 for the tridiagonal T; returns w_1. y is work space (two rows)."""
    # Elimination from the end: (1 - s T) y = e_1.
    pivots, solution = y[0], y[1]
    pivots[k - 1] = 1.0 - s * alpha[k - 1]
    for i in range(k - 2, -1, -1):
        pivots[i] = 1.0 - s * alpha[i] - s * s * beta[i] * beta[i] / pivots[i + 1]
    solution[0] = 1.0 / pivots[0]
    for i in range(1, k):
        solution[i] = s * beta[i - 1] * solution[i - 1] / pivots[i]
    for i in range(k):
        value = alpha[i] * solution[i]
        if i > 0:
            value += beta[i - 1] * solution[i - 1]
        if i < k - 1:
            value += beta[i] * solution[i + 1]
        w[i] = value
    return w[0]


@helper
def _root(alpha, beta, k, sigma, weight, smallest, y, w):
    """The x < `smallest` < 0 with weight [T (1 - (sigma + x) T)^{-1}]_11 = 1."""
    low, high = -weight, smallest
    x = max(low, 2.0 * smallest)
    for _ in range(200):
        value = weight * _resolvent(alpha, beta, k, sigma + x, y, w) - 1.0
        if value > 0.0:
            high = x
        else:
            low = x
        slope = 0.0
        for i in range(k):
            slope += w[i] * w[i]
        # Newton on 1 - 1/f, which is nearly linear where one eigenvalue dominates.
        following = x - value * (value + 1.0) / (weight * slope)
        if not low < following < high:
            following = 0.5 * (low + high)
        if abs(following - x) <= 1e-15 * abs(x) or following in (low, high):
            break
        x = following
    _resolvent(alpha, beta, k, sigma + x, y, w)
    return x


@helper
def _negative_pair(m, p, sigma, tau, v, length, basis, work, u):
    """Negative eigenvalue of m - tau v v' and its eigenvector in u; (0, True) if there is none.

    Returns (eigenvalue, whether it is exact).
    """
    alpha, beta, w = work[0], work[1], work[2]
    y = work[3:5]
    d = len(v)
    size = 0.0
    for i in range(d):
        size += m[i, i]
    smallest = -_ZERO * max(size, tau * length * length)
    weight = tau * length * length
    for j in range(d):
        basis[0, j] = v[j] / length
    k = 0
    before = -1.0
    while k < min(MOST_PRODUCTS, d):
        following = np.dot(p, basis[k])
        alpha[k] = np.dot(basis[k], following)
        used = basis[: k + 1]
        for _ in range(2):
            following -= np.dot(np.dot(used, following), used)
        beta[k] = math.sqrt(np.dot(following, following))
        k += 1
        ended = beta[k - 1] <= 1e-14 * abs(alpha[0]) or k == d
        if not ended:
            for j in range(d):
                basis[k, j] = following[j] / beta[k - 1]
        if ended or (k >= _FIRST_LOOK and (k - _FIRST_LOOK) % _LOOK_EVERY == 0):
            # The left side of the equation next to zero; it grows with k. Below 1 there is no root.
            side = weight * _resolvent(alpha, beta, k, sigma + smallest, y, w)
            settled = abs(side - before) <= 1e-8 * side
            before = side
            if side <= 1.0:
                if ended or (settled and side < 1.0 - 1e-6):
                    return 0.0, True
                continue
            _root(alpha, beta, k, sigma, weight, smallest, y, w)
            u[:] = np.dot(w[:k], basis[:k])
            norm = math.sqrt(np.dot(u, u))
            for j in range(d):
                u[j] /= norm
            product = np.dot(m, u)
            along = tau * np.dot(v, u)
            for j in range(d):
                product[j] -= along * v[j]
            value = np.dot(u, product)
            residual = 0.0
            for j in range(d):
                residual += (product[j] - value * u[j]) ** 2
            if math.sqrt(residual) <= _EXACT * size and value < 0.0:
                return value, True
            if ended:
                break
    return 0.0, False


@driver
def learn_in_the_full_cone(step, m, p, numbers, basis, work, v, signs, clock):
    """Learn from rows v; return (what happened, first pair not learnt).

    With LEFT the pair before that one is counted, but its step numbers[LEFT_STEP] is left to the caller.
    """
    u = np.empty(v.shape[1])
    for t in range(len(v)):
        product = np.dot(m, v[t])
        distance = np.dot(v[t], product)
        squared_norm = np.dot(v[t], v[t])
        if not (abs(distance) < HOPELESS and squared_norm * squared_norm < LARGEST_NORM):
            return HOPELESS_PAIR, t
        loss = signed_loss(signs[t], distance, clock)
        c = pair_step(step, loss, squared_norm, signs[t])
        if math.isnan(c):
            return HOPELESS_PAIR, t
        if c == 0.0:
            count_round(clock, loss, False, squared_norm == 0.0)
            continue
        root, exact = 0.0, True
        if c < 0.0:
            length = math.sqrt(squared_norm)
            root, exact = _negative_pair(m, p, numbers[SIGMA], -c, v[t], length, basis, work, u)
        if not exact and numbers[STEPS] > 0.0:
            return WORN, t  # to be tried again
        if step.bias > 0.0:
            clock[THRESHOLD] = max(1.0, clock[THRESHOLD] - c * step.bias)
        count_round(clock, loss, True, False)
        if not exact:
            numbers[LEFT_STEP] = c
            return LEFT, t + 1
        add_outer(m, c, v[t], v[t])
        if root < 0.0:
            add_outer(m, -root, u, u)
            pu = np.dot(p, u)
            add_outer(p, root / (1.0 - root * np.dot(u, pu)), pu, pu)
            numbers[ROOTS] += math.log(-root)
            numbers[N_ROOTS] += 1.0
        pv = np.dot(p, v[t])
        add_outer(p, -c / (1.0 + c * np.dot(v[t], pv)), pv, pv)
        numbers[STEPS] += 1.0
        if numbers[STEPS] >= _STEPS_OF_P:
            return WORN, t + 1
    return DONE, len(v)
