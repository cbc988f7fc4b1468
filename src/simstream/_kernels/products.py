"""Products of CSR rows with dense queries."""

from __future__ import annotations

import numpy as np

from .dispatch import driver


@driver
def csr_scores(data, columns, starts, first, queries, out):
    """Write ``out[i, j]``, the inner product of row ``first + j`` with column i of `queries`.

    `queries` has shape (n_features, n_queries): what one entry of a row meets lies side by side.
    """
    n_queries = queries.shape[1]
    sums = np.empty(n_queries, out.dtype)
    for j in range(out.shape[1]):
        begin, end = starts[first + j], starts[first + j + 1]
        if n_queries == 1:
            total = out.dtype.type(0)
            for p in range(begin, end):
                total += data[p] * queries[columns[p], 0]
            out[0, j] = total
            continue
        sums[:] = 0
        for p in range(begin, end):
            value, column = data[p], columns[p]
            for i in range(n_queries):
                sums[i] += value * queries[column, i]
        for i in range(n_queries):
            out[i, j] = sums[i]
