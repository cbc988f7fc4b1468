"""Which triplet to ask a person about."""

from __future__ import annotations

import numpy as np

from ..asking import Asking, choose_triplet, draw_triplets
from .admissions import Question
from .errors import NotFoundError
from .items import ItemStore
from .version import Version


def choose_question(
    version: Version,
    items: ItemStore,
    asking: Asking,
    task: str | None,
    rng: np.random.Generator,
) -> Question:
    """Choose three of the items that are searched, by `asking.choose_triplet` with the model served."""
    view = version.view
    if view is None or len(view) < 3:
        raise NotFoundError("question: there are fewer than three items to ask about")
    positions = np.array(view.ids)

    def margins(triplets: np.ndarray) -> np.ndarray:
        return version.margins(items.vectors(positions[triplets].ravel().tolist()), task)

    chosen = choose_triplet(
        lambda size: draw_triplets(len(positions), size, rng), margins, asking, rng
    )
    anchor, first, second = (items.names[int(p)] for p in positions[chosen.triplet])
    return Question(anchor, (first, second), task, chosen.is_random, chosen.considered)
