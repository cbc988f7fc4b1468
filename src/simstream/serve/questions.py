"""Which triplet to ask a person about."""

from __future__ import annotations

from collections.abc import Hashable
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
    is_random = bool(rng.random() < asking.random_share)
    size, near = (1, 1) if is_random else (asking.pool, min(asking.near, len(positions) - 2))
    # An anchor, a candidate, and those of which the nearest is the other candidate. Few collisions in large
    # collections, and no loop without end in small ones.
    drawn = np.array([rng.choice(len(positions), near + 2, replace=False) for _ in range(size)])
    chosen, place, considered = 0, 2, 0
    if not is_random:
        rows = items.vectors(positions[drawn].ravel().tolist())
        scores = similarities(version.model, rows, near + 1, task)
        nearest = scores[:, 1:].argmax(axis=1)
        margins = np.abs(scores[np.arange(size), 1 + nearest] - scores[:, 0])
        accepted = np.flatnonzero(rng.random(size) < asking.delta / (asking.delta + margins))
        chosen = int(accepted[0]) if len(accepted) else int(np.argmin(margins))
        considered = chosen + 1 if len(accepted) else size
        place += int(nearest[chosen])
    # Which of them is nearer must not be told by where it is shown.
    pair = rng.permutation(drawn[chosen, [1, place]])
    anchor, first, second = (items.names[int(p)] for p in positions[[drawn[chosen, 0], *pair]])
    return Question(anchor, (first, second), task, is_random, considered)


def similarities(model: Model, rows: Any, n_candidates: int, task: Hashable = None) -> np.ndarray:
    """How similar anchors are to their candidates.

    Parameters
    ----------
    model : whose similarity
    rows : an anchor, its candidates, the next anchor, ...
    n_candidates : of each anchor
    task : whose similarity, where there are tasks

    Returns
    -------
    (n_anchors, n_candidates) array

    Examples
    --------
    >>> rows = np.array([[1.0, 0.0], [2.0, 5.0], [3.0, 5.0]])
    >>> similarities(Model(0, None, {}), rows, 2)
    array([[2., 3.]])
    """
    groups = np.arange(rows.shape[0]).reshape(-1, 1 + n_candidates)
    asked = model.transform(rows[groups[:, 0]], task)[np.arange(len(groups)).repeat(n_candidates)]
    candidates = rows[groups[:, 1:].ravel()]
    if sp.issparse(asked) or sp.issparse(candidates):
        products = np.asarray(sp.csr_matrix(asked).multiply(candidates).sum(axis=1))
    else:
        products = np.einsum("ij,ij->i", asked, candidates)
    return products.reshape(-1, n_candidates)
