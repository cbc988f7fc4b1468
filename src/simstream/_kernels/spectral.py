"""Pair learners that keep M positive semi-definite: M = sum_i value_i e_i e_i', changed by rank-one steps.

A step M + c v v' is a rank-one change of a diagonal matrix in the coordinates of the e_i and of the part of v
that is orthogonal to them. `secular` solves that small problem; one product of a (rank x rank) with a
(rank x d) matrix gives the new e_i. By interlacing at most one eigenvalue can turn negative: leaving it out
is the exact projection on the positive semi-definite matrices. All is float64: errors of e_i would add up.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from .dispatch import driver, helper
from .secular import solve_secular
from .steps import HOPELESS, LARGEST_NORM, THRESHOLD, count_round, pair_step, signed_loss

# What a decreasing step does where it would leave the cone.
PROJECT, SHORTEN = 0, 1

# Relative sizes below which a number is rounding: of the part of v outside the span, and of an eigenvalue.
_IN_SPAN = 1e-12
_NEGLIGIBLE = 1e-15
_EPS = 2.220446049250313e-16


class Spectrum(NamedTuple):
    """Eigenpairs in the first `rank` places, in any order, and room for more."""

    value: np.ndarray  # (capacity,)
    vector: np.ndarray  # (capacity, d), eigenvectors as rows


class Workspace(NamedTuple):
    """Work space of a rank-one change; `capacity` is that of the spectrum."""

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
        )  # the eigenvectors of `solve_secular` are those for z >= 0
        for j in range(vector.shape[1]):
            gathered[k, j] = flip * vector[i, j]
    if n == 0:
        return
    solve_secular(d, z2, rho, n, gap, roots, mixing)
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
