"""Ranks of the methods of a study over its data sets: Friedman's test, all pairs by Holm."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from simstream.metrics.statistics import FriedmanResult, friedman

from .plan import TUNING
from .records import Record, over_seeds


def rank_methods(
    records: Iterable[Record], methods: Sequence[str], measure: str, *, lower_is_better: bool
) -> tuple[FriedmanResult, list[str]] | None:
    """Rank methods by the mean of a measure, on the data sets where all of them were tried.

    A method that was over its budget comes last there.

    Returns the result and the names of these data sets; None with fewer than two of either.

    Examples
    --------
    >>> seconds = {"A": (1, 2), "B": (3, 3), "C": (2, 5)}
    >>> records = [
    ...     {"dataset": f"d{i}", "method": name, "seed": 0, "measures": {"seconds": values[i]}}
    ...     for name, values in seconds.items() for i in (0, 1)
    ... ]
    >>> result, used = rank_methods(records, ["A", "B", "C"], "seconds", lower_is_better=True)
    >>> result.average_ranks.tolist(), used
    ([1.0, 2.5, 2.5], ['d0', 'd1'])
    >>> adjusted_p_value(result, "B vs A") == adjusted_p_value(result, "A vs B") < 1
    True
    """
    groups: dict[str, dict[str, list[Record]]] = {}
    for one in records:
        if one["seed"] > TUNING:
            groups.setdefault(one["dataset"], {}).setdefault(one["method"], []).append(one)
    rows, used = [], []
    for name, found in groups.items():
        values = [_value(found.get(method, []), measure, lower_is_better) for method in methods]
        if not np.isnan(values).any():
            rows.append(values)
            used.append(name)
    if len(rows) < 2 or len(methods) < 2:
        return None
    return friedman(np.array(rows), lower_is_better=lower_is_better, names=methods), used


def _value(records: list[Record], measure: str, lower_is_better: bool) -> float:
    """The mean; the worst there is for a method over its budget, NaN for one that was not tried."""
    found = over_seeds(records, measure)
    if found is not None:
        return found[0]
    if any(record.get("status") == "over budget" for record in records):
        return np.inf if lower_is_better else -np.inf
    return np.nan


def adjusted_p_value(result: FriedmanResult, pair: str) -> float | None:
    """Holm's adjusted p-value of a pair of methods "A vs B", in either order; None without such a pair."""
    wanted = set(pair.split(" vs "))
    for found in result.pairwise():
        if {found.first, found.second} == wanted:
            return found.adjusted_p_value
    return None
