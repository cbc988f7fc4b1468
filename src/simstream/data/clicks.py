"""Comparisons from clicks on ranked results: what a click says about the items that were not clicked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, TypeVar

import numpy as np

from ..ids import Id
from ..validation import Items, check_choice, check_index_tuples, tuples_by_rows

#: Rules by which clicks become comparisons.
CLICK_RULES = ("skip-above", "no-click")

#: A click counts by the inverse of the probability that it was looked at, but at most so many times.
LARGEST_WEIGHT = 10.0

_Item = TypeVar("_Item")


def pairs_from_clicks(
    shown: Sequence[_Item],
    clicked: Iterable[_Item],
    rule: str = "skip-above",
    *,
    most: int | None = None,
) -> list[tuple[_Item, _Item]]:
    """Pairs (better, worse) from the clicks on one list of results.

    Parameters
    ----------
    shown : sequence
        Items in the order in which they were shown.
    clicked : items of it
    rule : "skip-above" or "no-click"
        "skip-above": a clicked item beats the items above it that were not clicked. Items below the last
        click say nothing: nobody may have looked at them. "no-click": it beats all that were not clicked,
        where everything shown was seen, for example a few items side by side.
    most : int, optional
        Only so many, the first ones.

    References
    ----------
    Joachims. Optimizing search engines using clickthrough data. KDD 2002 (click > skip above).
    Joachims, Granka, Pan, Hembrooke, Gay. Accurately interpreting clickthrough data as implicit feedback.
    SIGIR 2005 (how often such rules are right).

    Examples
    --------
    >>> pairs_from_clicks(["a", "b", "c", "d"], ["c"])
    [('c', 'a'), ('c', 'b')]
    >>> pairs_from_clicks(["a", "b", "c", "d"], ["c"], "no-click")
    [('c', 'a'), ('c', 'b'), ('c', 'd')]
    """
    check_choice("rule", rule, CLICK_RULES)
    chosen = set(clicked)
    pairs = (
        (item, other)
        for place, item in enumerate(shown)
        if item in chosen
        for other in (shown[:place] if rule == "skip-above" else shown)
        if other not in chosen
    )
    return list(islice(pairs, most))


def triplets_from_clicks(
    log: Iterable[tuple[Id, Sequence[Id], Iterable[Id]]],
    n_queries: int | Items,
    n_items: int | Items,
    *,
    rule: str = "skip-above",
) -> np.ndarray:
    """Triplets (query, better, worse) from a log of clicks, in the order of the log.

    Searches that were clicked differently at different times may contradict one another: every one of them
    is kept, and a learner follows the majority.

    Parameters
    ----------
    log : iterable of (query, shown, clicked)
        Row of the query, rows of the items in the order in which they were shown, and those clicked; ids
        where `Items` with ids are given.
    n_queries, n_items : int or Items
        Rows from which these are.
    rule : "skip-above" or "no-click"
        What a click says; see `simstream.data.clicks.pairs_from_clicks`.

    Returns
    -------
    int64 array of shape (n, 3)
        For a learner with ``preprocessor=(queries, items)``. It has no rows if nothing follows from the
        clicks, for example where only first results were clicked.

    Examples
    --------
    >>> from simstream import triplets_from_clicks
    >>> log = [(0, [4, 7, 2, 9], [2]), (1, [5, 4], [5])]  # the second: a click on the first result
    >>> triplets_from_clicks(log, n_queries=2, n_items=10).tolist()
    [[0, 2, 4], [0, 2, 7]]
    """
    check_choice("rule", rule, CLICK_RULES)
    triplets: list[tuple[Any, Any, Any]] = []
    for number, record in enumerate(log):
        try:
            query, shown, clicked = record
            shown, chosen = list(shown), list(clicked)
            known = set(shown)
            unknown = [item for item in chosen if item not in known]
        except (TypeError, ValueError):
            raise ValueError(
                f"log: expected (query, shown, clicked) in record {number}, got {record!r}"
            ) from None
        if len(known) < len(shown):
            raise ValueError(
                f"log: expected every item at most once among those shown, got {shown} in "
                f"record {number}"
            )
        if unknown:
            raise ValueError(
                f"log: expected clicks on items that were shown, got {unknown[0]!r} in record {number}"
            )
        pairs = pairs_from_clicks(shown, chosen, rule)
        triplets += [(query, better, worse) for better, worse in pairs]
    if not triplets:
        return np.empty((0, 3), np.int64)
    rows = tuples_by_rows(triplets, n_queries, n_items, "log")
    n_rows = [len(side) if isinstance(side, Items) else side for side in (n_queries, n_items)]
    names = ("query", "clicked item", "item not clicked")
    return check_index_tuples(rows, (*n_rows, n_rows[1]), names)
