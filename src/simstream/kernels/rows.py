"""Row readers: fill the scratch with the two vectors x and z whose product x z' a tuple moves M along.

A triplet gives the anchor x and the difference z = positive - negative; a pair gives x = z = first - second.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .dispatch import by_component, driver


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
    """Row numbers of two items, and on which side of the threshold their distance belongs."""

    items: np.ndarray
    sign: np.ndarray  # +1: above (dissimilar), -1: below (similar)


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


def _repeat_difference_dense(rows, scratch, nz):
    z, x_index, x = scratch.z, scratch.x_index, scratch.x
    n = 0
    for j in range(nz):
        if z[j] != 0:
            x_index[n] = j
            x[n] = z[j]
            n += 1
    return n


def _repeat_difference_sparse(rows, scratch, nz):
    scratch.x_index[:nz] = scratch.z_index[:nz]
    scratch.x[:nz] = scratch.z[:nz]
    return nz


#: (rows, scratch, nz) -> nx: the difference also as x, in the form an anchor has
_repeat_difference = by_component(
    {DenseRows: _repeat_difference_dense, SparseRows: _repeat_difference_sparse}
)


def _read_triplet(tuples, t, left, right, scratch):
    items = tuples.items
    nx = read_anchor(left, items[t, 0], scratch)
    return nx, read_difference(right, items[t, 1], right, items[t, 2], scratch)


def _read_pair(tuples, t, left, right, scratch):
    items = tuples.items
    nz = read_difference(left, items[t, 0], right, items[t, 1], scratch)
    return _repeat_difference(left, scratch, nz), nz


#: (tuples, t, left, right, scratch) -> (nx, nz)
read_tuple = by_component({Triplets: _read_triplet, Pairs: _read_pair})


@driver
def differences(a, i, b, j):
    """Rows a[i] - b[j] of dense arrays, in one pass."""
    out = np.empty((len(i), a.shape[1]), a.dtype)
    for t in range(len(i)):
        first, second = i[t], j[t]
        for k in range(a.shape[1]):
            out[t, k] = a[first, k] - b[second, k]
    return out
