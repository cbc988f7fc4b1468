"""How far a passive-aggressive learner goes after one pair, as a function of its signed loss.

The pair is one of the data set's, of the median length among random ones. Settings: `losses`, three numbers
[least, greatest, how many].
"""

from __future__ import annotations

from typing import Any

import numpy as np

from simstream import PairSampler, datasets

from ..plan import Cell
from .common import dataset, digest, make

_N_PAIRS = 1000


def run(cell: Cell) -> dict[str, Any]:
    """The curve "step length" over the signed loss."""
    data = dataset(cell.data)
    items = datasets.prepare(data.items, cell.preprocessing).items
    pairs, _ = PairSampler(data.labels, cell.seed).draw_distinct(_N_PAIRS)
    squared = np.sort(np.sum((items[pairs[:, 0]] - items[pairs[:, 1]]) ** 2, axis=1))
    median = float(squared[len(squared) // 2])
    losses = np.linspace(*cell.settings["losses"])
    lengths = [_step_length(cell, float(loss), median) for loss in losses]
    return {
        "measures": {"squared length of the pair": median},
        "curves": {
            "step length": {"x": losses.round(5).tolist(), "y": np.round(lengths, 5).tolist()}
        },
        "parameters": cell.parameters,
        "seconds": None,
        "stream": digest(pairs),
    }


def _step_length(cell: Cell, loss: float, squared: float) -> float:
    """tau after a dissimilar pair with this loss.

    Its loss is 1 + b - d for the threshold b and the distance d. One of them is 0: d comes from the first
    matrix, b from an earlier similar pair in a direction of its own, so short that it changes nothing else.
    """
    d, b = max(0.0, 1 - loss), max(0.0, loss - 1)
    short = 0.01
    start = np.diag([d / squared, (1 + b) / short**2])
    learner = make(cell, init=start)
    if b > 0:
        learner.set_params(variant="PA-I", C=b).learn_one([0.0, short], [0.0, 0.0], 1)
        learner.set_params(**{"C": 1.0} | cell.parameters)
    learner.learn_one([np.sqrt(squared), 0.0], [0.0, 0.0], -1)
    return float((learner.get_mahalanobis_matrix()[0, 0] - start[0, 0]) / squared)
