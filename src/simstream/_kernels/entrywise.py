"""The one driver of all learners that change a matrix entry by entry, one tuple at a time.

An entry rule (`rules`) says what a stored number means and how a step changes it, the step (`steps`) how
far. The driver is compiled for a combination of a store, which says where the numbers live (`Dense` here, or
`head_tail` for sparse rows), and of a reader, which fills the scratch with the two vectors x and z whose
product x z' a tuple moves M along. A triplet gives the anchor x and the difference z = positive - negative;
a pair gives x = z = first - second.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .dispatch import by_component, driver, inner
from .head_tail import HeadTail, margin_in_head_tail, update_in_head_tail, value_in_head_tail
from .rules import CONFIDENT, row_margin, row_update, row_variance
from .steps import (
    HOPELESS,
    LARGEST_NORM,
    SHIFT,
    THRESHOLD,
    average_weight,
    count_round,
    current_eta,
    is_active,
    signed_loss,
    step_length,
)

# Why a driver returned.
DONE, NEEDS_SPACE, NEEDS_REBASE, DIVERGED = 0, 1, 2, 3


# -- readers ----------------------------------------------------------------------------------------


class DenseRows(NamedTuple):
    """Items as rows of a C-contiguous array."""

    values: np.ndarray


class SparseRows(NamedTuple):
    """Items as rows of a CSR matrix with sorted, unique column numbers."""

    indptr: np.ndarray
    indices: np.ndarray
    values: np.ndarray


class FoldedRows(NamedTuple):
    """Sparse anchors with other numbers in x'Mz than in the step: a mean that is folded in (`Geometry`)."""

    indptr: np.ndarray
    indices: np.ndarray
    values: np.ndarray  # what x is in x'Mz
    written: np.ndarray  # what x is in the step along x z'


class Triplets(NamedTuple):
    """Row numbers (anchor, positive, negative), and on which side of the threshold x'Mz belongs."""

    items: np.ndarray
    sign: np.ndarray  # +1: above


class Pairs(NamedTuple):
    """Row numbers of two sparse items, and on which side of the threshold their distance belongs."""

    items: np.ndarray
    sign: np.ndarray  # +1: above (dissimilar), -1: below (similar)


class Gathered(NamedTuple):
    """Tuples whose vectors have been copied: tuple t has row t of the left and of the right reader."""

    sign: np.ndarray


class Scratch(NamedTuple):
    """Work space of one call: the current tuple, and the current row of the matrix."""

    x_index: np.ndarray
    x: np.ndarray
    z_index: np.ndarray
    z: np.ndarray
    numbers: np.ndarray  # of one row of M: u, then aux, then acc, as far as they are used
    eps: float  # of the precision of the arrays
    largest: float  # in that precision: a longer step cannot be taken


def _read_sparse_anchor(rows, i, scratch):
    indices, values, x_index, x = rows.indices, rows.values, scratch.x_index, scratch.x
    n = 0
    for k in range(rows.indptr[i], rows.indptr[i + 1]):
        if values[k] != 0:
            x_index[n] = indices[k]
            x[n] = values[k]
            n += 1
    return n


def _read_folded_anchor(rows, i, scratch):
    # All of them: what is zero to read need not be zero to write.
    indices, values, x_index, x = rows.indices, rows.values, scratch.x_index, scratch.x
    begin = rows.indptr[i]
    n = rows.indptr[i + 1] - begin
    for k in range(n):
        x_index[k] = indices[begin + k]
        x[k] = values[begin + k]
    return n


#: Row i of a CSR matrix as x; returns its length: (rows, i, scratch) -> nx
read_anchor = by_component({SparseRows: _read_sparse_anchor, FoldedRows: _read_folded_anchor})


@inner
def read_difference(rows, p, others, n, scratch):
    """Difference of two rows of CSR matrices as z; returns its length."""
    z_index, z = scratch.z_index, scratch.z
    a_indices, a_values, b_indices, b_values = (
        rows.indices,
        rows.values,
        others.indices,
        others.values,
    )
    a, a_end = rows.indptr[p], rows.indptr[p + 1]
    b, b_end = others.indptr[n], others.indptr[n + 1]
    size = 0
    while a < a_end or b < b_end:
        if b >= b_end or (a < a_end and a_indices[a] < b_indices[b]):
            column, value = a_indices[a], a_values[a]
            a += 1
        elif a >= a_end or b_indices[b] < a_indices[a]:
            column, value = b_indices[b], -b_values[b]
            b += 1
        else:
            column, value = a_indices[a], a_values[a] - b_values[b]
            a += 1
            b += 1
        if value != 0:
            z_index[size] = column
            z[size] = value
            size += 1
    return size


def _read_triplet(tuples, t, left, right, scratch):
    items = tuples.items
    nx = read_anchor(left, items[t, 0], scratch)
    return nx, read_difference(right, items[t, 1], right, items[t, 2], scratch)


def _read_pair(tuples, t, left, right, scratch):
    items = tuples.items
    nz = read_difference(left, items[t, 0], right, items[t, 1], scratch)
    z_index, z, x_index, x = scratch.z_index, scratch.z, scratch.x_index, scratch.x
    for k in range(nz):
        x_index[k] = z_index[k]
        x[k] = z[k]
    return nz, nz


def _read_gathered(tuples, t, left, right, scratch):
    from_left, from_right, z = left.values, right.values, scratch.z
    x_index, x = scratch.x_index, scratch.x
    for j in range(from_right.shape[1]):
        z[j] = from_right[t, j]
    n = 0
    for j in range(from_left.shape[1]):
        if from_left[t, j] != 0:
            x_index[n] = j
            x[n] = from_left[t, j]
            n += 1
    return n, from_right.shape[1]


#: (tuples, t, left, right, scratch) -> (nx, nz)
read_tuple = by_component({Triplets: _read_triplet, Pairs: _read_pair, Gathered: _read_gathered})


@inner
def squared_norm(values, begin, end):
    total = 0.0
    for k in range(end - begin):
        total += float(values[begin + k]) * float(values[begin + k])
    return total


def _plain_step_norm(left, tuples, t, scratch, nx, nz):
    return squared_norm(scratch.x, 0, nx) * squared_norm(scratch.z, 0, nz)


def _folded_step_norm(left, tuples, t, scratch, nx, nz):
    # ||q - m||^2 as a difference of larger numbers; zero where only their rounding errors are left.
    values, written = left.values, left.written
    begin = left.indptr[tuples.items[t, 0]]
    total = 0.0
    size = 0.0
    for k in range(nx):
        product = float(values[begin + k]) * float(written[begin + k])
        total += product
        size += abs(product)
    if total <= 4.0 * scratch.eps * size:
        return 0.0
    return total * squared_norm(scratch.z, 0, nz)


#: How much a step of length one changes the tuple's own x'Mz: the squared norm of x z'.
#: (left, tuples, t, scratch, nx, nz) -> norm
step_norm = by_component(
    {DenseRows: _plain_step_norm, SparseRows: _plain_step_norm, FoldedRows: _folded_step_norm}
)


def _write_as_read(left, tuples, t, scratch, nx):
    return nx


def _write_folded(left, tuples, t, scratch, nx):
    written, x = left.written, scratch.x
    begin = left.indptr[tuples.items[t, 0]]
    for k in range(nx):
        x[k] = written[begin + k]
    return nx


#: Turn x from what x'Mz reads into what a step writes: (left, tuples, t, scratch, nx) -> nx
turn_to_writing = by_component(
    {DenseRows: _write_as_read, SparseRows: _write_as_read, FoldedRows: _write_folded}
)


# -- stores -----------------------------------------------------------------------------------------


class Dense(NamedTuple):
    """Full arrays, for dense rows. ``aux`` and ``acc`` have no columns where a rule needs none."""

    u: np.ndarray
    aux: np.ndarray
    acc: np.ndarray


def _margin_in_dense(store, rule, scratch, nx, nz, shift):
    u, aux = store.u, store.aux
    x_index, x, z = scratch.x_index, scratch.x, scratch.z[:nz]
    margin = 0.0
    variance = 0.0
    for p in range(nx):
        i = x_index[p]
        x_i = float(x[p])
        d = i if rule.off_diagonal and i < nz else -1  # the last row may have no diagonal
        margin += x_i * float(row_margin(rule, u, i, aux, i, z, d, shift))
        if rule.kind == CONFIDENT:
            variance += x_i * x_i * row_variance(aux, i, z)
    return margin, variance, 0


def _update_in_dense(store, rule, scratch, slots, nx, nz, tau, beta, shift, weight):
    u, aux, acc = store.u, store.aux, store.acc
    averaging = acc.shape[1] > 0
    x_index, x, z = scratch.x_index, scratch.x, scratch.z[:nz]
    for p in range(nx):
        i = x_index[p]
        d = i if rule.off_diagonal and i < nz else -1  # the last row may have no diagonal
        row_update(rule, u, i, aux, i, acc, i, averaging, z, x[p], d, tau, beta, shift, weight)
    return True


#: (store, rule, scratch, nx, nz, shift) -> (x'Mz, variance of x'Mz, where to find its entries)
store_margin = by_component(
    {Dense: _margin_in_dense, HeadTail: margin_in_head_tail}, allocating={HeadTail}
)

#: (store, rule, scratch, slots, nx, nz, tau, beta, shift, weight) -> whether the step could be taken
store_update = by_component(
    {Dense: _update_in_dense, HeadTail: update_in_head_tail}, allocating={HeadTail}
)


@driver
def learn_one_at_a_time(rule, store, step, left, right, tuples, begin, end, scratch, clock):
    """Learn from tuples begin .. end - 1 in order; return (what happened, first tuple not learnt).

    Nothing of a tuple is applied when the driver stops at it, so that Python can make space and call
    again. The result does not depend on where the stream is cut.
    """
    signs = tuples.sign
    for t in range(begin, end):
        shift = clock[SHIFT]
        nx, nz = read_tuple(tuples, t, left, right, scratch)
        value, variance, slots = store_margin(store, rule, scratch, nx, nz, shift)
        if not abs(value) < HOPELESS:
            return DIVERGED, t
        eta = current_eta(step, clock)
        loss = signed_loss(signs[t], value, clock)
        norm = step_norm(left, tuples, t, scratch, nx, nz)
        if not norm < LARGEST_NORM:
            return DIVERGED, t
        updated = False
        if is_active(step, loss) and norm > 0.0:
            tau = step_length(step, loss, norm + step.bias, variance, eta)
            if not abs(tau) < scratch.largest:
                return DIVERGED, t
            beta = 1.0 / (variance + step.r)  # AROMA's alone
            updated = tau != 0.0 and abs(tau) >= step.tolerance
            if updated:
                tau *= signs[t]
                weight = average_weight(step, clock)
                turn_to_writing(left, tuples, t, scratch, nx)
                if not store_update(store, rule, scratch, slots, nx, nz, tau, beta, shift, weight):
                    return NEEDS_SPACE, t
                clock[THRESHOLD] -= tau * step.bias
        count_round(clock, loss, updated, norm == 0.0)
        if step.lam > 0.0:
            clock[SHIFT] += step.lam * eta
            # A stored number must resolve an eighth of one round's threshold.
            if clock[SHIFT] * scratch.eps > step.lam * eta / 8.0:
                return NEEDS_REBASE, t + 1
    return DONE, end


@driver
def stored_values(rule, store, left, right, tuples, begin, end, scratch, shift, rounds, out):
    """Write x'Mz of triplets begin .. end - 1 with M as it is read from a `HeadTail`; nothing is learnt."""
    for t in range(begin, end):
        nx, nz = read_tuple(tuples, t, left, right, scratch)
        out[t] = value_in_head_tail(store, rule, scratch, nx, nz, shift, rounds)


@driver
def differences(a, i, b, j):
    """Rows a[i] - b[j] of dense arrays, in one pass."""
    out = np.empty((len(i), a.shape[1]), a.dtype)
    for t in range(len(i)):
        first, second = i[t], j[t]
        for k in range(a.shape[1]):
            out[t, k] = a[first, k] - b[second, k]
    return out


@driver
def gather(left, right, tuples, x, z):
    """Copy the dense vectors of tuples (row numbers) to the rows of x and z; for pairs to z alone."""
    for t in range(len(tuples)):
        first, second = tuples[t, -2], tuples[t, -1]
        if tuples.shape[1] == 2:
            for k in range(left.shape[1]):
                z[t, k] = left[first, k] - right[second, k]
        else:
            anchor = tuples[t, 0]
            for k in range(left.shape[1]):
                x[t, k] = left[anchor, k]
            for k in range(right.shape[1]):
                z[t, k] = right[first, k] - right[second, k]
