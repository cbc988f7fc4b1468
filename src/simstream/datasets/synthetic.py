"""Two low-dimensional Gaussians in a space of higher dimension, as data for low-rank learners."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..validation import check_choice
from .facts import Dataset, table

_N_PER_CLASS = 200
_TRAIN_SHARE = 0.3
_N_INFORMATIVE = 5
_N_FEATURES = 20
_DISTANCE_OF_MEANS = 3.0


def make_low_rank(kind: str, seed: int = 0, *, dtype: Any = np.float64) -> Dataset:
    """Generate two-class data that show low rank and feature selection.

    Each class has 200 points g ~ N(mu_c, S_c) in five dimensions, where mu_2 = -mu_1, the two means
    are 3 apart in a random direction, and S_c = B B'/5 + 0.1 I with standard normal entries of B.

    Parameters
    ----------
    kind : {"projected", "embedded"}
        "projected": x = R g, where R is 20 x 5 with entries N(0, 1/5): data of rank 5, in which
        every feature is informative. "embedded": g in five random coordinates of 20, N(0, 1) in the
        others.
    seed : int, default=0
        The same seed makes the same data.
    dtype : dtype, default=float64
        Type of the items, float32 or float64.

    Returns
    -------
    Dataset
        ``informative`` holds the numbers of the informative features; the split "train" holds 30 %
        of each class, "test" the rest.

    Examples
    --------
    >>> import numpy as np
    >>> from simstream.datasets import make_low_rank
    >>> projected = make_low_rank("projected", seed=1)
    >>> projected.items.shape, int(np.linalg.matrix_rank(projected.items))
    ((400, 20), 5)
    >>> len(make_low_rank("embedded", seed=1).informative)
    5
    """
    check_choice("kind", kind, ("projected", "embedded"))
    rng = np.random.default_rng(seed)
    direction = rng.standard_normal(_N_INFORMATIVE)
    mean = direction * (_DISTANCE_OF_MEANS / 2 / np.linalg.norm(direction))
    points = np.concatenate([_gaussian(rng, sign * mean) for sign in (-1, 1)])
    if kind == "projected":
        projection = rng.normal(0, np.sqrt(1 / _N_INFORMATIVE), (_N_FEATURES, _N_INFORMATIVE))
        items = points @ projection.T
        informative = np.arange(_N_FEATURES)
    else:
        items = rng.standard_normal((len(points), _N_FEATURES))
        informative = np.sort(rng.permutation(_N_FEATURES)[:_N_INFORMATIVE])
        items[:, informative] = points
    # The points of a class are independent, so the first of them are a random sample.
    is_train = np.arange(len(items)) % _N_PER_CLASS < round(_TRAIN_SHARE * _N_PER_CLASS)
    facts = table()[f"synthetic-{kind}"]
    return Dataset(
        name=facts.name,
        items=items.astype(dtype),
        labels=np.repeat(np.arange(2), _N_PER_CLASS),
        class_names=("0", "1"),
        splits={"train": np.flatnonzero(is_train), "test": np.flatnonzero(~is_train)},
        informative=informative,
        source="generated",
        verdict=facts.verdict,
        note=f"{facts.note}; seed {seed}",
    )


def _gaussian(rng: np.random.Generator, mean: np.ndarray) -> np.ndarray:
    d = len(mean)
    B = rng.standard_normal((d, d))
    covariance = B @ B.T / d + 0.1 * np.eye(d)
    return mean + rng.standard_normal((_N_PER_CLASS, d)) @ np.linalg.cholesky(covariance).T
