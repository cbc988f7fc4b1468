"""Which triplet to ask a person about."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
import scipy.sparse as sp

from .admissions import Question
from .errors import NotFoundError
from .items import ItemStore
from .settings import Asking
from .version import Model, Version


def choose_question(
    version: Version,
    items: ItemStore,
    asking: Asking,
    task: str | None,
    rng: np.random.Generator,
) -> Question:
    """Draw triplets of three different items and ask about the first that the coin is for.

    A share of questions is the first triplet drawn, whatever the model thinks of it: only these measure it.
    The others are taken with probability delta / (delta + |margin|); if none of the pool is, then the one
    with the smallest margin.
    """
    view = version.view
    if view is None or len(view) < 3:
        raise NotFoundError("question: there are fewer than three items to ask about")
    positions = np.array(view.ids)

    def rows(numbers: np.ndarray) -> Any:
        return items.vectors(positions[numbers].ravel().tolist())

    is_random = bool(rng.random() < asking.random_share)
    size = 1 if is_random else asking.pool
    # Few collisions in large collections, and no loop without end in small ones.
    drawn = np.array([rng.choice(len(positions), 3, replace=False) for _ in range(size)])
    chosen, considered = 0, 0
    if not is_random:
        if asking.near > 1:
            drawn = bring_near(
                drawn,
                len(positions),
                asking.near,
                lambda anchors, others: similarities(
                    version.model, rows(anchors), rows(others), task
                ),
                rng,
            )
        margins = np.abs(version.margins(rows(drawn), task))
        accepted = np.flatnonzero(rng.random(size) < asking.delta / (asking.delta + margins))
        chosen = int(accepted[0]) if len(accepted) else int(np.argmin(margins))
        considered = chosen + 1 if len(accepted) else size
    anchor, first, second = (items.names[int(p)] for p in positions[drawn[chosen]])
    return Question(anchor, (first, second), task, is_random, considered)


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


def similarities(model: Model, anchors: Any, others: Any, task: Hashable = None) -> np.ndarray:
    """How similar each anchor is to as many others, which follow one another; (anchors, others of each).

    Examples
    --------
    >>> from simstream.serve.version import model_of
    >>> similarities(model_of(0, None, False), np.array([[1.0, 0.0]]), np.array([[2.0, 5.0], [3.0, 5.0]]))
    array([[2., 3.]])
    """
    each = others.shape[0] // anchors.shape[0]
    asked = model.transform(anchors, task)[np.arange(anchors.shape[0]).repeat(each)]
    if sp.issparse(asked) or sp.issparse(others):
        products = np.asarray(sp.csr_matrix(asked).multiply(others).sum(axis=1))
    else:
        products = np.einsum("ij,ij->i", asked, others)
    return products.reshape(-1, each)
