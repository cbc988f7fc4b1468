"""Rank-one steps of full matrices: products, updates, and what a block of them needs."""

from __future__ import annotations

import numpy as np
from scipy.linalg import solve_triangular

from .dispatch import helper


@helper
def product_into(matrix, vector, out):
    """out = matrix vector; returns vector' out."""
    total = 0.0
    for i in range(len(matrix)):
        row = matrix[i]
        s = vector.dtype.type(0)
        for j in range(len(vector)):
            s += row[j] * vector[j]
        out[i] = s
    for i in range(len(matrix)):
        total += float(vector[i]) * float(out[i])
    return total


@helper
def add_outer(matrix, c, a, b):
    """matrix += c a b'."""
    for i in range(len(a)):
        row = matrix[i]
        ca = a.dtype.type(c) * a[i]
        for j in range(len(b)):
            row[j] += ca * b[j]


@helper
def eliminate(gram, t, beta, mix):
    """Take the step -beta a_t a_t' out of the Gram matrix of the later tuples; note how it mixes into them.

    Only the upper triangle is kept: row t holds the products with the later tuples.
    """
    n = len(gram)
    for s in range(t + 1, n):
        g = beta * gram[t, s]
        mix[t, s] = g
        for j in range(s, n):
            gram[s, j] -= g * gram[t, j]


def unmix(mix: np.ndarray, active: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Rows a_t = A_t z_t of the active tuples from the rows A_0 z_t (inactive ones never mix in)."""
    triangle = mix[np.ix_(active, active)].astype(rows.dtype)
    np.fill_diagonal(triangle, 1)
    solved = solve_triangular(
        triangle, rows[active], trans="T", unit_diagonal=True, check_finite=False
    )
    return np.ascontiguousarray(solved)
