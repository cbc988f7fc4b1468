"""Row readers: fill the scratch with the two vectors x and z whose product x z' a tuple moves M along.

A triplet gives the anchor x and the difference z = positive - negative; a pair gives x = z = first - second.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .dispatch import by_component, driver, inner
from .task_rows import row_number


class DenseRows(NamedTuple):
    """Items as rows of a C-contiguous array."""

    values: np.ndarray


class SparseRows(NamedTuple):
    """Items as rows of a CSR matrix with sorted, unique column numbers."""

    indptr: np.ndarray
    indices: np.ndarray
    values: np.ndarray


class Triplets(NamedTuple):
    """Row numbers (anchor, positive, negative), and on which side of the threshold x'Mz belongs."""

    items: np.ndarray
    sign: np.ndarray  # +1: above


class Pairs(NamedTuple):
    """Row numbers of two sparse items, and on which side of the threshold their distance belongs."""

    items: np.ndarray
    sign: np.ndarray  # +1: above (dissimilar), -1: below (similar)


class TaskTriplets(NamedTuple):
    """Triplets of many tasks: M is a shared matrix on top of one matrix for each task.

    Task k scores with x'z + shared x'Sz + own x'D_k z. The anchor is read twice, for the rows of S and for
    those of D_k, with these weights; a step changes both matrices by the same. The rows of S come first in
    the store, then one that is always empty, then the touched rows of all D_k as `task_rows` numbers them:
    a row without a number reads as the empty one.
    """

    items: np.ndarray
    sign: np.ndarray
    coin: np.ndarray  # uniform numbers that decide whether to ask
    tasks: np.ndarray
    key: np.ndarray  # numbers of the rows of all D_k
    number: np.ndarray
    width: int  # rows of one matrix, and the number of the empty row
    shared: float
    own: float
    has_identity: bool


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


def _read_anchor_dense(rows, i, scratch):
    values, x_index, x = rows.values, scratch.x_index, scratch.x
    n = 0
    for j in range(values.shape[1]):
        if values[i, j] != 0:
            x_index[n] = j
            x[n] = values[i, j]
            n += 1
    return n


def _read_anchor_sparse(rows, i, scratch):
    indices, values, x_index, x = rows.indices, rows.values, scratch.x_index, scratch.x
    n = 0
    for k in range(rows.indptr[i], rows.indptr[i + 1]):
        if values[k] != 0:
            x_index[n] = indices[k]
            x[n] = values[k]
            n += 1
    return n


read_anchor = by_component({DenseRows: _read_anchor_dense, SparseRows: _read_anchor_sparse})


def _read_difference_dense(rows, p, others, n, scratch):
    values, subtracted, z = rows.values, others.values, scratch.z
    for j in range(values.shape[1]):
        z[j] = values[p, j] - subtracted[n, j]
    return values.shape[1]


def _read_difference_sparse(rows, p, others, n, scratch):
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


read_difference = by_component(
    {DenseRows: _read_difference_dense, SparseRows: _read_difference_sparse}
)


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


def _read_task_triplet(tuples, t, left, right, scratch):
    items, x_index, x = tuples.items, scratch.x_index, scratch.x
    key, number, width = tuples.key, tuples.number, tuples.width
    n = read_anchor(left, items[t, 0], scratch)
    first_key = tuples.tasks[t] * width
    for p in range(n):
        x_index[n + p] = row_number(key, number, first_key + x_index[p], width)
        x[n + p] = x[p] * tuples.own
        x[p] *= tuples.shared
    return 2 * n, read_difference(right, items[t, 1], right, items[t, 2], scratch)


def _read_gathered(tuples, t, left, right, scratch):
    values, z = right.values, scratch.z
    for j in range(values.shape[1]):
        z[j] = values[t, j]
    return read_anchor(left, t, scratch), values.shape[1]


#: (tuples, t, left, right, scratch) -> (nx, nz)
read_tuple = by_component(
    {
        Triplets: _read_triplet,
        Pairs: _read_pair,
        TaskTriplets: _read_task_triplet,
        Gathered: _read_gathered,
    }
)


def _no_coin(tuples, t):
    return 0.0


def _task_coin(tuples, t):
    return tuples.coin[t]


#: (tuples, t) -> the uniform number that decides whether its answer is asked for
coin_of = by_component(
    {Triplets: _no_coin, Pairs: _no_coin, Gathered: _no_coin, TaskTriplets: _task_coin}
)


@inner
def _squared_norm(values, begin, end):
    total = 0.0
    for k in range(end - begin):
        total += float(values[begin + k]) * float(values[begin + k])
    return total


def _plain_norm(tuples, scratch, nx, nz):
    return _squared_norm(scratch.x, 0, nx) * _squared_norm(scratch.z, 0, nz)


def _task_norm(tuples, scratch, nx, nz):
    x = _squared_norm(scratch.x, nx // 2, nx) / (tuples.own * tuples.own)
    return (tuples.shared + tuples.own) * x * _squared_norm(scratch.z, 0, nz)


#: (tuples, scratch, nx, nz) -> how much a step of length one changes the tuple's own x'Mz
step_norm = by_component(
    {Triplets: _plain_norm, Pairs: _plain_norm, Gathered: _plain_norm, TaskTriplets: _task_norm}
)


def _nothing(tuples, scratch, nx, nz):
    return 0.0


def _inner_product(tuples, scratch, nx, nz):
    """x'z for sparse rows: both have sorted labels."""
    if not tuples.has_identity:
        return 0.0
    x_index, x, z_index, z = scratch.x_index, scratch.x, scratch.z_index, scratch.z
    n = nx // 2
    total = 0.0
    k = 0
    for p in range(n):
        while k < nz and z_index[k] < x_index[p]:
            k += 1
        if k < nz and z_index[k] == x_index[p]:
            total += float(x[n + p]) * float(z[k])
    return total / tuples.own


#: (tuples, scratch, nx, nz) -> the part of x'Mz that is not in the store
unstored_part = by_component(
    {Triplets: _nothing, Pairs: _nothing, Gathered: _nothing, TaskTriplets: _inner_product}
)


def _as_it_is(tuples, scratch, nx, nz):
    return


def _same_for_both(tuples, scratch, nx, nz):
    x = scratch.x
    n = nx // 2
    for p in range(n):
        x[n + p] /= tuples.own
        x[p] = x[n + p]


#: (tuples, scratch, nx, nz): turn what was read into what a step adds
ready_for_step = by_component(
    {Triplets: _as_it_is, Pairs: _as_it_is, Gathered: _as_it_is, TaskTriplets: _same_for_both}
)


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
