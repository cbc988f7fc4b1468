"""OMLLR: W = sum_i value_i left_i right_i', rank-one steps followed by a threshold on the singular values.

In the coordinates of the singular vectors, and of the parts of x and z outside them, a step is a small
matrix: its singular values and vectors give those of W. A step without loss only lowers the values. The sum
of all iterates is kept in the same coordinates as long as they exist (a matrix `mixed` that is turned with
them), and goes into a full matrix when a singular value becomes zero.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from .blocked import add_outer
from .dispatch import driver, helper
from .steps import HOPELESS, LARGEST_NORM, ROUNDS, UPDATES, count_round

# Relative sizes below which a number is rounding: of the part of x outside the span, and of a singular value.
_IN_SPAN = 1e-12
_NEGLIGIBLE = 1e-15

# Steps after which the vectors are made orthonormal again: rounding adds up.
_ORTHONORMAL_EVERY = 256


class NuclearStep(NamedTuple):
    """Parameters of a step; eta_t = eta / sqrt(t)."""

    eta: float
    lam: float
    symmetric: bool  # positive semi-definite: left and right vectors are the same


class Triples(NamedTuple):
    """Singular values, largest first, and vectors, in the first `rank` places, and room for more."""

    value: np.ndarray  # (capacity,)
    left: np.ndarray  # (capacity, d), vectors as rows
    right: np.ndarray  # (capacity, d'); no rows where they are those on the left
    mixed: (
        np.ndarray
    )  # (capacity, capacity) sum of iterates in these vectors; empty without an average
    total: np.ndarray  # (d, d') sum of iterates outside them; empty without an average


@helper
def _extend(vectors, rank, v, coordinates):
    """Coordinates of v in the rows; if there is more of v, a row for it. Returns the number of rows."""
    rest = v.copy()
    if rank > 0:
        basis = vectors[:rank]
        # What rounding leaves behind is taken out in a second round.
        for _ in range(2):
            part = np.dot(basis, rest)
            rest -= np.dot(part, basis)
            coordinates[:rank] += part
    outside = math.sqrt(np.dot(rest, rest))
    if rank == len(v) or not outside > _IN_SPAN * math.sqrt(np.dot(v, v)):
        return rank
    coordinates[rank] = outside
    vectors[rank] = rest / outside
    return rank + 1


@helper
def _leave(left, n_left, right, n_right, mixed, total, kept):
    """Move what `mixed` holds of the vectors after the first `kept` into the full matrix."""
    for i in range(kept, n_left):
        row = np.ascontiguousarray(mixed[i, :n_right])
        if np.any(row != 0.0):
            add_outer(total, 1.0, left[i], np.dot(row, right[:n_right]))
    for j in range(kept, n_right):
        column = np.ascontiguousarray(mixed[:kept, j])
        if np.any(column != 0.0):
            add_outer(total, 1.0, np.dot(column, left[:kept]), right[j])
    mixed[kept:n_left, :n_right] = 0.0
    mixed[:kept, kept:n_right] = 0.0


@helper
def _count_kept(values, lost):
    """How many of the values (largest first) stay positive when they are lowered."""
    n = 0
    while n < len(values) and values[n] - lost > _NEGLIGIBLE * values[0]:
        n += 1
    return n


@helper
def _turn(turn, vectors, n, kept):
    """The first rows of turn (n x n) times the first n rows."""
    if kept == 0:
        return
    vectors[:kept] = np.dot(turn[:kept], vectors[:n].copy())


@helper
def _step_general(triples, rank, x, z, eta, lost):
    """W + eta x z', then the threshold; returns the new rank."""
    value, left, right = triples.value, triples.left, triples.right
    mixed, total = triples.mixed, triples.total
    p, q = np.zeros(rank + 1), np.zeros(rank + 1)
    n_left = _extend(left, rank, x, p)
    n_right = _extend(right, rank, z, q)
    small = np.empty((n_left, n_right))
    for i in range(n_left):
        for j in range(n_right):
            small[i, j] = eta * p[i] * q[j]
    for i in range(rank):
        small[i, i] += value[i]
    u, values, vt = np.linalg.svd(small)
    to_left, to_right = np.ascontiguousarray(u.T), np.ascontiguousarray(vt)
    kept = _count_kept(values, lost)
    averaging = len(mixed) > 0
    _turn(to_left, left, n_left, n_left if averaging else kept)
    _turn(to_right, right, n_right, n_right if averaging else kept)
    if averaging:
        old = np.zeros((n_left, n_right))
        old[:rank, :rank] = mixed[:rank, :rank]
        mixed[:n_left, :n_right] = np.dot(np.dot(to_left, old), to_right.T)
        _leave(left, n_left, right, n_right, mixed, total, kept)
    for i in range(kept):
        value[i] = values[i] - lost
    return kept


@helper
def _step_symmetric(triples, rank, x, z, eta, lost):
    """The positive part of W + eta (x z' + z x')/2 after the threshold; returns the new rank."""
    value, left, mixed, total = triples.value, triples.left, triples.mixed, triples.total
    p, q = np.zeros(rank + 2), np.zeros(rank + 2)
    n = _extend(left, rank, x, p)
    n = _extend(left, n, z, q)
    small = np.empty((n, n))
    for i in range(n):
        for j in range(n):
            small[i, j] = 0.5 * eta * (p[i] * q[j] + q[i] * p[j])
    for i in range(rank):
        small[i, i] += value[i]
    ascending, vectors = np.linalg.eigh(small)
    values = ascending[::-1].copy()
    turn = np.ascontiguousarray(vectors.T[::-1])
    kept = _count_kept(values, lost) if values[0] > 0.0 else 0
    averaging = len(mixed) > 0
    _turn(turn, left, n, n if averaging else kept)
    if averaging:
        old = np.zeros((n, n))
        old[:rank, :rank] = mixed[:rank, :rank]
        mixed[:n, :n] = np.dot(np.dot(turn, old), turn.T)
        _leave(left, n, left, n, mixed, total, kept)
    for i in range(kept):
        value[i] = values[i] - lost
    return kept


@helper
def _straighten(vectors, rank):
    """One step of Newton and Schulz towards the nearest orthonormal rows: squares what they are off."""
    rows = vectors[:rank].copy()
    vectors[:rank] = 1.5 * rows - 0.5 * np.dot(np.dot(rows, rows.T), rows)


@driver
def learn_nuclear(step, triples, rank, weight, x, z, clock):
    """Learn from rows of x and z; return (how many were learnt, new rank).

    There must be room for two more vectors than the smaller of the dimension and rank + 2 len(x).
    """
    value, left = triples.value, triples.left
    right = left if step.symmetric else triples.right
    mixed, total = triples.mixed, triples.total
    for t in range(len(x)):
        margin = 0.0
        if rank > 0:
            p, q = np.dot(left[:rank], x[t]), np.dot(right[:rank], z[t])
            for i in range(rank):
                margin += value[i] * p[i] * q[i]
        squared_norm = float(np.dot(x[t], x[t])) * float(np.dot(z[t], z[t]))
        if not (abs(margin) < HOPELESS and squared_norm < LARGEST_NORM):
            return t, rank
        eta = step.eta / math.sqrt(clock[ROUNDS] + 1.0)
        lost = eta * step.lam
        weight[0] += eta
        if len(mixed) > 0:
            for i in range(rank):
                mixed[i, i] += eta * value[i]
        violated = margin < 1.0 and squared_norm > 0.0
        if violated and step.symmetric:
            rank = _step_symmetric(triples, rank, x[t], z[t], eta, lost)
        elif violated:
            rank = _step_general(triples, rank, x[t], z[t], eta, lost)
        elif lost > 0.0 and rank > 0:
            kept = _count_kept(value[:rank], lost)
            if kept < rank and len(mixed) > 0:
                _leave(left, rank, right, rank, mixed, total, kept)
            rank = kept
            for i in range(rank):
                value[i] -= lost
        count_round(clock, 1.0 - margin, violated, squared_norm == 0.0)
        if violated and rank > 0 and clock[UPDATES] % _ORTHONORMAL_EVERY == 0:
            _straighten(left, rank)
            if not step.symmetric:
                _straighten(right, rank)
    return len(x), rank
