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
    u: np.ndarray
    aux: np.ndarray
    acc: np.ndarray


def _read_anchor_dense(rows, i, scratch):
    n = 0
    for j in range(rows.values.shape[1]):
        if rows.values[i, j] != 0:
            scratch.x_index[n] = j
            scratch.x[n] = rows.values[i, j]
            n += 1
    return n


def _read_anchor_sparse(rows, i, scratch):
    n = 0
    for k in range(rows.indptr[i], rows.indptr[i + 1]):
        if rows.values[k] != 0:
            scratch.x_index[n] = rows.indices[k]
            scratch.x[n] = rows.values[k]
            n += 1
    return n


read_anchor = by_component({DenseRows: _read_anchor_dense, SparseRows: _read_anchor_sparse})


def _read_difference_dense(rows, p, n, scratch):
    for j in range(rows.values.shape[1]):
        scratch.z[j] = rows.values[p, j] - rows.values[n, j]
    return rows.values.shape[1]


def _read_difference_sparse(rows, p, n, scratch):
    a, a_end = rows.indptr[p], rows.indptr[p + 1]
    b, b_end = rows.indptr[n], rows.indptr[n + 1]
    size = 0
    while a < a_end or b < b_end:
        if b >= b_end or (a < a_end and rows.indices[a] < rows.indices[b]):
            column, value = rows.indices[a], rows.values[a]
            a += 1
        elif a >= a_end or rows.indices[b] < rows.indices[a]:
            column, value = rows.indices[b], -rows.values[b]
            b += 1
        else:
            column, value = rows.indices[a], rows.values[a] - rows.values[b]
            a += 1
            b += 1
        if value != 0:
            scratch.z_index[size] = column
            scratch.z[size] = value
            size += 1
    return size


read_difference = by_component(
    {DenseRows: _read_difference_dense, SparseRows: _read_difference_sparse}
)
