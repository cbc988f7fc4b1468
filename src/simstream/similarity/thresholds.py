"""The threshold up to which pairs count as similar, chosen by one of several criteria."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..validation import check_choice, check_number

#: What a threshold can be chosen for.
CRITERIA = ("accuracy", "balanced_accuracy", "f1", "f_beta", "max_tpr", "max_tnr")


def check_criterion(criterion: Any, beta: Any, min_rate: Any) -> None:
    """Check what `calibrate_threshold` was asked for, and that nothing was given without effect."""
    check_choice("criterion", criterion, CRITERIA)
    if check_number("beta", beta, exclusive=False) != 1 and criterion != "f_beta":
        raise ValueError(f"beta: expected 1 with criterion={criterion!r}, got {beta!r}")
    if criterion not in ("max_tpr", "max_tnr"):
        if min_rate is not None:
            raise ValueError(f"min_rate: expected None with {criterion=}, got {min_rate!r}")
        return
    if min_rate is None or check_number("min_rate", min_rate, exclusive=False) > 1:
        raise ValueError(
            f"min_rate: expected a number from 0 to 1 with {criterion=}, got {min_rate!r}"
        )


def best_threshold(
    distances: np.ndarray,
    similar: np.ndarray,
    criterion: str = "accuracy",
    beta: float = 1.0,
    min_rate: Any = None,
) -> float:
    """The threshold that decides pairs best: the middle between two neighbouring distances.

    It is the largest distance where all pairs are accepted. Of equally good ones it is the smallest, but for
    "max_tnr" the largest: the rate that is not asked for is then as good as it can be.

    Parameters
    ----------
    distances : array of shape (n,)
    similar : array of n booleans
    criterion, beta, min_rate : as in `Mahalanobis.calibrate_threshold`

    Examples
    --------
    >>> distances, similar = np.array([1.0, 2.0, 3.0, 4.0]), np.array([True, False, True, False])
    >>> best_threshold(distances, similar)
    1.5
    >>> best_threshold(distances, similar, "max_tpr", min_rate=0.5)
    3.5
    """
    n_similar = int(similar.sum())
    n_dissimilar = len(similar) - n_similar
    if criterion in ("balanced_accuracy", "max_tpr", "max_tnr") and 0 in (n_similar, n_dissimilar):
        raise ValueError(
            f"y: expected similar and dissimilar pairs for {criterion=}, got only one kind"
        )
    order = np.argsort(distances, kind="stable")
    ordered = distances[order]
    # Accepting the first 0 .. n pairs; equal distances cannot be told apart.
    hits = np.concatenate([[0], np.cumsum(similar[order])])
    accepted = np.arange(len(distances) + 1)
    false_hits = accepted - hits
    possible = np.concatenate([[True], np.diff(ordered) > 0, [True]])
    if criterion == "accuracy":
        quality = hits + n_dissimilar - false_hits
    elif criterion == "balanced_accuracy":
        quality = hits / n_similar - false_hits / n_dissimilar
    elif criterion in ("f1", "f_beta"):
        price = beta * beta
        quality = (1 + price) * hits / np.maximum(1, accepted + price * n_similar)
    elif criterion == "max_tpr":
        quality = hits
        possible &= (n_dissimilar - false_hits) / n_dissimilar >= min_rate
    else:
        quality = hits - (len(distances) + 1) * false_hits  # of the same true negatives, most hits
        possible &= hits / n_similar >= min_rate
    best = int(np.flatnonzero(possible)[np.argmax(quality[possible])])
    if best == 0:  # none of them: below the smallest distance
        return float(ordered[0] / 2) if ordered[0] > 0 else -1.0
    below = float(ordered[best - 1])
    if best == len(distances):
        return below
    middle = (below + float(ordered[best])) / 2
    return middle if middle < ordered[best] else below


def saved_threshold(header: dict[str, Any]) -> float | None:
    """The threshold in the header of a file, if one was calibrated or set."""
    calibrated = header.get("calibrated")
    if calibrated is None:
        return None
    if not isinstance(calibrated, (int, float)) or not np.isfinite(calibrated):
        raise ValueError(f"calibrated: expected a number or None, got {calibrated!r}")
    return float(calibrated)
