"""From what people did with a list to comparisons."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product


def from_clicks(shown: Sequence[str], clicked: Iterable[str]) -> list[tuple[str, str]]:
    """Pairs (better, worse): every clicked item over the items above it that were passed over.

    Nothing is said about items below the last click: they may not have been looked at.

    Examples
    --------
    >>> from_clicks(["a", "b", "c", "d"], ["c"])
    [('c', 'a'), ('c', 'b')]
    """
    chosen = set(clicked)
    return [
        (item, above)
        for place, item in enumerate(shown)
        if item in chosen
        for above in shown[:place]
        if above not in chosen
    ]


def from_thumbs(up: Sequence[str], down: Sequence[str]) -> list[tuple[str, str]]:
    """Pairs (better, worse): every item with a thumb up over every item with a thumb down.

    Examples
    --------
    >>> from_thumbs(["a"], ["b", "c"])
    [('a', 'b'), ('a', 'c')]
    """
    return list(product(up, down))
