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
    near : int
        One candidate is the nearest, by what was learnt so far, of so many drawn at random, the other one is
        drawn at random: with candidates that are both unlike the anchor, there is often nothing to answer.
        1 draws both at random, as for the random questions always.
    seed : int, optional
        Of the coins. What is learnt never depends on it: the log keeps what was asked.

    Examples
    --------
    >>> Asking(delta=0.1).pool
    64
    """

    delta: float = 0.1
    random_share: float = 0.15
    pool: int = 64
    near: int = 1
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
    *,
    nearer: Callable[[np.ndarray], np.ndarray] | None = None,
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
    nearer : function of triplets that returns such with a near candidate, see `bring_near`, optional
        Used where `asking` wants near candidates, and never for random questions.

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
    if asking.near > 1:
        if nearer is None:
            raise ValueError(
                f"near: expected 1 where nothing tells what is near, got {asking.near}"
            )
        drawn = nearer(drawn)
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


def bring_near(
    triplets: np.ndarray,
    n_items: int,
    near: int,
    similarity: Callable[[np.ndarray, np.ndarray], np.ndarray],
    rng: np.random.Generator,
) -> np.ndarray:
    """Triplets whose one candidate is the nearest of several: there is more often something to answer.

    Parameters
    ----------
    triplets : (n, 3) numbers of items
    n_items : how many there are to draw from
    near : how many are looked at to find a near one, the triplet's own among them
    similarity : function of n anchors and (n, near) candidates that returns how similar they are
    rng : numpy Generator

    Examples
    --------
    >>> def close(anchors, others):
    ...     return -np.abs(anchors[:, None] - others)
    >>> far = np.array([[50, 0, 99]])
    >>> near = bring_near(far, 100, 1000, close, np.random.default_rng(0))
    >>> near[0, 0].item(), sorted(near[0, 1:].tolist()) in ([49, 99], [51, 99])
    (50, True)
    """
    anchors, first, second = triplets.T
    more = rng.integers(n_items, size=(len(triplets), near - 1))
    candidates = np.column_stack([first, more])
    scores = similarity(anchors, candidates)
    is_taken = (candidates == anchors[:, None]) | (candidates == second[:, None])
    places = np.where(is_taken, -np.inf, scores).argmax(axis=1)
    pairs = np.column_stack([candidates[np.arange(len(triplets)), places], second])
    # Which of them is nearer must not be told by where it is shown.
    return np.column_stack([anchors, rng.permuted(pairs, axis=1)])
