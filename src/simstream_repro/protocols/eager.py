"""Plain NumPy versions of learners: what an algorithm costs when it is written down as in its paper.

They show the share of the hardware in a comparison of training times with published ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..clock import working_seconds

#: Changes M for one triplet: anchor, difference of the candidates, and what the learner keeps beside M.
_Step = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]


def extrapolated_seconds(learn: Callable[[int], Any], n_timed: int, n: int) -> float:
    """CPU seconds of n steps of ``learn(number of steps)``, from those of the first `n_timed`."""
    start = working_seconds()
    learn(n_timed)
    return (working_seconds() - start) * n / n_timed


# -- triplets -----------------------------------------------------------------------------------------------


def eager_triplets(
    learner: str, items: Any, triplets: np.ndarray, parameters: dict[str, Any]
) -> np.ndarray:
    """M of a learner from triplets, one dense step after the other, in float64.

    Examples
    --------
    >>> import simstream
    >>> from simstream import TripletSampler
    >>> rng = np.random.default_rng(0)
    >>> X, y = rng.normal(size=(30, 4)), np.arange(30) % 3
    >>> T = TripletSampler(y, 0).draw(200)
    >>> for name in EAGER_STEPS:
    ...     model = getattr(simstream, name)(preprocessor=X).fit(T)
    ...     given = {key: getattr(model, key) for key in EAGER_STEPS[name]}
    ...     print(name, np.allclose(eager_triplets(name, X, T, given), model.get_bilinear_matrix()))
    OASIS True
    SORS True
    AdaSORS True
    AROMA True
    """
    M = np.eye(items.shape[1])
    step = _STEPS[learner](M, **{name: parameters[name] for name in EAGER_STEPS[learner]})
    for anchor, positive, negative in triplets:
        M = step(M, _row(items, anchor), _row(items, positive) - _row(items, negative))
    return M


def _row(items: Any, row: int) -> np.ndarray:
    found = items[row]
    return np.asarray(found.toarray()[0] if hasattr(found, "toarray") else found, np.float64)


def _oasis(M: np.ndarray, C: float) -> _Step:
    def step(M: np.ndarray, x: np.ndarray, z: np.ndarray) -> np.ndarray:
        loss, length = 1 - x @ M @ z, (x @ x) * (z @ z)
        return M + min(C, loss / length) * np.outer(x, z) if loss > 0 and length > 0 else M

    return step


def _sors(M: np.ndarray, lam: float, eta: float, off_diagonal: bool) -> _Step:
    shrink = eta * lam * _penalised(M, off_diagonal)

    def step(M: np.ndarray, x: np.ndarray, z: np.ndarray) -> np.ndarray:
        if 1 - x @ M @ z > 0:
            M = M + eta * np.outer(x, z)
        return _soft(M, shrink)

    return step


def _adasors(M: np.ndarray, lam: float, eta: float, delta: float, off_diagonal: bool) -> _Step:
    penalised, squares = _penalised(M, off_diagonal), np.zeros_like(M)

    def step(M: np.ndarray, x: np.ndarray, z: np.ndarray) -> np.ndarray:
        nonlocal squares
        gradient = -np.outer(x, z) if 1 - x @ M @ z > 0 else np.zeros_like(M)
        squares = squares + gradient**2
        scale = eta / (delta + np.sqrt(squares))
        return _soft(M - scale * gradient, lam * scale * penalised)

    return step


def _aroma(M: np.ndarray, r: float) -> _Step:
    variance = np.ones_like(M)

    def step(M: np.ndarray, x: np.ndarray, z: np.ndarray) -> np.ndarray:
        nonlocal variance
        P, loss = np.outer(x, z), 1 - x @ M @ z
        if loss <= 0 or not P.any():
            return M
        M = M + loss / ((P**2 * variance).sum() + r) * variance * P
        variance = 1 / (1 / variance + P**2 / r)
        return M

    return step


def _penalised(M: np.ndarray, off_diagonal: bool) -> np.ndarray:
    return 1 - np.eye(len(M)) if off_diagonal else np.ones_like(M)


def _soft(M: np.ndarray, shrink: np.ndarray) -> np.ndarray:
    return np.sign(M) * np.maximum(np.abs(M) - shrink, 0)


_STEPS: dict[str, Callable[..., _Step]] = {
    "OASIS": _oasis,
    "SORS": _sors,
    "AdaSORS": _adasors,
    "AROMA": _aroma,
}
#: Learners from triplets that have a plain version, and the parameters it takes.
EAGER_STEPS: dict[str, Sequence[str]] = {
    "OASIS": ("C",),
    "SORS": ("lam", "eta", "off_diagonal"),
    "AdaSORS": ("lam", "eta", "delta", "off_diagonal"),
    "AROMA": ("r",),
}

# -- triplets of tasks --------------------------------------------------------------------------------------


def eager_tasks(
    items: Any, stream: Any, *, C: float, coupling: float, n_tasks: int
) -> list[np.ndarray]:
    """The matrices of all tasks of `simstream.OMTRSL`, each changed at every step.

    `stream` has triplets, answers and the numbers of their tasks. Coupling 0 is `OSTRSL`; one task for all
    triplets is `OGRSL`.

    Examples
    --------
    >>> from simstream import OMTRSL, TripletSampler
    >>> rng = np.random.default_rng(0)
    >>> X, y = rng.normal(size=(30, 4)), np.arange(30) % 3
    >>> T = TripletSampler(y, 0).draw(200)
    >>> y, tasks = rng.choice([-1, 1], 200), rng.integers(3, size=200)
    >>> found = eager_tasks(X, (T, y, tasks), C=0.1, coupling=2.0, n_tasks=3)
    >>> model = OMTRSL(C=0.1, coupling=2.0, n_tasks=3, preprocessor=X).fit(T, y, tasks)
    >>> np.allclose(found[2], model.get_bilinear_matrix(2))
    True
    """
    matrices = [np.eye(items.shape[1]) for _ in range(n_tasks)]
    shared = coupling / ((1 + coupling) * n_tasks)
    own = shared + 1 / (1 + coupling)
    for (anchor, first, second), answer, task in zip(*stream, strict=True):
        x, z = _row(items, anchor), _row(items, first) - _row(items, second)
        loss, length = 1 - answer * (x @ matrices[task] @ z), own * (x @ x) * (z @ z)
        if loss > 0 and length > 0:
            change = answer * min(C, loss / length) * np.outer(x, z)
            for k in range(n_tasks) if coupling else (task,):
                matrices[k] += (own if k == task else shared) * change
    return matrices


# -- pairs --------------------------------------------------------------------------------------------------


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
