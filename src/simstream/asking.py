"""Which triplet to ask a person about next."""

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
        Share of questions drawn at random instead: these measure how good the model is.
    pool : int
        Number of candidate triplets considered for one question.
    near : int
        One of the two candidates is the most similar of this many random items, by what was learnt so far;
        the other one is random. If both are unlike the anchor, there is often no meaningful answer. With 1,
        both are random, as they always are in random questions.
    seed : int, optional
        Seed of the random choices. The learnt model does not depend on it: the log records what was asked.

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
    #: Whether it was drawn at random, without looking at its margin.
    is_random: bool
    #: How many triplets were considered, including this one; 0 for a random one.
    considered: int


def choose_triplet(
    draw: Callable[[int], np.ndarray],
    margins: Callable[[np.ndarray], np.ndarray],
    asking: Asking,
    rng: np.random.Generator,
    *,
    nearer: Callable[[np.ndarray], np.ndarray] | None = None,
) -> Chosen:
    """Draw candidate triplets and choose the one to ask about.

    A share of questions is drawn at random, whatever the margin: only these measure the model. Otherwise each
    triplet of the pool in turn is accepted with probability delta / (delta + |margin|); if none is, the one
    with the smallest margin is chosen.

    Parameters
    ----------
    draw : function of n that returns (n, 3) numbers of items
    margins : function of such triplets that returns x'M(first - second) for each
    asking : Asking
        Its seed is not used here.
    rng : numpy Generator
    nearer : function of triplets that returns triplets with a near candidate, see `bring_near`, optional
        Required if ``asking.near > 1``; never used for random questions.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> certain = lambda triplets: np.where(triplets[:, 0] == 2, 0.0, 1e9)  # sure of all but anchor 2
    >>> asking = Asking(random_share=0.0)
    >>> int(choose_triplet(lambda n: draw_triplets(4, n, rng), certain, asking, rng).triplet[0])
    2
    """
    if rng.random() < asking.random_share:
        return Chosen(draw(1)[0], True, 0)
    drawn = draw(asking.pool)
    if asking.near > 1:
        if nearer is None:
            raise ValueError(
                f"near: expected 1 if no function `nearer` is given, got {asking.near}"
            )
        drawn = nearer(drawn)
    sizes = np.abs(margins(drawn))
    accepted = np.flatnonzero(rng.random(len(drawn)) < asking.delta / (asking.delta + sizes))
    if len(accepted):
        return Chosen(drawn[accepted[0]], False, int(accepted[0]) + 1)
    return Chosen(drawn[np.argmin(sizes)], False, len(drawn))


def draw_triplets(n_items: int, size: int, rng: np.random.Generator) -> np.ndarray:
    """Draw triplets of three different items, all equally likely.

    Examples
    --------
    >>> sorted(draw_triplets(3, 1, np.random.default_rng(0))[0].tolist())
    [0, 1, 2]
    """
    if n_items < 3:
        raise ValueError(f"n_items: expected at least three to draw a triplet from, got {n_items}")
    # Each item is drawn from those left; adding one for every smaller item already taken gives its number.
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
    """Replace one candidate of each triplet by the most similar of several, so that an answer is easier.

    Parameters
    ----------
    triplets : (n, 3) numbers of items
    n_items : number of items to draw from
    near : number of items compared to find a near one, including the triplet's own candidate
    similarity : function of n anchors and (n, near) candidates that returns their similarities
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
    # The order must not reveal which candidate is the near one.
    return np.column_stack([anchors, rng.permuted(pairs, axis=1)])
