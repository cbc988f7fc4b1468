"""The sums over neighbours and impostors that large-margin metric learning needs.

Points are rows of `points`, sorted by class; distances are squared. `thresholds[i, j]` is one plus
the distance from i to its j-th target neighbour: a point of another class nearer than that (an
impostor) makes a triple active. A pair of points is looked at once, for both of its ends.
"""

from __future__ import annotations

import numpy as np

from .dispatch import driver, helper


@driver
def target_distances(points, targets):
    """Return the distance of every point to each of its target neighbours."""
    out = np.empty(targets.shape)
    for i in range(targets.shape[0]):
        for j in range(targets.shape[1]):
            out[i, j] = _distance(points, i, targets[i, j])
    return out


@driver
def list_near(products, row_norms, column_norms, row_bounds, column_bounds):
    """List the pairs whose distance is less than the bound of the row or that of the column.

    Distances are given by the inner products and the squared norms. Returns ``starts, columns``:
    those of row i are ``columns[starts[i] : starts[i + 1]]``, ascending.
    """
    n_rows, n_columns = products.shape
    starts = np.zeros(n_rows + 1, np.int64)
    for i in range(n_rows):
        count = 0
        for l in range(n_columns):  # noqa: E741
            distance = row_norms[i] + column_norms[l] - 2.0 * products[i, l]
            count += distance < max(row_bounds[i], column_bounds[l])
        starts[i + 1] = starts[i] + count
    columns = np.empty(starts[n_rows], np.int32)
    for i in range(n_rows):
        place = starts[i]
        l = 0  # noqa: E741
        while place < starts[i + 1]:
            distance = row_norms[i] + column_norms[l] - 2.0 * products[i, l]
            if distance < max(row_bounds[i], column_bounds[l]):
                columns[place] = l
                place += 1
            l += 1  # noqa: E741
    return starts, columns


@driver
def push(points, vectors, thresholds, reach, first, starts, columns, n_active, pulls):
    """Add up the active triples among listed pairs, and return the sum of their hinges.

    The pairs are those of the rows ``first, first + 1, ...`` with the points
    ``columns[starts[r] : starts[r + 1]]``; ``reach[i]`` is the largest of ``thresholds[i]``. Adds to
    ``n_active[i, j]`` the number of impostors within ``thresholds[i, j]``, and to `pulls` the product
    of the vectors with the Laplacian of the graph that has an edge of weight -1 for every impostor.
    """
    total = 0.0
    for r in range(starts.size - 1):
        i = first + r
        of_row = 0.0
        for place in range(starts[r], starts[r + 1]):
            l = np.int64(columns[place])  # noqa: E741
            distance = _distance(points, i, l)
            weight = 0.0
            for a in (i, l):
                if distance < reach[a]:
                    for j in range(thresholds.shape[1]):
                        if distance < thresholds[a, j]:
                            of_row += thresholds[a, j] - distance
                            n_active[a, j] += 1
                            weight -= 1.0
            if weight != 0.0:
                _add_edge(vectors, i, l, weight, pulls)
        total += of_row
    return total


@driver
def pull(vectors, targets, weights, pulls):
    """Add to `pulls` the product of the vectors with the Laplacian of the target graph."""
    for i in range(targets.shape[0]):
        for j in range(targets.shape[1]):
            _add_edge(vectors, i, targets[i, j], weights[i, j], pulls)


@helper
def _distance(points, a, b):
    total = 0.0
    for k in range(points.shape[1]):
        difference = points[a, k] - points[b, k]
        total += difference * difference
    return total


@helper
def _add_edge(vectors, a, b, weight, pulls):
    for k in range(vectors.shape[1]):
        pulled = weight * (vectors[a, k] - vectors[b, k])
        pulls[a, k] += pulled
        pulls[b, k] -= pulled
