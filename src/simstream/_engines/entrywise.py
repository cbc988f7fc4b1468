"""The first matrix of a stream and its engine: full arrays for dense items, a store for sparse ones."""

from __future__ import annotations

from typing import Any

import scipy.sparse as sp

from ..data.comparisons import Comparisons
from ..validation import check_items
from .base import Engine
from .dense import DenseEngine
from .sparse import SparseEngine
from .store import DEFAULT_HEAD_BYTES


def first_matrix(init: Any, shape: tuple[int, int], dtype: Any, as_sparse: bool) -> Any:
    """The matrix that ``init`` ("identity", "zeros" or a matrix) means, as CSR or as an array."""
    if isinstance(init, str):
        matrix = sp.csr_matrix(shape, dtype=dtype)
        if init == "identity":
            matrix = sp.identity(shape[0], dtype, "csr")
    else:
        matrix = check_items(init, "init", dtype=dtype).values
        if matrix.shape != shape:
            raise ValueError(f"init: expected a matrix of shape {shape}, got {matrix.shape}")
    if as_sparse:
        return sp.csr_matrix(matrix)
    return matrix.toarray() if sp.issparse(matrix) else matrix


def entrywise_engine(
    rule: Any,
    average_from: int | None,
    start: Any,
    tuples: Comparisons,
    has_aux: bool,
    head_bytes: int | None,
) -> Engine:
    """An engine that changes M entry by entry, from a first matrix that is an array or CSR."""
    if not sp.issparse(start):
        return DenseEngine(rule, average_from, start, has_aux)
    left, right = tuples.left, tuples.right
    row_counts = left.feature_counts()
    column_counts = row_counts if left is right else right.feature_counts()
    if left.shape[1] == right.shape[1]:  # one feature space: one numbering
        row_counts = column_counts = row_counts + column_counts
    head_bytes = head_bytes or DEFAULT_HEAD_BYTES
    return SparseEngine(rule, average_from, start, has_aux, head_bytes, row_counts, column_counts)
