"""Learning from quadruplets (a, b, c, d): a is more like b than c is like d.

A step goes along a b' - c d', a matrix of rank two where that of a triplet has rank one. A block of n
quadruplets still costs products of matrices alone: all margins a'Mb - c'Md against the block's first matrix,
then the n x n inner products of the steps,

    <a b' - c d', e f' - g h'> = (a'e)(b'f) - (a'g)(b'h) - (c'e)(d'f) + (c'g)(d'h),

which say what earlier steps of the block change for later ones. The recursion is that of triplets, so the
result is that of one quadruplet at a time, to rounding.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .._kernels.blocked import Blas, rank_one_recursion, row_dots
from .._kernels.steps import THRESHOLD
from ..data.comparisons import Comparisons

#: Quadruplets learnt together where nothing else was asked for.
AT_A_TIME = 64


def learn_quadruplet_block(
    step: Any, m: np.ndarray, acc: np.ndarray, tuples: Comparisons, clock: np.ndarray
) -> int:
    """Learn from one block of dense quadruplets; return how many were learnt.

    ``acc`` is the average's accumulator, or has no columns. A threshold between pairs cancels: it stays as it
    is.
    """
    ops, index = Blas(m.dtype), tuples.index
    a, c = tuples.left.values[index[:, 0]], tuples.left.values[index[:, 2]]
    b, d = tuples.right.values[index[:, 1]], tuples.right.values[index[:, 3]]
    value = row_dots(ops.product(a, m), b) - row_dots(ops.product(c, m), d)
    gram, sizes = _gram(*(rows.astype(np.float64) for rows in (a, b, c, d)))
    # A squared norm that may be rounding is zero: both sides say the same.
    is_directed = gram.diagonal() > 16 * np.finfo(m.dtype).eps * sizes
    steps, weighted = np.zeros((2, len(index)))
    learnt = rank_one_recursion(
        step._replace(bias=0.0),
        value + clock[THRESHOLD],
        tuples.sign,
        np.empty(0),
        is_directed.astype(np.float32),
        gram,
        gram,
        gram,
        np.ones_like(gram),
        clock,
        steps,
        weighted,
    )
    moved = np.flatnonzero(steps)
    if len(moved):
        for matrix, lengths in ((m, steps), (acc, weighted))[: 1 + bool(acc.shape[1])]:
            ops.add_product(matrix, a[moved], lengths[moved], b[moved])
            ops.add_product(matrix, c[moved], -lengths[moved], d[moved])
    return learnt


def _gram(
    a: np.ndarray, b: np.ndarray, c: np.ndarray, d: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Inner products of the steps, and ||a||^2 ||b||^2 + ||c||^2 ||d||^2 of each."""
    alike = (a @ a.T) * (b @ b.T) + (c @ c.T) * (d @ d.T)
    crossed = (a @ c.T) * (b @ d.T)
    return alike - crossed - crossed.T, alike.diagonal()
