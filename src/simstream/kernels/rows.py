"""Row readers: fill the scratch with the anchor x and the difference z = positive - negative."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .dispatch import by_component


class DenseRows(NamedTuple):
    """Items as rows of a C-contiguous array."""

    values: np.ndarray


class SparseRows(NamedTuple):
    """Items as rows of a CSR matrix with sorted, unique column numbers."""

    indptr: np.ndarray
    indices: np.ndarray
    values: np.ndarray


class Scratch(NamedTuple):
    """Work space of one call: the current triplet, and the current row of the matrix."""

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


def _read_difference_dense(rows, p, n, scratch):
    values, z = rows.values, scratch.z
    for j in range(values.shape[1]):
        z[j] = values[p, j] - values[n, j]
    return values.shape[1]


def _read_difference_sparse(rows, p, n, scratch):
    indices, values, z_index, z = rows.indices, rows.values, scratch.z_index, scratch.z
    a, a_end = rows.indptr[p], rows.indptr[p + 1]
    b, b_end = rows.indptr[n], rows.indptr[n + 1]
    size = 0
    while a < a_end or b < b_end:
        if b >= b_end or (a < a_end and indices[a] < indices[b]):
            column, value = indices[a], values[a]
            a += 1
        elif a >= a_end or indices[b] < indices[a]:
            column, value = indices[b], -values[b]
            b += 1
        else:
            column, value = indices[a], values[a] - values[b]
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
