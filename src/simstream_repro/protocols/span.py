"""Coordinates in the span of the items: for full matrices where there are more features than items.

Most learners of distances start from the identity, or from nothing, and move along differences of items. So
all they learn lies in the span of the items, and an orthonormal basis of it keeps every distance. What is
left to do in the features themselves is to count the zeros of M. Not so RCA, OnlineITML and MCML, whose
first matrix or regularisation looks at the number of features.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .common import dense

#: Learners for which coordinates in the span change no distance.
KEEP_DISTANCES = ("ITML", "LEGO", "LMNN", "PAMetric", "POLA", "RDML")

_ROWS_AT_A_TIME = 1000
#: What is smaller, beside the largest entry, is a zero that was rounded.
_ROUNDING = 1e-9


class Span:
    """An orthonormal basis of the span of items, and one direction that no item has.

    What a learner leaves in that direction is what it leaves in all others outside of the span.

    Parameters
    ----------
    *items : arrays or CSR matrices of shape (n_items, n_features)

    Examples
    --------
    >>> items = np.array([[1.0, 1.0, 0.0, 0.0], [2.0, 0.0, 0.0, 0.0]])
    >>> span = Span(items)
    >>> inside = span.coordinates(items)
    >>> inside.shape
    (2, 3)
    >>> np.allclose(inside @ inside.T, items @ items.T)
    True
    >>> span.zero_share(np.eye(3))
    0.75
    """

    def __init__(self, *items: Any) -> None:
        stacked = np.vstack([dense(some) for some in items])
        self._basis, _ = np.linalg.qr(stacked.T.astype(np.float64))

    def coordinates(self, items: Any) -> np.ndarray:
        """Items in these coordinates, with a zero for the direction that none has."""
        inside = np.asarray(items @ self._basis)
        return np.hstack([inside, np.zeros((len(inside), 1))])

    def measures(self, matrix: np.ndarray, rank: float | None) -> dict[str, float]:
        """Zeros and rank of M over the features, of M and its rank in these coordinates."""
        found = {"sparsity": self.zero_share(matrix)}
        if rank is not None:  # the one direction outside stands for all of them
            d, r = self._basis.shape
            found["rank"] = rank + (d - r - 1 if matrix[-1, -1] != 0 else 0)
        return found

    def zero_share(self, matrix: np.ndarray) -> float:
        """Share of zeros in M over the features, of M in these coordinates."""
        outside = matrix[-1, -1]
        inside = matrix[:-1, :-1] - outside * np.eye(len(matrix) - 1)
        d = len(self._basis)
        largest, magnitudes = 0.0, []
        for start in range(0, d, _ROWS_AT_A_TIME):
            rows = self._basis[start : start + _ROWS_AT_A_TIME] @ inside @ self._basis.T
            own = np.arange(len(rows))
            rows[own, start + own] += outside
            largest = max(largest, float(np.abs(rows).max()))
            magnitudes.append(np.abs(rows).astype(np.float32))
        n_zeros = sum(int((rows <= _ROUNDING * largest).sum()) for rows in magnitudes)
        return n_zeros / d**2
