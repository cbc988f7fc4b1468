"""Loss and mistakes while learning, against the number of steps.

A fixed set of triplets from the training part; every step draws one of them with replacement, in the same
order for all online learners (SDCA draws its own). Curves are means over all steps so far, each taken before
its update: ``hinge`` loss, ``squared hinge`` (SDCA's own loss) and ``mistake rate``. Settings: those of
`retrieval`, and ``n_epochs``: steps in units of ``n_triplets``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from simstream import SDCA

from ..plan import Cell
from .common import digest, make, teach, triplet_stream
from .retrieval import parts
from .retrieval import tune as tune


def run(cell: Cell) -> dict[str, Any]:
    """Learn for so many epochs and keep the running means."""
    train, _ = parts(cell, cell.seed)
    n, n_epochs = cell.settings["n_triplets"], cell.settings["n_epochs"]
    triplets = triplet_stream(train.labels, n, cell.seed)
    curves: dict[str, dict[str, list[float]]] = {}
    if cell.learner == SDCA.__name__:
        model = make(cell, n_epochs=n_epochs)
        seconds = teach(model, train, triplets)
        steps = n * np.arange(1, n_epochs + 1)
        for name in ("hinge", "squared_hinge", "mistake_rate"):
            so_far = np.cumsum(model.history_[name]) / np.arange(1, n_epochs + 1)
            curves[name.replace("_", " ")] = {"x": steps.tolist(), "y": so_far.tolist()}
    else:
        model = make(cell)
        draws = np.random.default_rng(cell.seed).integers(n, size=n * n_epochs)

        def at_stop(step: int, learner: Any) -> None:
            for name, value in (
                ("hinge", learner.average_loss_),
                ("mistake rate", learner.mistake_rate_),
            ):
                curve = curves.setdefault(name, {"x": [], "y": []})
                curve["x"].append(step)
                curve["y"].append(float(value))

        stops = [n * epoch for epoch in range(1, n_epochs + 1)]
        seconds = teach(model, train, triplets[draws], stops=stops, at_stop=at_stop)
    return {
        "measures": {name: curve["y"][-1] for name, curve in curves.items()} | {"seconds": seconds},
        "curves": curves,
        "parameters": cell.parameters,
        "seconds": seconds,
        "stream": digest(triplets),
    }
