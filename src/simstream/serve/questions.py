"""Which triplet to ask a person about."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np
import scipy.sparse as sp

from ..asking import Asking, bring_near, choose_triplet, draw_triplets
from .admissions import Question
from .errors import NotFoundError
from .items import ItemStore
from .version import Model, Version


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

    def rows(numbers: np.ndarray) -> Any:
        return items.vectors(positions[numbers].ravel().tolist())

    def similarity(anchors: np.ndarray, others: np.ndarray) -> np.ndarray:
        return similarities(version.model, rows(anchors), rows(others), task)

    chosen = choose_triplet(
        lambda size: draw_triplets(len(positions), size, rng),
        lambda triplets: version.margins(rows(triplets), task),
        asking,
        rng,
        nearer=lambda triplets: bring_near(triplets, len(positions), asking.near, similarity, rng),
    )
    anchor, first, second = (items.names[int(p)] for p in positions[chosen.triplet])
    return Question(anchor, (first, second), task, chosen.is_random, chosen.considered)


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
