"""OSLLR-GS: W = X X' with rows of X that are shrunk as groups and kept in a ball, one triplet at a time.

Two forms. In rows of X, a row that no triplet touches keeps its direction while its norm falls by the same
threshold in every round: only the norm at its last touch is kept, and the sum of all thresholds so far. The
weighted sum of its iterates follows from two prefix sums. In W itself a step is a symmetric change of rank
four, whatever the number of columns of X, and all rows are touched together.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from .dispatch import by_component, driver, helper
from .entrywise import DIVERGED, DONE, DenseRows, SparseRows, read_anchor, read_difference
from .steps import HOPELESS, LARGEST_NORM, ROUNDS, SHIFT, count_round

# Prefix sums of a stream of rows: of eta_t, and of eta_t times the threshold before round t; and how many
# rounds the history holds.
TOTAL, SHIFTED, FILLED = 0, 1, 2

#: Rounds of history: a row that dies is found when it is next touched, or when the history is full.
HISTORY = 1024

# Sums of a stream of W: of eta_t, and since all rows were last touched of eta_t, eta_t P_t and eta_t P_t^2
# with P_t the threshold added up since then, P itself, and the smallest norm that is not zero.
RUN_0, RUN_1, RUN_2, PENDING, SMALLEST = 1, 2, 3, 4, 5


class GroupStep(NamedTuple):
    """Parameters of a step; eta_t = eta / sqrt(t)."""

    eta: float
    gamma: float
    beta: float
    exact: bool  # both terms of the gradient, or only the one that the paper prints


class LazyRows(NamedTuple):
    """X, every row as it was last touched; the row now is its direction with norm [key - threshold]+."""

    values: np.ndarray  # (d, m)
    total: np.ndarray  # (d, m) sum of eta_t X_t up to the last touch; no columns without an average
    raw: np.ndarray  # (d,) norm of the stored row, 0 for a row that is zero
    key: np.ndarray  # (d,) norm at the last touch plus the threshold then
    stamp: np.ndarray  # (2, d) TOTAL and SHIFTED then
    history: (
        np.ndarray
    )  # (3, HISTORY) threshold before, TOTAL and SHIFTED after each of the last rounds


class Gram(NamedTuple):
    """W_ij = V_ij norm_i norm_j / (raw_i raw_j), norms as they were when all rows were last touched."""

    values: np.ndarray  # (d, d)
    total: np.ndarray  # (d, d) sum of eta_t W_t up to then
    raw: np.ndarray  # (d,) square root of V_ii, 0 for a row that is zero
    norm: np.ndarray  # (d,)


class Workspace(NamedTuple):
    """The current triplet and what it is multiplied with."""

    feature: np.ndarray  # (d,) features of a or b
    b: np.ndarray  # (d,) anchor
    a: np.ndarray  # (d,) negative - positive
    place: np.ndarray  # (d,) int64, rows that are not zero
    on_b: np.ndarray  # (d,) b times the scale of the row
    on_a: np.ndarray
    u: np.ndarray  # (m,) X'b, or Wb
    w: np.ndarray  # (m,) X'a, or Wa
    more: np.ndarray  # (6, d) for W: 1 / raw, norm / raw, then the vectors of the step: r, s, a, b


def _read_union_dense(left, right, x, p, n, scratch, work):
    queries, items, index, b, a = left.values, right.values, work.feature, work.b, work.a
    size = 0
    for k in range(items.shape[1]):
        b_k = queries[x, k]
        a_k = items[n, k] - items[p, k]
        if b_k != 0 or a_k != 0:
            index[size], b[size], a[size] = k, b_k, a_k
            size += 1
    return size


def _read_union_sparse(left, right, x, p, n, scratch, work):
    index, b, a = work.feature, work.b, work.a
    nx = read_anchor(left, x, scratch)
    nz = read_difference(right, p, right, n, scratch)
    x_index, x_value, z_index, z_value = scratch.x_index, scratch.x, scratch.z_index, scratch.z
    size = 0
    i = 0
    j = 0
    while i < nx or j < nz:
        from_x = j >= nz or (i < nx and x_index[i] <= z_index[j])
        from_z = i >= nx or (j < nz and z_index[j] <= x_index[i])
        index[size] = x_index[i] if from_x else z_index[j]
        b[size] = 0.0
        a[size] = 0.0
        if from_x:
            b[size] = x_value[i]
            i += 1
        if from_z:
            a[size] = -z_value[j]
            j += 1
        size += 1
    return size


#: (left, right, x, p, n, scratch, work) -> number of features of the anchor or of the difference
_read_union = by_component({DenseRows: _read_union_dense, SparseRows: _read_union_sparse})


@helper
def _squared_norm(v, n):
    total = 0.0
    for k in range(n):
        total += v[k] * v[k]
    return total


@helper
def _dot(a, b, n):
    total = 0.0
    for k in range(n):
        total += a[k] * b[k]
    return total


@helper
def _combine(values, place, on_b, on_a, n, u, w):
    """u and w = sums of the n rows at these places, weighted by on_b and on_a: one pass over the rows."""
    width = values.shape[1]
    for j in range(width):
        u[j] = 0.0
        w[j] = 0.0
    p = 0
    while p + 4 <= n:  # four rows at a time: u and w are read and written less often
        i0, i1, i2, i3 = place[p], place[p + 1], place[p + 2], place[p + 3]
        b0, b1, b2, b3 = on_b[p], on_b[p + 1], on_b[p + 2], on_b[p + 3]
        a0, a1, a2, a3 = on_a[p], on_a[p + 1], on_a[p + 2], on_a[p + 3]
        for j in range(width):
            v0, v1, v2, v3 = values[i0, j], values[i1, j], values[i2, j], values[i3, j]
            u[j] += b0 * v0 + b1 * v1 + b2 * v2 + b3 * v3
            w[j] += a0 * v0 + a1 * v1 + a2 * v2 + a3 * v3
        p += 4
    while p < n:
        i, c, e = place[p], on_b[p], on_a[p]
        for j in range(width):
            u[j] += c * values[i, j]
            w[j] += e * values[i, j]
        p += 1


@helper
def _step_row(values, i, scale, c, e, u, w):
    """Row i = scale row - c u - e w; returns its squared norm."""
    total = 0.0
    for j in range(values.shape[1]):
        v = scale * values[i, j] - c * u[j] - e * w[j]
        values[i, j] = v
        total += v * v
    return total


@helper
def _step_averaged_row(values, sums, i, weight, scale, c, e, u, w):
    """The same in one pass with the sum of iterates."""
    total = 0.0
    for j in range(values.shape[1]):
        old = values[i, j]
        sums[i, j] += weight * old
        v = scale * old - c * u[j] - e * w[j]
        values[i, j] = v
        total += v * v
    return total


@helper
def _last_round_alive(history, n, key):
    """Place in the history of the last round before which the threshold was below key."""
    low, high = 0, n
    while high - low > 1:
        middle = (low + high) // 2
        if history[0, middle] < key:
            low = middle
        else:
            high = middle
    return low


@helper
def _weight_of_run(raw, key, stamp, sums, history, i, shift):
    """What the stored row i counts for in the sum of iterates, from its last touch to the current round.

    The threshold before the current round is `shift`.
    """
    if raw[i] == 0.0:
        return 0.0
    total, shifted = sums[TOTAL], sums[SHIFTED]
    if key[i] <= shift:
        last = _last_round_alive(history, int(sums[FILLED]), key[i])
        total, shifted = history[1, last], history[2, last]
    return (key[i] * (total - stamp[0, i]) - (shifted - stamp[1, i])) / raw[i]


@helper
def _bury(values, total, raw, key, stamp, sums, history, before, shift):
    """Close the sums of the rows whose norm has become zero, and forget the history."""
    for i in range(len(raw)):
        if raw[i] > 0.0 and key[i] <= shift:
            weight = _weight_of_run(raw, key, stamp, sums, history, i, before)
            for j in range(values.shape[1]):
                total[i, j] += weight * values[i, j]
            raw[i] = 0.0
    sums[FILLED] = 0.0


@driver
def learn_rows(step, rows, sums, left, right, triplets, begin, end, scratch, work, clock):
    """Learn from triplets begin .. end - 1 in rows of X; return (what happened, first one not learnt)."""
    values, total, raw, key, stamp = rows.values, rows.total, rows.raw, rows.key, rows.stamp
    history = rows.history
    index, b, a, place = work.feature, work.b, work.a, work.place
    on_b, on_a, u, w = work.on_b, work.on_a, work.u, work.w
    averaging = total.shape[1] > 0
    width = values.shape[1]
    for t in range(begin, end):
        n = _read_union(left, right, triplets[t, 0], triplets[t, 1], triplets[t, 2], scratch, work)
        shift = clock[SHIFT]
        eta = step.eta / math.sqrt(clock[ROUNDS] + 1.0)
        alive = 0
        for p in range(n):
            i = index[p]
            if raw[i] > 0.0 and key[i] > shift:
                scale = (key[i] - shift) / raw[i]
                place[alive] = i
                on_b[alive] = scale * b[p]
                on_a[alive] = scale * a[p]
                alive += 1
        _combine(values, place, on_b, on_a, alive, u, w)
        margin = -_dot(u, w, width)
        aa, bb = _squared_norm(a, n), _squared_norm(b, n)
        if not (abs(margin) < HOPELESS and aa * bb < LARGEST_NORM):
            return DIVERGED, t
        violated = margin < 1.0 and aa * bb > 0.0
        if violated:
            length = aa * _squared_norm(u, width) + bb * _squared_norm(w, width)
            if not eta * eta * length < LARGEST_NORM:
                return DIVERGED, t
        sums[TOTAL] += eta
        sums[SHIFTED] += eta * shift
        if averaging:
            h = int(sums[FILLED])
            history[0, h] = shift
            history[1, h] = sums[TOTAL]
            history[2, h] = sums[SHIFTED]
            sums[FILLED] += 1.0
        lost = eta * step.gamma
        if violated:
            for p in range(n):
                i = index[p]
                now = key[i] - shift
                scale = now / raw[i] if raw[i] > 0.0 and now > 0.0 else 0.0
                c = eta * a[p]
                e = eta * b[p] if step.exact else 0.0
                if averaging:
                    weight = _weight_of_run(raw, key, stamp, sums, history, i, shift)
                    squared = _step_averaged_row(values, total, i, weight, scale, c, e, u, w)
                    stamp[0, i] = sums[TOTAL]
                    stamp[1, i] = sums[SHIFTED]
                else:
                    squared = _step_row(values, i, scale, c, e, u, w)
                half = math.sqrt(squared)
                norm = min(step.beta, half - lost)
                if norm > 0.0:
                    raw[i] = half
                    key[i] = norm + (shift + lost)
                else:
                    raw[i] = 0.0
        count_round(clock, 1.0 - margin, violated, aa * bb == 0.0)
        clock[SHIFT] = shift + lost
        if averaging and sums[FILLED] >= history.shape[1]:
            _bury(values, total, raw, key, stamp, sums, history, shift, clock[SHIFT])
    return DONE, end


@helper
def _read_gram(raw, norm, more):
    """What turns stored numbers into W: first rows of `more`."""
    for i in range(len(raw)):
        more[0, i] = 1.0 / raw[i] if raw[i] > 0.0 else 0.0
        more[1, i] = norm[i] * more[0, i]


@helper
def _weights_of_run(norm, sums):
    """Sum of eta_t (norm - P_t)(norm' - P_t) since the last touch, linear in norm': slope and constant."""
    return norm * sums[RUN_0] - sums[RUN_1], sums[RUN_2] - norm * sums[RUN_1]


@helper
def _average_gram_row(values, total, i, slope, constant, more):
    """Add the iterates since the last touch to row i of the sum of iterates."""
    for j in range(values.shape[1]):
        total[i, j] += (slope * more[1, j] + constant * more[0, j]) * values[i, j]


@helper
def _step_gram_row(values, total, i, slope, constant, scale, pending, r, s, a, b, more):
    """The same in one pass with the step: row i of W becomes that of W - a r' - b s' - r a' - s b'."""
    for j in range(values.shape[1]):
        old = values[i, j]
        total[i, j] += (slope * more[1, j] + constant * more[0, j]) * old
        values[i, j] = (
            scale * (more[1, j] - pending * more[0, j]) * old
            - a * more[2, j]
            - b * more[3, j]
            - r * more[4, j]
            - s * more[5, j]
        )


@helper
def _start_run(sums):
    sums[RUN_0] = 0.0
    sums[RUN_1] = 0.0
    sums[RUN_2] = 0.0
    sums[PENDING] = 0.0


@helper
def _bury_in_gram(values, total, raw, norm, sums, more):
    """Touch all rows, because the norm of one has just become zero."""
    _read_gram(raw, norm, more)
    smallest = math.inf
    for i in range(len(raw)):
        if raw[i] > 0.0:
            slope, constant = _weights_of_run(norm[i], sums)
            _average_gram_row(values, total, i, more[0, i] * slope, more[0, i] * constant, more)
            norm[i] -= sums[PENDING]
            if norm[i] > 0.0:
                smallest = min(smallest, norm[i])
            else:
                norm[i] = 0.0
                raw[i] = 0.0
    _start_run(sums)
    sums[SMALLEST] = smallest


@driver
def learn_gram(step, gram, sums, left, right, triplets, begin, end, scratch, work, clock):
    """The same in W = X X', with the average of W."""
    values, total, raw, norm = gram.values, gram.total, gram.raw, gram.norm
    index, b, a, place = work.feature, work.b, work.a, work.place
    on_b, on_a, u, w = work.on_b, work.on_a, work.u, work.w
    more = work.more
    d = len(raw)
    for t in range(begin, end):
        n = _read_union(left, right, triplets[t, 0], triplets[t, 1], triplets[t, 2], scratch, work)
        eta = step.eta / math.sqrt(clock[ROUNDS] + 1.0)
        pending = sums[PENDING]
        alive = 0
        for p in range(n):
            i = index[p]
            if raw[i] > 0.0:
                scale = (norm[i] - pending) / raw[i]
                place[alive] = i
                on_b[alive] = scale * b[p]
                on_a[alive] = scale * a[p]
                alive += 1
        _combine(values, place, on_b, on_a, alive, u, w)
        for j in range(d):
            scale = (norm[j] - pending) / raw[j] if raw[j] > 0.0 else 0.0
            u[j] *= scale
            w[j] *= scale
        bub = 0.0
        bua = 0.0
        awa = 0.0
        for p in range(n):
            bub += b[p] * u[index[p]]
            bua += a[p] * u[index[p]]
            awa += a[p] * w[index[p]]
        margin = -bua
        aa, bb = _squared_norm(a, n), _squared_norm(b, n)
        if not (abs(margin) < HOPELESS and aa * bb < LARGEST_NORM):
            return DIVERGED, t
        violated = margin < 1.0 and aa * bb > 0.0
        if violated:
            length = aa * _squared_norm(u, d) + bb * _squared_norm(w, d) + aa * bub + bb * awa
            if not eta * eta * max(1.0, aa * bb) * length < LARGEST_NORM:
                return DIVERGED, t
        sums[TOTAL] += eta
        sums[RUN_0] += eta
        sums[RUN_1] += eta * pending
        sums[RUN_2] += eta * pending * pending
        lost = eta * step.gamma
        if violated:
            _read_gram(raw, norm, more)
            for j in range(d):
                more[2, j] = eta * u[j]
                more[3, j] = eta * w[j] if step.exact else 0.0
                more[4, j] = 0.0
                more[5, j] = 0.0
            half_square = 0.5 * eta * eta
            for p in range(n):
                i = index[p]
                more[2, i] -= half_square * bub * a[p]
                if step.exact:
                    more[2, i] -= half_square * bua * b[p]
                    more[3, i] -= half_square * (bua * a[p] + awa * b[p])
                more[4, i] = a[p]
                more[5, i] = b[p]
            smallest = math.inf
            for i in range(d):
                inverse = more[0, i]
                slope, constant = _weights_of_run(norm[i], sums)
                _step_gram_row(
                    values, total, i, inverse * slope, inverse * constant,
                    more[1, i] - pending * inverse, pending,
                    more[2, i], more[3, i], more[4, i], more[5, i], more,
                )  # fmt: skip
                half = math.sqrt(max(0.0, values[i, i]))
                norm[i] = max(0.0, min(step.beta, half - lost))
                raw[i] = half if norm[i] > 0.0 else 0.0
                if norm[i] > 0.0:
                    smallest = min(smallest, norm[i])
            _start_run(sums)
            sums[SMALLEST] = smallest
        else:
            sums[PENDING] += lost
            if sums[PENDING] >= sums[SMALLEST]:
                _bury_in_gram(values, total, raw, norm, sums, more)
        count_round(clock, 1.0 - margin, violated, aa * bb == 0.0)
    return DONE, end
