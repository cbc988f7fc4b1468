"""Plain NumPy versions of learners: what an algorithm costs when it is written down as in its paper.

They show the share of the hardware in a comparison of training times with published ones.
"""

from __future__ import annotations

import time

import numpy as np


def eager_seconds(
    items: np.ndarray,
    pairs: np.ndarray,
    signs: np.ndarray,
    n_timed: int,
    *,
    C: float,
    variant: str,
    projection: str,
) -> float:
    """CPU seconds of the plain passive-aggressive metric for all pairs, from those of the first `n_timed`."""
    start = time.process_time()
    eager_pa(items, pairs[:n_timed], signs[:n_timed], C=C, variant=variant, projection=projection)
    return (time.process_time() - start) * len(pairs) / n_timed


def eager_pa(
    items: np.ndarray,
    pairs: np.ndarray,
    signs: np.ndarray,
    *,
    C: float,
    variant: str,
    projection: str,
) -> tuple[np.ndarray, float]:
    """M and threshold of `simstream.PAMetric`, one dense step after the other, with all eigenvectors.

    Examples
    --------
    >>> from simstream import PairSampler, PAMetric
    >>> rng = np.random.default_rng(0)
    >>> X, y = rng.random((30, 4)), rng.integers(0, 2, 30)
    >>> pairs, signs = PairSampler(y, 0).draw(200)
    >>> options = {"C": 0.1, "variant": "PALS", "projection": "every-step"}
    >>> M, b = eager_pa(X, pairs, signs, **options)
    >>> model = PAMetric(preprocessor=X, **options).fit(pairs, signs)
    >>> np.allclose(M, model.get_mahalanobis_matrix()), np.isclose(b, model.threshold_)
    (True, np.True_)
    """
    M, b = np.zeros((items.shape[1],) * 2), 0.0
    for (first, second), y in zip(pairs, signs, strict=True):
        v = items[first] - items[second]
        loss = 1 - y * (b - v @ M @ v)
        if variant != "PALS":
            loss = max(0.0, loss)
        K = 1 + (v @ v) ** 2
        tau = min(C, loss / K) if variant == "PA-I" else loss / (K + 1 / (2 * C))
        if tau == 0 or not v.any():
            continue
        M -= tau * y * np.outer(v, v)
        b += tau * y
        if projection == "every-step":
            b = max(1.0, b)
            if tau * y > 0:
                M = _positive_part(M)
    return (M, b) if projection == "every-step" else (_positive_part(M), max(1.0, b))


def _positive_part(M: np.ndarray) -> np.ndarray:
    values, vectors = np.linalg.eigh(M)
    return (vectors * np.maximum(values, 0)) @ vectors.T
