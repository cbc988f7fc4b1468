"""Which triplet to ask a person about: the rule of the service, without the service."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np


@dataclass(frozen=True)
class Asking:
    """How questions are chosen.

    Parameters
    ----------
    delta : float
        A triplet with margin p is asked about with probability delta / (delta + |p|).
    random_share : float from 0 to 1
        Share of questions drawn at random instead: they measure how good the model is.
    pool : int
        Triplets looked at for one question.
    seed : int, optional
        Of the coins. What is learnt never depends on it: the log keeps what was asked.

    Examples
    --------
    >>> Asking(delta=0.1).pool
    64
    """

    delta: float = 1.0
    random_share: float = 0.15
    pool: int = 64
    seed: int | None = None


class Chosen(NamedTuple):
    """A triplet to ask about."""

    #: Numbers of the anchor and of the two candidates.
    triplet: np.ndarray
    #: Whether it was the first one drawn, whatever the model thinks of it.
    is_random: bool
    #: How many were looked at before it was taken, itself included; 0 for a random one.
    considered: int


def choose_triplet(
    draw: Callable[[int], np.ndarray],
    margins: Callable[[np.ndarray], np.ndarray],
    asking: Asking,
    rng: np.random.Generator,
) -> Chosen:
    """Draw triplets and take the first that the coin is for.

    A share of questions is the first triplet drawn, whatever the model thinks of it: only these measure it.
    The others are taken with probability delta / (delta + |margin|); if none of the pool is, then the one
    with the smallest margin.

    Parameters
    ----------
    draw : function of n that returns (n, 3) numbers of items
    margins : function of such triplets that returns x'M(first - second) of each
    asking : Asking
        Its seed is not used here.
    rng : numpy Generator
        Of the coins.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> certain = lambda triplets: np.where(triplets[:, 0] == 2, 0.0, 1e9)  # of all but anchor 2
    >>> asking = Asking(random_share=0.0)
    >>> int(choose_triplet(lambda n: draw_triplets(4, n, rng), certain, asking, rng).triplet[0])
    2
    """
    is_random = bool(rng.random() < asking.random_share)
    if is_random:
        return Chosen(draw(1)[0], True, 0)
    drawn = draw(asking.pool)
    sizes = np.abs(margins(drawn))
    accepted = np.flatnonzero(rng.random(len(drawn)) < asking.delta / (asking.delta + sizes))
    if len(accepted):
        return Chosen(drawn[accepted[0]], False, int(accepted[0]) + 1)
    return Chosen(drawn[np.argmin(sizes)], False, len(drawn))


def draw_triplets(n_items: int, size: int, rng: np.random.Generator) -> np.ndarray:
    """So many triplets of three different items, all equally likely.

    Examples
    --------
    >>> sorted(draw_triplets(3, 1, np.random.default_rng(0))[0].tolist())
    [0, 1, 2]
    """
    if n_items < 3:
        raise ValueError(f"n_items: expected at least three to draw a triplet from, got {n_items}")
    # Each is drawn from those left, which are then counted past the ones taken, the smaller first.
    anchor = rng.integers(n_items, size=size)
    first = rng.integers(n_items - 1, size=size)
    first += first >= anchor
    second = rng.integers(n_items - 2, size=size)
    second += second >= np.minimum(anchor, first)
    second += second >= np.maximum(anchor, first)
    return np.column_stack([anchor, first, second])
