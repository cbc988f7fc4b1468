"""Measures of a model alone: its triplet accuracy and the sparsity of its matrix."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse

from ..validation import check_number
from .ranking import _chunk_rows


def triplet_accuracy(model: Any, triplets: Any) -> float:
    """Return the share of (anchor, positive, negative) triplets that a model orders correctly.

    Parameters
    ----------
    model : object
        Has a method ``triplet_margin(triplets) -> (n,)`` or ``decision_function``, positive where the
        anchor is more similar to the positive than to the negative. Exactly 0 counts as wrong.
    triplets : (n, 3) or (n, 3, d) array

    Examples
    --------
    >>> class Closer:
    ...     def decision_function(self, triplets):
    ...         anchor, positive, negative = np.transpose(triplets)
    ...         return abs(anchor - negative) - abs(anchor - positive)
    >>> triplet_accuracy(Closer(), [[0, 1, 2], [0, 3, 1]])
    0.5
    """
    if len(triplets) == 0:
        raise ValueError("triplets: expected at least one, got none")
    margin = getattr(model, "triplet_margin", None) or model.decision_function
    values = np.asarray(margin(triplets))
    if values.shape != (len(triplets),):
        raise ValueError(f"decision values: expected {len(triplets)}, got shape {values.shape}")
    if np.isnan(values).any():
        raise ValueError(f"decision values: expected numbers, got {np.isnan(values).sum()} NaN")
    return float(np.mean(values > 0))


def sparsity(M: Any, tol: float = 1e-12) -> float:
    """Return the share of entries of a matrix that are zero, that is, with ``|M_ij| <= tol``.

    Parameters
    ----------
    M : (d, d') array or sparse matrix
    tol : float, default 1e-12

    Examples
    --------
    >>> sparsity(np.eye(4))
    0.75
    """
    check_number("tol", tol, exclusive=False)
    M = M if sparse.issparse(M) else np.asarray(M)
    if M.ndim != 2 or 0 in M.shape:
        raise ValueError(f"M: expected a non-empty matrix, got shape {M.shape}")
    values = M
    if sparse.issparse(M):
        csr = M.tocsr()
        if not csr.has_canonical_format:  # an entry may be stored in several parts
            csr = csr.copy()
            csr.sum_duplicates()
        values = csr.data[:, None]
    non_zero = 0
    # In chunks: M may be so big that there is no room for a copy.
    n_rows = _chunk_rows(None, values.shape[1])
    for start in range(0, values.shape[0], n_rows):
        part = np.abs(values[start : start + n_rows])
        if np.isnan(part).any():
            raise ValueError("M: expected numbers, got NaN")
        non_zero += int(np.count_nonzero(part > tol))
    return 1.0 - non_zero / (M.shape[0] * M.shape[1])
