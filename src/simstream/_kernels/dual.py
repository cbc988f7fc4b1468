"""Stochastic dual coordinate ascent on triplets: one at a time over a store, and in exact blocks.

Drawing triplet i moves its dual variable to the maximum of the dual along that coordinate, and M by the same
amount along x_i z_i'. A triplet may be drawn again in the same block: its dual variable and its margin are
kept current, so that the blocked steps are the very steps of one-at-a-time processing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from .blocked import Block
from .dispatch import driver, inner
from .entrywise import (
    DIVERGED,
    DONE,
    NEEDS_SPACE,
    read_tuple,
    step_norm,
    store_margin,
    store_update,
)
from .steps import HOPELESS

# Sums over the draws of an epoch, each before its own step.
HINGE, SQUARED_HINGE, MISTAKES, N_SUMS = 0, 1, 2, 3


class Dual(NamedTuple):
    """Dual variables, and what their average needs (see `advance`)."""

    alpha: np.ndarray
    total: np.ndarray  # sum of alpha over past draws of the segment, up to and without `since`
    since: np.ndarray  # draw from which on alpha has its present value, counted in the segment


@inner
def _move(alpha, margin, norm, scale):
    """Best change of a dual variable; `scale` is 1 / (lam n)."""
    return max((1.0 - margin - 0.5 * alpha) / (0.5 + norm * scale), -alpha)


@inner
def _count(sums, margin):
    loss = max(0.0, 1.0 - margin)
    sums[HINGE] += loss
    sums[SQUARED_HINGE] += loss * loss
    sums[MISTAKES] += margin <= 0.0


@inner
def _change(alpha, total, since, i, draw, delta):
    """Change dual variable i in this draw of the segment; the average counts the value before it too."""
    total[i] += alpha[i] * (draw + 1 - since[i])
    since[i] = draw + 1
    alpha[i] += delta


@driver
def ascend_singly(
    store, rule, left, right, tuples, draws, begin, first_draw, dual, scale, scratch, sums
):
    """Draws begin.. one after the other; return (what happened, first draw not made).

    `tuples` are the drawn ones, in the order of the draws.
    """
    alpha, total, since = dual.alpha, dual.total, dual.since
    for draw in range(begin, len(draws)):
        i = draws[draw]
        nx, nz = read_tuple(tuples, draw, left, right, scratch)
        margin, _, slots = store_margin(store, rule, scratch, nx, nz, 0.0)
        if not abs(margin) < HOPELESS:
            return DIVERGED, draw
        norm = step_norm(left, tuples, draw, scratch, nx, nz)
        delta = _move(alpha[i], margin, norm, scale)
        if delta != 0.0 and norm > 0.0:
            tau = delta * scale
            if not store_update(store, rule, scratch, slots, nx, nz, tau, 0.0, 0.0, 0.0):
                return NEEDS_SPACE, draw
        _count(sums, margin)
        _change(alpha, total, since, i, first_draw + draw, delta)
    return DONE, len(draws)


@driver
def squared_hinges(products, place, items, triplets):
    """Sum of the squared hinge losses of triplets; `products[place[t]]` is x'M of the anchor of triplet t."""
    total = 0.0
    for t in range(len(triplets)):
        q, first, second = place[t], triplets[t, 1], triplets[t, 2]
        margin = 0.0
        for k in range(items.shape[1]):
            z = np.float64(items[first, k]) - np.float64(items[second, k])  # float() keeps float32
            margin += np.float64(products[q, k]) * z
        loss = max(0.0, 1.0 - margin)
        total += loss * loss
    return total


@driver
def sparse_margins(matrix, anchors, first, items, triplets, row, margins):
    """Add the margins of triplets, where items and the matrix are in CSR form.

    Row by row of the matrix, each laid out in `row` (float64, zeros before and after): so the matrix is read
    once, and a triplet costs as many entries as it needs. Row i of `anchors` has the places of the anchors
    that have feature i, and its values; those at place a have ``triplets[first[a] : first[a + 1]]``.
    """
    m_indptr, m_indices, m_values = matrix.indptr, matrix.indices, matrix.values
    a_indptr, a_places, a_values = anchors.indptr, anchors.indices, anchors.values
    indptr, indices, values = items.indptr, items.indices, items.values
    for i in range(len(m_indptr) - 1):
        if a_indptr[i] == a_indptr[i + 1]:
            continue
        for e in range(m_indptr[i], m_indptr[i + 1]):
            row[m_indices[e]] = m_values[e]
        for k in range(a_indptr[i], a_indptr[i + 1]):
            x, place = np.float64(a_values[k]), a_places[k]
            for t in range(first[place], first[place + 1]):
                value = 0.0
                for e in range(indptr[triplets[t, 1]], indptr[triplets[t, 1] + 1]):
                    value += row[indices[e]] * np.float64(values[e])
                for e in range(indptr[triplets[t, 2]], indptr[triplets[t, 2] + 1]):
                    value -= row[indices[e]] * np.float64(values[e])
                margins[t] += x * value
        for e in range(m_indptr[i], m_indptr[i + 1]):
            row[m_indices[e]] = 0.0


@driver
def _ascend(margin, gram_x, gram_z, chosen, place, first_draw, dual, scale, moved, sums):
    """The draws of a block: `place[t]` is the place of draw t among the different triplets `chosen`."""
    n = len(margin)
    alpha, total, since = dual.alpha, dual.total, dual.since
    for t in range(len(place)):
        j = place[t]
        i = chosen[j]
        if not abs(margin[j]) < HOPELESS:
            return t
        delta = _move(alpha[i], margin[j], gram_x[j, j] * gram_z[j, j], scale)
        _count(sums, margin[j])
        _change(alpha, total, since, i, first_draw + t, delta)
        if delta != 0.0:
            moved[j] += delta
            c = delta * scale
            for s in range(n):
                margin[s] += c * gram_x[j, s] * gram_z[j, s]
    return len(place)


@driver
def _symmetric(upper):
    """The whole of a symmetric matrix from its upper triangle, in float64."""
    whole = np.empty(upper.shape)
    for i in range(len(upper)):
        for j in range(i, len(upper)):
            whole[i, j] = upper[i, j]
            whole[j, i] = upper[i, j]
    return whole


def ascend_block(
    ops: Any,
    m: np.ndarray,
    rows_of: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]],
    draws: np.ndarray,
    first_draw: int,
    dual: Dual,
    scale: float,
    sums: np.ndarray,
) -> Block:
    """One block of draws on a dense M, as in `blocked`; return how many were made.

    `rows_of(triplets)` gives their rows x and z.
    """
    chosen, place = np.unique(draws, return_inverse=True)
    x, z = rows_of(chosen)
    margin, grams = yield ops.margins(x, m, z), ops.grams(x, z)
    gram_x, gram_z = (_symmetric(gram) for gram in ops.triangles(grams))
    moved = np.zeros(len(chosen))
    made = _ascend(margin, gram_x, gram_z, chosen, place, first_draw, dual, scale, moved, sums)
    active = np.flatnonzero(moved)
    if len(active):
        with np.errstate(over="ignore", invalid="ignore"):  # the next margins tell
            ops.add_product(m, x[active], moved[active] * scale, z[active])
    return made
