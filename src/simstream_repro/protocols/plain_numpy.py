"""Training time of a learner from triplets beside that of the same steps in plain NumPy, on this machine.

Settings: those of `retrieval`, and ``eager_steps``, the number of steps of the plain version that are timed.
Its time for the whole stream follows from them (the first steps change M more often than later ones).
"""

from __future__ import annotations

from typing import Any

from ..plan import Cell
from .common import digest, make, teach, triplet_stream
from .eager import eager_triplets, extrapolated_seconds
from .retrieval import parts
from .retrieval import tune as tune


def run(cell: Cell) -> dict[str, Any]:
    """Train on the whole stream, and time a few plain steps."""
    train, _ = parts(cell, cell.seed)
    n = cell.settings["n_triplets"]
    triplets = triplet_stream(train.labels, n, cell.seed)
    model = make(cell)
    seconds = teach(model, train, triplets)
    parameters = model.get_params()

    def learn(n_steps: int) -> None:
        eager_triplets(cell.learner, train.items, triplets[:n_steps], parameters)

    plain = extrapolated_seconds(learn, cell.settings["eager_steps"], n)
    return {
        "measures": {"seconds": seconds, "eager seconds": plain, "speed-up": plain / seconds},
        "parameters": cell.parameters,
        "seconds": seconds,
        "stream": digest(triplets),
    }
