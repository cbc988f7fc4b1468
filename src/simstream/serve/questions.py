"""Which triplet to ask a person about."""

from __future__ import annotations

from typing import Any

import numpy as np

from .admissions import Question
from .errors import NotFoundError
from .items import ItemStore
from .settings import Asking
from .version import Version


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
    is_random = bool(rng.random() < asking.random_share)
    size = 1 if is_random else asking.pool
    # Few collisions in large collections, and no loop without end in small ones.
    positions = np.array(view.ids)
    drawn = np.array([rng.choice(len(positions), 3, replace=False) for _ in range(size)])
    chosen, considered = 0, 0
    if not is_random:
        rows: Any = items.vectors(positions[drawn].ravel().tolist())
        margins = np.abs(version.margins(rows, task))
        accepted = np.flatnonzero(rng.random(size) < asking.delta / (asking.delta + margins))
        chosen = int(accepted[0]) if len(accepted) else int(np.argmin(margins))
        considered = chosen + 1 if len(accepted) else size
    anchor, first, second = (items.names[int(p)] for p in positions[drawn[chosen]])
    return Question(anchor, (first, second), task, is_random, considered)
