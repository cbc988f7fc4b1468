"""Products of sparse matrices that hardly have zeros, and quadratic forms of sparse rows."""

from __future__ import annotations

import numpy as np

from .dispatch import driver

#: Entries of a row of M that are read in the time that one of them is searched for.
_ENTRIES_PER_SEARCH = 100


@driver
def add_product(left, right, out):
    """Add the product of two `SparseRows` to an array.

    Where most of the product is not zero this takes a fraction of what a sparse product takes, which has to
    find its places first.
    """
    for k in range(out.shape[0]):
        line = out[k]
        for p in range(left.indptr[k], left.indptr[k + 1]):
            value, i = left.values[p], left.indices[p]
            for e in range(right.indptr[i], right.indptr[i + 1]):
                line[right.indices[e]] += value * right.values[e]


@driver
def quadratic_forms(rows, matrix, out):
    """Write x'Mx of each row x; the columns of a row of M ascend. Both are `SparseRows`."""
    spread = np.zeros(matrix.indptr.size - 1, out.dtype)
    for k in range(out.size):
        begin, end = rows.indptr[k], rows.indptr[k + 1]
        for p in range(begin, end):
            spread[rows.indices[p]] = rows.values[p]
        total = out.dtype.type(0)
        for p in range(begin, end):
            i = rows.indices[p]
            first, last = matrix.indptr[i], matrix.indptr[i + 1]
            part = out.dtype.type(0)
            if last - first < _ENTRIES_PER_SEARCH * (end - begin):
                for e in range(first, last):
                    part += matrix.values[e] * spread[matrix.indices[e]]
            else:
                columns = matrix.indices[first:last]
                for e in range(begin, end):
                    place = np.searchsorted(columns, rows.indices[e])
                    if place < columns.size and columns[place] == rows.indices[e]:
                        part += rows.values[e] * matrix.values[first + place]
            total += rows.values[p] * part
        for p in range(begin, end):
            spread[rows.indices[p]] = 0
        out[k] = total
