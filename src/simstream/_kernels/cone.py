"""Pair learners that keep M positive semi-definite: rank-one steps M + c v v', each projected exactly.

Low rank: M = sum_i value_i e_i e_i'. A step is a rank-one change of a diagonal matrix in the coordinates of
the e_i and of the part of v that is orthogonal to them. `_solve_secular` solves that small problem; one
product of a (rank x rank) with a (rank x d) matrix gives the new e_i. By interlacing at most one eigenvalue
can turn negative: leaving it out is the exact projection onto the positive semi-definite matrices.

High rank: M itself, and P = (M + sigma I)^{-1}. A step up (M + c v v') costs two rank-one updates. A step
down, M - t v v', has at most one negative eigenvalue, the root of t v'(M - x I)^{-1} v = 1 below zero, and
its eigenvector is (M - x I)^{-1} v. Both lie in the Krylov space of P and v, where the resolvent is that of a
small tridiagonal matrix; with sigma near the size of the root a few products with P are enough. Whether they
were is checked with M itself: P may have lost precision, the result has not.

All is float64: errors of the eigenvectors would add up.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from .blocked import add_outer
from .dispatch import driver, exact_helper, helper
from .steps import HOPELESS, LARGEST_NORM, THRESHOLD, count_round, pair_step, signed_loss

_EPS = 2.220446049250313e-16

# -- eigenpairs of a diagonal matrix plus a rank-one matrix, in O(n^2) -------------------------------
#
# The eigenvalues of diag(d) + rho z z' (rho > 0, z of length one, d ascending) are the roots of the secular
# equation f(x) = 1 + rho sum_j z_j^2 / (d_j - x): one between any two neighbouring d_j, one above the last.
# A root is kept as its distance from the nearest d_j, so that all differences d_j - root are accurate to the
# last digit; the z that has exactly these roots (Gu and Eisenstat 1994) then gives eigenvectors that are
# orthogonal to rounding, however close the roots are.

_MAX_ITERATIONS = 60


@helper
def _secular_sums(gap, z2, x, first, end):
    """Sums of z_j^2 / (gap_j - x) and of its derivative over j = first .. end - 1."""
    value = 0.0
    slope = 0.0
    for j in range(end - first):
        inverse = 1.0 / (gap[first + j] - x)
        term = z2[first + j] * inverse
        value += term
        slope += term * inverse
    return value, slope


@exact_helper
def _secular_root(d, z2, rho, i, n, gap, difference):
    """Root i of n: its origin (an index of d) and its distance from it; fills d_j - root into `difference`.

    Rational interpolation with the poles on both sides of the root, kept inside a shrinking bracket.
    """
    inv_rho = 1.0 / rho
    last = i == n - 1
    if last:
        origin = i
        low, high = 0.0, rho
        p, q = n - 2, n - 1  # poles of the interpolation
    else:
        width = d[i + 1] - d[i]
        for j in range(n):
            gap[j] = d[j] - d[i]
        value, _ = _secular_sums(gap, z2, 0.5 * width, 0, n)
        if inv_rho + value >= 0.0:
            origin = i
            low, high = 0.0, 0.5 * width
        else:
            origin = i + 1
            low, high = -0.5 * width, 0.0
        p, q = i, i + 1
    for j in range(n):
        gap[j] = d[j] - d[origin]
    x = 0.5 * (low + high)
    for _ in range(_MAX_ITERATIONS):
        psi, slope_psi = _secular_sums(gap, z2, x, 0, p + 1)
        phi, slope_phi = _secular_sums(gap, z2, x, p + 1, n)
        f = inv_rho + psi + phi
        if abs(f) <= _EPS * n * (inv_rho + abs(psi) + abs(phi)):
            break
        if f < 0.0:
            low = x
        else:
            high = x
        to_p, to_q = gap[p] - x, gap[q] - x
        c = f - to_p * slope_psi - to_q * slope_phi
        a = (to_p + to_q) * f - to_p * to_q * (slope_psi + slope_phi)
        b = to_p * to_q * f
        root = math.sqrt(abs(a * a - 4.0 * b * c))
        if last:
            move = (a + root) / (2.0 * c) if a >= 0.0 else 2.0 * b / (a - root)
        else:
            move = (a - root) / (2.0 * c) if a <= 0.0 else 2.0 * b / (a + root)
        if not f * move < 0.0:  # the root is the other way (or there is no number): Newton's step
            move = -f / (slope_psi + slope_phi)
        following = x + move
        if not low < following < high:
            following = 0.5 * (low + high)
        if following in (x, low, high):
            break
        x = following
    for j in range(n):
        difference[j] = gap[j] - x
    return origin, x


@exact_helper
def _solve_secular(d, z2, rho, n, gap, value, vectors):
    """Eigenvalues of diag(d) + rho z z', and eigenvectors as the rows of ``vectors``.

    Parameters: d ascending and separated, z2 the squares of z (none of them negligible), n their number,
    gap work space of length n, vectors of shape (n, n). The sign of z_j belongs to coordinate j: the
    caller multiplies it in.
    """
    if n == 1:
        value[0] = d[0] + rho * z2[0]
        vectors[0, 0] = 1.0
        return
    for i in range(n):
        origin, x = _secular_root(d, z2, rho, i, n, gap, vectors[i])
        value[i] = d[origin] + x
    # The z_j that has exactly these roots, times sqrt(rho).
    for j in range(n):
        gap[j] = -vectors[j, j]
    for i in range(n):
        for j in range(i):
            gap[j] *= vectors[i, j] / (d[j] - d[i])
        for j in range(i + 1, n):
            gap[j] *= vectors[i, j] / (d[j] - d[i])
    for j in range(n):
        gap[j] = math.sqrt(max(0.0, gap[j]))
    for i in range(n):
        squared_length = 0.0
        for j in range(n):
            component = gap[j] / vectors[i, j]
            vectors[i, j] = component
            squared_length += component * component
        scale = 1.0 / math.sqrt(squared_length)
        for j in range(n):
            vectors[i, j] *= scale


# -- low rank: eigenpairs ---------------------------------------------------------------------------

# What a decreasing step does where it would leave the cone.
PROJECT, SHORTEN = 0, 1

# Relative sizes below which a number is rounding: of the part of v outside the span, and of an eigenvalue.
_IN_SPAN = 1e-12
_NEGLIGIBLE = 1e-15


class Eigenpairs(NamedTuple):
    """Eigenpairs in the first `rank` places, in any order, and room for more."""

    value: np.ndarray  # (capacity,)
    vector: np.ndarray  # (capacity, d), eigenvectors as rows


class RotationWorkspace(NamedTuple):
    """Work space of a rank-one change; `capacity` is that of the eigenpairs."""

    rest: np.ndarray  # (d,) part of v outside the span
    numbers: np.ndarray  # (5, capacity)
    places: np.ndarray  # (2, capacity) int
    gathered: np.ndarray  # (capacity, d)
    rotated: np.ndarray  # (capacity, d)
    mixing: np.ndarray  # (capacity ** 2,)


@helper
def _project_on_span(vector, rank, v, coordinates, rest):
    """What is left of v outside the span of the first rows, given its coordinates there; returns its length.

    What rounding of the coordinates leaves behind is taken out in a second round.
    """
    rest[:] = v
    if rank > 0:
        basis = vector[:rank]
        rest -= np.dot(coordinates[:rank], basis)
        more = np.dot(basis, rest)
        rest -= np.dot(more, basis)
        coordinates[:rank] += more
    return math.sqrt(np.dot(rest, rest))


@helper
def _sort_by_value(value, rank, sign, order):
    """Places in ascending order of sign * value."""
    for k in range(rank):
        order[k] = k
    for k in range(1, rank):
        place = order[k]
        key = sign * value[place]
        m = k - 1
        while m >= 0 and sign * value[order[m]] > key:
            order[m + 1] = order[m]
            m -= 1
        order[m + 1] = place


@helper
def _rotate(vector, i, j, c, s):
    """Turn rows i and j in their plane."""
    for k in range(vector.shape[1]):
        a, b = vector[i, k], vector[j, k]
        vector[i, k] = c * a + s * b
        vector[j, k] = c * b - s * a


@helper
def _deflate(value, vector, z, rho, order, rank, kept):
    """Places of the coordinates that take part in the secular equation, in the given order; their number.

    Coordinates that v hardly has keep their eigenpair. Of two eigenvalues too close to tell apart, one
    eigenvector is turned until it is orthogonal to v.
    """
    largest = rho
    for i in range(rank):
        largest = max(largest, abs(value[i]))
    tolerance = 8.0 * _EPS * largest
    n = 0
    for k in range(rank):
        j = order[k]
        if rho * abs(z[j]) <= tolerance:
            continue
        if n > 0:
            i = kept[n - 1]
            length = math.hypot(z[i], z[j])
            c, s = z[j] / length, z[i] / length
            if abs((value[j] - value[i]) * c * s) <= tolerance:
                _rotate(vector, j, i, c, s)
                z[j], z[i] = length, 0.0
                a, b = value[i], value[j]
                value[i] = a * c * c + b * s * s
                value[j] = a * s * s + b * c * c
                n -= 1
        kept[n] = j
        n += 1
    return n


@helper
def _change(spectrum, work, rank, c):
    """Add c v v' to M, given v's coordinates in the first `rank` rows (they are used up)."""
    value, vector = spectrum.value, spectrum.vector
    numbers, order, kept = work.numbers, work.places[0], work.places[1]
    z, d, z2, gap, roots = numbers[0], numbers[1], numbers[2], numbers[3], numbers[4]
    squared_length = 0.0
    for i in range(rank):
        squared_length += z[i] * z[i]
    length = math.sqrt(squared_length)
    for i in range(rank):
        z[i] /= length
    sign = 1.0 if c > 0.0 else -1.0
    rho = abs(c) * squared_length
    _sort_by_value(value, rank, sign, order)
    n = _deflate(value, vector, z, rho, order, rank, kept)
    gathered, rotated = work.gathered[:n], work.rotated[:n]
    mixing = work.mixing[: n * n].reshape(n, n)
    for k in range(n):
        i = kept[k]
        d[k] = sign * value[i]
        z2[k] = z[i] * z[i]
        flip = (
            1.0 if z[i] >= 0.0 else -1.0
        )  # the eigenvectors of `_solve_secular` are those for z >= 0
        for j in range(vector.shape[1]):
            gathered[k, j] = flip * vector[i, j]
    if n == 0:
        return
    _solve_secular(d, z2, rho, n, gap, roots, mixing)
    np.dot(mixing, gathered, rotated)
    for k in range(n):
        i = kept[k]
        value[i] = sign * roots[k]
        for j in range(vector.shape[1]):
            vector[i, j] = rotated[k, j]


@helper
def _without_negligible(value, vector, rank, at_least_one):
    """Drop eigenvalues that are negative or rounding (the smallest one in any case, if asked); new rank."""
    largest = 0.0
    smallest = 0
    for i in range(rank):
        largest = max(largest, value[i])
        if value[i] < value[smallest]:
            smallest = i
    if at_least_one:
        value[smallest] = 0.0
    i = 0
    while i < rank:
        if value[i] <= _NEGLIGIBLE * largest:
            rank -= 1
            value[i] = value[rank]
            vector[i] = vector[rank]
        else:
            i += 1
    return rank


@driver
def learn_in_the_cone(step, on_leaving, spectrum, work, rank, most, v, signs, clock):
    """Learn from rows v of differences of pairs, until the rank is above `most`; return (how many, rank).

    There must be room for one more eigenpair than the smaller of d and rank + len(v).
    """
    value, vector = spectrum.value, spectrum.vector
    coordinates, rest = work.numbers[0], work.rest
    for t in range(len(v)):
        if rank > 0:
            coordinates[:rank] = np.dot(vector[:rank], v[t])
        distance = 0.0
        for i in range(rank):
            distance += value[i] * coordinates[i] * coordinates[i]
        squared_norm = np.dot(v[t], v[t])
        if not (abs(distance) < HOPELESS and squared_norm * squared_norm < LARGEST_NORM):
            return t, rank
        loss = signed_loss(signs[t], distance, clock)
        c = pair_step(step, loss, squared_norm, signs[t])
        if math.isnan(c):
            return t, rank
        updated = c != 0.0
        if updated:
            outside = _project_on_span(vector, rank, v[t], coordinates, rest)
            in_span = rank == len(rest) or outside <= _IN_SPAN * math.sqrt(squared_norm)
            reaches_boundary = False
            if c < 0.0 and on_leaving == SHORTEN:
                updated = in_span
                if in_span:
                    inverse = 0.0
                    for i in range(rank):
                        inverse += coordinates[i] * coordinates[i] / value[i]
                    reaches_boundary = -c * inverse >= 1.0
                    c = max(c, -1.0 / inverse)
            if updated:
                if not in_span:
                    value[rank] = 0.0
                    for j in range(len(rest)):
                        vector[rank, j] = rest[j] / outside
                    coordinates[rank] = outside
                    rank += 1
                _change(spectrum, work, rank, c)
                rank = _without_negligible(value, vector, rank, reaches_boundary)
                if step.bias > 0.0:
                    clock[THRESHOLD] = max(1.0, clock[THRESHOLD] - c * step.bias)
        count_round(clock, loss, updated, squared_norm == 0.0)
        if rank > most:
            return t + 1, rank
    return len(v), rank


# -- high rank: a full matrix and its shifted inverse -----------------------------------------------

# Why the driver returned: all done, a number that is not finite, P too inaccurate, a projection left to the
# caller because it would take more products with P than allowed.
DONE, HOPELESS_PAIR, WORN, LEFT = 0, 1, 2, 3

# Numbers kept beside the matrices: sigma, steps since P was made, sum of the logarithms of the eigenvalues
# projected away since then and their number, the step left to the caller.
SIGMA, STEPS, ROOTS, N_ROOTS, LEFT_STEP, N_NUMBERS = 0, 1, 2, 3, 4, 5

#: Steps after which P is recomputed from M.
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
def _tridiagonal_root(alpha, beta, k, sigma, weight, smallest, y, w):
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
            _tridiagonal_root(alpha, beta, k, sigma, weight, smallest, y, w)
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
